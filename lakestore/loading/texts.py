"""Reads texts in blocks of whole records, from a place whose preceding bytes are checked."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lakestore.errors import Conflict, Invalid
from lakestore.loading.files import HEAD_BYTES, File
from lakestore.loading.progress import Place
from lakestore.loading.reading import CHUNK_ROWS, Ints

BLOCK_BYTES = 8 << 20
RECORD_BYTES_MAX = 64 << 20
"""The longest record; a longer one ends the load."""
TEXT_CHARS_MAX = 2_000
"""Characters of a refused record that are kept."""
_PEEKED_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records of a text with the blank lines between them."""

    data: bytes
    starts: Ints
    ends: Ints
    """End of each record, without its line break."""
    nexts: Ints
    """Start of the bytes after each record."""
    lines: Ints
    line_count: int
    """Lines up to the end of the data."""
    before: Place
    head: bytes
    """First bytes of the file."""
    broken: Ints
    after: Place | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, record: int) -> str:
        raw = self.data[self.starts[record] : min(self.ends[record], self.starts[record] + 4 * TEXT_CHARS_MAX)]
        return raw.decode(errors="replace")[:TEXT_CHARS_MAX]

    def joined(self, numbers: Ints) -> bytes:
        """The bytes of some records, which ascend, with their line breaks."""
        gaps = np.flatnonzero(self.starts[numbers[1:]] != self.nexts[numbers[:-1]])
        begins = self.starts[numbers[np.append(0, gaps + 1)]].tolist()
        ends = self.nexts[numbers[np.append(gaps, len(numbers) - 1)]].tolist()
        return b"".join(self.data[begin:end] for begin, end in zip(begins, ends, strict=True))

    def place_after(self, count: int) -> Place:
        """The place after a number of records; after all, the place after all data."""
        if not count and len(self):
            return self.before
        if count == len(self) and self.after is not None:
            return self.after
        end = len(self.data) if count == len(self) else int(self.nexts[count - 1])
        line = self.line_count if count == len(self) else int(self.lines[count]) - 1
        offset = self.before.offset + end
        head = self.before.head
        if self.before.offset < HEAD_BYTES:
            head = zlib.crc32(self.head[: min(offset, HEAD_BYTES)])
        return Place(offset, line, zlib.crc32(self.data[:end], self.before.crc), head)

    def cut(self) -> Iterator[Records]:
        start, place = 0, self.before
        for first in range(0, max(len(self), 1), CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, len(self))
            end = len(self.data) if last == len(self) else int(self.starts[last])
            count = self.line_count if last == len(self) else int(self.lines[last]) - 1
            mine = (self.broken >= first) & (self.broken < last)
            part = replace(
                self,
                data=self.data[start:end] if (start, end) != (0, len(self.data)) else self.data,
                starts=self.starts[first:last] - start,
                ends=self.ends[first:last] - start,
                nexts=np.minimum(self.nexts[first:last], end) - start,
                lines=self.lines[first:last],
                line_count=count,
                before=place,
                broken=self.broken[mine] - first,
            )
            place = part.place_after(len(part))
            yield replace(part, after=place)
            start = end


class RecordSpans(NamedTuple):
    """Positions of the records in a block."""

    starts: Ints
    nexts: Ints
    """Starts of the bytes after each record."""
    broken: Ints
    used: int
    """Bytes that the records take."""
    line_ends: Ints
    """Ends of all lines in the data."""


Splitter = Callable[[bytes, bool], RecordSpans]
"""Function of a block, and whether it is the file's last."""


class Text:
    """An open text."""

    def __init__(self, file: File, stream: Any) -> None:
        self._file, self._stream = file, stream
        self.head = self._read(_PEEKED_BYTES)
        """First bytes, for the first line and for the checksum."""
        self._waiting = self.head

    def _read(self, size: int) -> bytes:
        found = []
        while size and (data := self._stream.read(size)):
            found.append(data)
            size -= len(data)
        return b"".join(found)

    def _next(self, size: int) -> bytes:
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        return taken + self._read(size - len(taken)) if len(taken) < size else taken

    def blocks(self, place: Place, split: Splitter) -> Iterator[Records]:
        """Whole records from a place. Raises `Conflict` if the bytes before the place have changed."""
        place = self._go_to(place)
        rest = b""
        while True:
            more = self._next(BLOCK_BYTES)
            data, is_end = rest + more, len(more) < BLOCK_BYTES
            found = self._records(data, split(data, is_end), place)
            if len(found.data) or is_end:
                for part in found.cut():
                    yield part
                    place = part.place_after(len(part))
            rest = data[len(found.data) :]
            if is_end:
                return
            if len(rest) > RECORD_BYTES_MAX:
                raise Invalid(
                    f"{self._file.shown}, line {place.line + 1} is longer than {RECORD_BYTES_MAX >> 20} MB, the most"
                    " that a line may have: load such rows from Parquet"
                )

    def _records(self, data: bytes, spans: RecordSpans, place: Place) -> Records:
        starts, nexts, broken, used, line_ends = spans
        if not place.offset and len(starts) and not starts[0] and data.startswith(_BOM):
            starts = starts.copy()
            starts[0] = len(_BOM)
        whole = np.frombuffer(data, dtype=np.uint8)[:used]
        ends = line_ends[: np.searchsorted(line_ends, used, side="right")]
        lines = place.line + 1 + np.searchsorted(ends, starts, side="right")
        count = place.line + len(ends)
        ends = nexts.copy()
        ends -= (ends > starts) & (whole[np.maximum(ends - 1, 0)] == 10) if used else 0
        ends -= (ends > starts) & (whole[np.maximum(ends - 1, 0)] == 13) if used else 0
        return Records(data[:used], starts, ends, nexts, lines, count, place, self.head, broken)

    def _go_to(self, place: Place) -> Place:
        """Skip to a place. Returns the place after a line break that was added since."""
        left, crc, last = place.offset, 0, b"\n"
        if zlib.crc32(self.head[: min(place.offset, HEAD_BYTES)]) != place.head:
            raise Conflict(
                f"{self._file.shown} is another file than the one that was loaded under this name:"
                " --again loads it from its beginning"
            )
        while left and (data := self._next(min(left, BLOCK_BYTES))):
            crc, last = zlib.crc32(data, crc), data[-1:]
            left -= len(data)
        if left or crc != place.crc:
            raise Conflict(
                f"{self._file.shown} changed before line {place.line + 1}, up to which it was loaded:"
                " --again loads it from its beginning"
            )
        return place if last == b"\n" else self._behind_last_line(place)

    def _behind_last_line(self, place: Place) -> Place:
        more = self._next(2)
        end = 2 if more == b"\r\n" else 1 if more[:1] == b"\n" else 0
        if more and not end:
            raise Conflict(
                f"{self._file.shown}: line {place.line} was loaded as the last one, and goes on now: --again loads the"
                " file from its beginning"
            )
        self._waiting = more[end:] + self._waiting
        offset = place.offset + end
        head = zlib.crc32(self.head[: min(offset, HEAD_BYTES)])
        return replace(place, offset=offset, crc=zlib.crc32(more[:end], place.crc), head=head)


def lines(data: bytes, is_end: bool) -> RecordSpans:
    """Lines as records; blank lines are skipped."""
    starts, nexts = physical(data, is_end)
    used = int(nexts[-1]) if len(nexts) else 0
    kept = not_blank(data, starts, nexts)
    return RecordSpans(starts[kept], nexts[kept], np.zeros(0, np.int64), used, nexts)


def physical(data: bytes, is_end: bool) -> tuple[Ints, Ints]:
    """Starts of lines, and of the bytes after them."""
    nexts = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 10) + 1
    if is_end and len(data) > (nexts[-1] if len(nexts) else 0):
        nexts = np.append(nexts, len(data))
    starts = np.concatenate([[0], nexts[:-1]]).astype(np.int64) if len(nexts) else np.zeros(0, np.int64)
    return starts, nexts.astype(np.int64)


def not_blank(data: bytes, starts: Ints, nexts: Ints) -> Any:
    """Mask of lines that hold more than a line break. Only short lines are inspected."""
    whole = np.frombuffer(data, dtype=np.uint8)
    length = nexts - starts
    blank = (length == 1) & (whole[starts] == 10) if len(starts) else np.zeros(0, np.bool_)
    if len(starts):
        blank |= (length == 2) & (whole[starts] == 13) & (whole[np.minimum(starts + 1, len(whole) - 1)] == 10)
        blank |= (length == 1) & (whole[starts] == 13)
    return ~blank
