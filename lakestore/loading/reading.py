"""The reading of a file: what is asked of it, and columns made of what was read, with the reasons of refused rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.casting.casts import Mask
from lakestore.errors import Invalid
from lakestore.loading import casts
from lakestore.loading.casts import Convert
from lakestore.loading.chunks import Bools, Chunk
from lakestore.loading.files import File
from lakestore.loading.progress import Place
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import no_column
from lakestore.model.table import Table
from lakestore.rows.user import NAMING


@dataclass(frozen=True, slots=True)
class Options:
    """Things that the user says of files."""

    delimiter: str = ""
    """The character between values of CSV; empty: a comma, a tab in .tsv."""
    null: str = ""
    """The text of CSV, without quotes, that is a null."""
    header: bool = True
    """Whether the first record of CSV has the names; else they are the table's, in order."""
    op_column: str = ""
    """The column that says what each row is: an insert, an update or a delete."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns of a file that are read, and their types."""

    table: Table
    options: Options
    deletes: bool = False
    """Whether rows are keys to delete."""
    bad_max: int = 0
    """Bad records that the load leaves out at most. The record after that many bad ones ends the load."""

    @property
    def schema(self) -> pa.Schema:
        """All columns that a file may have, in the types in which they are handed on."""
        fields = list(self.table.nullable_schema)
        if self.options.op_column and self.options.op_column not in self.table.schema.names:
            fields.append(pa.field(self.options.op_column, pa.string()))
        return pa.schema(fields)

    @property
    def numbered(self) -> frozenset[str]:
        """Columns that hold bitmaps, of which text files have the members."""
        functions = self.table.merge.functions
        return frozenset(column for column, function in functions if function.name == "bitmap")

    @property
    def needs_absent(self) -> bool:
        """Whether a column that a row does not name is another thing than a null."""
        return self.table.merge.engine in NAMING or any(column.default is not None for column in self.table.columns)

    def is_ignored(self, name: str) -> bool:
        """Whether a column is passed over: those that reads and changes add."""
        return name in SYSTEM_TYPES and name != self.options.op_column

    def check(self, file: File, names: Sequence[str]) -> None:
        """`Invalid` for columns that the table does not have, and for ones that are twice or missing."""
        known = self.schema.names
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"{file.shown} has the column {name!r} twice")
            if name not in known and not self.is_ignored(name):
                raise Invalid(f"{file.shown}: {no_column(f'table {self.table.name}', name, known)}")
        needed = [*self.table.primary_key, *([self.options.op_column] if self.options.op_column else [])]
        for name in needed:
            if name not in names:
                raise Invalid(f"{no_column(file.shown, name, names)}; every row needs {name!r}")


class Reader(Protocol):
    """The reader of a format."""

    def chunks(self, place: Place) -> Iterator[Chunk]:
        """The records from a place on."""
        ...


def columns(
    read: Mapping[str, pa.Array], schema: pa.Schema, convert: Convert, rows: int, *, bad_max: int
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Columns in their types, and the first reason to refuse each row that does not fit.

    The `bad_max + 1` first refused rows are judged. Rows after them may be refused unread, without a reason.
    """
    made: list[pa.Array] = []
    misfits: list[tuple[pa.Field, pa.Array, Mask]] = []
    fields = [schema.field(name) for name in read]
    for field, array in zip(fields, read.values(), strict=True):
        column, bad = casts.cast(array, field, convert, most=bad_max)
        made.append(column)
        if bad is not None:
            misfits.append((field, array, bad))
    refused = _reasons(misfits, convert, bad_max)
    if not made:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([]))), refused
    return pa.RecordBatch.from_arrays(made, schema=pa.schema(fields)), refused


def _reasons(misfits: Sequence[tuple[pa.Field, pa.Array, Mask]], convert: Convert, bad_max: int) -> dict[int, str]:
    """Row to the reason of its first column that does not fit, for all rows that are marked."""
    if not misfits:
        return {}
    rows = np.flatnonzero(np.logical_or.reduce([bad for _, _, bad in misfits])).tolist()
    refused = dict.fromkeys(rows, "")
    for row in rows[: bad_max + 1]:
        field, array, _ = next(misfit for misfit in misfits if misfit[2][row])
        refused[row] = casts.why(array, row, field, convert)
    return refused


def refusing(chunk: Chunk, refused: Mapping[int, str]) -> Chunk:
    """The chunk without rows that have a reason to be refused."""
    if not refused:
        return chunk
    mask: Bools = np.zeros(len(chunk.record), dtype=np.bool_)
    rows = sorted(refused)
    mask[rows] = True
    return chunk.without(mask, [refused[row] for row in rows])
