"""The commit loop: one thread that owns all state and makes every change to it.

A turn takes a group of requests, or one operation, from the queue, makes it a commit record, writes and syncs it,
applies it, publishes the new view and answers. A synced record has happened: if anything fails after the sync, no
caller is told "refused".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lakestore.errors import Fenced, Invalid, LakestoreError, Stopped, Unavailable
from lakestore.limits import Limits
from lakestore_server.commit.build import Commit, build
from lakestore_server.commit.draft import GroupTooLarge, RequestRefused
from lakestore_server.commit.queue import CommitQueue, Done, Operation, T, Task, Work
from lakestore_server.commit.recovery import Opened
from lakestore_server.commit.request import Request, renewed
from lakestore_server.commit.wakeups import Bells
from lakestore_server.host.clock import Clock
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.histogram import COUNTS, Histogram
from lakestore_server.index.entry import table_prefix
from lakestore_server.state.commit_record import Answer, CommitRecord
from lakestore_server.state.state import FrozenState, ProducerState, State
from lakestore_server.state.view import View

log = logging.getLogger("lakestore.engine")


@dataclass(slots=True)
class Totals:
    """Sums over everything written since the start."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    commit_seconds: Histogram = field(default_factory=Histogram)
    """From the queue to the answer, per request."""
    group_requests: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    sync_seconds: Histogram = field(default_factory=Histogram)


class CommitLoop:
    """State, journal, index and the thread that owns them. Public methods are called by any thread."""

    def __init__(
        self, opened: Opened, disk: Disk, clock: Clock, limits: Limits, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self.state, self.journal, self.index = opened.state, opened.journal, opened.index
        self.limits, self._disk, self._clock, self._on_fatal = limits, disk, clock, on_fatal
        self.totals = Totals()
        self.bells = Bells()
        """Rung for the uuids of tables and the names of subscriptions that a commit touches."""
        self.queue = CommitQueue(limits, self.is_journal_full, self.refuse_when_down)
        self._view = self.state.view
        self._changed = threading.Condition()
        self._current: Sequence[Work] = ()
        self._checkpoint_due: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        """The error that ended the loop."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="commit-loop", daemon=True)
        self._thread.start()

    @property
    def view(self) -> View:
        """The newest published state."""
        return self._view

    def wait_beyond(self, lsn: int, seconds: float) -> View:
        """The view once it is beyond `lsn`, or the current one when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._view.lsn > lsn or self.failure or self._closing, seconds)
        self.refuse_when_down()
        return self._view

    def is_journal_full(self, stretch: float = 1.0) -> bool:
        """Whether a recovery would have to read as much journal as the limit, times `stretch`, allows."""
        return self.journal.untrimmed_bytes >= self.limits.journal_bytes * stretch

    def refuse_when_down(self) -> None:
        """`Unavailable` once the loop has failed or is closing."""
        if self.failure is not None:
            raise Stopped("the server has failed and is going down", applied="unknown")
        if self._closing:
            raise Stopped("the server is shutting down")

    @property
    def is_running(self) -> bool:
        """Whether the loop has neither failed nor begun to close."""
        return self.failure is None and not self._closing

    def run(self, work: Callable[[], T]) -> T:
        """Run a function on the loop, between two commits; its result."""
        task = Task(work)
        self.queue.put(task)
        return task.answer.result()

    def on_checkpoint_due(self, listener: Callable[[], None]) -> None:
        """Tell `listener`, on the loop, after every turn that leaves a checkpoint due; and now, if one is due."""
        self._checkpoint_due = listener
        self._maybe_checkpoint()

    def freeze(self) -> FrozenState:
        """Begin a checkpoint: the state as of now, all later commits in a new journal file and a new overlay."""

        def freeze() -> FrozenState:
            self.journal.roll(self.state.view.lsn + 1)
            frozen = self.state.freeze()
            self.index.freeze(frozen.view.lsn)
            with self.index.lock:
                self._view = frozen.view
            return frozen

        return self.run(freeze)

    def install(self, install: Callable[[State], View]) -> None:
        """End a checkpoint that is durable: `install` puts its segments in the place of rows in memory."""

        def exchange() -> None:
            view = install(self.state)
            self.index.merged()
            self.journal.trimmed()
            with self.index.lock:
                self._view = view

        self.run(exchange)
        self.queue.wake()

    def close(self) -> None:
        """Commit what is queued, then stop. Every acknowledged commit is durable with or without a checkpoint."""
        if self._closing:
            return
        self._closing = True
        self.queue.close()
        self._thread.join()
        self._wake_all()
        self.journal.close()
        self.index.close()

    # The rest runs on the loop's thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # the boundary of the thread: nothing may be acknowledged after it
            self._fail(error)

    def _turn(self) -> bool:
        work = self._current = self.queue.take()
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
    def _do(task: Task[T]) -> None:
        try:
            result = task.run()
        except LakestoreError as error:
            task.answer.set_exception(error)
        else:
            task.answer.set_result(result)

    def _time_us(self) -> int:
        return max(self._clock.now_us(), self.state.view.time_us)

    def _commit(self, requests: list[Request]) -> None:
        group = self._admitted(requests)
        while group:
            view = self.state.view
            try:
                room = self.limits.batch_memory_bytes
                commit = build(group, view, self.index, view.lsn + 1, self._time_us(), room)
                self._append(commit.record)
            except GroupTooLarge as too_large:
                if len(group) == 1:
                    group[0].answer.set_exception(too_large.error)
                    return
                half = len(group) // 2
                self._commit(group[:half])
                group = self._admitted(group[half:])
                continue
            except RequestRefused as refused:
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
        self._disk.reach(CrashPoint.COMMIT_PUBLISHED)
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
                ready = request if known else renewed(request, self.state.view)
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
            self.state.view.by_uuid(change.table.uuid)
        if not request.producer:
            return None
        producer = self.state.producers.get(request.producer, ProducerState())
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
        view = self.state.view
        record = CommitRecord(view.lsn + 1, self._time_us())
        try:
            result = operation.plan(self.state, record)
            self._append(record)
        except LakestoreError as error:
            operation.answer.set_exception(error)
            return
        self._publish(Commit(record, [], operation.entries(result)))
        operation.answer.set_result(Done(self._view, result))

    def _append(self, record: CommitRecord) -> None:
        began = self._clock.monotonic()
        self.totals.bytes += self.journal.append(record)
        seconds = self._clock.monotonic() - began
        self.totals.seconds += seconds
        self.totals.sync_seconds.add(seconds)
        self.totals.frames += 1
        self.totals.rows += sum(part.batch.num_rows for part in record.rows)

    def _publish(self, commit: Commit) -> None:
        """Show a commit: its rows are in the tails before the index names them, and both are seen at once."""
        view = self.state.apply(commit.record)
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
            self.journal.since_checkpoint_bytes >= self.limits.journal_checkpoint_bytes
            or self.index.overlay_keys >= self.limits.overlay_checkpoint_keys
        ):
            self._checkpoint_due()

    def _fail(self, error: BaseException) -> None:
        log.critical("the commit loop failed: %s", error)
        self.failure = error
        lost = Unavailable("the server failed before it could answer: try again", applied="unknown")
        for work in (*self._current, *self.queue.abandon()):
            if not work.answer.done():
                work.answer.set_exception(lost)
        self._wake_all()
        self._on_fatal(error)

    def _wake_all(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self.bells.ring_all()
