"""Mapped blocks as the changes of a commit, split into smaller commits if needed.

A commit applies changes in order, and the rows of a change in order. Rows of different keys may be reordered, rows of
one key never. So puts and deletes are grouped into few changes, called waves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.outcome import MappedBlock, Op, Reject, TableRows, half_a_change
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.rows.distinct import distinct

RUNS_MAX = 4
"""Runs of equal operations that are sent unchanged. More runs are grouped into waves."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a commit."""

    table: str
    op: Op
    rows: pa.RecordBatch
    kept: Mapping[str, pa.BooleanArray]
    record: Ints
    """The record of each row."""


@dataclass(frozen=True, slots=True)
class Part:
    """The records `low` to `high` of a mapped block."""

    records: Records
    mapped: MappedBlock
    low: int
    high: int

    def __len__(self) -> int:
        return self.high - self.low

    def tables(self) -> Iterator[TableRows]:
        for rows in self.mapped.tables:
            low, high = np.searchsorted(rows.record, [self.low, self.high])
            if low < high:
                yield _slice(rows, int(low), int(high))

    def rejects(self) -> Iterator[tuple[str, list[Reject]]]:
        for table, rejects in self.mapped.rejects.items():
            found = [each for each in rejects if self.low <= each.record < self.high]
            if found:
                yield table, found

    def rejected(self) -> dict[str, list[Reject]]:
        return dict(self.rejects())

    def without(self, rejects: Mapping[str, Sequence[Reject]]) -> Part:
        """The part with some records rejected. Companions of a rejected record are rejected with it."""
        added = {table: list(some) for table, some in rejects.items()}
        bad = sorted({each.record for some in added.values() for each in some})
        groups = [_groups(rows)[np.isin(rows.record, bad)] for rows in self.mapped.tables]
        halves = distinct(np.concatenate([group[group >= 0] for group in groups]))
        tables = []
        for rows in self.mapped.tables:
            gone = [each.record for each in added.get(rows.table, ())]
            others = np.setdiff1d(rows.record[np.isin(_groups(rows), halves)], gone).tolist()
            if others:
                added.setdefault(rows.table, []).extend(map(half_a_change, others))
            stays = ~np.isin(rows.record, [*gone, *others])
            if stays.any():
                tables.append(rows if stays.all() else _masked(rows, stays))
        merged = {name: [*some, *added.pop(name, ())] for name, some in self.mapped.rejects.items()} | added
        return replace(self, mapped=replace(self.mapped, tables=tables, rejects=merged))

    @property
    def nbytes(self) -> int:
        return sum(int(rows.batch.nbytes) for rows in self.tables())

    def halves(self) -> tuple[Part, Part] | None:
        """Split the part in two between companion records; None if there is no such place."""
        if len(self) < 2:
            return None
        allowed = np.flatnonzero(~self._joined()) + self.low + 1
        if not len(allowed):
            return None
        middle = int(allowed[np.abs(allowed - (self.low + self.high) // 2).argmin()])
        return replace(self, high=middle), replace(self, low=middle)

    def before(self, record: int) -> Part:
        """The part before a record, without the record's companions."""
        cut = record
        for rows in self.mapped.tables:
            if rows.atomic is not None:
                at = (rows.record == record) & (rows.atomic >= 0)
                for number in np.unique(rows.atomic[at]):
                    cut = min(cut, int(rows.record[rows.atomic == number].min()))
        return replace(self, high=max(cut, self.low))

    def _joined(self) -> npt.NDArray[np.bool_]:
        edges = np.zeros(len(self) + 1, np.int64)
        numbers, records = [], []
        for rows in self.mapped.tables:
            if rows.atomic is not None:
                there = (rows.atomic >= 0) & (rows.record >= self.low) & (rows.record < self.high)
                numbers.append(rows.atomic[there])
                records.append(rows.record[there] - self.low)
        if numbers:
            number, record = np.concatenate(numbers), np.concatenate(records)
            order = np.lexsort((record, number))
            number, record = number[order], record[order]
            first = np.flatnonzero(np.r_[True, number[1:] != number[:-1]]) if len(number) else np.array([], np.int64)
            last = np.r_[first[1:] - 1, len(number) - 1] if len(number) else first
            np.add.at(edges, record[first], 1)
            np.add.at(edges, record[last], -1)
        joined: npt.NDArray[np.bool_] = np.cumsum(edges)[: len(self) - 1] > 0
        return joined

    def ends(self) -> dict[Place, int]:
        partition, offset = self.records.partition[self.low : self.high], self.records.offset[self.low : self.high]
        return {
            Place(self.records.topic, int(each)): int(offset[partition == each].max()) + 1
            for each in np.unique(partition)
        }


def _slice(rows: TableRows, low: int, high: int) -> TableRows:
    if low == 0 and high == len(rows.record):
        return rows
    return replace(
        rows,
        batch=rows.batch.slice(low, high - low),
        record=rows.record[low:high],
        op=rows.op[low:high],
        kept={name: mask.slice(low, high - low) for name, mask in rows.kept.items()},
        atomic=None if rows.atomic is None else rows.atomic[low:high],
    )


def _groups(rows: TableRows) -> Ints:
    """The number of the companions of each row; -1 for none."""
    return np.full(len(rows.record), -1, np.int64) if rows.atomic is None else rows.atomic


def _masked(rows: TableRows, stays: npt.NDArray[np.bool_]) -> TableRows:
    mask = pa.array(stays)
    return replace(
        rows,
        batch=rows.batch.filter(mask),
        record=rows.record[stays],
        op=rows.op[stays],
        kept={name: flags.filter(mask) for name, flags in rows.kept.items()},
        atomic=None if rows.atomic is None else rows.atomic[stays],
    )


def steps_of(rows: TableRows, key: Sequence[str]) -> list[Step]:
    """The changes for rows of a table, in order; `key` is empty for a log table."""
    changes = np.flatnonzero(np.diff(rows.op))
    if len(changes) < RUNS_MAX:
        edges = [0, *(int(each) + 1 for each in changes), len(rows.op)]
        runs = [np.arange(low, high) for low, high in pairwise(edges)]
    else:
        wave = waves(codes_of(rows.batch, key), rows.op)
        runs = [np.flatnonzero(wave == each) for each in range(int(wave.max()) + 1)]
    return [_step(rows, each) for each in runs if len(each)]


def _step(rows: TableRows, rows_wanted: Ints) -> Step:
    op = Op(int(rows.op[rows_wanted[0]]))
    low, count = int(rows_wanted[0]), len(rows_wanted)
    kept: Mapping[str, pa.BooleanArray]
    if int(rows_wanted[-1]) - low + 1 == count:
        batch = rows.batch.slice(low, count)
        kept = {name: mask.slice(low, count) for name, mask in rows.kept.items()}
    else:
        at = pa.array(rows_wanted)
        batch = rows.batch.take(at)
        kept = {name: mask.take(at) for name, mask in rows.kept.items()}
    kept = {name: mask for name, mask in kept.items() if mask.true_count}
    return Step(rows.table, op, batch, kept, rows.record[rows_wanted])


def codes_of(batch: pa.RecordBatch, key: Sequence[str]) -> Ints:
    """A number for each row; equal keys have equal numbers."""
    codes = np.zeros(batch.num_rows, np.int64)
    for name in key:
        column = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        part = column.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = np.unique(codes * (int(part.max()) + 1) + part, return_inverse=True)[1].astype(np.int64)
    return codes


def waves(codes: Ints, op: npt.NDArray[np.int8]) -> Ints:
    """The wave of each row: even waves put, odd waves delete. Later rows of a key never get an earlier wave."""
    order = np.argsort(codes, kind="stable")
    code, change = codes[order], op[order].astype(np.int64)
    begins = np.r_[True, code[1:] != code[:-1]]
    turns = np.r_[0, (change[1:] != change[:-1]).astype(np.int64)]
    turns[begins] = change[begins] == Op.DELETE
    total = np.cumsum(turns)
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    before = (total - turns)[first]
    wave = np.empty(len(op), np.int64)
    wave[order] = total - before[group]
    return wave
