"""The reading of a file: what is asked of it, and columns made of what was read, with the reasons of refused rows."""

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
from lakestore.kafka.bridge.decode.casts import Mask
from lakestore.loading import casts
from lakestore.loading.casts import Convert
from lakestore.loading.files import File
from lakestore.loading.progress import Place
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import no_column
from lakestore.model.table import Table
from lakestore.rows.user import NAMING

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
CHUNK_ROWS = 100_000
"""Records of a chunk, and so of a commit, at most."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is refused."""

    record: int
    """Its number in the chunk."""
    line: int
    """Its line in the file, or its row in Parquet and Arrow; from 1."""
    reason: str
    text: str
    """The record as it is in the file, shortened."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Records without a row behind a chunk: with a commit of its rows they are passed as well."""

    bad: Sequence[Bad]
    place: Place


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of a file, in their order."""

    count: int
    """Records, refused ones included."""
    batch: pa.RecordBatch
    """The rows of good records: columns of the table, and others that the load asked for."""
    record: Ints
    """The record of each row, ascending."""
    line: Ints
    """The line of each record."""
    bad: Sequence[Bad]
    """By record."""
    place_after: Callable[[int], Place]
    """The place behind so many of the records."""
    text: Callable[[int], str]
    """A record as it is in the file, shortened."""
    deletes: Bools | None = None
    """Rows that are deletes, of change events; None: none."""
    absent: Mapping[str, Bools] = dataclasses.field(default_factory=dict)
    """Column to the rows that do not name it, in formats where rows name columns."""
    kept: Mapping[str, pa.BooleanArray] = dataclasses.field(default_factory=dict)
    """Column to the rows that leave the live value as it is."""
    tail: Tail | None = None
    """The records behind it, if they have no row."""
    is_last: bool = False
    """Whether the file ends behind this chunk and its tail."""

    def part(self, start: int, end: int) -> Chunk:
        """The records of a range by themselves; their numbers stay."""
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
        """The chunk with one behind it that has no row."""
        bad = [*(self.tail.bad if self.tail else ()), *other.bad]
        return replace(self, tail=Tail(bad, other.place_after(other.count)))

    def place_behind(self, count: int) -> Place:
        """The place behind so many records, and behind the tail of all of them."""
        place = self.tail.place if self.tail and count == self.count else self.place_after(count)
        return replace(place, is_end=self.is_last and count == self.count)

    def without(self, rows: Bools, reasons: Sequence[str]) -> Chunk:
        """The chunk with some of its rows refused, each for its reason."""
        refused = self.record[rows]
        found = {
            int(record): Bad(int(record), int(self.line[record]), why, self.text(int(record)))
            for record, why in zip(refused, reasons, strict=True)
        }
        bad = sorted([*self.bad, *found.values()], key=lambda each: each.record)
        return replace(self.where(~np.isin(self.record, refused)), bad=bad)

    def where(self, rows: Bools) -> Chunk:
        """The chunk with some of its rows alone."""
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
    """An `OSError` inside is raised of this file; of None, and of a pipe that nobody reads, as it is."""
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
