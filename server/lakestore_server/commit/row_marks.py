"""Marks of rows: what a change says of them for the merge alone, beside the table's columns.

`Change.keep` names columns whose values stay as they are, in all rows or where `__keep_<name>` is true; what stands
there in the rows, null too, is never looked at. `__as_of` is the time at which a row was due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.columns import AS_OF, KEEP_PREFIX, SYSTEM_TYPES
from lakestore.model.projection import check_present
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.state.chunk import Ints

Flags = npt.NDArray[np.bool_]
NEVER = (1 << 63) - 1
"""The time of a row that carries none: nothing is committed as late."""
_KEEPING = ("upsert", "versioned")


@dataclass(frozen=True, slots=True)
class Kept:
    """Columns that the same rows keep."""

    columns: tuple[int, ...]
    """Their ids."""
    rows: Flags
    """Whether each row keeps them."""


@dataclass(frozen=True)
class RowMarks:
    """The marks of a change's rows."""

    kept: tuple[Kept, ...] = ()
    as_of: Ints | None = None
    """In microseconds, or `NEVER`."""
    sent: Ints | None = None
    """The number of each row in its message; None: they are as they were sent. Known where something is kept."""

    @cached_property
    def columns(self) -> frozenset[int]:
        """Ids of all columns that rows keep."""
        return frozenset(number for kept in self.kept for number in kept.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of them all."""
        times = 0 if self.as_of is None else self.as_of.nbytes
        return times + sum(kept.rows.nbytes for kept in self.kept)

    def taken(self, rows: Ints) -> RowMarks:
        """The marks of some rows."""
        if not self.kept and self.as_of is None:
            return self
        kept = tuple(Kept(each.columns, each.rows[rows]) for each in self.kept)
        return RowMarks(kept, None if self.as_of is None else self.as_of[rows], self.sent_rows(rows))

    def sent_rows(self, rows: Ints) -> Ints:
        """The numbers that these rows have in their message."""
        return rows if self.sent is None else self.sent[rows]

    def loosened(self, table: Table) -> Table:
        """The table as it is for rows as they were sent: what they keep need not be there."""
        if not self.kept:
            return table
        columns = (replace(c, required=False) if c.id in self.columns else c for c in table.columns)
        return replace(table, columns=tuple(columns))

    def check_required(self, batch: pa.RecordBatch, table: Table) -> None:
        """`Invalid` if a required column is null in a row, as it was sent, that does not keep it."""
        required = {column.id: column.name for column in table.columns if column.required}
        for kept in self.kept:
            for name in (required[number] for number in kept.columns if number in required):
                column = batch.column(name)
                if column.null_count:
                    wrong = np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False) & ~kept.rows)
                    if len(wrong):
                        raise Invalid(f"table {table.name}: required column {name!r} is null in row {wrong[0]}")


NO_MARKS = RowMarks()


def split(
    batch: pa.RecordBatch, message: pb.Change, source: Table, table: Table, claim: Callable[[int], None] | None
) -> tuple[pa.RecordBatch, RowMarks]:
    """The rows without their marks, and these; names are those of the version `source`.

    `claim` is told of memory that the message's length does not show, before it is taken.
    """
    if not message.keep and not message.as_of:
        return batch, NO_MARKS
    if message.keep:
        _check_keep(message, source, table)
    marked = set(batch.schema.names).intersection(f"{KEEP_PREFIX}{name}" for name in message.keep)
    if claim is not None:
        claim(batch.num_rows * (1 + len(marked) + 8 * message.as_of))
    together: dict[bytes, tuple[list[int], Flags]] = {}
    everywhere = np.ones(batch.num_rows, dtype=np.bool_)
    for name in message.keep:
        flags = _flags(batch, f"{KEEP_PREFIX}{name}", source) if f"{KEEP_PREFIX}{name}" in marked else everywhere
        form = b"" if flags is everywhere else np.packbits(flags).tobytes()
        together.setdefault(form, ([], flags))[0].append(source.column(name).id)
    kept = tuple(Kept(tuple(columns), flags) for columns, flags in together.values())
    as_of = _times(batch, source, table, message) if message.as_of else None
    others = {*marked, *([AS_OF] if message.as_of else [])}
    left = [place for place, name in enumerate(batch.schema.names) if name not in others]
    return batch.select(left), RowMarks(kept, as_of)


def _check_keep(message: pb.Change, source: Table, table: Table) -> None:
    if message.kind != pb.UPSERT:
        raise Invalid(f"table {table.name}: rows to upsert keep columns, not those of another kind: leave keep out")
    if table.merge.engine not in _KEEPING:
        raise Invalid(
            f"table {table.name}: its merge engine {table.merge.engine} keeps no columns by name:"
            f" only {' and '.join(_KEEPING)} do; leave keep out"
        )
    if len(set(message.keep)) != len(message.keep):
        raise Invalid(f"table {table.name}: keep names a column twice")
    for name in message.keep:
        source.column(name)
        if name in source.primary_key:
            raise Invalid(f"table {table.name}: column {name!r} is in the primary key, and cannot be kept")
        if name in source.merge.version:
            raise Invalid(f"table {table.name}: column {name!r} says what is older, and cannot be kept")
    check_present({source.column(name).id for name in message.keep}, source, table)


def _flags(batch: pa.RecordBatch, name: str, table: Table) -> Flags:
    column = batch.column(name)
    if not pa.types.is_boolean(column.type) or column.null_count:
        raise Invalid(f"table {table.name}: column {name!r} is true where a row keeps its column, else false")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _times(batch: pa.RecordBatch, source: Table, table: Table, message: pb.Change) -> Ints:
    if message.kind not in (pb.UPSERT, pb.DELETE) or not table.merge.within:
        raise Invalid(
            f"table {table.name}: times of rows are for upserts and deletes of a table whose versions are compared"
            " within a column: leave as_of out"
        )
    missing = [name for name in source.merge.version if name not in batch.schema.names]
    if missing:
        raise Invalid(f"table {table.name}: rows with times name {missing[0]!r}, without which none is compared")
    if AS_OF not in batch.schema.names:
        raise Invalid(f"table {table.name}: the rows have no column {AS_OF!r}, which their change says they have")
    column = batch.column(AS_OF)
    if column.type != SYSTEM_TYPES["__timestamp"]:
        raise Invalid(f"table {table.name}: column {AS_OF!r} is of {SYSTEM_TYPES['__timestamp']}, not {column.type}")
    return np.asarray(pc.fill_null(column.view(pa.int64()), NEVER).to_numpy(zero_copy_only=False))
