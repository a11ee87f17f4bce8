"""The requests of a load to a file, and the resulting columns and refused rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.loading.casts import Casts
from lakestore.loading.files import File
from lakestore.loading.progress import Place
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import no_column
from lakestore.model.table import Table
from lakestore.rows.scalar_casts import Mask
from lakestore.rows.user import NAMING

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
CHUNK_ROWS = 100_000
"""Most records of a chunk, and so of a commit."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A refused record."""

    record: int
    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Records without a row after a chunk. A commit of the chunk's rows passes them too."""

    bad: Sequence[Bad]
    place: Place


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of a file."""

    count: int
    batch: pa.RecordBatch
    """Rows of the good records: the table's columns, and other columns that the load requested."""
    record: Ints
    line: Ints
    bad: Sequence[Bad]
    place_after: Callable[[int], Place]
    """The place after a number of records."""
    text: Callable[[int], str]
    deletes: Bools | None = None
    absent: Mapping[str, Bools] = dataclasses.field(default_factory=dict)
    """Column to a mask of the rows that do not name it, in formats where rows name columns."""
    kept: Mapping[str, pa.BooleanArray] = dataclasses.field(default_factory=dict)
    """Column to a mask of the rows that keep the live value."""
    tail: Tail | None = None
    is_last: bool = False
    """True if the file ends after this chunk and its tail."""

    def part(self, start: int, end: int) -> Chunk:
        low, high = np.searchsorted(self.record, [start, end])
        return replace(
            self,
            batch=self.batch.slice(low, high - low),
            record=self.record[low:high],
            bad=[each for each in self.bad if start <= each.record < end],
            deletes=None if self.deletes is None else self.deletes[low:high],
            absent={name: rows[low:high] for name, rows in self.absent.items()},
            kept={name: rows.slice(low, high - low) for name, rows in self.kept.items()},
            tail=self.tail if end == self.count else None,
            is_last=self.is_last and end == self.count,
        )

    def followed_by(self, other: Chunk) -> Chunk:
        """The chunk with a following chunk that has no row."""
        bad = [*(self.tail.bad if self.tail else ()), *other.bad]
        return replace(self, tail=Tail(bad, other.place_after(other.count)))

    def place_behind(self, count: int) -> Place:
        """The place after a number of records; after all, the place after the tail."""
        place = self.tail.place if self.tail and count == self.count else self.place_after(count)
        return replace(place, is_end=self.is_last and count == self.count)

    def without(self, rows: Bools, reasons: Sequence[str]) -> Chunk:
        refused = self.record[rows]
        found = {
            int(record): Bad(int(record), int(self.line[record]), why, self.text(int(record)))
            for record, why in zip(refused, reasons, strict=True)
        }
        bad = sorted([*self.bad, *found.values()], key=lambda each: each.record)
        return replace(self.where(~np.isin(self.record, refused)), bad=bad)

    def where(self, rows: Bools) -> Chunk:
        if rows.all():
            return self
        mask = pa.array(rows)
        return replace(
            self,
            batch=self.batch.filter(mask),
            record=self.record[rows],
            deletes=None if self.deletes is None else self.deletes[rows],
            absent={name: flags[rows] for name, flags in self.absent.items()},
            kept={name: flags.filter(mask) for name, flags in self.kept.items()},
        )


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Adds the file to an `OSError` raised inside. With None, and for a closed pipe, the error is unchanged."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if path is None or not error.errno:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options for reading files."""

    delimiter: str = ""
    """Delimiter of CSV; empty: a comma, or a tab in .tsv."""
    null: str = ""
    """Unquoted CSV text that means null."""
    header: bool = True
    """True if the first CSV record has the column names. Otherwise the table's names apply, in order."""
    op_column: str = ""
    """Column with the operation of each row: insert, update or delete."""


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """The columns to read from a file and their types."""

    table: Table
    options: Options
    deletes: bool = False
    bad_max: int = 0
    """Most bad records of the load. One more ends it."""

    @property
    def schema(self) -> pa.Schema:
        """All columns that a file may have, in the types of the chunks."""
        fields = list(self.table.nullable_schema)
        if self.options.op_column and self.options.op_column not in self.table.schema.names:
            fields.append(pa.field(self.options.op_column, pa.string()))
        return pa.schema(fields)

    @property
    def numbered(self) -> frozenset[str]:
        """Bitmap columns whose members are numbers in text files."""
        functions = self.table.merge.functions
        return frozenset(column for column, function in functions if function.name == "bitmap")

    @property
    def needs_absent(self) -> bool:
        """True if a column that a row does not name differs from a null."""
        return self.table.merge.engine in NAMING or any(column.default is not None for column in self.table.columns)

    def is_ignored(self, name: str) -> bool:
        """True for columns that `read` and `changes` add, which a load ignores."""
        return name in SYSTEM_TYPES and name != self.options.op_column

    def check(self, file: File, names: Sequence[str]) -> None:
        """Raises `Invalid` for unknown, duplicate or missing columns."""
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
    """Reads one format."""

    def chunks(self, place: Place) -> Iterator[Chunk]:
        """The records from a place."""
        ...


def columns(
    read: Mapping[str, pa.Array], schema: pa.Schema, casts: Casts, rows: int, *, bad_max: int
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Convert columns, and give the first reason to refuse each row that does not fit.

    The first `bad_max + 1` refused rows have a reason: the load ends at the last of them.
    """
    made: list[pa.Array] = []
    misfits: list[tuple[pa.Field, pa.Array, Mask]] = []
    fields = [schema.field(name) for name in read]
    for field, array in zip(fields, read.values(), strict=True):
        column, bad = casts.mask(array, field)
        made.append(column)
        if bad is not None:
            misfits.append((field, array, bad))
    refused = _reasons(misfits, casts, bad_max)
    if not made:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([]))), refused
    return pa.RecordBatch.from_arrays(made, schema=pa.schema(fields)), refused


def _reasons(misfits: Sequence[tuple[pa.Field, pa.Array, Mask]], casts: Casts, bad_max: int) -> dict[int, str]:
    if not misfits:
        return {}
    rows = np.flatnonzero(np.logical_or.reduce([bad for _, _, bad in misfits])).tolist()
    refused = dict.fromkeys(rows, "")
    for row in rows[: bad_max + 1]:
        field, array, _ = next(misfit for misfit in misfits if misfit[2][row])
        refused[row] = casts.why(array, row, field)
    return refused


def without_rejects(chunk: Chunk, refused: Mapping[int, str]) -> Chunk:
    """The chunk without the rows in `refused`."""
    if not refused:
        return chunk
    mask: Bools = np.zeros(len(chunk.record), dtype=np.bool_)
    rows = sorted(refused)
    mask[rows] = True
    return chunk.without(mask, [refused[row] for row in rows])
