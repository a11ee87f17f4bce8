"""The segment's format: a columnar file of a run of offsets of one bucket.

Header (64 bytes): magic u32 · version u16 · flags u16 · meta bytes u32 · body bytes u64 · tail bytes u64 · crc32c u32
of header, meta and tail. Then meta (JSON), body (record batches) and tail (CRC32C of each block of the body, then the
commit index), each at a multiple of 64. A block's checksum is checked before anything in it is first read, but for
bytes that this process wrote.
Primary-key tables (version 4): one uncompressed batch, for random reads in the mapped file, with checksums of 4 KB;
earlier releases had them of 64 KB (1, sparse: 2). Log tables (1): lz4 batches. A sparse segment has keyed rows below a
log start of which others are gone. Behind the batch lie the rows' offsets and those that gone records superseded, i64
each; the meta says where, the commit index has the commits of which rows are left, and the last one. Version 3 is of a
log with rows in extents: the meta has the kept files by name, an entry of a batch has the number of its file, and the
checksums of each extent's blocks stand behind the body's. The same bytes are a file, or lie in a shared one.
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
from lakestore.rows.ipc import crc32c
from lakestore.rows.ipc_metadata import FRAME
from lakestore_server.arrays.flat_batch import FlatBatch
from lakestore_server.files.block_checks import BlockChecks
from lakestore_server.files.block_crcs import BLOCK, FINE_BLOCK, blocks_of
from lakestore_server.files.data_folder import EXTENTS
from lakestore_server.files.extent import Extent, KeptFile, KeptFiles, missing
from lakestore_server.files.read_ahead import ReadAhead
from lakestore_server.host import versions
from lakestore_server.host.disk import Disk
from lakestore_server.host.mapping import will_need
from lakestore_server.state.chunk import Ints, StoredBatch
from lakestore_server.state.commit_index import CommitIndex

MAGIC = 0x4C535347
VERSION = 1
EXTENTS_VERSION = 3
KEYED_VERSION = 4
NEWEST_VERSION = KEYED_VERSION
HEADER = struct.Struct("<IHHIQQ")
CRC = struct.Struct("<I")
HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of a segment, in memory or in a mapped file."""

    data: pa.Buffer
    file: pa.Buffer
    """The whole file; the same bytes where the segment has it for itself."""
    at: int | None = None
    """The first byte in a shared file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a segment's bytes."""

    start: int
    end: int
    batches: list[list[int]]
    body: pa.Buffer
    crcs: npt.NDArray[np.uint32]
    block: int
    """Bytes of the body that a checksum covers."""
    index: CommitIndex
    schema_id: int
    sparse: dict[str, Any] | None
    files: tuple[KeptFile, ...] = ()
    """The files of its extents, by their numbers in the batches."""


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
        kept: KeptFiles | None = None,
        is_known: bool = False,
    ) -> None:
        """A segment file; or, with `part`, bytes that are mapped already, of which the layout may be known.

        Kept files that are mapped already are those of `kept`. Bytes are not compared with their checksums before they
        are read if they are known: made and written by this process.
        """
        self.path = path
        """The file that it lies in."""
        self._disk, self._keyed = disk, keyed
        if part is None:
            data = disk.map(path)
            part = Part(data, data)
        self.part = part
        self._kept = KeptFiles(disk, path.parent.parent / EXTENTS) if kept is None else kept
        self._layout = _parsed(part.data, path, self._kept) if layout is None else layout
        self._schema = stored(self._layout.schema_id)
        self._firsts = _first_blocks(self._layout)
        damaged = partial(_damaged, f"segment file {path.name}")
        block, blocks = self._layout.block, blocks_of(self._layout.body.size, self._layout.block)
        self._body = BlockChecks(self._layout.body, self._layout.crcs[:blocks], damaged, is_known=is_known, block=block)
        self._extents: dict[int, BlockChecks] = {}
        """Batches in extents that were read, by number."""
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

    def placed(self, path: Path, part: Part) -> Segment:
        """The same segment where its bytes lie now."""
        layout = _laid_out(part.data, self._layout)
        schema, about = self._schema, {"keyed": self._keyed, "is_known": self._body.is_needless}
        return Segment(self._disk, path, lambda _: schema, part=part, layout=layout, kept=self._kept, **about)

    @property
    def size(self) -> int:
        """Bytes of the segment, with those of its extents."""
        return self.own_size + sum(self.bytes_in.values())

    @property
    def own_size(self) -> int:
        """Bytes that lie in its own file, or in its part of a shared one."""
        return int(self.part.data.size)

    @cached_property
    def starts(self) -> Ints:
        """The first offset of each record batch."""
        return np.array([piece.start for piece in self._batches], dtype=np.int64)

    @cached_property
    def bytes_in(self) -> Mapping[str, int]:
        """The bytes of its extents in each kept journal file, by name."""
        found = dict.fromkeys((file.name for file in self.files), 0)
        for _, size, _, *extent in self._layout.batches:
            for number in extent:
                found[self.files[number].name] += size
        return found

    @property
    def files(self) -> Sequence[KeptFile]:
        """The kept journal files that it has extents in."""
        return self._layout.files

    def pieces(self) -> Iterator[tuple[StoredBatch, Extent | None]]:
        """Its record batches, and the extents of such as lie in one."""
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
        """The number of rows that it holds."""
        return sum(batch[2] for batch in self._layout.batches)

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

    @property
    def is_looked_up(self) -> bool:
        """Whether somebody has read single rows of it, and may do so again."""
        return self._flat_batch is not None

    def check_all(self) -> None:
        """Compare every stored byte with its checksum, or `Corrupt`."""
        for checks in self._every_check():
            checks.check_all()

    def batches(self) -> Sequence[StoredBatch]:
        """Its record batches."""
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
        """The checks of a batch in an extent, which lies as it came: it is always compared."""
        at, size, _, file = self._layout.batches[number]
        kept, crcs = self._layout.files[file], self._layout.crcs[self._firsts[number] :][: blocks_of(size)]
        damaged = partial(_damaged, f"kept journal file {kept.name}")
        return BlockChecks(kept.data.slice(at, size), crcs, damaged, is_known=False)

    def verify_ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Compare rows before a look-up asks for them, as long as it goes on; not those in extents."""
        self._body.ahead(goes_on)

    def _every_check(self) -> Iterator[BlockChecks]:
        """The checks of all bytes; what nobody has read yet is not remembered: a log has very many extents."""
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
        # No column at all would be every column; any one of them tells the number of rows.
        places = None if names is None else [self._schema.get_field_index(name) for name in names] or [0]
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with pa.ipc.open_stream(self._layout.body.slice(offset, size), options=options) as reader:
            return reader.read_next_batch()

    def _mapped(self) -> pa.RecordBatch:
        """The one batch of a primary-key table, of which no more than the head may be known to be whole."""
        if self._batch is None:  # it lies in the mapped file: keeping it costs nothing
            [[offset, size, _]] = self._layout.batches
            self._body.check(offset, FRAME.size)
            _, head_bytes = FRAME.unpack_from(self._layout.body, offset)
            self._body.check(offset, FRAME.size + head_bytes)
            self._batch = pa.ipc.read_record_batch(self._layout.body.slice(offset, size), self._schema)
        return self._batch

    def _flat(self) -> FlatBatch:
        """The same batch for those who read few rows of it: what they touch is compared first."""
        if self._flat_batch is None:
            self._flat_batch = FlatBatch(self._mapped(), self._layout.body, self._body)
        return self._flat_batch

    def _load_extent(self, number: int, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """A batch in the mapped file: columns that nobody reads are not touched but for their checksums, once.

        Who reads all columns, or has them compared, has the disk asked for what follows; also again, as what lay in
        the page cache may have left it.
        """
        at, size, _, file = self._layout.batches[number]
        known = self._extents.get(number)
        if known is None or names is None:
            self._ahead.read(number, size, self._ask)
        (known or self._extents.setdefault(number, self._checks_of(number))).check_all()
        return pa.ipc.read_record_batch(self._layout.files[file].data.slice(at, size), self._schema)

    def _ask(self, number: int) -> int:
        """Have the disk read a batch's extent; its bytes, or 0 if it has none."""
        at, size, _, *file = self._layout.batches[number] if number < len(self._layout.batches) else (0, 0, 0)
        if file:
            will_need(self._layout.files[file[0]].data.slice(at, size))
        return size if file else 0

    def scrub(self, *, with_extents: bool = True) -> Iterator[tuple[int, str]]:
        """(bytes read again, damage or nothing) of the header and of each block; a damaged block is not served."""
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
    """The number of the first checksum of each batch's bytes: those in the body share its."""
    firsts, at = [], blocks_of(layout.body.size, layout.block)
    for _, size, _, *extent in layout.batches:
        firsts.append(at if extent else 0)
        at += blocks_of(size) if extent else 0
    return firsts


def _laid_out(data: pa.Buffer, known: Layout) -> Layout:
    """The layout of the same bytes elsewhere: nothing of it holds the place where they were."""
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
    versions.check(version, NEWEST_VERSION, f"segment file {path.name}")
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
