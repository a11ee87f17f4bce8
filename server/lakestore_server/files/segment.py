"""The segment's format: a columnar file of a run of offsets of one bucket.

Header (64 bytes): magic u32 · version u16 · flags u16 · meta bytes u32 · body bytes u64 · tail bytes u64 · crc32c u32
of header, meta and tail. Then meta (JSON), body (record batches) and tail (CRC32C of each 64 KB of the body, then the
commit index), each at a multiple of 64. A block's checksum is checked when a batch in it is first loaded.
Primary-key tables: one uncompressed batch, for random reads in the mapped file. Log tables: lz4 batches.
Version 2 is sparse: rows of a primary-key table below its log start of which others are gone. Behind the batch lie the
rows' offsets and the offsets that gone records superseded, i64 each; the meta says where, the commit index has the
commits of which rows are left, and the last one. The same bytes are a file of their own, or lie in a shared file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.files import versions
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.state.chunk import Chunk, Ints, StoredBatch
from lakestore_server.state.commit_index import CommitIndex

MAGIC = 0x4C535347
VERSION = 1
SPARSE_VERSION = 2
LOG_BATCH_ROWS = 65_536
LOG_BATCH_BYTES = 16 << 20
"""A reader unpacks a whole batch, however few of its rows it wants."""
SYNC_BYTES = 2 << 20
"""A journal's sync waits for what other files have to write: segments never have much."""
_HEADER = struct.Struct("<IHHIQQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = 64
_BLOCK = 64 << 10


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The rows that are left of a run of offsets of which some are gone."""

    start: int
    end: int
    schema_id: int
    batch: pa.RecordBatch
    offsets: Ints
    """The offsets of the batch's rows."""
    kills: Ints
    """Offsets that gone records superseded, and whose rows may still be there; sorted."""
    index: CommitIndex


def _padded(data: Any) -> list[Any]:
    size = len(data)
    return [data, bytes(-size % 64)] if size % 64 else [data]


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of a segment, in memory or in a mapped file."""

    data: pa.Buffer
    file: pa.Buffer
    """The whole file; the same bytes where the segment has it for itself."""
    at: int | None = None
    """The first byte in a shared file."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The bytes of a segment that is to be written."""

    head: Sequence[Any]
    body: pa.Buffer
    tail: bytes

    def whole(self) -> pa.Buffer:
        """All of it in one piece."""
        return pa.py_buffer(b"".join((*self.head, self.body, self.tail)))


def encoded(chunks: Sequence[Chunk], *, keyed: bool) -> Encoded:
    """Neighbouring chunks of one schema version as a segment."""
    batches = (piece.load() for chunk in chunks for piece in chunk.batches())
    body, entries = (_plain if keyed else _packed)(batches)
    index = CommitIndex.joined([chunk.index for chunk in chunks])
    about = {"start": chunks[0].start, "end": chunks[-1].end, "batches": entries, "schema": chunks[0].schema_id}
    return _encoded(VERSION, about, body, index)


def encoded_sparse(left: SparseRows) -> Encoded:
    """The rest of neighbouring chunks as a segment."""
    rows, entries = _plain([left.batch])
    numbers = [pa.py_buffer(np.ascontiguousarray(array)) for array in (left.offsets, left.kills)]
    body = pa.py_buffer(b"".join(part for buffer in (rows, *numbers) for part in _padded(buffer)))
    kills_at = rows.size + numbers[0].size + -numbers[0].size % 64
    about = {"start": left.start, "end": left.end, "batches": entries, "schema": left.schema_id}
    sparse = {"sparse": {"offsets": rows.size, "kills": [kills_at, len(left.kills)]}}
    return _encoded(SPARSE_VERSION, about | sparse, body, left.index)


def _encoded(version: int, about: dict[str, Any], body: pa.Buffer, index: CommitIndex) -> Encoded:
    crcs = _block_crcs(body)
    arrays = (index.lsn, index.time_us, index.end, index.live_sum.view(np.int64), index.live_rows)
    tail = crcs.tobytes() + bytes(-crcs.nbytes % 8) + b"".join(array.tobytes() for array in arrays)
    meta = orjson.dumps(about | {"commits": len(index.lsn)})
    header = _HEADER.pack(MAGIC, version, 0, len(meta), len(body), len(tail))
    crc = crc32c(tail, crc32c(meta, crc32c(header)))
    return Encoded([(header + _CRC.pack(crc)).ljust(_HEADER_BYTES, b"\0"), *_padded(meta)], body, tail)


def write(disk: Disk, path: Path, chunks: Sequence[Chunk], *, keyed: bool) -> int:
    """Write neighbouring chunks of one schema version as one synced segment file; its size.

    The folder is the caller's to sync.
    """
    return write_encoded(disk, path, encoded(chunks, keyed=keyed))


def write_sparse(disk: Disk, path: Path, left: SparseRows) -> int:
    """Write what is left of neighbouring chunks as one synced segment file; its size. The folder is the caller's."""
    return write_encoded(disk, path, encoded_sparse(left))


def write_encoded(disk: Disk, path: Path, segment: Encoded) -> int:
    """Write a segment as one synced file; its size. The folder is the caller's to sync."""
    file = disk.create(path)
    try:
        size = file.write(segment.head)
        for at in range(0, segment.body.size, SYNC_BYTES):
            size += file.write([segment.body.slice(at, min(SYNC_BYTES, segment.body.size - at))])
            file.sync()
        size += file.write([segment.tail])
        disk.reach(CrashPoint.SEGMENT_WRITTEN)
        file.sync()
        disk.reach(CrashPoint.SEGMENT_SYNCED)
    finally:
        file.close()
    return size


def _plain(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Buffer, list[list[int]]]:
    """One batch as it is, for random reads."""
    every = list(batches)
    batch = pa.concat_batches(every) if len(every) > 1 else every[0]
    buffer = batch.serialize()
    return pa.py_buffer(b"".join(_padded(buffer))), [[0, buffer.size, batch.num_rows]]


def _packed(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Buffer, list[list[int]]]:
    """Compressed batches of about one size; only one of them is in memory unpacked."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    sink = pa.BufferOutputStream()
    entries = []
    for batch in _even(batches):
        at = sink.tell()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        size = sink.tell() - at
        entries.append([at, size, batch.num_rows])
        sink.write(bytes(-size % 64))
    return sink.getvalue(), entries


def _even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches as large as a segment's may be."""
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


def _block_crcs(body: pa.Buffer) -> npt.NDArray[np.uint32]:
    starts = range(0, body.size, _BLOCK)
    return np.fromiter((crc32c(body.slice(at, min(_BLOCK, body.size - at))) for at in starts), dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a segment's bytes."""

    start: int
    end: int
    batches: list[list[int]]
    body: pa.Buffer
    crcs: npt.NDArray[np.uint32]
    index: CommitIndex
    schema_id: int
    sparse: dict[str, Any] | None


class Segment:
    """A mapped segment; a `Chunk`."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        stored: Callable[[int], pa.Schema],
        *,
        keyed: bool,
        part: Part | None = None,
        layout: Layout | None = None,
    ) -> None:
        """A segment file; or, with `part`, bytes that are mapped already, of which the layout may be known."""
        self.path = path
        """The file that it lies in."""
        self._disk, self._keyed = disk, keyed
        if part is None:
            data = disk.map(path)
            part = Part(data, data)
        self.part = part
        self._layout = _parsed(part.data, path) if layout is None else layout
        self._schema = stored(self._layout.schema_id)
        self._checked = np.zeros(len(self._layout.crcs), dtype=np.bool_)
        self._batch: pa.RecordBatch | None = None
        self._batches = self._all_batches()

    @property
    def start(self) -> int:
        """First offset."""
        return self._layout.start

    @property
    def end(self) -> int:
        """Offset after the last."""
        return self._layout.end

    @property
    def index(self) -> CommitIndex:
        """Commits that end in this segment."""
        return self._layout.index

    def placed(self, path: Path, part: Part) -> Segment:
        """The same segment where its bytes lie now."""
        layout = _laid_out(part.data, self._layout)
        return Segment(self._disk, path, lambda _: self._schema, keyed=self._keyed, part=part, layout=layout)

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return int(self.part.data.size)

    @property
    def rows(self) -> int:
        """The number of rows that it holds."""
        return sum(rows for _, _, rows in self._layout.batches)

    def kills(self) -> Ints:
        """Offsets that records superseded which are gone from here; sorted."""
        if self._layout.sparse is None:
            return np.empty(0, dtype=np.int64)
        return self._numbers(*self._layout.sparse["kills"])

    @property
    def is_sparse(self) -> bool:
        """Whether rows of its range are gone."""
        return self._layout.sparse is not None

    @property
    def schema_id(self) -> int:
        """The table's version that the rows were stored in."""
        return self._layout.schema_id

    def check_all(self) -> None:
        """Compare every stored byte with its checksum, or `Corrupt`."""
        if self._layout.body.size:
            self._check(0, self._layout.body.size)

    def batches(self) -> Sequence[StoredBatch]:
        """Its record batches."""
        return self._batches

    def _all_batches(self) -> list[StoredBatch]:
        pieces, at = [], self.start
        for offset, size, rows in self._layout.batches:
            load = partial(self._load, offset, size)
            if self._layout.sparse is None:
                pieces.append(StoredBatch(at, at + rows, load, self.schema_id))
            else:
                left = partial(self._numbers, self._layout.sparse["offsets"], rows)
                pieces.append(StoredBatch(self.start, self.end, load, self.schema_id, left))
            at += rows
        return pieces

    def _numbers(self, at: int, count: int) -> Ints:
        if not count:
            return np.empty(0, dtype=np.int64)
        self._check(at, 8 * count)
        return np.frombuffer(self._layout.body, dtype=np.int64, count=count, offset=at)

    def _load(self, offset: int, size: int, names: Sequence[str] | None = None) -> pa.RecordBatch:
        self._check(offset, size)
        data = self._layout.body.slice(offset, size)
        if self._keyed:
            if self._batch is None:  # it lies in the mapped file: keeping it costs nothing
                self._batch = pa.ipc.read_record_batch(data, self._schema)
            return self._batch
        # No column at all would be every column; any one of them tells the number of rows.
        places = None if names is None else [self._schema.get_field_index(name) for name in names] or [0]
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with pa.ipc.open_stream(data, options=options) as reader:
            return reader.read_next_batch()

    def scrub(self) -> Iterator[tuple[int, str]]:
        """(bytes read again, damage or nothing) of the header and of each block; a damaged block is not served."""
        try:
            _parsed(self.part.data, self.path)
        except Corrupt as error:
            yield self.size - self._layout.body.size, error.message
        else:
            yield self.size - self._layout.body.size, ""
        for block in range(len(self._layout.crcs)):
            size = min(_BLOCK, self._layout.body.size - block * _BLOCK)
            if self._is_whole(block):
                yield size, ""
            else:
                self._checked[block] = False
                yield size, self._damaged(block).message

    def _is_whole(self, block: int) -> bool:
        at, body = block * _BLOCK, self._layout.body
        return bool(crc32c(body.slice(at, min(_BLOCK, body.size - at))) == self._layout.crcs[block])

    def _damaged(self, block: int) -> Corrupt:
        return Corrupt(f"segment file {self.path.name} is damaged in block {block}: restore it from a copy or a backup")

    def _check(self, offset: int, size: int) -> None:
        first, last = offset // _BLOCK, (offset + size - 1) // _BLOCK + 1
        if self._checked[first:last].all():
            return
        for block in (np.flatnonzero(~self._checked[first:last]) + first).tolist():
            if not self._is_whole(block):
                raise self._damaged(block)
        self._checked[first:last] = True


def _laid_out(data: pa.Buffer, known: Layout) -> Layout:
    """The layout of the same bytes elsewhere: nothing of it holds the place where they were."""
    _, _, _, meta_bytes, body_bytes, tail_bytes = _HEADER.unpack_from(data)
    body_at = _HEADER_BYTES + meta_bytes + -meta_bytes % 64
    tail = data.slice(body_at + body_bytes, tail_bytes)
    crcs, index = _tail_of(tail, len(known.crcs), len(known.index.lsn))
    return replace(known, body=data.slice(body_at, body_bytes), crcs=crcs, index=index)


def _tail_of(tail: pa.Buffer, blocks: int, commits: int) -> tuple[npt.NDArray[np.uint32], CommitIndex]:
    """(checksum of each block, commit index)."""
    crcs = np.frombuffer(tail, dtype=np.uint32, count=blocks)
    numbers = np.frombuffer(tail, dtype=np.int64, offset=blocks * 4 + -(blocks * 4) % 8)
    lsn, time_us, end, sums, rows = numbers.reshape(5, commits)
    return crcs, CommitIndex(lsn, time_us, end, sums.view(np.uint64), rows)


def _parsed(data: pa.Buffer, path: Path) -> Layout:
    damaged = Corrupt(f"segment file {path.name} is damaged in its header: restore it from a copy or a backup")
    if data.size < _HEADER_BYTES:
        raise damaged
    magic, version, _, meta_bytes, body_bytes, tail_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise damaged
    versions.check(version, SPARSE_VERSION, f"segment file {path.name}")
    body_at = _HEADER_BYTES + meta_bytes + -meta_bytes % 64
    if body_at + body_bytes + tail_bytes != data.size:
        raise damaged
    meta, tail = data.slice(_HEADER_BYTES, meta_bytes), data.slice(body_at + body_bytes, tail_bytes)
    crc = crc32c(tail, crc32c(meta, crc32c(data.slice(0, _HEADER.size))))
    if (crc,) != _CRC.unpack_from(data, _HEADER.size):
        raise damaged
    about = orjson.loads(memoryview(meta))
    crcs, index = _tail_of(tail, -(-body_bytes // _BLOCK), about["commits"])
    body = data.slice(body_at, body_bytes)
    numbered = about.get("schema", 0), about.get("sparse")
    return Layout(about["start"], about["end"], about["batches"], body, crcs, index, *numbered)
