"""Commits in flight: appended to the journal and applied to the loop's next state, not yet durable.

- The loop adds commits. They are published and answered in order, as the journal confirms them.
- If the journal works in the caller's thread, the loop settles a single commit itself, so one writer alone causes no
  thread switch. Otherwise a settling thread does it, several commits per fsync, while the loop builds the next commit.
- An answer that was read from a state with commits in flight waits for the newest of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from lakestore_server.commit.contract_rows import RuleCount
from lakestore_server.commit.durable import Totals
from lakestore_server.commit.queue import Room
from lakestore_server.commit.request import IndexEntries
from lakestore_server.files.journal import HEADER_BYTES, nbytes_of
from lakestore_server.host import priority
from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import Buffer, CommitRecord, Deposed, Journal, NotWritten, Unknown
from lakestore_server.state.view import View

COMMITS_MAX = 16
"""The most commits in flight. More work waits in the queue, where it becomes one group."""
LOG_BYTES_MIN, LOG_COMMITS_MAX = 512 << 10, 2
"""Large commits of log tables in flight: one is synced while another is written. More would be durable no sooner, and
waiting requests become one group, which costs as much as one request."""


@dataclass(slots=True)
class PendingCommit:
    """A commit that is in flight."""

    record: CommitRecord
    view: View
    """The state after it."""
    entries: IndexEntries
    queued: Sequence[float] = ()
    """The time at which each request of a group was queued; empty for an operation."""
    answers: list[tuple[Future[Any], Any]] = field(default_factory=list)
    """Futures with their results or errors, set once the commit is durable."""
    nbytes: int = 0
    broken: Sequence[tuple[str, Sequence[RuleCount]]] = ()
    """(table, the rules of its contract that rows broke)."""

    @property
    def is_large_log(self) -> bool:
        """True for a large append to a log table: it has no index entries, so writing it costs more than building
        it."""
        return self.nbytes >= LOG_BYTES_MIN and not self.entries


def give(future: Future[Any], outcome: Any) -> None:
    """Set a future's result or error."""
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class InFlight:
    """The commits in flight and the thread that settles them if they are handed over."""

    def __init__(
        self,
        *,
        journal: Journal,
        durable: int,
        bytes_max: int,
        clock: Clock,
        totals: Totals,
        publish: Callable[[PendingCommit], None],
        made_room: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        """`publish` is called with each commit that became durable, in order; `wake` on a failure, so that the loop
        asks."""
        self._journal, self._clock, self._totals = journal, clock, totals
        self._publish, self._made_room, self._wake = publish, made_room, wake
        self._durable, self._bytes_max = durable, bytes_max
        lock = threading.RLock()
        self._changed, self._asked = threading.Condition(lock), threading.Condition(lock)
        """One for the loop, one for the thread: a commit that the loop settles itself need not wake the thread."""
        self._commits: deque[PendingCommit] = deque()
        self._nbytes = self._large_logs = 0
        self._is_handed_over = self._closing = False
        self._refusal: NotWritten | Deposed | Unknown | None = None
        """The loop takes it by `undo`."""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    # Called by the loop.

    def room(self) -> Room:
        """The kinds of work with room in flight; `made_room` is called when there is more."""
        if len(self._commits) >= COMMITS_MAX:
            return Room.NONE
        is_full = self._nbytes >= self._bytes_max or self._large_logs >= LOG_COMMITS_MAX
        return Room.SMALL if is_full else Room.ANY

    def drain(self) -> None:
        """Wait until nothing is in flight; raises like `raise_failure`."""
        if self._commits:
            self._await(lambda: not self._commits)
        self.raise_failure()

    def _await(self, is_over: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._refusal or self._failure)
        self.raise_failure()

    def raise_failure(self) -> None:
        """`NotWritten` if the journal gave commits back, `Deposed` or `Unknown` if a shared one may have lost them; the
        journal's failure if it has failed."""
        if self._failure is not None:
            raise self._failure
        if self._refusal is not None:
            raise self._refusal

    def add(self, commit: PendingCommit, record: Sequence[Buffer]) -> None:
        """Append a commit to the journal; raises like `raise_failure`, and the commit is then not in flight."""
        self.raise_failure()
        commit.nbytes = HEADER_BYTES + nbytes_of(record)
        try:
            self._journal.append(commit.record.lsn, record)
        except NotWritten:
            self._await(lambda: False)  # earlier commits were given back; the ones before those must be published first
        with self._changed:
            self._commits.append(commit)
            self._nbytes += commit.nbytes
            self._large_logs += commit.is_large_log

    def go_on(self, *, in_place: bool) -> None:
        """Settle the added commits, `in_place` if the loop has nothing else to do. Raises like `raise_failure`."""
        if in_place and not self._is_handed_over and self._journal.settles_in_place:
            self._settle()
            return
        with self._asked:
            self._is_handed_over = bool(self._commits)
            self._asked.notify_all()

    def answer(self, future: Future[Any], outcome: Any) -> None:
        """Answer from the loop's next state, an error too: once the newest commit in this state is durable."""
        with self._changed:
            if self._commits:
                self._commits[-1].answers.append((future, outcome))
                return
        give(future, outcome)

    def begin(self, durable: int) -> None:
        """Begin with the commit after the durable one. Nothing is in flight."""
        self._durable = durable

    def undo(self) -> list[PendingCommit]:
        """Take all commits, which the journal gave back, or whose outcome it does not know. First the thread publishes
        the durable ones."""
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._is_handed_over and self._commits) or self._refusal or self._failure
            )
        self._publish_settled()
        with self._changed:
            lost, self._refusal = list(self._commits), None
            self._commits.clear()
            self._nbytes = self._large_logs = 0
            self._is_handed_over = False
            return lost

    def stop(self) -> list[PendingCommit]:
        """End the thread; returns the commits whose outcome nobody will know."""
        with self._asked:
            self._closing = True
            self._asked.notify_all()
        self._thread.join()
        return list(self._commits)

    # Called by the loop, or by the thread for commits that are handed over.

    def _settle(self) -> None:
        if not self._is_settled():
            began = self._clock.monotonic()
            self._durable = self._journal.settle(self._durable)
            seconds = self._clock.monotonic() - began
            self._totals.seconds += seconds
            self._totals.sync_seconds.add(seconds)
        self._publish_settled()

    def _is_settled(self) -> bool:
        """Whether the oldest commit is durable already. The journal may have said so before the loop, which had just
        appended it, added it here. It says so once."""
        return bool(self._commits) and self._commits[0].record.lsn <= self._durable

    def _publish_settled(self) -> None:
        while self._is_settled():
            commit = self._commits[0]
            self._publish(commit)
            with self._changed:
                self._commits.popleft()
                self._nbytes -= commit.nbytes
                self._large_logs -= commit.is_large_log
                self._changed.notify_all()
            self._made_room()
            for future, outcome in commit.answers:
                give(future, outcome)

    # Called by the thread.

    def _run(self) -> None:
        priority.take_short_turns()
        try:
            while self._await_hand_over():
                self._settle_handed_over()
        except BaseException as error:  # the boundary of the thread: the loop raises it again
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._wake()

    def _await_hand_over(self) -> bool:
        with self._asked:
            self._is_handed_over = self._is_handed_over and bool(self._commits)
            self._asked.wait_for(lambda: self._is_handed_over or self._closing)
            return self._is_handed_over

    def _settle_handed_over(self) -> None:
        try:
            self._settle()
        except (NotWritten, Deposed, Unknown) as refusal:
            if not (isinstance(refusal, NotWritten) or self._journal.is_shared):
                raise
            with self._changed:
                self._refusal, self._is_handed_over = refusal, False
                self._changed.notify_all()
            self._wake()
