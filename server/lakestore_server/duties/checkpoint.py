"""The checkpoint duty: cut segments, merge the index, write the checkpoint file, remove old files.

- Freeze, on the commit loop: the overlay and the tails are frozen, the journal continues in a new file.
- Write, beside the loop: tails become segments, the frozen overlay becomes an index run, a checkpoint file names both.
- Install, on the loop: segments replace the frozen chunks, and journal files below the LSN are removed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from lakestore.limits import DEFAULT, Limits
from lakestore_server.commit.engine import CommitLoop
from lakestore_server.commit.priority import DutyPriority
from lakestore_server.commit.recovery import served_tables
from lakestore_server.files import checkpoint
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.data_folder import INDEX, SEGMENTS, remove_files, remove_unlisted_files
from lakestore_server.files.segment import Segment
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock, RealClock
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.histogram import Histogram
from lakestore_server.host.worker import Worker
from lakestore_server.host.yield_points import at_yield_points
from lakestore_server.index.run_file import EMPTY_LSN
from lakestore_server.segments.compaction import Compactions, Compactor
from lakestore_server.segments.cut import SegmentCut, segments_of
from lakestore_server.segments.merging import Merger
from lakestore_server.state.view import View

log = logging.getLogger("lakestore.checkpoint")


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint that another server starts from."""

    path: str
    """In the data folder, with `/`."""
    data: pa.Buffer
    segments: Sequence[Segment] = ()
    """The segments in it, which are checked before the file leaves this machine."""


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """A checkpoint that is durable."""

    content: Checkpoint
    view: View
    """The view at its LSN."""
    segments: Sequence[Segment]
    """The segments that it names. They are mapped, so their bytes survive a removal of the files."""
    files: int
    """The number of segment files that this checkpoint wrote."""

    @property
    def lsn(self) -> int:
        """The newest commit in the checkpoint."""
        return self.content.lsn

    def contents(self) -> Iterator[CheckpointFile]:
        """The segment files, each once and whole, then the checkpoint without the index, which is rebuilt."""
        files: dict[str, pa.Buffer] = {}
        inside: dict[str, list[Segment]] = {}
        for segment in self.segments:
            kept = ((each.path, each.data) for each in segment.files)
            for path, data in ((segment.path, segment.part.file), *kept):
                name = f"{SEGMENTS}/{path.parent.name}/{path.name}"
                files[name] = data
                inside.setdefault(name, []).append(segment)
        for name, data in sorted(files.items()):
            yield CheckpointFile(name, data, inside[name])
        content = replace(self.content, runs=(), index_lsn=EMPTY_LSN)
        yield CheckpointFile(checkpoint.name_of(self.lsn), pa.py_buffer(checkpoint.encode(content)))


@dataclass(slots=True)
class Checkpoints:
    """Sums since the start of the server."""

    failed: int = 0
    lsn: int = -1
    """The LSN of the newest checkpoint; -1 before the first."""
    at: float = 0.0
    seconds: Histogram = field(default_factory=Histogram)


class Checkpointer:
    """One checkpoint at a time, in its own thread or by `run_once`."""

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
        self.merger = Merger(folder, disk, loop, limits, self.wake)
        self._compactor = Compactor(limits, lambda: self.merger.busy)
        self._named: Mapping[str, set[str]] | None = None
        """Segment files of the newest checkpoint, by folder; None before the first one."""
        self._made: list[Path] = []
        """Files of failed attempts, and files that this attempt has already replaced."""
        self._done: Callable[[], None] = lambda: None
        self._made_durable: Callable[[DurableCheckpoint], None] = lambda _: None
        self._duty = Worker(supervisor=loop.supervisor, name="checkpoint", work=self.run_once, failed=_failed)
        self._duty.start()
        loop.on_checkpoint_due(self.wake)

    @property
    def compactions(self) -> Compactions:
        return self._compactor.figures

    def on_done(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every checkpoint."""
        self._done = listener

    def on_durable(self, listener: Callable[[DurableCheckpoint], None]) -> None:
        """Call `listener` with every checkpoint. It must not wait."""
        self._made_durable = listener

    def wake(self) -> None:
        self._duty.wake()

    def close(self) -> None:
        self.merger.close()
        self._duty.close()

    def run_once(self) -> None:
        """One checkpoint, from freeze to trimmed journal."""
        with self.held():
            pass

    @contextlib.contextmanager
    def held(self) -> Iterator[DurableCheckpoint]:
        """Make a checkpoint and keep all its files until the block ends: no other checkpoint runs meanwhile."""
        with self._running:
            began = self._clock.monotonic()
            try:
                with at_yield_points(DutyPriority(self._loop.priority, self._loop.pace.is_full).give_way):
                    made = self._checkpoint()
            except BaseException:
                self.figures.failed += 1
                self._loop.pace.give_up()
                self._loop.queue.wake()
                raise
            self.figures.lsn, self.figures.at = made.lsn, self._clock.monotonic()
            seconds = self.figures.at - began
            self.figures.seconds.add(seconds)
            event_log.event(log, logging.INFO, "checkpoint", lsn=made.lsn, seconds=round(seconds, 3), files=made.files)
            self._done()
            self._made_durable(made)
            yield made

    @contextlib.contextmanager
    def resting(self) -> Iterator[set[Path]]:
        """Run no checkpoint until the block ends. Yields the files that the newest one names, and those that the next
        one removes."""
        with self._running:
            files = set(self._made)
            for name in checkpoint.names(self._disk, self._folder)[-1:]:
                content = checkpoint.decode(self._disk.read(self._folder / name), name)
                files |= {self._folder / INDEX / run.name for run in content.runs}
                for place, names in content.segment_names().items():
                    files |= {self._folder / SEGMENTS / place / each for each in names}
            yield files

    def _checkpoint(self) -> DurableCheckpoint:
        frozen = self._loop.freeze()
        self._disk.reach(CrashPoint.CHECKPOINT_FROZEN)
        self._duty.taken()
        view, time = frozen.view, self._loop.time
        deleting_us = time.deleting_us(view.time_us)
        segments = SegmentCut(
            folder=self._folder,
            disk=self._disk,
            limits=self._limits,
            compactor=self._compactor,
            merger=self.merger,
            frozen=frozen,
            deleting_us=deleting_us,
            journal=self._loop.journal,
        )
        try:
            cut = segments.run()
            served = served_tables(frozen.view, frozen.next_number)
            self._index.merge(frozen.view.lsn, served)
            runs = self._index.to_name()
            parts = self._loop.parts.clear(removes=self._loop.is_leading)  # of commits that the journal no longer has
            content = Checkpoint.of(frozen, cut, runs, parts)
            checkpoint.write(self._disk, self._folder, content)
        except Exception:
            self._undo(frozen.view.lsn, segments.made)
            raise
        finally:
            self._made += segments.made
        self._loop.install(lambda state: state.install(cut))
        for rewritten in self.merger.rewritten():
            self._compactor.rewritten(*rewritten)
        if self._compactor.installed():
            self.wake()
        for keys, values in self._compactor.forgotten():
            self._loop.run(partial(self._index.forget, keys, values))
        self._disk.reach(CrashPoint.CHECKPOINT_INSTALLED)
        self._trim(content)
        self._index.named(runs, served)
        self._made += self.merger.installed(self._loop.view)
        self.merger.rewrite(self._compactor.planned(self._loop.view))
        return DurableCheckpoint(content, view, segments_of(frozen.view, cut), len(segments.made))

    def _undo(self, lsn: int, made: Sequence[Path]) -> None:
        self._compactor.failed()
        with contextlib.suppress(OSError):
            if checkpoint.name_of(lsn) not in self._disk.list(self._folder):
                self._index.unmerge()
                for path in made:
                    if self._disk.size(path) is not None:
                        self._disk.remove(path)
                self._disk.reach(CrashPoint.CHECKPOINT_UNDONE)

    def _trim(self, content: Checkpoint) -> None:
        for name in checkpoint.names(self._disk, self._folder):
            if name < checkpoint.name_of(content.lsn):
                self._disk.remove(self._folder / name)
                self._disk.reach(CrashPoint.TRIM_FILE_REMOVED)
        # A power cut may bring an older checkpoint back, which needs its journal and segments.
        self._disk.sync_folder(self._folder)
        self._loop.journal.trim(content.place)
        self._remove_segments(content.segment_names())
        self._disk.reach(CrashPoint.TRIM_SEGMENTS_REMOVED)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.TRIM_DURABLE)

    def _remove_segments(self, named: Mapping[str, set[str]]) -> None:
        if self._named is None:
            remove_unlisted_files(self._disk, self._folder, named)
        else:
            gone = {folder: names - named.get(folder, set()) for folder, names in self._named.items()}
            for path in self._made:
                if path.name not in named.get(path.parent.name, ()):
                    gone.setdefault(path.parent.name, set()).add(path.name)
            remove_files(self._disk, self._folder, gone, named)
        self._named, self._made = named, []


def _failed(error: Exception) -> None:
    log.error("the checkpoint failed, the last one stays valid: %s", error)
