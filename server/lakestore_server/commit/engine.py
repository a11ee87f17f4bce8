"""The engine: the commit loop as the verbs use it, with the rules for who may put work in now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lakestore.errors import Exhausted, OtherTimeline, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore_server.commit import recovery
from lakestore_server.commit.loop import CommitLoop
from lakestore_server.commit.parts import PartStore
from lakestore_server.commit.recovery import Beside, JournalOf
from lakestore_server.commit.request import Request
from lakestore_server.commit.work import Done, Operation, T
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.clock import Clock
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.hints import Hint
from lakestore_server.index.keys import IndexKeys
from lakestore_server.index.worker_client import IndexOf, in_process
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.producers import ProducerState
from lakestore_server.state.registers import Register
from lakestore_server.state.state import State
from lakestore_server.state.view import View

DRAINING = "the server is going down: try again in a moment"
OPERATION_WAIT_SECONDS = 30.0
"""Operations are few and small, and some of them make room: they wait where rows are refused."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 5.0
DISK_CHECK_SECONDS = 1.0


class Engine:
    """Reads the published state and submits work to the commit loop. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        clock: Clock,
        *,
        on_fatal: Callable[[BaseException], None],
        limits: Limits = DEFAULT,
        journal_of: JournalOf = FileJournal,
        index_of: IndexOf = in_process,
        beside: Beside = lambda *_: None,
    ) -> None:
        self.folder, self.disk, self.limits, self._clock = folder, disk, limits, clock
        began = clock.monotonic()
        opened = recovery.open_folder(folder, disk, limits, journal_of, index_of, beside)
        self.recovery_seconds = clock.monotonic() - began
        self.parts = PartStore(disk, folder, limits, opened.parts, clock.now_us())
        self.loop = CommitLoop(opened, self.parts, disk, clock, limits, on_fatal)
        self.time = self.loop.time
        self.index, self.bells, self.totals = self.loop.index, self.loop.published.bells, self.loop.totals
        self.supervisor = self.loop.supervisor
        self.timeline = opened.state.timeline
        self.is_restored = opened.state.restored is not None
        self.former_timeline = opened.state.restored.timeline if opened.state.restored else ""
        """The timeline of the history that this one was restored from; empty for none."""
        """Whether this history began with a backup."""
        self.lake_ahead: Mapping[str, str] = {}
        """Table uuid to the problem, for tables whose lake went on without this history."""
        self._disk_checked = float("-inf")
        self._disk_full = False
        self._draining = False

    @property
    def view(self) -> View:
        """The newest published state."""
        return self.loop.view

    def serving(self) -> View:
        """The newest state, or `Unavailable` when no more will come."""
        self.loop.refuse_when_down()
        return self.loop.view

    def wait_beyond(self, lsn: int, seconds: float) -> View:
        """The view once it is beyond `lsn`, or the current one when the time is over."""
        return self.loop.wait_beyond(lsn, seconds)

    def now_us(self) -> int:
        """The time as it is judged."""
        return self.time.read().time_us

    def settled(self) -> View:
        """The view once every commit that has its time by now is published."""
        self.loop.run(lambda: None)
        return self.loop.view

    def submit(self, *several: Request | Operation[Any]) -> None:
        """Queue work, all or nothing; answers come by futures. `Exhausted`, with a hint, when there is no room soon."""
        waits = OPERATION_WAIT_SECONDS if isinstance(several[0], Operation) else None
        self.await_room(waits, max(work.nbytes for work in several))
        for work in several:
            work.queued = self._clock.monotonic()
        self.loop.queue.put(*several)

    def operate(self, plan: Callable[[State, CommitRecord], T]) -> Done[T]:
        """Run an operation to its end: the view that has it, and the result of `plan`."""
        operation = Operation(plan)
        self.submit(operation)
        return operation.answer.result()

    def foreseen(self, several: Sequence[IndexKeys]) -> list[Hint | None]:
        """Values of changes' keys in the index, if there is time before the commit loop can ask for them."""
        return self.index.foreseen(several) if self.is_busy else [None] * len(several)

    @property
    def is_busy(self) -> bool:
        """Whether more work waits than the commit loop is doing."""
        return len(self.loop.queue) > 0

    def await_room(self, seconds: float | None = None, nbytes: int = 1 << 30) -> None:
        """Have the queue have room, which is waited for; for rows no longer than `queue_wait_ms`."""
        if seconds is not None:
            self.loop.queue.await_room(seconds, self._drain_seconds, nbytes)
            return
        with self._taking_rows():
            self.loop.queue.await_room(self.limits.queue_wait_ms / 1000, self._drain_seconds, nbytes)

    @contextmanager
    def turn(self, nbytes: int, *, waits: bool = True) -> Iterator[None]:
        """The turn of rows, which is waited for as room is: before their memory is taken, until they are queued."""
        seconds = self.limits.queue_wait_ms / 1000 if waits else 0.0
        with ExitStack() as stack:
            with self._taking_rows():
                stack.enter_context(self.loop.queue.turn(seconds, self._drain_seconds, nbytes))
            yield

    @contextmanager
    def _taking_rows(self) -> Iterator[None]:
        """Refuse rows that no disk or no server is left for, before and after they have waited."""
        if self.is_disk_full():
            kept = len(self.view.dropped)
            way = f", such as that of {kept} dropped tables by `lakestore drop TABLE --now`" if kept else ""
            raise Exhausted(
                f"less than {self.limits.disk_free_bytes >> 20} MB are free for {self.folder}: free space{way}",
                retry_after=RETRY_SECONDS_MAX,
            )
        self.refuse_when_draining()
        yield
        self.refuse_when_draining()

    def _drain_seconds(self) -> float:
        """About how long the loop takes for what waits, at the pace of the journal so far."""
        if self.loop.pace.is_full():
            return 1.0
        pace = self.totals.bytes / self.totals.seconds if self.totals.seconds else 1.0
        return min(max(self.loop.queue.nbytes / max(pace, 1.0), RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)

    def is_disk_full(self) -> bool:
        """Whether less than `disk_free_bytes` are free, as of the last second."""
        now = self._clock.monotonic()
        if now - self._disk_checked > DISK_CHECK_SECONDS:
            self._disk_full = self.disk.free_bytes(self.folder) < self.limits.disk_free_bytes
            self._disk_checked = now
        return self._disk_full

    def has_idempotency_key(self, key: str) -> bool:
        """Whether a catalog change with that key was committed."""
        return key in self.loop.state.idempotency

    def producer(self, name: str) -> ProducerState | None:
        """The state of a producer, or None for one that never wrote or was forgotten."""
        return self.loop.state.producers.known(name)

    def named_producers(self) -> dict[str, ProducerState]:
        """The named producers of this moment."""
        return self.loop.run(lambda: dict(self.loop.state.producers.named))

    def registers(self) -> Mapping[str, Register]:
        """The registers of this moment."""
        return self.loop.run(lambda: self.loop.state.registers.frozen())

    def check_timeline(self, timeline: str, what: str) -> None:
        """`OtherTimeline` if a request names another history than this one; an empty name means any."""
        if timeline and timeline != self.timeline:
            raise OtherTimeline(
                f"{what} belongs to another history: the server was restored from a backup, and goes on from there"
            )

    def reach(self, point: CrashPoint) -> None:
        """Pass a crash point."""
        self.disk.reach(point)

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
