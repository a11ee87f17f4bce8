"""The rows of a checkpoint that stay where the journal wrote them: large parts that would not become smaller.

A part is left in place if it is large and a sample of it does not compress; the others are gathered.
A journal file is kept if enough of it stays, by default half; and when less of a kept file is named any more, its rows
are gathered too, so that it goes: no more is kept in vain than for a reason.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from lakestore.limits import Limits
from lakestore_server.files.block_crcs import block_crcs
from lakestore_server.files.extent import Extent, KeptFile
from lakestore_server.files.new_segment import Piece
from lakestore_server.files.segment import Segment
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.state.chunk import Chunk, MemoryChunk
from lakestore_server.state.journal import JournalFile, LocalJournal, PartPlace
from lakestore_server.state.view import View

SAMPLES, SAMPLE_BYTES = 8, 2 << 10
"""Pieces of a part that are compressed on trial, and the bytes of each."""
GOLDEN = 0.6180339887498949
"""The samples lie at its multiples: columns of one width are met at different places."""

Key = tuple[str, int]
"""A table's uuid and a bucket."""


class ExtentChoice:
    """The extents of one checkpoint's new segments."""

    def __init__(self, disk: Disk, limits: Limits) -> None:
        self._disk, self._limits = disk, limits
        self._extents: dict[Key, list[tuple[int, Extent]]] = defaultdict(list)
        """The extents of rows in memory, by first offset."""

    def choose(self, view: View, journal: LocalJournal, path_of: Callable[[str], Path]) -> None:
        """Keep the journal files of a frozen view's rows in memory, as far as that is worth it.

        `path_of` gives a journal file the path under which it is kept, in a folder that is there.
        """
        wanted = dict(_in_memory(view))
        if sum(chunk.size for chunks in wanted.values() for chunk in chunks) < self._limits.extent_bytes:
            return
        for file in journal.files(journal.place_after(view.lsn), self._limits.extent_bytes):
            staying = list(_staying(file, wanted, self._limits.compressed_percent))
            if _is_of_use(sum(part.size for part in staying), int(file.data.size), self._limits):
                self._keep(file, path_of(file.path.name), staying)

    def _keep(self, file: JournalFile, path: Path, staying: Sequence[PartPlace]) -> None:
        if not self._disk.link(file.path, path):
            return
        self._disk.reach(CrashPoint.EXTENTS_LINKED)
        kept = KeptFile(path, file.data)
        for part in staying:
            crcs = block_crcs(file.data.slice(part.at, part.size)) if part.crcs is None else part.crcs
            extent = Extent(kept, part.at, part.size, part.rows, crcs)
            self._extents[part.table, part.bucket].append((part.start, extent))

    def pieces(self, key: Key, run: Iterable[Chunk], emptied: frozenset[str] = frozenset()) -> list[Piece]:
        """The rows of a log's chunks: in their extents, or to be loaded; nothing stays in the files to be emptied."""
        pieces: list[Piece] = []
        for chunk in run:
            if isinstance(chunk, Segment):
                held = ((extent, piece.load) for piece, extent in chunk.pieces())
                pieces += [load if extent is None or extent.file.name in emptied else extent for extent, load in held]
            elif isinstance(chunk, MemoryChunk):
                pieces += self._of_memory(key, chunk)
            else:
                pieces += [piece.load for piece in chunk.batches()]
        return pieces

    def _of_memory(self, key: Key, chunk: MemoryChunk) -> Iterator[Piece]:
        found = self._extents.get(key, [])
        at = chunk.start
        first = bisect.bisect_left(found, at, key=lambda each: each[0])
        for start, extent in found[first:]:
            if start >= chunk.end:
                break
            if at < start:
                yield partial(chunk.batch.slice, at - chunk.start, start - at)
            yield extent
            at = start + extent.rows
        if at < chunk.end:
            yield partial(chunk.batch.slice, at - chunk.start)


def _is_of_use(staying: int, size: int, limits: Limits) -> bool:
    """Whether a file of some size is to be kept for so many bytes of it."""
    return 100 * staying >= limits.extent_file_percent * size and staying > 0


def files_to_empty(segments: Iterable[Segment], limits: Limits) -> frozenset[str]:
    """The kept files of which too little is named; those with the least first, as many as may be read at once."""
    room = limits.compaction_bytes
    named: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = {}
    for segment in segments:
        for file in segment.files:
            named[file.name] += segment.bytes_in[file.name]
            sizes[file.name] = int(file.data.size)
    chosen = []
    for name in sorted(named, key=lambda name: named[name]):
        if not _is_of_use(named[name], sizes[name], limits) and named[name] <= room:
            chosen.append(name)
            room -= named[name]
    return frozenset(chosen)


def _in_memory(view: View) -> Iterator[tuple[Key, Sequence[MemoryChunk]]]:
    """The chunks that each bucket of a log has in memory, by its table and number."""
    for uuid, state in view.kept.items():
        for bucket, log in enumerate(state.logs):
            chunks = [chunk for chunk in log.chunks if isinstance(chunk, MemoryChunk)]
            if chunks and not log.keyed:
                yield (uuid, bucket), chunks


def _staying(file: JournalFile, wanted: Mapping[Key, Sequence[MemoryChunk]], percent: int) -> Iterator[PartPlace]:
    """The parts of wanted rows that would not become smaller, bucket by bucket."""
    parts: dict[Key, list[PartPlace]] = defaultdict(list)
    for part in file.parts:
        parts[part.table, part.bucket].append(part)
    for key, of_bucket in parts.items():
        chunks = wanted.get(key, ())
        for part in of_bucket:
            found = bisect.bisect_right(chunks, part.start, key=lambda chunk: chunk.start) - 1
            if 0 <= found and part.start + part.rows <= chunks[-1].end:
                if not _compresses(_buffers(chunks[found], part) or [file.data.slice(part.at, part.size)], percent):
                    yield part


def _buffers(chunk: MemoryChunk, part: PartPlace) -> Sequence[pa.Buffer]:
    """A part's values in memory, where they are those of a chunk: its file may not be in memory any more."""
    if (chunk.start, chunk.rows) != (part.start, part.rows):
        return ()
    return [buffer for column in chunk.batch.columns for buffer in column.buffers() if buffer is not None]


def _compresses(part: Sequence[pa.Buffer], percent: int) -> bool:
    """Whether of a sample of a part, spread over it, at most so much is left; of a small one, all is the sample."""
    size = sum(buffer.size for buffer in part)
    if size < 4 * SAMPLES * SAMPLE_BYTES:
        sample = b"".join(map(memoryview, part))
    else:
        ends = list(itertools.accumulate(buffer.size for buffer in part))
        places = (int(size * ((number + 0.5) * GOLDEN % 1)) for number in range(SAMPLES))
        sample = b"".join(_piece(part, ends, at) for at in places)
    return bool(100 * pa.Codec("lz4").compress(sample).size <= percent * len(sample))


def _piece(part: Sequence[pa.Buffer], ends: Sequence[int], at: int) -> bytes:
    """Bytes of the buffer that has a place of them all."""
    number = bisect.bisect_right(ends, at)
    buffer, inside = part[number], at - (ends[number] - part[number].size)
    return bytes(buffer[inside : inside + SAMPLE_BYTES])
