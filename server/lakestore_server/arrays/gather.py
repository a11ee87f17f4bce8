"""Rows of many flat batches of one schema as one batch, with a few calls per batch whatever its columns.

The words of one width of all columns are in one piece of memory, so one call takes the rows' words of all these
columns. `watch` is told of a batch's bytes before any of its rows is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore_server.arrays.flat_batch import DATA, VALIDITY, VALUES, FlatBatch, is_flat, is_text, word_bytes

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.unsignedinteger[Any]]
LONG_BYTES = 256
"""Texts with a larger average length are copied by Arrow, shorter ones byte by byte in one call."""


@dataclass(slots=True)
class _Lane:
    """The words of one width in a row."""

    width: int
    sources: list[int] = field(default_factory=list)
    """Positions of buffers among a batch's begins, in one row."""
    factors: list[int] = field(default_factory=list)
    """Words from one row to the next; 0 for bits, eight rows a byte."""
    adds: list[int] = field(default_factory=list)

    def add(self, column: int, buffer: int, factor: int, count: int = 1) -> int:
        """The position, among a row's words, of a buffer's first word."""
        at = len(self.sources)
        self.sources += [3 * column + buffer] * count
        self.factors += [factor] * count
        self.adds += range(count)
        return at

    def places(self, begins: Ints, part_of: Ints, rows: Ints) -> Ints:
        """The position of each word of each row in its batch's memory; `begins` are the begins of each batch's
        buffers."""
        starts = begins[:, self.sources] // self.width + np.array(self.adds)
        factors = np.array(self.factors)
        step = (
            rows[:, None] * factors if factors.all() else np.where(factors, rows[:, None] * factors, rows[:, None] >> 3)
        )
        found: Ints = np.maximum(starts, 0)[part_of] + step
        return found


class Plan:
    """The way to gather some columns of a schema."""

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        """All columns must be flat: see `is_plain`."""
        self.columns = [schema.get_field_index(name) for name in names]
        self.schema = pa.schema([schema.field(column) for column in self.columns])
        self._lanes = {width: _Lane(width) for width in (1, 2, 4, 8)}
        self.words: list[tuple[int, int, int]] = []
        """(width, position of the first word, words) of each column."""
        self._valid = [self._lanes[1].add(column, VALIDITY, 0) for column in self.columns]
        self.fixed_bytes = 0
        for column, kind in zip(self.columns, self.schema.types, strict=True):
            width, count = word_bytes(kind)
            if is_text(kind):
                at, width, count = self._lanes[4].add(column, VALUES, 1, 2), 4, 2
                self.fixed_bytes += 4
            elif width:
                at = self._lanes[width].add(column, VALUES, count, count)
                self.fixed_bytes += width * count
            else:
                at, width, count = self._lanes[1].add(column, VALUES, 0), 1, 0
                self.fixed_bytes += 1
            self.words.append((width, at, count))
        self.texts = [place for place, kind in enumerate(self.schema.types) if is_text(kind)]

    @staticmethod
    def is_plain(schema: pa.Schema, names: Sequence[str]) -> bool:
        return all(is_flat(schema.field(name).type) for name in names)

    def gather(self, parts: Sequence[FlatBatch], counts: Sequence[int], rows: Ints) -> GatheredRows:
        """`counts[i]` rows of part i, in order: all words of each width, and the places of texts."""
        part_of = np.repeat(np.arange(len(parts)), counts)
        begins = np.array([part.places for part in parts]).reshape(len(parts), -1)
        bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]).tolist()
        validity = begins[:, [3 * column + VALIDITY for column in self.columns]]
        has_validity = [bool(each) for each in np.atleast_1d((validity >= 0).any(axis=0))]
        words = {}
        for width, lane in self._lanes.items():
            is_bits_only = width == 1 and len(lane.sources) == len(self.columns)
            if not lane.sources or (is_bits_only and not any(has_validity)):
                continue
            words[width] = _taken(parts, bounds, width, lane.places(begins, part_of, rows))
        nulls = [
            _bits(words[1][:, at], rows) | (validity[part_of, number] < 0) if has_validity[number] else None
            for number, at in enumerate(self._valid)
        ]
        return GatheredRows(self, parts, bounds, part_of, begins, rows, words, nulls)


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows of flat batches, without the bytes of their texts."""

    plan: Plan
    parts: Sequence[FlatBatch]
    bounds: list[int]
    """The first row of each part, and the number of rows."""
    part_of: Ints
    begins: Ints
    rows: Ints
    """The place of each row in its batch."""
    words: dict[int, Words]
    valid: list[npt.NDArray[np.bool_] | None]

    def sizes(self) -> Ints:
        """The bytes of each row, like `row_sizes`."""
        total = np.full(len(self.rows), self.plan.fixed_bytes, dtype=np.int64)
        for place in self.plan.texts:
            begins, ends = self._ends(place)
            total += ends - begins
        return total

    def batch(self) -> pa.RecordBatch:
        columns = [self._column(place) for place in range(len(self.plan.columns))]
        if not columns:
            return self.parts[0].batch.select([]).slice(0, 0)
        return pa.RecordBatch.from_arrays(columns, schema=self.plan.schema)

    def _ends(self, place: int) -> tuple[Ints, Ints]:
        _, at, _ = self.plan.words[place]
        pairs = self.words[4][:, at : at + 2].astype(np.int64)
        there = self.begins[self.part_of, 3 * self.plan.columns[place] + VALUES] >= 0
        return np.where(there, pairs[:, 0], 0), np.where(there, pairs[:, 1], 0)

    def _column(self, place: int) -> pa.Array:
        kind, valid = self.plan.schema.types[place], self.valid[place]
        count = len(self.rows)
        bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        width, at, words = self.plan.words[place]
        if is_text(kind):
            return self._text(place, kind, bitmap)
        if words:
            values = np.ascontiguousarray(self.words[width][:, at : at + words])
        else:
            values = np.packbits(_bits(self.words[1][:, at], self.rows), bitorder="little")
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(values)])

    def _text(self, place: int, kind: pa.DataType, bitmap: pa.Buffer | None) -> pa.Array:
        begins, ends = self._ends(place)
        column = self.plan.columns[place]
        lengths = ends - begins
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        if total > LONG_BYTES * len(lengths):
            return self._long(column)
        first = begins + self.begins[self.part_of, 3 * column + DATA]
        held = np.flatnonzero(lengths)
        data = np.empty(total, dtype=np.uint8)
        every = np.repeat(first - offsets[:-1], lengths) + np.arange(total)
        cuts = offsets[self.bounds].tolist()
        for number, part in enumerate(self.parts):
            low, high = cuts[number], cuts[number + 1]
            if low < high:
                if not part.watch.is_needless:
                    begin, end = np.searchsorted(held, self.bounds[number : number + 2])
                    here = held[begin:end]
                    part.watch.touch(first[here], first[here] + lengths[here] - 1)
                part.bytes.take(every[low:high], out=data[low:high], mode="clip")
        buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(kind, len(lengths), buffers)

    def _long(self, column: int) -> pa.Array:
        """Texts that are too long to copy byte by byte."""
        found = []
        for number, part in enumerate(self.parts):
            rows = self.rows[self.bounds[number] : self.bounds[number + 1]]
            part.touch_rows(rows, (column,))
            found.append(part.batch.column(column).take(pa.array(rows)))
        return pa.concat_arrays(found)


def _taken(parts: Sequence[FlatBatch], bounds: Sequence[int], width: int, places: Ints) -> Words:
    found = np.empty(places.shape, dtype=f"u{width}")
    for number, part in enumerate(parts):
        low, high = bounds[number], bounds[number + 1]
        here = places[low:high]
        if not part.watch.is_needless:
            first = here.ravel() * width
            part.watch.touch(first, first + width - 1)
        part.words[width].take(here, out=found[low:high], mode="clip")
    return found


def _bits(bytes_: Words, rows: Ints) -> npt.NDArray[np.bool_]:
    """The bits of rows in their bytes."""
    return np.asarray((bytes_ >> (rows & 7).astype(np.uint8)) & 1, dtype=np.bool_)
