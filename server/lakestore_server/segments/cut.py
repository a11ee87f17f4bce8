"""The segments of one checkpoint: new ones for rows in memory, rewritten ones below log starts, small ones in shared
files.

- Rows of a log table stay in the journal file (an extent) if that pays; then their segment is small.
- A large segment is a file. Small segments share files, which are written and synced once.
- After an erasure, files with bytes that no segment needs any more are emptied at once.
- A shared file is removed with its last segment. If a third of a file is gone, or if it is no larger than the new file,
  its segments move into the new file. So there is a logarithmic number of files and a segment is copied as often.
"""

from __future__ import annotations

import bisect
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.limits import DEFAULT, Limits
from lakestore.model.retention import Retention
from lakestore_server.files import extent, journal, new_segment, shared_file
from lakestore_server.files.compression import compresses
from lakestore_server.files.data_folder import EXTENTS, SEGMENTS, SHARED, SUFFIX
from lakestore_server.files.extent import Extent, KeptFile, KeptFiles
from lakestore_server.files.new_segment import EncodedSegment, Piece, SparseRows
from lakestore_server.files.segment import Segment, SegmentBytes, block_crcs
from lakestore_server.files.shared_file import NewSegment, SharedFile
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.segments.compaction import Compactor, erasing_logs
from lakestore_server.segments.merging import Merger
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import Chunk, MemoryChunk
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.commit_record import JournalFile, LocalJournal, PartPlace
from lakestore_server.state.state import FrozenState
from lakestore_server.state.view import TableState, View


class ExtentChoice:
    """The extents of one checkpoint's new segments."""

    def __init__(self, disk: Disk, limits: Limits) -> None:
        self._disk, self._limits = disk, limits
        self._extents: dict[Key, list[tuple[int, Extent]]] = defaultdict(list)
        """The extents of rows in memory, by first offset."""

    def choose(self, frozen: FrozenState, journal: LocalJournal, path_of: Callable[[str], Path]) -> None:
        """Keep the journal files with rows of a frozen state, if that pays. `path_of` gives the path under which a
        journal file is kept, in an existing folder."""
        wanted = dict(_in_memory(frozen.view))
        if sum(chunk.size for chunks in wanted.values() for chunk in chunks) < self._limits.extent_bytes:
            return
        for file in journal.files(frozen.place, self._limits.extent_bytes):
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
        """The rows of a log table's chunks, as extents or as pieces to load. No row stays in the `emptied` files."""
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
        for start, part in found[first:]:
            if start >= chunk.end:
                break
            if at < start:
                yield partial(chunk.batch.slice, at - chunk.start, start - at)
            yield part
            at = start + part.rows
        if at < chunk.end:
            yield partial(chunk.batch.slice, at - chunk.start)


def _is_of_use(staying: int, size: int, limits: Limits) -> bool:
    """Whether a file of `size` bytes is worth keeping for the `staying` bytes."""
    return 100 * staying >= limits.extent_file_percent * size and staying > 0


def has_rows_of(file: KeptFile, is_meant: Callable[[str], bool]) -> bool:
    """Whether a commit in a kept journal file has rows of a table, by uuid, that is meant. A damaged file may."""
    try:
        frames = journal.frames(file.data.to_pybytes(), file.name, last=True)
        return any(is_meant(part.table) for frame in frames for part in frame.rows())
    except Corrupt:
        return True


def files_to_empty(segments: Iterable[Segment], limits: Limits) -> frozenset[str]:
    """The kept files with too few needed bytes, the emptiest first, as many as one checkpoint may read."""
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
    """The chunks in memory of each bucket of log tables, by table uuid and bucket."""
    for uuid, state in view.kept.items():
        for bucket, log in enumerate(state.logs):
            chunks = [chunk for chunk in log.chunks if isinstance(chunk, MemoryChunk)]
            if chunks and not log.keyed:
                yield (uuid, bucket), chunks


def _staying(file: JournalFile, wanted: Mapping[Key, Sequence[MemoryChunk]], percent: int) -> Iterator[PartPlace]:
    """The parts of wanted rows that compression would not shrink, bucket by bucket."""
    parts: dict[Key, list[PartPlace]] = defaultdict(list)
    for part in file.parts:
        parts[part.table, part.bucket].append(part)
    for key, of_bucket in parts.items():
        chunks = wanted.get(key, ())
        for part in of_bucket:
            found = bisect.bisect_right(chunks, part.start, key=lambda chunk: chunk.start) - 1
            if 0 <= found and part.start + part.rows <= chunks[-1].end:
                if not compresses(_buffers(chunks[found], part) or [file.data.slice(part.at, part.size)], percent):
                    yield part


def _buffers(chunk: MemoryChunk, part: PartPlace) -> Sequence[pa.Buffer]:
    """A part's values in memory, if they are exactly a chunk's: the file may not be in memory any more."""
    if (chunk.start, chunk.rows) != (part.start, part.rows):
        return ()
    return [buffer for column in chunk.batch.columns for buffer in column.buffers() if buffer is not None]


log = logging.getLogger("lakestore.checkpoint")
SEGMENTS_KEPT = 16
"""Segments into which the retention of a bucket is divided; rows may stay longer by one of these parts."""
LONE_MAX = 256
"""The most small segments with a file of their own, as earlier releases wrote them; more are put together."""
SMALL_TOGETHER = 2
"""Up to this multiple of a small segment's bytes checkpoints put segments together; larger ones are merged in the
background."""
NO_SPAN = 1 << 62

Key = tuple[str, int]
"""Table uuid and bucket."""
Cut = Mapping[Key, Sequence[Chunk]]
"""The chunks of the buckets whose segments change."""


@dataclass(slots=True)
class _Small:
    """A segment in a shared file."""

    key: Key
    segment: Segment


@dataclass(slots=True)
class _Held:
    """A shared file and its needed segments."""

    size: int
    parts: list[_Small] = field(default_factory=list)
    live: int = 0

    def add(self, part: _Small) -> None:
        self.parts.append(part)
        self.live += part.segment.own_size


class SegmentCut:
    """The segment work of one checkpoint; belongs to its thread."""

    def __init__(
        self,
        *,
        folder: Path,
        disk: Disk,
        limits: Limits,
        compactor: Compactor,
        merger: Merger,
        frozen: FrozenState,
        deleting_us: int,
        journal: LocalJournal,
    ) -> None:
        """Deletes before `deleting_us` may be dropped."""
        self._place, self._disk, self._limits = folder / SEGMENTS, disk, limits
        self._frozen, self._view = frozen, frozen.view
        self._tables = frozen.view.kept
        self._deleting_us = deleting_us
        self._compactor, self._merger = compactor, merger
        self._chunks: dict[Key, list[Chunk]] = {}
        self._small: list[_Small] = []
        self._folders: dict[Path, None] = {}
        self._journal, self._extents = journal, ExtentChoice(disk, limits)
        self._erasing: frozenset[str] = frozenset()
        """Uuids of the tables that lose all their dead rows in this checkpoint."""
        self.made: list[Path] = []
        """Files made so far."""

    def run(self) -> Cut:
        """Durable segments for every bucket with rows in memory or with due segments below its log start."""
        self._compactor.begin(self._view)
        self._merger.begin()
        self._erasing = erasing_logs(self._view)
        if not self._erasing:  # a kept file has rows of all tables
            self._extents.choose(self._frozen, self._journal, self._kept_path)
        for uuid, state in self._tables.items():
            for bucket, held in enumerate(state.logs):
                if not is_cut(held):
                    self._chunks[uuid, bucket] = self._bucket(state, bucket)
                merged = self._merger.merged((uuid, bucket), self._chunks.get((uuid, bucket), held.chunks))
                if merged is not None:
                    self._chunks[uuid, bucket] = merged
                if held.keyed and held.base.end:
                    self._compact(state, bucket)
        is_emptied = self._empty()
        self._gather()
        moved = self._put_together()
        if is_emptied:
            self._disk.reach(CrashPoint.EXTENTS_GATHERED)
        for folder in self._folders:
            self._disk.sync_folder(folder)
            self._disk.reach(CrashPoint.SEGMENTS_DURABLE)
        return {key: [moved.get(id(chunk), chunk) for chunk in chunks] for key, chunks in self._chunks.items()}

    def _bucket(self, state: TableState, bucket: int) -> list[Chunk]:
        held = state.logs[bucket]
        is_merged_later = held.keyed and self._limits.merge_bytes > 0
        bytes_max = SMALL_TOGETHER * self._limits.shared_segment_bytes if is_merged_later else None
        floors = self._view.floors(state.table.uuid)
        about = state.table.retention, max(held.base.end, floors[bucket] if floors else 0), self._view.marks
        kept, runs = segment_runs(held.chunks, self._limits, *about, bytes_max)
        new = (self._written(state, bucket, run) for run in runs)
        return [*kept, *new]

    def _written(
        self, state: TableState, bucket: int, run: Sequence[Chunk], emptied: frozenset[str] = frozenset()
    ) -> Segment:
        """A segment of these chunks; none of its rows stays in the `emptied` files."""
        keyed, key = state.logs[bucket].keyed, (state.table.uuid, bucket)
        pieces = None if keyed else self._extents.pieces(key, run, emptied)
        extents = [piece for piece in pieces or () if isinstance(piece, Extent)]
        kept = KeptFiles(self._disk, self._place / EXTENTS, (extent.file for extent in extents))
        percent = self._limits.compressed_percent
        made = new_segment.encoded(run, keyed=keyed, pieces=pieces, percent=percent)
        if self._is_small(sum(chunk.size for chunk in run) - sum(extent.size for extent in extents)):
            return self._kept_back(state, bucket, made, kept)
        path = self._new_path(state.table.uuid, bucket, run[0].start, run[-1].end)
        new_segment.write_segment(self._disk, path, made)
        return Segment(self._disk, path, state.versions.stored, keyed=keyed, kept=kept, is_known=True)

    def _empty(self) -> bool:
        """Gather the rows of kept files with too few needed bytes; damaged segments stay."""
        segments = [each for each in self._every() if each.segment.files]
        emptied = files_to_empty((each.segment for each in segments), self._limits)
        if self._erasing:
            kept = {file.name: file for each in segments for file in each.segment.files}
            emptied |= {name for name, file in kept.items() if has_rows_of(file, self._loses)}
        gathered = False
        for each in segments:
            if emptied.isdisjoint(each.segment.bytes_in) or any(damage for _, damage in each.segment.scrub()):
                continue
            uuid, bucket = each.key
            state = self._tables[uuid]
            new = self._written(state, bucket, [each.segment], emptied)
            chunks = self._chunks.get(each.key, list(state.logs[bucket].chunks))
            self._chunks[each.key] = [new if chunk is each.segment else chunk for chunk in chunks]
            gathered = True
        return gathered

    def _compact(self, state: TableState, bucket: int) -> None:
        def write(left: SparseRows) -> Chunk:
            if self._is_small(left.batch.nbytes):
                return self._kept_back(state, bucket, new_segment.encoded_sparse(left))
            path = self._new_path(state.table.uuid, bucket, left.start, left.end)
            new_segment.write_sparse(self._disk, path, left)
            self._disk.reach(CrashPoint.BASE_REWRITTEN)
            return Segment(self._disk, path, state.versions.stored, keyed=True, is_known=True)

        key = state.table.uuid, bucket
        after = self._compactor.compacted(state, bucket, self._chunks.get(key), self._deleting_us, write)
        if after is not None:
            self._chunks[key] = after

    def _is_small(self, nbytes: int) -> bool:
        return nbytes < self._limits.shared_segment_bytes

    def _kept_back(
        self, state: TableState, bucket: int, made: EncodedSegment, kept: KeptFiles | None = None
    ) -> Segment:
        """A segment in memory that is written later together with others."""
        data, keyed = made.whole(), state.logs[bucket].keyed
        path = self._place / state.table.uuid
        stored, part = state.versions.stored, SegmentBytes(data, data)
        new = Segment(self._disk, path, stored, keyed=keyed, part=part, kept=kept, is_known=True)
        self._small.append(_Small((state.table.uuid, bucket), new))
        return new

    def _gather(self) -> None:
        """Move the segments of shared files that are worth emptying into the new files; forget new files that became
        unneeded."""
        fresh = {id(each.segment) for each in self._small}
        self._small = []
        files: dict[Path, _Held] = {}
        lone = _Held(0)
        for each in self._every():
            held = each.segment
            if id(held) in fresh:
                self._small.append(each)
                continue
            if held.part.at is not None:
                files.setdefault(held.path, _Held(int(held.part.file.size))).add(each)
            elif self._is_small(held.own_size):
                lone.add(each)
        newest_first = [files[path] for path in sorted(files, reverse=True)]
        size = sum(each.segment.own_size for each in self._small)
        worth = worth_emptying(newest_first, size, self._limits.compaction_bytes)
        if self._erasing:
            taken = {id(file) for file in worth}
            worth += [file for file in newest_first if id(file) not in taken and self._has_erased(file)]
        for file in worth:
            self._move(file.parts)
        if len(lone.parts) > LONE_MAX:
            self._move(next(_groups(lone.parts, self._limits.compaction_bytes)))

    def _has_erased(self, file: _Held) -> bool:
        """Whether a shared file has bytes that no segment needs any more, of a table that loses them."""
        held = SharedFile(self._disk, file.parts[0].segment.path)
        needed = {each.segment.part.at for each in file.parts}
        return any(self._loses(entry.table) and at not in needed for at, entry in held.entries.items())

    def _loses(self, uuid: str) -> bool:
        """Whether a table loses bytes in this checkpoint, which goes with an erasure: it is under erasure, or is gone.
        A table that is gone may be an earlier state of the erased one, from before its rescale or its drop."""
        return uuid in self._erasing or uuid not in self._tables

    def _every(self) -> Iterator[_Small]:
        """All segments that the checkpoint will name."""
        for uuid, state in self._tables.items():
            for bucket, held in enumerate(state.logs):
                for chunk in self._chunks.get((uuid, bucket), held.chunks):
                    if isinstance(chunk, Segment):
                        yield _Small((uuid, bucket), chunk)

    def _move(self, parts: Sequence[_Small]) -> None:
        """Copy segments into a shared file. Damaged segments, and others of their file, stay."""
        if any(damage for each in parts for _, damage in each.segment.scrub(with_extents=False)):
            return
        for each in parts:
            uuid, bucket = each.key
            self._chunks.setdefault(each.key, list(self._tables[uuid].logs[bucket].chunks))
        self._small += parts

    def _put_together(self) -> dict[int, Chunk]:
        """Write the segments that were held back; maps the identity of each to its place."""
        moved: dict[int, Chunk] = {}
        if len(self._small) == 1:
            (only,) = self._small
            path = self._new_path(*only.key, only.segment.start, only.segment.end)
            new_segment.write_segment(self._disk, path, EncodedSegment((), [only.segment.part.data], b""))
            self._say_rewritten([only])
            data = self._disk.map(path)
            return {id(only.segment): only.segment.placed(path, SegmentBytes(data, data))}
        for parts in _groups(self._small):
            path = self._new_shared_path()
            shared_file.write(self._disk, path, [_new_part(each) for each in parts])
            self._say_rewritten(parts)
            file = SharedFile(self._disk, path)
            for each, entry in zip(parts, file.entries.values(), strict=True):
                moved[id(each.segment)] = each.segment.placed(path, file.part(entry.at, entry.size))
        return moved

    def _say_rewritten(self, parts: Sequence[_Small]) -> None:
        if any(each.segment.is_sparse for each in parts):
            self._disk.reach(CrashPoint.BASE_REWRITTEN)

    def _new_path(self, uuid: str, bucket: int, start: int, end: int) -> Path:
        """An unused name: there may be several checkpoints at one LSN and several files of one range."""
        return self._free_path(uuid, f"{bucket}-{start}-{end}-{self._view.lsn}")

    def _new_shared_path(self) -> Path:
        return self._free_path(SHARED, f"{self._view.lsn:020d}")

    def _kept_path(self, journal_file: str) -> Path:
        first = journal_file.rpartition("-")[2]
        return self._free_path(EXTENTS, f"{first}-{self._view.lsn}", extent.SUFFIX)

    def _free_path(self, folder: str, name: str, suffix: str = SUFFIX) -> Path:
        place = self._place / folder
        if place not in self._folders:
            self._disk.make_folder(place)
            self._folders[place] = None
        paths = (place / f"{name}{f'-{n}' if n else ''}{suffix}" for n in count())
        path = next(path for path in paths if self._disk.size(path) is None)
        self.made.append(path)
        return path


def is_cut(held: BucketLog) -> bool:
    """Whether all rows of a bucket are in segments; rows in memory are always last."""
    return not held.chunks or isinstance(held.chunks[-1], Segment)


def worth_emptying(newest_first: Sequence[_Held], size: int, bytes_max: int) -> list[_Held]:
    """The shared files to empty into a new one of `size` bytes: a third of a file is gone, or it is no larger."""
    chosen: list[_Held] = []
    room = bytes_max
    for file in newest_first:
        is_level = file.live <= size and size + file.live <= shared_file.BYTES_MAX
        if file.live <= room and (3 * file.live < 2 * file.size or is_level):
            chosen.append(file)
            size, room = size + file.live, room - file.live
    return chosen


def _new_part(small: _Small) -> NewSegment:
    held = small.segment
    return NewSegment(*small.key, held.start, held.end, held.part.data)


def _groups(parts: Sequence[_Small], bytes_max: int = shared_file.BYTES_MAX) -> Iterator[list[_Small]]:
    group: list[_Small] = []
    size = 0
    for each in parts:
        if group and size + each.segment.own_size > bytes_max:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.segment.own_size
    if group:
        yield group


def segments_of(view: View, cut: Cut) -> list[Segment]:
    """The segments that a checkpoint of the view names."""
    return [
        chunk
        for uuid, state in view.kept.items()
        for bucket, held in enumerate(state.logs)
        for chunk in cut.get((uuid, bucket), held.chunks)
        if isinstance(chunk, Segment)
    ]


def segment_runs(
    chunks: Sequence[Chunk],
    limits: Limits = DEFAULT,
    retention: Retention | None = None,
    base_end: int = 0,
    marks: ClockMarks = NO_MARKS,
    bytes_max: int | None = None,
) -> tuple[list[Chunk], list[list[Chunk]]]:
    """(segments to keep, runs of chunks that each become a segment). Small segments before the tail are merged with it,
    so that a row is rewritten a logarithmic number of times. A segment holds one schema version and at most a part of
    what retention keeps, because it is removed as a whole. Compaction handles chunks below the log start; chunks that
    reach `bytes_max` are merged in the background."""
    segment_bytes, span_us = _part_of(retention, limits)
    at = next((i for i, chunk in enumerate(chunks) if not isinstance(chunk, Segment)), len(chunks))
    rows = chunks[-1].end - chunks[at].start
    size = sum(chunk.size for chunk in chunks[at:])
    most = segment_bytes if bytes_max is None else bytes_max
    while at and chunks[at - 1].schema_id == chunks[at].schema_id and chunks[at - 1].end > base_end:
        before = chunks[at - 1]
        if not is_taken_along(before.end - before.start, before.size, rows, size, limits.segment_rows, most):
            break
        if not _within(before, chunks[at], span_us, marks):
            break
        at, rows, size = at - 1, rows + before.end - before.start, size + before.size
    runs: list[list[Chunk]] = []
    size = 0
    for chunk in chunks[at:]:
        size += chunk.size
        rows_fit = runs and chunk.end - runs[-1][0].start <= limits.segment_rows
        same = rows_fit and chunk.schema_id == runs[-1][0].schema_id and not runs[-1][0].start < base_end < chunk.end
        if same and size <= segment_bytes and _within(runs[-1][0], chunk, span_us, marks):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
            size = chunk.size
    return list(chunks[:at]), runs


def is_taken_along(
    before_rows: float, before_bytes: float, rows: float, nbytes: float, rows_max: float, bytes_max: float
) -> bool:
    """Whether a small segment is joined with the new rows after it, which must be at least as many."""
    return before_rows <= rows and rows + before_rows <= rows_max and nbytes + before_bytes <= bytes_max


def _part_of(retention: Retention | None, limits: Limits) -> tuple[int, int]:
    """(bytes, µs) that one segment of a log may hold."""
    size, age = (retention.bytes, retention.age_seconds) if retention else (None, None)
    return (
        limits.segment_bytes if size is None else min(limits.segment_bytes, max(size // SEGMENTS_KEPT, 1)),
        NO_SPAN if age is None else age * 1_000_000 // SEGMENTS_KEPT,
    )


def _within(first: Chunk, last: Chunk, span_us: int, marks: ClockMarks) -> bool:
    if span_us == NO_SPAN:
        return True
    begins, ends = ((int(c.index.lsn[at]), int(c.index.time_us[at])) for c, at in ((first, 0), (last, -1)))
    return marks.time_us(*ends) - marks.time_us(*begins) <= span_us
