"""The segment's format: the rows of a range of offsets of one bucket, in a file of its own or in a shared file.

- Header, 64 bytes: magic u32 · version u16 · flags u16 · meta bytes u32 · body bytes u64 · tail bytes u64 · crc32c u32
  of header, meta, tail. Then, at multiples of 64: meta (JSON), body (batches), tail (CRC32C of each block of the body,
  commit index). A block is checked before its first read, unless this process wrote it.
- Keyed tables (version 4): one uncompressed batch, for random reads, with blocks of 4 KB. Release 0.2 had blocks of
  64 KB (version 1; 2 if sparse). A sparse segment lacks rows of its range below the log start. After its batch follow
  the rows' offsets and the offsets that missing rows superseded (i64; positions in the meta).
- Log tables (version 1): lz4 batches. Version 3 has batches in extents: the meta lists the kept journal files, such a
  batch's entry has its file's number, and the tail has the extents' checksums after the body's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.distinct import distinct
from lakestore.rows.ipc import FRAME, crc32c
from lakestore_server.arrays.flat_batch import FlatBatch
from lakestore_server.files.data_folder import EXTENTS
from lakestore_server.files.extent import Extent, KeptFile, KeptFiles, missing
from lakestore_server.host import versions
from lakestore_server.host.disk import Disk
from lakestore_server.host.mapped_crc import Crcs, behind_a_block, crc32c_of_mapping, folded
from lakestore_server.host.mapping import will_need
from lakestore_server.host.yield_points import yield_point
from lakestore_server.state.chunk import CommitIndex, Ints, StoredBatch

BLOCK = 64 << 10
"""Bytes that one checksum covers."""
FINE_BLOCK = 4 << 10
"""Bytes that one checksum covers where single rows are looked up."""
YIELD_BLOCKS = 64
"""Blocks between two yield points."""


def blocks_of(size: int, block: int = BLOCK) -> int:
    """The number of blocks in `size` bytes."""
    return -(-size // block)


def block_crcs(*parts: pa.Buffer, block: int = BLOCK) -> Crcs:
    """The checksum of each block of the concatenated parts."""
    found: list[int] = []
    crc = filled = 0
    for part in parts:
        at = 0
        while at < part.size:
            taken = min(block - filled, part.size - at)
            crc = crc32c(part.slice(at, taken), crc)
            at, filled = at + taken, filled + taken
            if filled == block:
                found.append(crc)
                crc = filled = 0
                if not len(found) % YIELD_BLOCKS:
                    yield_point()
    if filled:
        found.append(crc)
    return np.array(found, dtype=np.uint32)


def extended(data: pa.Buffer, crc: int) -> tuple[int, Crcs]:
    """(checksum of everything before and of `data`, checksums of the blocks of `data`)."""
    found = [crc32c(data.slice(at, min(BLOCK, data.size - at))) for at in range(0, data.size, BLOCK)]
    crcs = np.array(found, dtype=np.uint32)
    return joined(crc, data, crcs), crcs


def joined(crc: int, data: pa.Buffer, crcs: Crcs) -> int:
    """The checksum of everything before and of `data`, computed from the blocks' checksums. Only the last, short
    block is read.
    """
    first, second, third, fourth = behind_a_block(BLOCK)
    for own in crcs[: data.size // BLOCK].tolist():
        crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ own
    rest = data.size % BLOCK
    return crc32c(data.slice(data.size - rest), crc) if rest else crc


AHEAD = 64
"""Pieces that `ahead` compares and prefetches at once: many, so that it takes few turns beside computing threads."""


class BlockChecks:
    """Bytes with block checksums, and which blocks were already found whole. Thread-safe: two threads may check the
    same block.
    """

    __slots__ = ("_all_known", "_block", "_crcs", "_damaged", "_data", "_known", "_next", "_per_piece", "_piece_crcs")

    def __init__(
        self,
        data: pa.Buffer,
        crcs: Crcs,
        damaged: Callable[[int], Corrupt],
        *,
        is_known: bool,
        block: int = BLOCK,
    ) -> None:
        """`damaged` makes the error for a block number. `is_known`: this process made and wrote the bytes, so no
        check is needed.
        """
        self._data, self._crcs, self._damaged = data, crcs, damaged
        self._block, self._per_piece = block, BLOCK // block
        self._known = np.full(len(crcs), is_known, dtype=np.bool_)
        self._all_known = is_known
        self._piece_crcs = crcs if block == BLOCK else None
        self._next = 0
        """The block at which the search for an unread piece begins; the start of a piece."""

    @property
    def is_needless(self) -> bool:
        """Whether every block is known to be whole."""
        return self._all_known

    def check(self, offset: int, size: int) -> None:
        """Check the blocks of a small range of bytes, or all pieces around a large one. Raises `Corrupt` for damage.

        Other threads can run between pieces.
        """
        if not size or self._all_known:
            return
        first, last = offset // self._block, (offset + size - 1) // self._block + 1
        if last - first < self._per_piece:
            self._compare(first + np.flatnonzero(~self._known[first:last]))
            return
        pieces = self._unknown_pieces(offset // BLOCK, (offset + size - 1) // BLOCK + 1)
        self._ask(pieces, BLOCK)
        for piece in pieces.tolist():
            if damage := self._again(piece):
                raise self._damaged(damage - 1)
        self._all_known = bool(self._known.all())

    def check_all(self) -> None:
        """Check every block. Raises `Corrupt` for damage."""
        self.check(0, int(self._data.size))

    def touch(self, first: Ints, last: Ints) -> None:
        """Check the blocks under ranges of bytes. Raises `Corrupt` for damage.

        If all of them were checked before, one further piece is checked instead. So in the end no check is needed any
        more.
        """
        if self._all_known or not len(first):
            return
        low, high = first // self._block, last // self._block
        blocks = np.concatenate([low, high]) if (high - low < 2).all() else _between(low, high)
        unknown = blocks[~self._known[blocks]]
        if len(unknown):
            self._compare(distinct(unknown))
        else:
            self._next_one()

    def _next_one(self) -> None:
        """Check the next unread piece. A damaged block is reported later, to the reader who needs it."""
        block = self._next + int(self._known[self._next :].argmin())
        piece = block // self._per_piece
        self._next = (piece + 1) % len(self._pieces) * self._per_piece
        if not self._known[block]:
            self._again(piece)
        self._all_known = bool(self._known.all())

    def ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Check unread pieces while `goes_on` returns True. It is called with the number of bytes of the next check.

        A damaged block is reported later, to the reader who needs it. Other threads can run meanwhile.
        """
        wanted = folded(self._pieces[: self._data.size // BLOCK], AHEAD, BLOCK).tolist()
        for at in range(0, len(self._pieces), AHEAD):
            pieces = self._unknown_pieces(at, min(at + AHEAD, len(self._pieces)))
            if not len(pieces):
                continue
            if not goes_on(len(pieces) * BLOCK):
                return
            self._ask(np.arange(at + AHEAD if at else 0, min(at + 2 * AHEAD, len(self._pieces))), BLOCK)
            if at // AHEAD < len(wanted) and self._crc(at, AHEAD, BLOCK) == wanted[at // AHEAD]:
                self._known[at * self._per_piece : (at + AHEAD) * self._per_piece] = True
            else:
                for piece in pieces.tolist():
                    self._again(piece)
        self._all_known = bool(self._known.all())

    def scrub(self) -> Iterator[tuple[int, str]]:
        """Check every piece again: yields (bytes, damage or ""). A damaged block is not served any more."""
        for piece in range(len(self._pieces)):
            damage = self._again(piece)
            self._all_known = not damage and bool(self._known.all())
            said = self._damaged(damage - 1).message if damage else ""
            yield int(self._bytes(piece, 1, BLOCK).size), said

    @property
    def _pieces(self) -> Crcs:
        """The checksum of each piece of 64 KB; 0 for a last piece that ends in a short block."""
        if self._piece_crcs is None:
            found = np.zeros(blocks_of(self._data.size), dtype=np.uint32)
            whole = folded(self._crcs[: self._data.size // self._block], self._per_piece, self._block)
            found[: len(whole)] = whole
            self._piece_crcs = found
        return self._piece_crcs

    def _unknown_pieces(self, first: int, last: int) -> Ints:
        """Pieces of [first, last) that have an unchecked block."""
        begins = np.arange(first * self._per_piece, min(last * self._per_piece, len(self._known)), self._per_piece)
        known = np.logical_and.reduceat(self._known[: last * self._per_piece], begins)
        return first + np.flatnonzero(~known)

    def _again(self, piece: int) -> int:
        """Check a piece and record the result. Returns its first damaged block, counted from 1, or 0."""
        first = piece * self._per_piece
        last = min(first + self._per_piece, len(self._crcs))
        if self._crc(piece, 1, BLOCK) == int(self._pieces[piece]):
            self._known[first:last] = True
            return 0
        blocks = [self._is_whole(block) for block in range(first, last)]
        self._known[first:last] = blocks
        return 0 if all(blocks) else first + blocks.index(False) + 1

    def _compare(self, unknown: Ints) -> None:
        self._ask(unknown, self._block)
        for block in unknown.tolist():
            if not self._is_whole(block):
                raise self._damaged(block)
            self._known[block] = True
        self._all_known = bool(self._known.all())

    def _ask(self, parts: Ints, size: int) -> None:
        """Prefetch these ascending parts of equal size from disk all at once. Touching them would wait for a few
        pages each.
        """
        if len(parts) > 1:
            for several in np.split(parts, np.flatnonzero(np.diff(parts) > 1) + 1):
                will_need(self._bytes(int(several[0]), len(several), size))

    def _bytes(self, first: int, count: int, size: int) -> pa.Buffer:
        return self._data.slice(first * size, min(count * size, self._data.size - first * size))

    def _crc(self, first: int, count: int, size: int) -> int:
        return crc32c_of_mapping(self._bytes(first, count, size))

    def _is_whole(self, block: int) -> bool:
        return crc32c(self._bytes(block, 1, self._block)) == int(self._crcs[block])


def _between(low: Ints, high: Ints) -> Ints:
    """All numbers of the ranges [low, high]."""
    counts = high - low + 1
    begins = np.cumsum(counts) - counts
    return np.repeat(low - begins, counts) + np.arange(counts.sum())


AHEAD_BYTES = 4 << 20
"""Bytes to prefetch beyond the part that is read."""
READERS_MAX = 16
"""The most readers that are tracked. With one more, all are forgotten and start again."""


class ReadAhead:
    """Prefetches for sequential readers. Thread-safe: in a race, a part is prefetched twice or not at all."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: dict[int, tuple[int, int]] = {}
        """By the next part of each reader: (the first part not prefetched, the bytes up to there)."""

    def read(self, part: int, nbytes: int, ask: Callable[[int], int]) -> None:
        """A part of `nbytes` is about to be read. Calls `ask` to prefetch the following parts; `ask` returns a
        part's bytes, or 0.
        """
        known = self._readers.pop(part, None if part else (0, 0))
        unasked, ahead = known or (part, 0)
        if unasked > part:
            ahead -= nbytes
        unasked = max(unasked, part + 1)
        while known and ahead < AHEAD_BYTES and (size := ask(unasked)):
            unasked, ahead = unasked + 1, ahead + size
        if len(self._readers) >= READERS_MAX:
            self._readers.clear()
        self._readers[part + 1] = unasked, ahead


MAGIC = 0x4C535347
VERSION = 1
EXTENTS_VERSION = 3
KEYED_VERSION = 4
READ = (VERSION, 2, EXTENTS_VERSION, KEYED_VERSION)
"""The versions that are read. Version 2 is a sparse segment of release 0.2."""
HEADER = struct.Struct("<IHHIQQ")
CRC = struct.Struct("<I")
HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The bytes of a segment, in memory or in a mapped file."""

    data: pa.Buffer
    file: pa.Buffer
    """The whole file: the same bytes if the segment has a file of its own."""
    at: int | None = None
    """Position of the first byte in a shared file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a segment's bytes."""

    start: int
    end: int
    batches: list[list[int]]
    body: pa.Buffer
    crcs: npt.NDArray[np.uint32]
    block: int
    """Bytes of the body that one checksum covers."""
    index: CommitIndex
    schema_id: int
    sparse: dict[str, Any] | None
    files: tuple[KeptFile, ...] = ()
    """The kept journal files of its extents, in the order of the numbers that batches have."""


class Segment:
    """A mapped segment; a `Chunk`."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        stored: Callable[[int], pa.Schema],
        *,
        keyed: bool,
        part: SegmentBytes | None = None,
        layout: Layout | None = None,
        kept: KeptFiles | None = None,
        is_known: bool = False,
    ) -> None:
        """Opens a segment file; or, with `part`, bytes that are mapped already, whose `layout` may be known.

        `kept` provides kept journal files that are mapped already. `is_known`: this process made and wrote the bytes,
        so they need no check before they are read.
        """
        self.path = path
        """The file in which the segment lies."""
        self._disk, self._keyed = disk, keyed
        if part is None:
            data = disk.map(path)
            part = SegmentBytes(data, data)
        self.part = part
        self._kept = KeptFiles(disk, path.parent.parent / EXTENTS) if kept is None else kept
        self._layout = _parsed(part.data, path, self._kept) if layout is None else layout
        self._schema = stored(self._layout.schema_id)
        self._firsts = _first_blocks(self._layout)
        damaged = partial(_damaged, f"segment file {path.name}")
        block, blocks = self._layout.block, blocks_of(self._layout.body.size, self._layout.block)
        self._body = BlockChecks(self._layout.body, self._layout.crcs[:blocks], damaged, is_known=is_known, block=block)
        self._extents: dict[int, BlockChecks] = {}
        """The checks of extents that were read, by batch number."""
        self._ahead = ReadAhead()
        self._batch: pa.RecordBatch | None = None
        self._flat_batch: FlatBatch | None = None
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

    def placed(self, path: Path, part: SegmentBytes) -> Segment:
        """The same segment at another place, such as in a shared file."""
        layout = _layout_at(part.data, self._layout)
        schema, about = self._schema, {"keyed": self._keyed, "is_known": self._body.is_needless}
        return Segment(self._disk, path, lambda _: schema, part=part, layout=layout, kept=self._kept, **about)

    @property
    def size(self) -> int:
        """Bytes of the segment, with its extents."""
        return self.own_size + sum(self.bytes_in.values())

    @property
    def own_size(self) -> int:
        """Bytes in its own file, or in its part of a shared file; without extents."""
        return int(self.part.data.size)

    @cached_property
    def starts(self) -> Ints:
        """The first offset of each record batch."""
        return np.array([piece.start for piece in self._batches], dtype=np.int64)

    @cached_property
    def bytes_in(self) -> Mapping[str, int]:
        """Kept journal file name to the bytes of this segment's extents in it."""
        found = dict.fromkeys((file.name for file in self.files), 0)
        for _, size, _, *extent in self._layout.batches:
            for number in extent:
                found[self.files[number].name] += size
        return found

    @property
    def files(self) -> Sequence[KeptFile]:
        """The kept journal files that contain its extents."""
        return self._layout.files

    def pieces(self) -> Iterator[tuple[StoredBatch, Extent | None]]:
        """Each record batch, with its extent if it has one."""
        for number, (piece, batch) in enumerate(zip(self._batches, self._layout.batches, strict=True)):
            if len(batch) == 3:
                yield piece, None
            else:
                at, size, rows, file = batch
                first = self._firsts[number]
                crcs = self._layout.crcs[first : first + blocks_of(size)]
                yield piece, Extent(self._layout.files[file], at, size, rows, crcs)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch[2] for batch in self._layout.batches)

    def kills(self) -> Ints:
        """Offsets superseded by rows that are gone from here, sorted."""
        if self._layout.sparse is None:
            return np.empty(0, dtype=np.int64)
        return self._numbers(*self._layout.sparse["kills"])

    @property
    def is_sparse(self) -> bool:
        """Whether rows of its range are gone."""
        return self._layout.sparse is not None

    @property
    def schema_id(self) -> int:
        """The schema version of the stored rows."""
        return self._layout.schema_id

    @property
    def is_looked_up(self) -> bool:
        """Whether single rows were looked up in it, so that they may be again."""
        return self._flat_batch is not None

    def check_all(self) -> None:
        """Check every stored byte. Raises `Corrupt` for damage."""
        for checks in self._every_check():
            checks.check_all()

    def batches(self) -> Sequence[StoredBatch]:
        """The record batches."""
        return self._batches

    def _all_batches(self) -> list[StoredBatch]:
        pieces, at = [], self.start
        flat = self._flat if self._keyed else None
        for number, (offset, size, rows, *extent) in enumerate(self._layout.batches):
            load = partial(self._load_extent, number) if extent else partial(self._load, offset, size)
            if self._layout.sparse is None:
                pieces.append(StoredBatch(at, at + rows, load, self.schema_id, flat=flat))
            else:
                left = partial(self._numbers, self._layout.sparse["offsets"], rows)
                pieces.append(StoredBatch(self.start, self.end, load, self.schema_id, left, flat))
            at += rows
        return pieces

    def _checks_of(self, number: int) -> BlockChecks:
        """Checks for a batch in an extent. The journal wrote it, so it always has to be checked."""
        at, size, _, file = self._layout.batches[number]
        kept, crcs = self._layout.files[file], self._layout.crcs[self._firsts[number] :][: blocks_of(size)]
        damaged = partial(_damaged, f"kept journal file {kept.name}")
        return BlockChecks(kept.data.slice(at, size), crcs, damaged, is_known=False)

    def verify_ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Check rows before a look-up needs them, while `goes_on` returns True. Extents are left out."""
        self._body.ahead(goes_on)

    def _every_check(self) -> Iterator[BlockChecks]:
        """The checks of all bytes. New checks of extents are not kept: a log has very many extents."""
        yield self._body
        for number, batch in enumerate(self._layout.batches):
            if len(batch) > 3:
                yield self._extents.get(number) or self._checks_of(number)

    def _numbers(self, at: int, count: int) -> Ints:
        if not count:
            return np.empty(0, dtype=np.int64)
        self._body.check(at, 8 * count)
        return np.frombuffer(self._layout.body, dtype=np.int64, count=count, offset=at)

    def _load(self, offset: int, size: int, names: Sequence[str] | None = None) -> pa.RecordBatch:
        self._body.check(offset, size)
        if self._keyed:
            return self._mapped()
        # With an empty list Arrow would read all columns. Any one column gives the number of rows.
        places = None if names is None else [self._schema.get_field_index(name) for name in names] or [0]
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with pa.ipc.open_stream(self._layout.body.slice(offset, size), options=options) as reader:
            return reader.read_next_batch()

    def _mapped(self) -> pa.RecordBatch:
        """The batch of a keyed table, which has one. Only the head of the batch has been checked."""
        if self._batch is None:  # the batch lies in the mapped file, so keeping it costs nothing
            [[offset, size, _]] = self._layout.batches
            self._body.check(offset, FRAME.size)
            _, head_bytes = FRAME.unpack_from(self._layout.body, offset)
            self._body.check(offset, FRAME.size + head_bytes)
            self._batch = pa.ipc.read_record_batch(self._layout.body.slice(offset, size), self._schema)
        return self._batch

    def _flat(self) -> FlatBatch:
        """The same batch for look-ups of few rows. The bytes that they touch are checked first."""
        if self._flat_batch is None:
            self._flat_batch = FlatBatch(self._mapped(), self._layout.body, self._body)
        return self._flat_batch

    def _load_extent(self, number: int, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """A batch in a kept journal file. Its checksums are verified once; columns that are not read are not touched
        after that.

        A read of all columns, and the first check, prefetch the following extents, every time: the page cache may have
        dropped them.
        """
        at, size, _, file = self._layout.batches[number]
        known = self._extents.get(number)
        if known is None or names is None:
            self._ahead.read(number, size, self._ask)
        (known or self._extents.setdefault(number, self._checks_of(number))).check_all()
        return pa.ipc.read_record_batch(self._layout.files[file].data.slice(at, size), self._schema)

    def _ask(self, number: int) -> int:
        """Prefetch a batch's extent. Returns its bytes, or 0 if the batch has none."""
        at, size, _, *file = self._layout.batches[number] if number < len(self._layout.batches) else (0, 0, 0)
        if file:
            will_need(self._layout.files[file[0]].data.slice(at, size))
        return size if file else 0

    def scrub(self, *, with_extents: bool = True) -> Iterator[tuple[int, str]]:
        """Check the header and each block again: yields (bytes, damage or ""). A damaged block is not served any
        more.
        """
        beside = self.own_size - self._layout.body.size
        try:
            _parsed(self.part.data, self.path, self._kept)
        except Corrupt as error:
            yield beside, error.message
        else:
            yield beside, ""
        for checks in self._every_check() if with_extents else (self._body,):
            yield from checks.scrub()


def _damaged(name: str, block: int) -> Corrupt:
    return Corrupt(f"{name} is damaged in block {block}: restore it from a copy or a backup")


def _first_blocks(layout: Layout) -> list[int]:
    """For each batch, the index of its first checksum. Batches in the body share the body's checksums."""
    firsts, at = [], blocks_of(layout.body.size, layout.block)
    for _, size, _, *extent in layout.batches:
        firsts.append(at if extent else 0)
        at += blocks_of(size) if extent else 0
    return firsts


def _layout_at(data: pa.Buffer, known: Layout) -> Layout:
    """The layout of the same bytes at another place. It holds no reference to the old place."""
    _, _, _, meta_bytes, body_bytes, tail_bytes = HEADER.unpack_from(data)
    body_at = HEADER_BYTES + meta_bytes + -meta_bytes % 64
    tail = data.slice(body_at + body_bytes, tail_bytes)
    crcs, index = _tail_of(tail, len(known.crcs), len(known.index.lsn))
    return replace(known, body=data.slice(body_at, body_bytes), crcs=crcs, index=index)


def _tail_of(tail: pa.Buffer, blocks: int, commits: int) -> tuple[npt.NDArray[np.uint32], CommitIndex]:
    """(checksum of each block, commit index)."""
    crcs = np.frombuffer(tail, dtype=np.uint32, count=blocks)
    numbers = np.frombuffer(tail, dtype=np.int64, offset=blocks * 4 + -(blocks * 4) % 8)
    lsn, time_us, end, sums, rows = numbers.reshape(5, commits)
    return crcs, CommitIndex(lsn, time_us, end, sums.view(np.uint64), rows)


def _parsed(data: pa.Buffer, path: Path, kept: KeptFiles) -> Layout:
    damaged = Corrupt(f"segment file {path.name} is damaged in its header: restore it from a copy or a backup")
    if data.size < HEADER_BYTES:
        raise damaged
    magic, version, _, meta_bytes, body_bytes, tail_bytes = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise damaged
    versions.check(version, READ, f"segment file {path.name}")
    body_at = HEADER_BYTES + meta_bytes + -meta_bytes % 64
    if body_at + body_bytes + tail_bytes != data.size:
        raise damaged
    meta, tail = data.slice(HEADER_BYTES, meta_bytes), data.slice(body_at + body_bytes, tail_bytes)
    crc = crc32c(tail, crc32c(meta, crc32c(data.slice(0, HEADER.size))))
    if (crc,) != CRC.unpack_from(data, HEADER.size):
        raise damaged
    about = orjson.loads(memoryview(meta))
    files = tuple(kept.file(name) for name in about.get("files", ()))
    extents = [batch for batch in about["batches"] if len(batch) > 3]
    for at, size, _, file in extents:
        if at + size > files[file].data.size:
            raise missing(files[file].name)
    block = FINE_BLOCK if version == KEYED_VERSION else BLOCK
    blocks = blocks_of(body_bytes, block) + sum(blocks_of(batch[1]) for batch in extents)
    crcs, index = _tail_of(tail, blocks, about["commits"])
    body = data.slice(body_at, body_bytes)
    numbered = about.get("schema", 0), about.get("sparse"), files
    return Layout(about["start"], about["end"], about["batches"], body, crcs, block, index, *numbered)
