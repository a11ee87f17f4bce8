"""Chunks: some records of a file as columns, with those that are refused, and the place behind each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.loading.progress import Place

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
    absent: Mapping[str, Bools] = field(default_factory=dict)
    """Column to the rows that do not name it, in formats where rows name columns."""
    kept: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
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
