"""Filters on Arrow rows, and conditions on statistics that skip files.

- Logic is three-valued as in SQL: a row stays if the condition is true. NaN is greater than every number, as in DuckDB
  and Spark.
- `Skip` is the same condition for statistics. Its unknown parts may be true or false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from lakestore.errors import Invalid


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with literals for statistics. Floats have none, because statistics leave NaN out."""

    column: str
    sign: str
    """One of `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `is null`, `is not null`, `starts with`."""
    values: tuple[Any, ...] = ()
    """Python values of exactly the column's type."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if every part is true; true without parts."""

    parts: tuple[Skip, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if at least one part is true; false without parts."""

    parts: tuple[Skip, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part that needs the rows themselves."""


UNKNOWN, ALWAYS, NEVER = Unknown(), AllOf(()), AnyOf(())
Skip = Comparison | AllOf | AnyOf | Unknown


def comparisons(skip: Skip) -> Iterator[Comparison]:
    """The comparisons in a condition."""
    if isinstance(skip, AllOf | AnyOf):
        for part in skip.parts:
            yield from comparisons(part)
    elif isinstance(skip, Comparison):
        yield skip


@dataclass(frozen=True, slots=True)
class RowTest:
    """A condition with computed parts, which is more than one Arrow expression."""

    held: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]
    """Mask of the rows of a batch for which the condition is true."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on rows."""

    expression: pc.Expression | RowTest
    columns: tuple[str, ...]
    """Columns that the condition reads."""
    floats: tuple[str, ...] = ()
    """Columns among them that may hold NaN, if the expression does not handle NaN itself."""
    skip: Skip = UNKNOWN
    """The same condition for statistics, with unknown parts."""
    text: str = ""
    """The condition in SQL for the server. Empty if the user gave an Arrow expression."""
    inside: tuple[str, ...] = ()
    """Columns among them that are read in part: only some of their fields."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch for which the condition is true."""
        if not batch.num_rows:
            return batch
        if isinstance(self.expression, RowTest):
            return batch.filter(pa.array(self.mask(batch)))
        if not self.floats:
            with _named():
                return batch.filter(self.expression)
        return batch.take(self._places(batch))

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Mask of the rows of the batch for which the condition is true."""
        if isinstance(self.expression, RowTest):
            with _named():
                return self.expression.held(batch)
        held = np.zeros(batch.num_rows, dtype=np.bool_)
        if batch.num_rows:
            held[self._places(batch).to_numpy()] = True
        return held

    def _places(self, batch: pa.RecordBatch) -> pa.Array:
        """Indices of the rows for which the condition is true."""
        assert not isinstance(self.expression, RowTest)
        with _named():
            return places(self.expression, self._ordered(batch), batch.num_rows)

    def _ordered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the condition with NaN replaced by infinity, so that NaN compares as the greatest number."""
        columns = ((name, batch.column(name)) for name in self.columns)
        arrays = [_without_nan(column) if name in self.floats else column for name, column in columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))


def places(expression: pc.Expression, batch: pa.RecordBatch, rows: int) -> pa.Array:
    """Indices of the rows for which an expression is true. `rows` is the row count of a batch without columns."""
    numbers = pa.array(np.arange(rows))
    marked = pa.Table.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, ""])
    return marked.filter(expression).column("").combine_chunks()


def connected(parts: Sequence[pc.Expression | RowTest], *, every: bool) -> pc.Expression | RowTest:
    """Connect parts by AND (`every`) or OR. Later tests run only on rows that earlier parts leave undecided."""
    whole = [part for part in parts if not isinstance(part, RowTest)]
    tests = [part for part in parts if isinstance(part, RowTest)]
    first = [_joined(whole, every=every)] if whole else []
    if not tests:
        return first[0]

    def held(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        found = np.full(batch.num_rows, every)
        for part in (*first, *tests):
            open_ = np.flatnonzero(found if every else ~found)
            if not len(open_):
                break
            some = batch if len(open_) == batch.num_rows else batch.take(pa.array(open_))
            found[open_] = _held(part, some)
        return found

    return RowTest(held)


def _held(part: pc.Expression | RowTest, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    if isinstance(part, RowTest):
        return part.held(batch)
    [mask] = masks([part], batch)
    return np.zeros(batch.num_rows, dtype=np.bool_) if mask is None else mask


def masks(expressions: Sequence[pc.Expression], batch: pa.RecordBatch) -> list[npt.NDArray[np.bool_] | None]:
    """Masks of the rows for which each expression is true, in one pass over the batch; None if there is no such row."""
    names = [str(number) for number in range(len(expressions))]
    whole = pa.Table.from_batches([batch if batch.num_columns else _numbered(batch.num_rows)])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(whole))
    steps = [source, acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), names))]
    columns = acero.Declaration.from_sequence(steps).to_table(use_threads=False).columns
    arrays = [column.combine_chunks() for column in columns]
    return [_mask(array) if array.true_count else None for array in arrays]


def _numbered(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(np.arange(rows))], names=[""])


def _mask(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _joined(parts: list[pc.Expression], *, every: bool) -> pc.Expression:
    """Connect the parts as a balanced tree, because Arrow evaluates it by recursion."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [*(a & b if every else a | b for a, b in pairs), *odd]
    return parts[0]


@contextmanager
def _named() -> Iterator[None]:
    """Raise `Invalid` if an engine's own filter fails on a row. Conditions in SQL cannot fail here."""
    try:
        yield
    except pa.ArrowException as error:
        raise Invalid(f"the condition fails on a row: {error}") from error


def row_filter(expression: pc.Expression, columns: Sequence[str], schema: pa.Schema) -> RowFilter:
    """A filter from an Arrow expression that reads these columns."""
    floats = tuple(name for name in columns if _has_floats(schema.field(name).type))
    return RowFilter(expression, tuple(columns), floats)


def _has_floats(kind: pa.DataType) -> bool:
    """True if the type is a float or a struct with a float field."""
    return any(_has_floats(part.type) for part in kind) if pa.types.is_struct(kind) else pa.types.is_floating(kind)


def _without_nan(array: pa.Array) -> pa.Array:
    if pa.types.is_struct(array.type):
        made = [_without_nan(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(made, fields=list(array.type), mask=pc.is_null(array))
    if not pa.types.is_floating(array.type):
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(np.inf, array.type), array)
