"""Merging: neighbouring segments of keyed tables become one, even if none of their rows is dead.

- A background thread writes merged files at a bounded rate. The next checkpoint names a file if its source segments are
  all still there; otherwise the file is removed.
- So a live row is found in one of few segments. A merged segment is several times as large as its largest source, so a
  row is rewritten a logarithmic number of times: with the defaults mostly once.
- No row is dropped by a merge. Compaction skips segments that are being merged; it hands its own large runs to this
  thread, which rewrites them without dead rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.limits import Limits
from lakestore.rows.distinct import distinct
from lakestore_server.commit.engine import CommitLoop
from lakestore_server.commit.priority import DutyPriority
from lakestore_server.files import new_segment
from lakestore_server.files.data_folder import SEGMENTS, SUFFIX
from lakestore_server.files.new_segment import POINTS, encoded_rows
from lakestore_server.files.segment import Segment
from lakestore_server.host import even_writes
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.mapping import read_in
from lakestore_server.host.worker import Worker
from lakestore_server.host.yield_points import at_yield_points
from lakestore_server.index.keys import IndexKeys
from lakestore_server.segments.segment_run import Rewrite
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import Chunk, CommitIndex, Ints
from lakestore_server.state.view import TableState, View


def write(disk: Disk, path: Path, segments: Sequence[Segment], pause: Callable[[int], None], *, is_cached: bool) -> int:
    """Write neighbouring segments of one schema version as one synced file; returns its size. The caller syncs the
    folder. `pause` gets the bytes written and may raise to stop. `is_cached` is passed to `even_writes.write`."""
    for segment in segments:
        read_in(segment.part.data)
    pieces = [piece for segment in segments for piece in segment.batches()]
    batches, first, last = [piece.load() for piece in pieces], segments[0], segments[-1]
    about = {"start": first.start, "end": last.end, "schema": first.schema_id}
    index = CommitIndex.joined([segment.index for segment in segments])
    sparse = None
    if any(segment.is_sparse for segment in segments) or any(b.start > a.end for a, b in pairwise(segments)):
        kills = distinct(np.concatenate([segment.kills() for segment in segments]))
        sparse = np.concatenate([piece.offsets() for piece in pieces]), kills
    made = encoded_rows(batches, about, index, sparse)
    return even_writes.write(disk, path, made.parts, POINTS, pause, is_cached=is_cached)


log = logging.getLogger("lakestore.merging")
SPREAD = 4
"""Multiple of the segments of a merge that are examined if their sizes differ greatly."""
ASK_SECONDS = 10.0
"""Seconds to wait for a regular checkpoint before one is requested."""

Key = tuple[str, int]
"""Table uuid and bucket."""


class _Stopped(Exception):
    """The server closes in the middle of a merge."""


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """A merged segment that no checkpoint has named yet."""

    sources: Sequence[Chunk]
    segment: Segment | None
    """None if no row stayed."""
    rewrite: Rewrite | None = None
    """The reason, if rows were dropped."""
    lost: Sequence[tuple[IndexKeys, Ints]] = ()

    def put_into(self, chunks: Sequence[Chunk]) -> list[Chunk] | None:
        first = next((at for at, chunk in enumerate(chunks) if chunk is self.sources[0]), len(chunks))
        behind = first + len(self.sources)
        found = chunks[first:behind]
        if len(found) < len(self.sources) or any(a is not b for a, b in zip(found, self.sources, strict=True)):
            return None
        return [*chunks[:first], *self.made, *chunks[behind:]]

    @property
    def made(self) -> tuple[Segment, ...]:
        return () if self.segment is None else (self.segment,)


@dataclass(slots=True)
class Merges:
    """Sums since the start."""

    segments: int = 0
    bytes: int = 0


class Merger:
    """One merge after the other, in its own thread or by `run_once`. A checkpoint fetches the results."""

    def __init__(self, folder: Path, disk: Disk, loop: CommitLoop, limits: Limits, ask: Callable[[], None]) -> None:
        """`ask` requests a checkpoint. No thread runs if `limits.merge_bytes` is 0."""
        self._place, self._disk, self._loop, self._limits, self._ask = folder / SEGMENTS, disk, loop, limits, ask
        self._lock = Lock()
        self._ready: dict[Key, list[_Merged]] = {}
        """Merges that no durable checkpoint names; under the lock."""
        self._placed: list[_Merged] = []
        """Merges that the running checkpoint will name; only for its thread."""
        self._rewrites: list[Rewrite] = []
        """Runs to rewrite without their dead rows; under the lock."""
        self._busy: frozenset[int] = frozenset()
        """Identities of the source segments of all these and of the merge that runs; under the lock."""
        self._making: Sequence[Chunk] = ()
        self._writing: Path | None = None
        """The file of the merge that runs; under the lock."""
        self._broken: set[Key] = set()
        self._is_open = False
        self.figures = Merges()
        self._duty = Worker(supervisor=loop.supervisor, name="merging", work=self._round, failed=_failed)
        if limits.merge_bytes:
            self._duty.start()

    def close(self) -> None:
        self._duty.close()

    # Called by the checkpoint.

    @property
    def busy(self) -> frozenset[int]:
        """Identities of segments that others must not rewrite."""
        return self._busy

    def unnamed(self) -> list[Path]:
        """The files of merges that no checkpoint has named yet, also of the one that runs."""
        with self._lock:
            ready = [segment.path for merges in self._ready.values() for each in merges for segment in each.made]
            return ready if self._writing is None else [*ready, self._writing]

    def merged(self, key: Key, chunks: Sequence[Chunk]) -> list[Chunk] | None:
        """A bucket's chunks with merged ones in place of their sources; None if there are none."""
        after: list[Chunk] | None = None
        for each in self._ready.get(key, ()):
            put = each.put_into(chunks if after is None else after)
            if put is not None:
                after = put
                self._placed.append(each)
        return after

    def begin(self) -> None:
        self._placed = []

    def rewritten(self) -> Iterator[tuple[Rewrite, int, Sequence[tuple[IndexKeys, Ints]]]]:
        """(rewrite, bytes of its file, deletes that the index may forget) of rewrites that the durable checkpoint
        names."""
        for each in self._placed:
            if each.rewrite is not None:
                yield each.rewrite, sum(segment.size for segment in each.made), each.lost

    def installed(self, view: View) -> list[Path]:
        """Note that a checkpoint is durable and served; returns the files that were made in vain."""
        gone: list[Path] = []
        kept = view.kept
        with self._lock:
            waiting: dict[Key, list[_Merged]] = {}
            for key, merges in self._ready.items():
                state = kept.get(key[0])
                chunks = state.logs[key[1]].chunks if state else ()
                held = {id(chunk) for chunk in chunks}
                for each in merges:
                    if each.put_into(chunks) is not None:  # made while the checkpoint ran
                        waiting.setdefault(key, []).append(each)
                    else:
                        gone += [segment.path for segment in each.made if id(segment) not in held]
            self._ready, self._placed = waiting, []
            self._mark()
            self._is_open = True
        self._duty.wake()
        return gone

    def rewrite(self, planned: Iterator[Rewrite]) -> None:
        """Queue these runs for rewriting, up to the bytes that one checkpoint may read."""
        with self._lock:
            room = self._limits.compaction_bytes - sum(each.run.nbytes for each in self._rewrites)
            while room > 0 and (each := next(planned, None)) is not None:
                if each.key not in self._broken:  # damaged runs would take the room of others
                    self._rewrites = [*self._rewrites, each]
                    room -= each.run.nbytes
            self._mark()
        self._duty.wake()

    # Called by the thread.

    def _round(self) -> None:
        try:
            self.run_once(self._pause)
        except _Stopped:
            return
        for _ in range(int(ASK_SECONDS * 10)):
            if not self._ready or self._duty.wait(0.1):
                return
        self._ask()

    def _pause(self, size: int) -> None:
        if self._duty.wait(size / self._limits.merge_bytes):
            raise _Stopped

    def run_once(self, pause: Callable[[int], None] = lambda _: None) -> None:
        """Do all merges that are due; none before the first checkpoint, which removes files that nothing names."""
        if not self._is_open:
            return
        with at_yield_points(DutyPriority(self._loop.priority).give_way):
            self._rewrite_all(pause)
            for uuid, known in self._loop.view.tables.items():
                for bucket in range(len(known.logs) if known.table.keyed else 0):
                    state = self._loop.view.tables.get(uuid)
                    if state is not None and (uuid, bucket) not in self._broken:
                        self._bucket(state, bucket, pause)
                        self._rewrite_all(pause)  # requests of checkpoints do not wait for all buckets

    def _rewrite_all(self, pause: Callable[[int], None]) -> None:
        while self._rewrites:
            self._rewrite_one(pause)

    def _rewrite_one(self, pause: Callable[[int], None]) -> None:
        with self._lock:
            if not self._rewrites:
                return
            rewrite, *self._rewrites = self._rewrites
            self._mark()
        (uuid, bucket), group = rewrite.key, rewrite.run.chunks
        state = self._loop.view.kept.get(uuid)
        if state is None or rewrite.key in self._broken:
            return
        if _Merged(group, None).put_into(state.logs[bucket].chunks) is not None:
            paced = (lambda _: pause(0)) if rewrite.is_urgent else pause
            self._replace(rewrite.state, bucket, group, lambda: self._rewritten(rewrite, paced), rewrite)

    def _rewritten(self, rewrite: Rewrite, pause: Callable[[int], None]) -> _Merged:
        left, (_, bucket), run = rewrite.left(pause), rewrite.key, rewrite.run
        if left is None:
            return _Merged(run.chunks, None, rewrite, rewrite.forgotten())
        with self._new_path(rewrite.state, f"{bucket}-{run.start}-{run.end}-compacted") as path:
            new_segment.write_sparse(self._disk, path, left)
        self._disk.reach(CrashPoint.SEGMENTS_COMPACTED)
        segment = Segment(self._disk, path, rewrite.state.versions.stored, keyed=True, is_known=True)
        return _Merged(run.chunks, segment, rewrite, rewrite.forgotten())

    def _bucket(self, state: TableState, bucket: int, pause: Callable[[int], None]) -> None:
        if self._loop.view.erasing(state.table.uuid) is not None:
            return  # its segments are rewritten soon, and none may reach across the floor of the erasure
        for group in groups_due(state.logs[bucket], self._limits):
            self._replace(state, bucket, group, lambda: self._merge(state, bucket, group, pause))  # noqa: B023

    def _replace(
        self,
        state: TableState,
        bucket: int,
        group: Sequence[Chunk],
        make: Callable[[], _Merged],
        rewrite: Rewrite | None = None,
    ) -> None:
        """Merge neighbours, unless one of them is busy or the disk has no room. A rewrite that frees more disk than it
        takes may use the reserved room."""
        key = state.table.uuid, bucket
        with self._lock:
            is_free = self._busy.isdisjoint(map(id, group))
            self._making = group if is_free else ()
            self._mark()
        if rewrite is not None and rewrite.frees:
            needed = 2 * rewrite.run.size
        else:
            needed = self._limits.disk_free_bytes + sum(chunk.size for chunk in group)
        if not is_free or self._disk.free_bytes(self._place) < needed:
            self._made(key, None)
            return
        try:
            self._made(key, make())
        except (Corrupt, pa.ArrowException) as error:
            self._broken.add(key)
            log.error("bucket %d of table %s is not merged any more: %s", bucket, state.table.name, error)
        finally:
            self._made(key, None)

    def _merge(self, state: TableState, bucket: int, group: Sequence[Segment], pause: Callable[[int], None]) -> _Merged:
        is_cached = any(segment.is_looked_up for segment in group)
        with self._new_path(state, f"{bucket}-{group[0].start}-{group[-1].end}-merged") as path:
            size = write(self._disk, path, group, pause, is_cached=is_cached)
        self._disk.reach(CrashPoint.SEGMENTS_MERGED)
        self.figures.segments += len(group)
        self.figures.bytes += size
        stored = state.versions.stored
        return _Merged(group, Segment(self._disk, path, stored, keyed=True, is_known=is_cached))

    @contextmanager
    def _new_path(self, state: TableState, name: str) -> Iterator[Path]:
        place = self._place / state.table.uuid
        self._disk.make_folder(place)  # so far all segments may be in shared files
        paths = (place / f"{name}{f'-{n}' if n else ''}{SUFFIX}" for n in count())
        path = next(path for path in paths if self._disk.size(path) is None)
        with self._lock:
            self._writing = path
        try:
            yield path
            self._disk.sync_folder(place)
        except Exception:
            with suppress(OSError):
                if self._disk.size(path) is not None:
                    self._disk.remove(path)
            raise

    def _made(self, key: Key, merged: _Merged | None) -> None:
        with self._lock:
            if merged is not None:
                self._ready = self._ready | {key: [*self._ready.get(key, ()), merged]}
            self._making, self._writing = (), None
            self._mark()

    def _mark(self) -> None:
        ready = (each for merges in self._ready.values() for each in merges)
        taken = (chunk for each in ready for chunk in (*each.sources, *each.made))
        held = [*self._making, *taken, *(chunk for each in self._rewrites for chunk in each.run.chunks)]
        self._busy = frozenset(map(id, held))


def groups_due(held: BucketLog, limits: Limits) -> Iterator[list[Segment]]:
    """The neighbours in a bucket to merge, oldest first: as many as the limit says, or half of that if more would be
    too large. A group gets a few more if one is larger than most, because the result must be several times as large as
    each. Compaction handles small ones below the log start."""
    run: list[Segment] = []
    for chunk in [*held.chunks, None]:
        fits = isinstance(chunk, Segment) and _is_eligible(chunk, held.base.end, limits)
        if run and not (fits and chunk is not None and _belong(run[-1], chunk, held.base.end)):
            for first, end in groups([each.size for each in run], limits):
                yield run[first:end]
            run = []
        if fits and isinstance(chunk, Segment):
            run.append(chunk)


def _is_eligible(chunk: Segment, base_end: int, limits: Limits) -> bool:
    is_small = chunk.part.at is not None or chunk.own_size < limits.shared_segment_bytes
    is_compacted = chunk.start < base_end and 2 * chunk.rows < limits.segment_rows
    return not is_small and not is_compacted and is_mergeable(chunk.size, limits)


def is_mergeable(size: float, limits: Limits) -> bool:
    """Whether a segment of `size` bytes is small enough for a merge."""
    return size * _growth(limits) <= limits.merged_segment_bytes


def _belong(before: Segment, after: Chunk, base_end: int) -> bool:
    crosses = before.start < base_end < after.end
    return before.schema_id == after.schema_id and before.end <= after.start and not crosses


def _growth(limits: Limits) -> int:
    return max(limits.merge_segments // 2, 1)


def groups(sizes: Sequence[float], limits: Limits) -> Iterator[tuple[int, int]]:
    """[first, end) of neighbours to merge, by the sizes of segments in order."""
    first = 0
    while first + 1 < len(sizes):
        count = _group_at(sizes[first : first + SPREAD * limits.merge_segments], limits)
        if count:
            yield first, first + count
        first += count or 1


def _group_at(sizes: Sequence[float], limits: Limits) -> int:
    total, largest = 0.0, 0.0
    growth = _growth(limits)
    for number, size in enumerate(sizes):
        if total + size > limits.merged_segment_bytes:
            return number if number >= max(growth, 2) and largest * growth <= total else 0
        total, largest = total + size, max(largest, size)
        if number + 1 >= limits.merge_segments and largest * growth <= total:
            return number + 1
    return 0


def _failed(error: Exception) -> None:
    log.error("segments are merged later: %s", error)
