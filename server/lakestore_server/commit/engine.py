"""The commit loop: one thread that owns all state and makes every change to it.

It drains what waits, makes it one commit, writes and syncs its record, applies it, publishes the new view and
answers. What a synced record says has happened: whatever fails then, nobody is told "refused".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lakestore.errors import Exhausted, Fenced, Invalid, LakestoreError, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore_server.commit import recovery
from lakestore_server.commit.build import Commit, Crowded, Refused, build
from lakestore_server.commit.queue import CommitQueue, Done, Operation, T, Task, Work
from lakestore_server.commit.request import Request, renewed
from lakestore_server.commit.wakeups import Bells
from lakestore_server.duties.checkpoint import Checkpointer, Checkpoints, Frozen
from lakestore_server.duties.compaction import Compactions
from lakestore_server.duties.index_rebuild import Rebuilder
from lakestore_server.duties.integrity import Integrity
from lakestore_server.duties.scrub import Scrubber
from lakestore_server.files import journal_file
from lakestore_server.files.segment import Segment
from lakestore_server.host.clock import Clock
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.histogram import COUNTS, Histogram
from lakestore_server.index.collisions import KeyQuery, Probe
from lakestore_server.index.entry import live, table_prefix
from lakestore_server.index.overlay import Range
from lakestore_server.state.commit_record import Answer, CommitRecord
from lakestore_server.state.state import ProducerState, State, TableState, View

log = logging.getLogger("lakestore.engine")
DRAINING = "the server is going down: try again in a moment"
OPERATION_WAIT_SECONDS = 30.0
"""Operations are few and small, and some of them make room: they wait where rows are refused."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 5.0
DISK_CHECK_SECONDS = 1.0
_INDEX_RETRIES = 20


@dataclass(slots=True)
class Totals:
    """What was written since the start."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    commit_seconds: Histogram = field(default_factory=Histogram)
    """From the queue to the answer, per request."""
    group_requests: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    sync_seconds: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class Cut:
    """What a backup holds, fixed at one commit."""

    view: View
    """At the cut."""
    checkpoint: dict[str, Any]
    segments: Sequence[Segment]
    journal: Sequence[tuple[str, bytes]]
    """Name and bytes of the files behind the checkpoint."""


class Engine:
    """State, journal, index and the thread that owns them."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        clock: Clock,
        *,
        on_fatal: Callable[[BaseException], None],
        limits: Limits = DEFAULT,
    ) -> None:
        self.limits = limits
        self.disk, self._clock, self._on_fatal = disk, clock, on_fatal
        began = clock.monotonic()
        opened = recovery.open_folder(folder, disk, limits)
        self.recovery_seconds = clock.monotonic() - began
        self._state, self._journal, self.index = opened.state, opened.journal, opened.index
        self.timeline = self._state.timeline
        self.lake_ahead: Mapping[str, str] = {}
        """Table uuid to what is wrong, for tables whose lake went on without this history."""
        self._view = self._state.view
        self.totals = Totals()
        self._changed = threading.Condition()
        self.bells = Bells()
        """Rung for the uuids of tables and the names of subscriptions that a commit touches."""
        self._current: Sequence[Work] = ()
        self._queue = CommitQueue(limits, self._is_journal_full, self._refuse_when_down)
        self.folder = folder
        self._disk_checked = float("-inf")
        self._disk_full = False
        self._failure: BaseException | None = None
        self._closing = self._draining = False
        self._checkpointer = Checkpointer(
            folder, disk, self.index, self._freeze, self._install, self._on_loop, limits, clock
        )
        self._thread = threading.Thread(target=self._run, name="commit-loop", daemon=True)
        self._thread.start()
        self._rebuilder = Rebuilder(self.index, lambda run: self._on_loop(lambda: run(self._state.view)))
        self.integrity = Integrity(folder, disk, self.index, lambda: self._view, lambda: self._journal.written)
        self.scrubber = Scrubber(self.integrity, self.index, lambda: self._view, limits.scrub_bytes)

    @property
    def view(self) -> View:
        """The newest published state."""
        return self._view

    def serving(self) -> View:
        """The newest state, or `Unavailable` when no more will come."""
        self._refuse_when_down()
        return self._view

    def wait_beyond(self, lsn: int, seconds: float) -> View:
        """The view once it is beyond `lsn`, or the current one when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._view.lsn > lsn or self._failure or self._closing, seconds)
        self._refuse_when_down()
        return self._view

    def now_us(self) -> int:
        """The clock's time."""
        return self._clock.now_us()

    def settled(self) -> View:
        """The view once every commit that has its time by now is published."""
        self._on_loop(lambda: None)
        return self._view

    def submit(self, request: Request | Operation[Any]) -> None:
        """Queue work; its answer comes by its future. `Exhausted`, with a hint, when there is no room soon."""
        self.await_room(OPERATION_WAIT_SECONDS if isinstance(request, Operation) else None, request.nbytes)
        request.queued = self._clock.monotonic()
        self._queue.put(request)

    def await_room(self, seconds: float | None = None, nbytes: int = 1 << 30) -> None:
        """Wait until the queue has room, for rows no longer than `queue_wait_ms`: before their memory is taken."""
        if seconds is None and self._is_disk_full():
            raise Exhausted(
                f"less than {self.limits.disk_free_bytes >> 20} MB are free for {self.folder}: free space",
                retry_after=RETRY_SECONDS_MAX,
            )
        if seconds is None:
            self.refuse_when_draining()
        wait = self.limits.queue_wait_ms / 1000 if seconds is None else seconds
        self._queue.await_room(wait, self._drain_seconds, nbytes)

    def _drain_seconds(self) -> float:
        """About how long the loop takes for what waits, at the pace of the journal so far."""
        if self._is_journal_full():
            return 1.0
        pace = self.totals.bytes / self.totals.seconds if self.totals.seconds else 1.0
        return min(max(self._queue.nbytes / max(pace, 1.0), RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)

    def _is_disk_full(self) -> bool:
        now = self._clock.monotonic()
        if now - self._disk_checked > DISK_CHECK_SECONDS:
            self._disk_full = self.disk.free_bytes(self.folder) < self.limits.disk_free_bytes
            self._disk_checked = now
        return self._disk_full

    def _is_journal_full(self, stretch: float = 1.0) -> bool:
        return self._journal.untrimmed_bytes >= self.limits.journal_bytes * stretch

    def operate(self, plan: Callable[[State, CommitRecord], T]) -> Done[T]:
        """Run an operation to its end: the view that has it, and the result of `plan`."""
        operation = Operation(plan)
        self.submit(operation)
        return operation.answer.result()

    def lookup(self, name: str, encode: Callable[[TableState], KeyQuery]) -> tuple[View, npt.NDArray[np.int64]]:
        """(view, live offsets) of keys at one moment."""
        moved_on = Unavailable(f"table {name} keeps changing under the look-up: look up again")
        probe: Probe | None = None
        for _ in range(_INDEX_RETRIES):
            state = self._view.named(name)
            probe = probe or Probe(encode(state))
            with self.index.lock:
                view = self._view
                reading = self.index.begin(probe.keys)
            if view.named(name).table.uuid != state.table.uuid:
                probe = None
                continue
            try:
                found = probe.resolved(view.named(name), self.index.finish(reading))
            except Unavailable as error:
                moved_on = error
                continue
            if found is not None:
                return view, live(found.values)
            probe = probe.deeper()
        raise moved_on

    def lookup_ranges(
        self, name: str, bounds: Callable[[TableState], Sequence[tuple[bytes, bytes]]], most: int
    ) -> tuple[View, list[Range]]:
        """(view, the first live keys of each [low, high)) at one moment."""
        moved_on = Unavailable(f"table {name} keeps changing under the look-up: look up again")
        for _ in range(_INDEX_RETRIES):
            state = self._view.named(name)
            wanted = bounds(state)
            self.index.arrange(table_prefix(state.table.number))
            try:
                with self.index.lock:
                    view = self._view
                    reading = self.index.begin_ranges(wanted, most)
                if view.named(name).table.uuid == state.table.uuid:
                    return view, self.index.finish_ranges(reading)
            except Unavailable as error:
                moved_on = error
        raise moved_on

    @property
    def is_restored(self) -> bool:
        """Whether this history began with a backup."""
        return self._state.restored is not None

    def has_idempotency_key(self, key: str) -> bool:
        """Whether a catalog change with that key was committed."""
        return key in self._state.idempotency

    def producer(self, name: str) -> ProducerState | None:
        """What is known of a producer."""
        return self._state.producers.get(name)

    def reach(self, point: CrashPoint) -> None:
        """Pass a crash point."""
        self.disk.reach(point)

    def wake_checkpoint(self) -> None:
        """Ask for a checkpoint soon."""
        self._checkpointer.wake()

    def drain(self) -> None:
        """Take no more rows; what is queued is still committed."""
        self._draining = True

    @property
    def is_draining(self) -> bool:
        """Whether a drain has begun."""
        return self._draining

    def refuse_when_draining(self) -> None:
        """`Unavailable` once a drain has begun."""
        if self._draining:
            raise Unavailable(DRAINING, retry_after=RETRY_SECONDS_MAX)

    @property
    def queue(self) -> tuple[int, int]:
        """(requests, bytes) that wait for the commit loop."""
        return len(self._queue), self._queue.nbytes

    @property
    def journal_bytes(self) -> int:
        """Journal that a recovery would read."""
        return self._journal.untrimmed_bytes

    def disk_free_bytes(self) -> int:
        """Free space for the data folder."""
        return self.disk.free_bytes(self.folder)

    def index_bytes(self) -> int:
        """Size of the index file."""
        return self.disk.size(self.folder / "index" / "data.mdb") or 0

    @property
    def checkpoints(self) -> Checkpoints:
        """What the checkpoints since the start came to."""
        return self._checkpointer.figures

    @property
    def compactions(self) -> Compactions:
        """What local compaction did since the start."""
        return self._checkpointer.compactions

    def checkpoint(self) -> None:
        """Write a checkpoint now and wait for it."""
        self._checkpointer.run_once()

    def backup_cut(self) -> Cut:
        """A checkpoint and the journal behind it, up to one commit; all of it stays, whatever happens next."""
        ends: list[tuple[View, str, int]] = []

        def run() -> None:
            ends.append((self._state.view, *self._journal.written))

        with self._checkpointer.held() as made:
            self._on_loop(run)
            view, last, size = ends[0]
            first = journal_file.name_of(made.lsn + 1)
            names = [name for name in self.disk.list(self.folder) if name.startswith(journal_file.PREFIX)]
            files = [(name, self.disk.read(self.folder / name)) for name in names if first <= name <= last]
        journal = [(name, data[:size] if name == last else data) for name, data in files]
        return Cut(view, made.data, made.segments, journal)

    def close(self, *, checkpoint: bool = True) -> None:
        """Stop; what is acknowledged is durable with or without a last checkpoint."""
        if self._closing:
            return
        self.scrubber.close()
        self._rebuilder.close()
        if checkpoint and self._failure is None:
            try:
                self.checkpoint()
            except (LakestoreError, OSError) as error:
                log.error("the last checkpoint failed, the next start reads the journal: %s", error)
        self._closing = True
        self._queue.close()
        self._thread.join()
        self._checkpointer.close()
        with self._changed:
            self._changed.notify_all()
        self.bells.ring_all()
        self._journal.close()
        self.index.close()

    def _refuse_when_down(self) -> None:
        if self._failure is not None:
            raise Unavailable("the server has failed and is going down", applied="unknown")
        if self._closing:
            raise Unavailable("the server is shutting down")

    # The rest runs on the commit loop.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # the boundary of the thread: nothing may be acknowledged after it
            self._fail(error)

    def _turn(self) -> bool:
        work = self._current = self._queue.take()
        if not work:
            return False
        first = work[0]
        if isinstance(first, Task):
            self._do(first)
        elif isinstance(first, Operation):
            self._operate(first)
        else:
            self._commit([request for request in work if isinstance(request, Request)])
        self._maybe_checkpoint()
        return True

    @staticmethod
    def _do(task: Task) -> None:
        try:
            task.run()
        except LakestoreError as error:
            task.answer.set_exception(error)
        else:
            task.answer.set_result(None)

    def _time_us(self) -> int:
        return max(self._clock.now_us(), self._state.view.time_us)

    def _commit(self, requests: list[Request]) -> None:
        group = self._admitted(requests)
        while group:
            view = self._state.view
            try:
                room = self.limits.batch_memory_bytes
                commit = build(group, view, self.index, view.lsn + 1, self._time_us(), room)
                self._append(commit.record)
            except Crowded as crowded:
                if len(group) == 1:
                    group[0].answer.set_exception(crowded.error)
                    return
                half = len(group) // 2
                self._commit(group[:half])
                group = self._admitted(group[half:])
                continue
            except Refused as refused:
                request = refused.among(group)
                request.answer.set_exception(refused.error)
                group = self._admitted([other for other in group if other is not request])
                continue
            except LakestoreError as error:
                for request in group:
                    request.answer.set_exception(error)
                return
            self._committed(group, commit)
            return

    def _committed(self, group: Sequence[Request], commit: Commit) -> None:
        self._publish(commit)
        self.reach(CrashPoint.COMMIT_PUBLISHED)
        now = self._clock.monotonic()
        self.totals.group_requests.add(len(group))
        for request, answer in zip(group, commit.answers, strict=True):
            self.totals.commit_seconds.add(now - request.queued)
            request.answer.set_result(answer)

    def _admitted(self, requests: list[Request]) -> list[Request]:
        """The requests to commit; the others are answered at once. A broken sequence breaks all behind it."""
        group = []
        last: dict[str, int] = {}
        for request in requests:
            try:
                known = self._known_answer(request, last)
                ready = request if known else renewed(request, self._state.view)
                if known is None:
                    self._refuse_unindexed(request)
            except LakestoreError as error:
                request.answer.set_exception(error)
                continue
            if known is not None:
                request.answer.set_result(known)
                continue
            if request.producer:
                last[request.producer] = request.sequence
            group.append(ready)
        return group

    def _refuse_unindexed(self, request: Request) -> None:
        for change in request.changes:
            if change.table.keyed:
                self.index.check(table_prefix(change.table.number))

    def _known_answer(self, request: Request, last: dict[str, int]) -> Answer | None:
        for change in request.changes:
            self._state.view.by_uuid(change.table.uuid)
        if not request.producer:
            return None
        producer = self._state.producers.get(request.producer, ProducerState())
        if request.epoch < producer.epoch:
            raise Fenced(f"producer {request.producer!r} was opened again with epoch {producer.epoch}")
        done = 0 if request.epoch > producer.epoch else producer.last_sequence
        if request.sequence <= done:
            answer = producer.answers.get(request.sequence)
            if answer is None:
                raise Invalid(f"sequence {request.sequence} of producer {request.producer!r} is too old to answer")
            return answer
        if request.sequence != last.get(request.producer, done) + 1:
            raise Invalid(f"sequence {request.sequence} of producer {request.producer!r} does not follow {done}")
        return None

    def _operate(self, operation: Operation[T]) -> None:
        view = self._state.view
        record = CommitRecord(view.lsn + 1, self._time_us())
        try:
            result = operation.plan(self._state, record)
            self._append(record)
        except LakestoreError as error:
            operation.answer.set_exception(error)
            return
        self._publish(Commit(record, [], operation.entries(result)))
        operation.answer.set_result(Done(self._view, result))

    def _append(self, record: CommitRecord) -> None:
        began = self._clock.monotonic()
        self.totals.bytes += self._journal.append(record)
        seconds = self._clock.monotonic() - began
        self.totals.seconds += seconds
        self.totals.sync_seconds.add(seconds)
        self.totals.frames += 1
        self.totals.rows += sum(part.batch.num_rows for part in record.rows)

    def _publish(self, commit: Commit) -> None:
        """Rows are in the tails before the index names them, and both are seen at once."""
        view = self._state.apply(commit.record)
        self.index.make_room(commit.entries)
        with self.index.lock:
            for keys, offsets in commit.entries:
                self.index.put(keys, offsets)
            self._view = view
        with self._changed:
            self._changed.notify_all()
        record = commit.record
        self.bells.ring(
            [*(part.table for part in record.rows), *record.drop, *(change.name for change in record.subscriptions)]
        )

    def _maybe_checkpoint(self) -> None:
        if (
            self._journal.since_checkpoint_bytes >= self.limits.journal_checkpoint_bytes
            or self.index.overlay_keys >= self.limits.overlay_checkpoint_keys
        ):
            self._checkpointer.wake()

    def _on_loop(self, run: Callable[[], None]) -> None:
        task = Task(run)
        self._queue.put(task)
        task.answer.result()

    def _freeze(self) -> Frozen:
        frozen: list[Frozen] = []

        def run() -> None:
            self._journal.roll(self._state.view.lsn + 1)
            view = self._state.freeze()
            self.index.freeze(view.lsn)
            frozen.append(Frozen(view, self._state.small()))
            with self.index.lock:
                self._view = view

        self._on_loop(run)
        return frozen[0]

    def _install(self, install: Callable[[State], View]) -> None:
        def run() -> None:
            view = install(self._state)
            self.index.merged()
            self._journal.trimmed()
            with self.index.lock:
                self._view = view

        self._on_loop(run)
        self._queue.wake()

    def _fail(self, error: BaseException) -> None:
        log.critical("the commit loop failed: %s", error)
        self._failure = error
        lost = Unavailable("the server failed before it could answer: try again", applied="unknown")
        for work in (*self._current, *self._queue.abandon()):
            if not work.answer.done():
                work.answer.set_exception(lost)
        with self._changed:
            self._changed.notify_all()
        self.bells.ring_all()
        self._on_fatal(error)
