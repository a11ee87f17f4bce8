"""Cursors over a block's bytes: a place per record, and every record reads its next field at once.

Reading is bounded by each record's own end, so a damaged record can neither take bytes of its neighbour nor shift it.
A record that cannot be read is marked with its first fault; later reads of it give zeros, and move no further.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.connectors.bridge.framing.spans import Bytes, spans
from lakestore.connectors.bridge.records import Ints

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.uint64]
_PAD = 40
"""Bytes behind the last record, more than one read looks at, so that a read past the end sees zeros and no fault."""
VARINT_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot be read."""

    code: str
    sentence: str
    path: str


class Cursors:
    """Places in a block of payloads, one for each."""

    def __init__(self, data: Bytes, at: Ints, end: Ints) -> None:
        self.data = data
        """All payloads, one behind the other, and zeros."""
        self._buffer = pa.py_buffer(data)
        self.at = at
        """The next byte of each record."""
        self.end = end
        self.bad: Bools = np.zeros(len(at), np.bool_)
        self.faults: dict[int, Fault] = {}

    @staticmethod
    def of(payloads: pa.BinaryArray) -> Cursors:
        """At the beginning of each payload."""
        offsets, data = spans(payloads)
        places = offsets.astype(np.int64) - offsets[0]
        return Cursors(_padded(data[offsets[0] : offsets[-1]]), places[:-1].copy(), places[1:].copy())

    def within(self, starts: Ints, ends: Ints) -> Cursors:
        """Places inside the same bytes, as of messages in others."""
        return Cursors(self.data, starts.copy(), ends.copy())

    def over(self, data: Bytes) -> Cursors:
        """The same records and their marks, for places in other bytes."""
        other = Cursors(_padded(data), self.at, self.end)
        other.bad, other.faults = self.bad, self.faults
        return other

    def fail_from(self, inner: Cursors, rows: Ints) -> None:
        """Marks the records whose inner places are marked; `rows` are the records of these."""
        for place, fault in inner.faults.items():
            self.fail(rows[place : place + 1], fault.code, fault.sentence, fault.path)

    def fail(self, rows: Ints, code: str, sentence: str, path: str) -> None:
        """Marks records, unless they are marked: the first fault is the one to tell."""
        fault = Fault(code, sentence, path)
        for row in rows.tolist():
            self.faults.setdefault(row, fault)
        self.bad[rows] = True
        self.end[rows] = self.at[rows]

    def fail_where(self, rows: Ints, wrong: Bools, code: str, sentence: str, path: str) -> None:
        """Marks those of the records."""
        if wrong.any():
            self.fail(rows[wrong], code, sentence, path)

    def varints(self, rows: Ints, path: str) -> Longs:
        """A number of up to 64 bits from each record, seven bits a byte, lowest first."""
        places = self.at[rows]
        first = self.data[places]
        value: Longs = (first & 0x7F).astype(np.uint64)
        after = places + 1
        long = np.flatnonzero(first >= 0x80)
        for count in range(1, VARINT_BYTES_MAX):
            if not len(long):
                break
            byte = self.data[places[long] + count]
            value[long] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
            after[long] += 1
            long = long[byte >= 0x80]
        short = after > self.end[rows]
        if len(long):
            endless = np.zeros(len(rows), np.bool_)
            endless[long] = True
            self.fail_where(rows, endless & ~short, "bad-number", "a number has more than 10 bytes", path)
            short |= endless
        if short.any():
            self.fail(rows[short], "short-payload", "the record ends inside a field", path)
            value[short] = 0
            after[short] = places[short]
        self.at[rows] = after
        return value

    def take(self, rows: Ints, lengths: Ints | int, path: str) -> tuple[Ints, Ints]:
        """The first and the last place (excluded) of so many bytes of each record, and moves past them."""
        starts = self.at[rows]
        left = self.end[rows] - starts
        wrong = (lengths > left) | (np.less(lengths, 0))
        ends = starts + lengths
        if wrong.any():
            self.fail(rows[wrong], "short-payload", "the record ends inside a field", path)
            ends[wrong] = starts[wrong]
        self.at[rows] = ends
        return starts, ends

    def matrix(self, starts: Ints, width: int) -> Bytes:
        """So many bytes from each place, as rows of a matrix; of marked records anything."""
        if width <= _PAD:
            return np.lib.stride_tricks.sliding_window_view(self.data, width)[starts]
        found: Bytes = self.data[np.minimum(starts[:, None] + np.arange(width), len(self.data) - 1)]
        return found

    def binaries(self, starts: Ints, ends: Ints) -> pa.BinaryArray:
        """The bytes between places; places ascend, as those of records in order do."""
        if not len(starts):
            return pa.array([], pa.binary())
        between = np.empty(2 * len(starts), np.int32)
        between[0::2], between[1::2] = starts, ends
        pieces = pa.Array.from_buffers(pa.binary(), len(between) - 1, [None, pa.py_buffer(between), self._buffer])
        return pieces.take(pa.array(np.arange(0, len(between), 2)))

    def strings(self, rows: Ints, starts: Ints, ends: Ints, path: str) -> pa.StringArray:
        """Texts between places, as UTF-8; a record with other bytes is marked."""
        found = self.binaries(starts, ends)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = ~utf8(found)
            self.fail(rows[wrong], "bad-utf8", "a text is not UTF-8", path)
            mended = ends.copy()
            mended[wrong] = starts[wrong]
            return self.binaries(starts, mended).cast(pa.string())


def _padded(data: Bytes) -> Bytes:
    padded = np.zeros(len(data) + _PAD, np.uint8)
    padded[: len(data)] = data
    return padded


def utf8(values: pa.BinaryArray) -> Bools:
    """Which values are UTF-8, by halving."""
    fine = np.ones(len(values), np.bool_)
    spans = [(0, len(values))]
    while spans:
        low, high = spans.pop()
        try:
            values[low:high].cast(pa.string())
        except pa.ArrowInvalid:
            if high - low == 1:
                fine[low] = False
            else:
                middle = (low + high) // 2
                spans += [(low, middle), (middle, high)]
    return fine


def signed(values: Longs) -> Ints:
    """Zigzag numbers as they were meant."""
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)


def spread(values: pa.Array, there: Bools) -> pa.Array:
    """The values at their places among nulls."""
    if len(values) == len(there):
        return values
    index = np.cumsum(there) - 1
    return values.take(pa.array(index, mask=~there))
