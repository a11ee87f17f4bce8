"""Encodes and writes new segments: rows of neighbouring chunks as bytes, and as the file of one segment.

Rows of a log table are either copied and compressed, or stay in their extent.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore.errors import Internal
from lakestore.limits import DEFAULT
from lakestore.rows.ipc import crc32c
from lakestore_server.arrays.flat_batch import is_text, value_bytes
from lakestore_server.files.compression import compresses
from lakestore_server.files.extent import Extent
from lakestore_server.files.segment import (
    BLOCK,
    CRC,
    EXTENTS_VERSION,
    FINE_BLOCK,
    HEADER,
    HEADER_BYTES,
    KEYED_VERSION,
    MAGIC,
    VERSION,
    block_crcs,
)
from lakestore_server.host import even_writes
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.state.chunk import Chunk, CommitIndex, Ints

SHORT = 64 << 10
"""If pieces are shorter than this on average, Arrow copies them: handling each takes longer and holds the
interpreter's lock.
"""
PADDED = 64
"""The message, and whatever follows it, begin at multiples of this."""
_OFFSET_BYTES, _OFFSET_MAX = 4, (1 << 31) - 1


def joined_message(batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
    """The Arrow message of all rows, padded. Its parts refer to the memory of the batches, which must not change."""
    batch, places = batches[0], _Places()
    if sum(each.get_total_buffer_size() for each in batches) < SHORT * len(batches):
        batch = pa.concat_batches(batches)
    elif len(batches) > 1:
        if any(not other.schema.equals(batch.schema) for other in batches):
            raise pa.ArrowInvalid("the batches have different schemas")
        columns = [_column([each.column(at) for each in batches], places) for at in range(batch.num_columns)]
        batch = pa.record_batch(columns, schema=batch.schema)
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), batch.schema) as writer:
        writer.write_batch(batch)
        parts = list(_without(sink.parts, batch.schema.serialize().size))  # the schema is stored with the table
    return padded(places.filled(parts))


def padded(parts: Sequence[pa.Buffer]) -> list[pa.Buffer]:
    """The parts, with zeros up to a multiple of `PADDED` bytes."""
    short = -sum(part.size for part in parts) % PADDED
    return [*parts, pa.py_buffer(bytes(short))] if short else list(parts)


class _Places:
    """Stand-ins for buffers. Arrow passes buffers through without reading them, so only their addresses matter.

    The caller keeps a reference to each stand-in until all are replaced, so that no other buffer gets its address.
    """

    def __init__(self) -> None:
        self._sources: dict[int, Sequence[pa.Buffer]] = {}

    def place(self, sources: Sequence[pa.Buffer]) -> pa.Buffer:
        """A stand-in for one buffer whose bytes lie in several pieces."""
        size = sum(source.size for source in sources)
        if not size:
            return pa.py_buffer(b"")
        place = pa.py_buffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ))
        self._sources[place.address] = sources
        return place

    def filled(self, parts: Sequence[pa.Buffer]) -> list[pa.Buffer]:
        """The parts with the pieces in place of the stand-ins. Raises `Internal` if Arrow copied or split a
        stand-in.
        """
        found: list[pa.Buffer] = []
        for part in parts:
            sources = self._sources.pop(part.address, None) or (part,)
            if part.size != sum(source.size for source in sources):
                raise Internal("Arrow wrote a part of a buffer")
            found += sources
        if self._sources:
            raise Internal("Arrow copied buffers")
        return found


def _column(pieces: Sequence[pa.Array], places: _Places) -> pa.Array:
    """The values of all pieces as one array. Long buffers are stand-ins."""
    kind, rows = pieces[0].type, sum(map(len, pieces))
    width = value_bytes(kind)
    if width:
        is_short = rows * width < SHORT * len(pieces)
    else:
        is_short = not is_text(kind) or sum(piece.nbytes for piece in pieces) < SHORT * len(pieces)
    if is_short or any(piece.null_count for piece in pieces):
        return pa.concat_arrays(pieces)
    held = [piece for piece in pieces if len(piece)]
    buffers = _values(held, width, places) if width else _texts(held, places)
    return pa.Array.from_buffers(kind, rows, [None, *buffers], null_count=0)


def _values(pieces: Sequence[pa.Array], width: int, places: _Places) -> list[pa.Buffer]:
    """The value buffer of a fixed-width type."""
    return [places.place([each.buffers()[1].slice(each.offset * width, len(each) * width) for each in pieces])]


def _texts(pieces: Sequence[pa.Array], places: _Places) -> list[pa.Buffer]:
    """The buffers of a text type: offsets and bytes."""
    ends, data = zip(*map(_text, pieces), strict=True)
    sizes = [each.size for each in data]
    if sum(sizes) > _OFFSET_MAX:
        raise pa.ArrowInvalid("the texts of one column take more than 2 GB: their offsets have 32 bits")
    offsets = np.zeros(sum(map(len, pieces)) + 1, dtype=np.int32)
    at = 1
    for each, begin in zip(ends, accumulate(sizes, initial=0), strict=False):
        np.add(each[1:], begin - int(each[0]), out=offsets[at : at + len(each) - 1])
        at += len(each) - 1
    return [pa.py_buffer(offsets), places.place(data)]


def _text(piece: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int32]], pa.Buffer]:
    """(offsets of the texts with the end of the last one, the bytes between the first and the last offset)."""
    _, offsets, data = piece.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(piece) + 1, offset=_OFFSET_BYTES * piece.offset)
    first, last = int(ends[0]), int(ends[-1])
    return ends, data.slice(first, last - first) if last > first else pa.py_buffer(b"")


def _without(parts: Sequence[pa.Buffer], count: int) -> Iterator[pa.Buffer]:
    """The parts without their first `count` bytes."""
    for part in parts:
        skipped = min(count, part.size)
        count -= skipped
        if skipped < part.size:
            yield part.slice(skipped)


class _Sink:
    """A file that keeps each written part. `pa.PythonFile` needs the other methods of a file."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[pa.Buffer] = []

    def write(self, data: Any) -> int:
        part = data if isinstance(data, pa.Buffer) else pa.py_buffer(bytes(data))
        self.parts.append(part)
        return int(part.size)

    def flush(self) -> None:
        """Nothing is buffered."""


LOG_BATCH_ROWS = 65_536
LOG_BATCH_BYTES = 16 << 20
"""A reader decompresses a whole batch, however few of its rows it needs."""
POINTS = CrashPoint.SEGMENT_WRITTEN, CrashPoint.SEGMENT_SYNCED
"""Crash points that each segment file passes."""
Piece: TypeAlias = Extent | Callable[[], pa.RecordBatch]
"""Rows that stay in an extent, or a function that loads a batch to be copied."""


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The remaining rows of a range of offsets in which some rows are gone."""

    start: int
    end: int
    schema_id: int
    batch: pa.RecordBatch
    offsets: Ints
    """The offsets of the batch's rows."""
    kills: Ints
    """Offsets superseded by rows that are gone from this range, sorted. The superseded rows may still be in earlier
    segments.
    """
    index: CommitIndex


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """The bytes of a new segment."""

    head: Sequence[Any]
    body: Sequence[pa.Buffer]
    """The parts of the body in order. Some are memory of the rows' batches."""
    tail: bytes

    @property
    def parts(self) -> Sequence[Any]:
        """All bytes, in parts."""
        return (*self.head, *self.body, self.tail)

    def whole(self) -> pa.Buffer:
        """All bytes in one buffer."""
        return pa.py_buffer(b"".join(self.parts))


def encoded(
    chunks: Sequence[Chunk],
    *,
    keyed: bool,
    pieces: Sequence[Piece] | None = None,
    percent: int = DEFAULT.compressed_percent,
) -> EncodedSegment:
    """Neighbouring chunks of one schema version as a segment. `pieces` replaces the rows of a log table, for
    instance by extents. Rows of a log table are compressed if they shrink to `percent`.
    """
    every = [piece.load for chunk in chunks for piece in chunk.batches()] if pieces is None else pieces
    about: dict[str, Any] = {"start": chunks[0].start, "end": chunks[-1].end, "schema": chunks[0].schema_id}
    index = CommitIndex.joined([chunk.index for chunk in chunks])
    extents = [piece for piece in every if isinstance(piece, Extent)]
    if keyed:
        return encoded_rows([piece() for piece in every if not isinstance(piece, Extent)], about, index)
    names = list(dict.fromkeys(extent.file.name for extent in extents))
    body, entries = _packed(every, names, percent)
    if not extents:
        return _encoded(VERSION, about | {"batches": entries}, [body], index)
    about |= {"batches": entries, "files": names}
    return _encoded(EXTENTS_VERSION, about, [body], index, [extent.crcs for extent in extents])


def encoded_sparse(left: SparseRows) -> EncodedSegment:
    """Remaining rows as a sparse segment."""
    about = {"start": left.start, "end": left.end, "schema": left.schema_id}
    return encoded_rows([left.batch], about, left.index, (left.offsets, left.kills))


def encoded_rows(
    batches: Sequence[pa.RecordBatch],
    about: dict[str, Any],
    index: CommitIndex,
    sparse: tuple[Ints, Ints] | None = None,
) -> EncodedSegment:
    """Rows of a keyed table as a segment of one batch. The size of the batch includes its padding.

    For a sparse segment, `sparse` is (offsets of the rows, kills).
    """
    parts = joined_message(batches)
    size = sum(part.size for part in parts)
    about = about | {"batches": [[0, size, sum(batch.num_rows for batch in batches)]]}
    if sparse is not None:
        offsets, kills = (padded([pa.py_buffer(np.ascontiguousarray(numbers))]) for numbers in sparse)
        about |= {"sparse": {"offsets": size, "kills": [size + sum(map(len, offsets)), len(sparse[1])]}}
        parts += [*offsets, *kills]
    return _encoded(KEYED_VERSION, about, parts, index)


def _encoded(
    version: int,
    about: dict[str, Any],
    body: Sequence[pa.Buffer],
    index: CommitIndex,
    beside: Sequence[npt.NDArray[np.uint32]] = (),
) -> EncodedSegment:
    """`beside` has the checksums of blocks in extents."""
    crcs = block_crcs(*body, block=FINE_BLOCK if version == KEYED_VERSION else BLOCK)
    size = sum(part.size for part in body)
    head, tail = _framed(version, about, size, np.concatenate([crcs, *beside]), index)
    return EncodedSegment(head, body, tail)


def _framed(
    version: int, about: dict[str, Any], size: int, crcs: npt.NDArray[np.uint32], index: CommitIndex
) -> tuple[Sequence[Any], bytes]:
    """(the bytes before a body of `size` bytes, the bytes after it)."""
    arrays = (index.lsn, index.time_us, index.end, index.live_sum.view(np.int64), index.live_rows)
    tail = crcs.tobytes() + bytes(-crcs.nbytes % 8) + b"".join(array.tobytes() for array in arrays)
    meta = orjson.dumps(about | {"commits": len(index.lsn)})
    header = HEADER.pack(MAGIC, version, 0, len(meta), size, len(tail))
    crc = crc32c(tail, crc32c(meta, crc32c(header)))
    return [(header + CRC.pack(crc)).ljust(HEADER_BYTES, b"\0"), *padded([pa.py_buffer(meta)])], tail


def write_sparse(disk: Disk, path: Path, left: SparseRows) -> int:
    """Write remaining rows as one synced segment file. Returns its size. The caller syncs the folder."""
    return write_segment(disk, path, encoded_sparse(left))


def write_segment(disk: Disk, path: Path, segment: EncodedSegment) -> int:
    """Write a segment as one synced file. Returns its size. The caller syncs the folder."""
    return even_writes.write(disk, path, segment.parts, POINTS)


def _packed(pieces: Sequence[Piece], names: Sequence[str], percent: int) -> tuple[pa.Buffer, list[list[int]]]:
    """Batches of similar size, compressed if that pays, with their entries. Extents get entries only."""
    sink = pa.BufferOutputStream()
    entries: list[list[int]] = []
    number = {name: at for at, name in enumerate(names)}
    for stays, group in itertools.groupby(pieces, lambda piece: isinstance(piece, Extent)):
        if stays:
            extents = (piece for piece in group if isinstance(piece, Extent))
            entries += [[piece.at, piece.size, piece.rows, number[piece.file.name]] for piece in extents]
        else:
            loaded = (piece() for piece in group if not isinstance(piece, Extent))
            entries += [_packed_into(sink, batch, percent) for batch in _even(loaded)]
    return sink.getvalue(), entries


def _packed_into(sink: pa.BufferOutputStream, batch: pa.RecordBatch, percent: int) -> list[int]:
    at = sink.tell()
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    compression = "lz4" if compresses(buffers, percent) else None
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    size = sink.tell() - at
    sink.write(bytes(-size % PADDED))
    return [at, size, batch.num_rows]


def _even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of the largest size that a segment may have."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        fitting = min(max(LOG_BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1), 1), LOG_BATCH_ROWS)
        for at in range(0, batch.num_rows, fitting):
            piece = batch.slice(at, fitting)
            rows, size = rows + piece.num_rows, size + int(piece.nbytes)
            if waiting and (rows > LOG_BATCH_ROWS or size > LOG_BATCH_BYTES):
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], piece.num_rows, int(piece.nbytes)
            waiting.append(piece)
    if waiting:
        yield pa.concat_batches(waiting)
