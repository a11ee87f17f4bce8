"""The checkpoint duty: cut segments, merge the index, write the checkpoint file, drop old files.

Beside the commit loop, which only freezes before and installs after. A failed checkpoint leaves the last one valid.
Freezing: the overlay becomes the frozen overlay, tails become frozen chunks, the journal goes on in a new file. Beside
the loop: segments are cut and synced, the frozen overlay goes into LMDB in one synced transaction with its LSN, the
checkpoint is written. Installing: chunks are swapped for segments, and journal files below the LSN go.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from lakestore.limits import DEFAULT, Limits
from lakestore.model.retention import Retention
from lakestore_server.commit.loop import CommitLoop
from lakestore_server.duties.compaction import Compactions, Compactor
from lakestore_server.files import checkpoint, segment
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.data_folder import SEGMENTS, SUFFIX, remove_unnamed
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock, RealClock
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.histogram import Histogram
from lakestore_server.host.worker import Worker
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import Chunk
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.checkpoint")
SEGMENTS_KEPT = 16
"""About how many segments of a bucket a retention keeps: by so much of it rows may stay longer."""
NO_SPAN = 1 << 62


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """A checkpoint that is durable."""

    content: Checkpoint
    """The content of its file."""
    segments: list[segment.Segment]
    """The segments that it names; they are mapped, and so stay whatever is removed later."""
    cut: int
    """The number of segments that it wrote."""

    @property
    def lsn(self) -> int:
        """The newest commit in it."""
        return self.content.lsn


@dataclass(slots=True)
class Checkpoints:
    """Sums since the start."""

    failed: int = 0
    lsn: int = -1
    """The LSN of the newest checkpoint; -1 before the first."""
    at: float = 0.0
    """When that was done, in monotonic seconds; before the first, when the server began."""
    seconds: Histogram = field(default_factory=Histogram)


class Checkpointer:
    """One at a time, in its own thread or called by `run_once`."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        loop: CommitLoop,
        limits: Limits = DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self._limits, self._clock = limits, clock or RealClock()
        self.figures = Checkpoints(at=self._clock.monotonic())
        self._folder, self._disk, self._loop, self._index = folder, disk, loop, loop.index
        self._running = threading.Lock()
        self._attempt = 0
        self._compactor = Compactor(limits)
        self._made: list[Path] = []
        self._duty = Worker("checkpoint", self.run_once, _failed)
        self._duty.start()
        loop.on_checkpoint_due(self.wake)

    @property
    def compactions(self) -> Compactions:
        """Sums of local compaction since the start."""
        return self._compactor.figures

    def wake(self) -> None:
        """Ask for a checkpoint soon."""
        self._duty.wake()

    def close(self) -> None:
        """Stop after the one that runs."""
        self._duty.close()

    def run_once(self) -> None:
        """One checkpoint, from freeze to trimmed journal."""
        with self.held():
            pass

    @contextlib.contextmanager
    def held(self) -> Iterator[DurableCheckpoint]:
        """One checkpoint, and no other before the block ends: nothing of it or behind it is removed."""
        with self._running:
            began = self._clock.monotonic()
            try:
                made = self._checkpoint()
            except BaseException:
                self.figures.failed += 1
                raise
            self.figures.lsn, self.figures.at = made.lsn, self._clock.monotonic()
            seconds = self.figures.at - began
            self.figures.seconds.add(seconds)
            event_log.event(log, logging.INFO, "checkpoint", lsn=made.lsn, seconds=round(seconds, 3), segments=made.cut)
            yield made

    def _checkpoint(self) -> DurableCheckpoint:
        frozen = self._loop.freeze()
        self._disk.reach(CrashPoint.CHECKPOINT_FROZEN)
        self._duty.taken()
        try:
            cut = self._cut(frozen.view)
            self._index.merge(frozen.view.lsn)
            content = Checkpoint.of(frozen, cut)
            checkpoint.write(self._disk, self._folder, content)
        except Exception:
            self._undo(frozen.view.lsn)
            raise
        written = len(self._made)
        self._made.clear()
        self._loop.install(lambda state: state.install(cut))
        if self._compactor.installed():
            self.wake()
        for keys, values in self._compactor.forgotten():
            self._loop.run(partial(self._index.forget, keys, values))
        self._disk.reach(CrashPoint.CHECKPOINT_INSTALLED)
        self._trim(content)
        return DurableCheckpoint(content, _segments(frozen.view, cut), written)

    def _undo(self, lsn: int) -> None:
        """Remove the segments of a failed attempt, unless a checkpoint that names them may be there."""
        self._compactor.failed()
        made, self._made = self._made, []
        self._attempt += 1
        with contextlib.suppress(OSError):
            if checkpoint.name_of(lsn) not in self._disk.list(self._folder):
                for path in made:
                    if path.name in self._disk.list(path.parent):
                        self._disk.remove(path)
                self._disk.reach(CrashPoint.CHECKPOINT_UNDONE)

    def _cut(self, view: View) -> dict[tuple[str, int], list[Chunk]]:
        """Segments for every bucket that has rows in memory, or below its log start such as go; synced with their
        folders."""
        cut: dict[tuple[str, int], list[Chunk]] = {}
        self._compactor.begin(view)
        for uuid, state in view.tables.items():
            changed = [bucket for bucket, held in enumerate(state.logs) if not _all_segments(held)]
            folder = self._folder / SEGMENTS / uuid
            if changed:
                self._disk.make_folder(folder)
            made = len(self._made)
            for bucket in changed:
                cut[uuid, bucket] = self._cut_bucket(folder, state, bucket, view.lsn)
            for bucket in range(len(state.logs)):
                after = self._compacted(folder, state, bucket, cut.get((uuid, bucket)), view)
                if after is not None:
                    cut[uuid, bucket] = after
            if len(self._made) > made:
                self._disk.sync_folder(folder)
                self._disk.reach(CrashPoint.SEGMENTS_DURABLE)
        return cut

    def _cut_bucket(self, folder: Path, state: TableState, bucket: int, lsn: int) -> list[Chunk]:
        held = state.logs[bucket]
        kept, runs = segment_runs(held.chunks, self._limits, state.table.retention, held.base.end)
        segments = list(kept)
        for run in runs:
            path = self._new_path(folder, bucket, run[0].start, run[-1].end, lsn)
            segment.write(self._disk, path, run, keyed=held.keyed)
            segments.append(segment.Segment(self._disk, path, state.versions.stored, keyed=held.keyed))
        return segments

    def _compacted(
        self, folder: Path, state: TableState, bucket: int, cut: list[Chunk] | None, view: View
    ) -> list[Chunk] | None:
        """A bucket's chunks with some of those below its log start rewritten; None where nothing is to do."""

        def write(left: segment.SparseRows) -> Chunk:
            path = self._new_path(folder, bucket, left.start, left.end, view.lsn)
            segment.write_sparse(self._disk, path, left)
            self._disk.reach(CrashPoint.BASE_REWRITTEN)
            return segment.Segment(self._disk, path, state.versions.stored, keyed=True)

        return self._compactor.compacted(state, bucket, cut, view.time_us, write)

    def _new_path(self, folder: Path, bucket: int, start: int, end: int, lsn: int) -> Path:
        """A name that no file has: at one LSN there may be several checkpoints, and of one range several files."""
        taken = {*self._disk.list(folder), *(path.name for path in self._made)}
        attempts = (f"-{n}" if n else "" for n in count(self._attempt))
        names = (f"{bucket}-{start}-{end}-{lsn}{again}{SUFFIX}" for again in attempts)
        path = folder / next(name for name in names if name not in taken)
        self._made.append(path)
        return path

    def _trim(self, content: Checkpoint) -> None:
        """Remove what the durable checkpoint no longer needs; open maps keep their bytes."""
        for name in self._disk.list(self._folder):
            if name.startswith(checkpoint.PREFIX) and name < checkpoint.name_of(content.lsn):
                self._disk.remove(self._folder / name)
                self._disk.reach(CrashPoint.TRIM_FILE_REMOVED)
        journal = self._loop.journal
        journal.trim(journal.place_after(content.lsn))
        remove_unnamed(self._disk, self._folder, content.segment_names())
        self._disk.reach(CrashPoint.TRIM_SEGMENTS_REMOVED)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.TRIM_DURABLE)


def _failed(error: Exception) -> None:
    log.error("the checkpoint failed, the last one stays valid: %s", error)


def _segments(view: View, cut: Mapping[tuple[str, int], list[Chunk]]) -> list[segment.Segment]:
    """The segments that a checkpoint of the view names."""
    return [
        chunk
        for uuid, state in view.tables.items()
        for bucket, held in enumerate(state.logs)
        for chunk in cut.get((uuid, bucket), held.chunks)
        if isinstance(chunk, segment.Segment)
    ]


def _all_segments(held: BucketLog) -> bool:
    return all(isinstance(chunk, segment.Segment) for chunk in held.chunks)


def segment_runs(
    chunks: Sequence[Chunk], limits: Limits = DEFAULT, retention: Retention | None = None, base_end: int = 0
) -> tuple[list[Chunk], list[list[Chunk]]]:
    """(segments to keep, runs of chunks that each become a segment). Small segments before the tail are merged with
    it, so that a row is rewritten a logarithmic number of times. A segment holds rows of one schema version, and no
    more than a part of what a retention keeps: it goes as a whole. What lies below the log start is compacted apart."""
    segment_bytes, span_us = _part_of(retention, limits)
    at = next((i for i, chunk in enumerate(chunks) if not isinstance(chunk, segment.Segment)), len(chunks))
    rows = chunks[-1].end - chunks[at].start
    size = sum(chunk.size for chunk in chunks[at:])
    while at and chunks[at - 1].end - chunks[at - 1].start <= rows and chunks[at - 1].schema_id == chunks[at].schema_id:
        if chunks[at - 1].end <= base_end:
            break
        merged = rows + chunks[at - 1].end - chunks[at - 1].start
        size += chunks[at - 1].size
        if merged > limits.segment_rows or size > segment_bytes or not _within(chunks[at - 1], chunks[at], span_us):
            break
        at, rows = at - 1, merged
    runs: list[list[Chunk]] = []
    size = 0
    for chunk in chunks[at:]:
        size += chunk.size
        rows_fit = runs and chunk.end - runs[-1][0].start <= limits.segment_rows
        same = rows_fit and chunk.schema_id == runs[-1][0].schema_id and not runs[-1][0].start < base_end < chunk.end
        if same and size <= segment_bytes and _within(runs[-1][0], chunk, span_us):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
            size = chunk.size
    return list(chunks[:at]), runs


def _part_of(retention: Retention | None, limits: Limits) -> tuple[int, int]:
    """(bytes, µs) that one segment may hold of a log."""
    size, age = (retention.bytes, retention.age_seconds) if retention else (None, None)
    return (
        limits.segment_bytes if size is None else min(limits.segment_bytes, max(size // SEGMENTS_KEPT, 1)),
        NO_SPAN if age is None else age * 1_000_000 // SEGMENTS_KEPT,
    )


def _within(first: Chunk, last: Chunk, span_us: int) -> bool:
    """Whether the commits from one chunk to another lie in so short a time."""
    return span_us == NO_SPAN or int(last.index.time_us[-1]) - int(first.index.time_us[0]) <= span_us
