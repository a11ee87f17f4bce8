"""Marks of a user's rows: the columns whose values stay as they are, and the times at which the rows were due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.columns import AS_OF, KEEP_PREFIX, SYSTEM_TYPES

Keep = Sequence[str] | Mapping[str, Any]
"""Names of columns that all rows keep, or of each such column whether each row keeps it."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks that a change has."""

    keep: tuple[str, ...] = ()
    as_of: bool = False


NO_MARKS = Marks()
_TIME = SYSTEM_TYPES["__timestamp"]


def marked(batch: pa.RecordBatch, keep: Keep = (), as_of: Any = None) -> tuple[pa.RecordBatch, Marks]:
    """The rows with their marks beside their columns, and what marks they are.

    `as_of` has a time, or None, for each row; one without a zone is UTC.
    """
    keep = _names(keep)
    if isinstance(keep, Mapping):
        for name, flags in keep.items():
            column = _column(f"keep={{{name!r}: …}}", flags, pa.bool_(), batch.num_rows)
            batch = batch.append_column(f"{KEEP_PREFIX}{name}", column)
    if as_of is not None:
        batch = batch.append_column(AS_OF, _column("as_of=", as_of, _TIME, batch.num_rows))
    return batch, Marks(tuple(keep), as_of is not None)


def _names(keep: Any) -> Keep:
    """`keep` as it was given, or `Invalid` if it names no columns."""
    if isinstance(keep, str):
        raise Invalid(f"keep= is a list of column names, not the text {keep!r}")
    named: Any = keep if isinstance(keep, Mapping) else list(keep) if isinstance(keep, Iterable) else [keep]
    for name in named:
        if not isinstance(name, str):
            raise Invalid(f"keep= takes names of columns, not {name!r}")
    kept: Keep = named
    return kept


def _column(what: str, values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    try:
        found = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
        found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        if kind == _TIME and pa.types.is_integer(found.type):
            raise TypeError("integers tell no unit of time")
        found = pc.cast(found, options=pc.CastOptions(kind, allow_time_truncate=True))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Invalid(f"{what} has no {kind} for each row: {error}") from error
    if len(found) != rows:
        raise Invalid(f"{what} has {len(found)} values for {rows} rows")
    return found
