"""Commits under way: appended to the journal and applied to the loop's next state, not durable yet.

The loop adds them; they are shown and answered in order as the journal says that they stand. With a journal that does
its work in the caller's thread, the loop settles a commit by itself as long as nothing else waits: one writer alone is
never handed from thread to thread. Otherwise a thread of its own settles them, and the loop makes the next commit
meanwhile. An answer that was read from a state with commits under way waits for the newest of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from lakestore_server.commit.published import Totals
from lakestore_server.commit.queue import Room
from lakestore_server.commit.request import IndexEntries
from lakestore_server.files.journal import HEADER_BYTES, nbytes_of
from lakestore_server.host import priority
from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import Buffer, CommitRecord, Journal, NotWritten
from lakestore_server.state.view import View

COMMITS_MAX = 16
"""Commits under way at most: beyond it, work waits in the queue, where it becomes one group."""
LOG_BYTES_MIN, LOG_COMMITS_MAX = 512 << 10, 2
"""Large commits of logs under way: one that is synced and one that is written meanwhile. More would be durable no
sooner, and each one costs the same whether it has one request or several; those that wait become one group.
"""


@dataclass(slots=True)
class Underway:
    """One commit that is under way."""

    record: CommitRecord
    view: View
    """The state after it."""
    entries: IndexEntries
    queued: Sequence[float] = ()
    """When each request of a group was queued; none of an operation."""
    answers: list[tuple[Future[Any], Any]] = field(default_factory=list)
    """Futures, and their results or errors, given once the commit is durable."""
    nbytes: int = 0

    @property
    def is_large_log(self) -> bool:
        """Whether it is many bytes that no index is to know of, so that to make it costs little beside writing it."""
        return self.nbytes >= LOG_BYTES_MIN and not self.entries


def give(future: Future[Any], outcome: Any) -> None:
    """Set a future's result or error."""
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Flight:
    """The commits under way and, when they are handed over, the thread that settles them."""

    def __init__(
        self,
        journal: Journal,
        durable: int,
        bytes_max: int,
        clock: Clock,
        totals: Totals,
        show: Callable[[Underway], None],
        made_room: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        """`show` is told of each commit that has become durable, in order; `wake` of a failure, for the loop to ask."""
        self._journal, self._clock, self._totals = journal, clock, totals
        self._show, self._made_room, self._wake = show, made_room, wake
        self._durable, self._bytes_max = durable, bytes_max
        lock = threading.RLock()
        self._changed, self._asked = threading.Condition(lock), threading.Condition(lock)
        """One for the loop, one for the thread: a commit that the loop settles itself need not wake that."""
        self._commits: deque[Underway] = deque()
        self._nbytes = self._large_logs = 0
        self._is_handed_over = self._closing = False
        self._refusal: NotWritten | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    # On the loop.

    def room(self) -> Room:
        """The work for which there is room now; `made_room` is called when there is more."""
        if len(self._commits) >= COMMITS_MAX:
            return Room.NONE
        is_full = self._nbytes >= self._bytes_max or self._large_logs >= LOG_COMMITS_MAX
        return Room.SMALL if is_full else Room.ANY

    def drain(self) -> None:
        """Wait until nothing is under way; raises as `check`."""
        if self._commits:
            self._await(lambda: not self._commits)
        self.check()

    def _await(self, is_over: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._refusal or self._failure)
        self.check()

    def check(self) -> None:
        """`NotWritten` if commits under way were given back by the journal; its failure if it has failed."""
        if self._failure is not None:
            raise self._failure
        if self._refusal is not None:
            raise self._refusal

    def add(self, commit: Underway, record: Sequence[Buffer]) -> None:
        """Append a commit to the journal; raises as `check`, and then the commit is not under way."""
        self.check()
        commit.nbytes = HEADER_BYTES + nbytes_of(record)
        try:
            self._journal.append(commit.record.lsn, record)
        except NotWritten:
            self._await(lambda: False)  # earlier ones were given back; those before them have first to be shown
        with self._changed:
            self._commits.append(commit)
            self._nbytes += commit.nbytes
            self._large_logs += commit.is_large_log

    def go_on(self, *, in_place: bool) -> None:
        """Have the commits that were added settled: `in_place` if the loop loses nothing by that; raises as `check`."""
        if in_place and not self._is_handed_over and self._journal.settles_in_place:
            self._settle()
            return
        with self._asked:
            self._is_handed_over = bool(self._commits)
            self._asked.notify_all()

    def answer(self, future: Future[Any], outcome: Any) -> None:
        """Answer, an error included, from the loop's next state: once the newest commit in it is durable."""
        with self._changed:
            if self._commits:
                self._commits[-1].answers.append((future, outcome))
                return
        give(future, outcome)

    def undo(self) -> list[Underway]:
        """Take the commits that were given back; none of them is in the journal, and none is under way."""
        with self._changed:
            lost, self._refusal = list(self._commits), None
            self._commits.clear()
            self._nbytes = self._large_logs = 0
            return lost

    def stop(self) -> list[Underway]:
        """End the thread; the commits that nobody will ever know of."""
        with self._asked:
            self._closing = True
            self._asked.notify_all()
        self._thread.join()
        return list(self._commits)

    # On the loop, or on the thread when commits are handed over.

    def _settle(self) -> None:
        began = self._clock.monotonic()
        self._durable = self._journal.settle(self._durable)
        seconds = self._clock.monotonic() - began
        self._totals.seconds += seconds
        self._totals.sync_seconds.add(seconds)
        while self._commits and self._commits[0].record.lsn <= self._durable:
            commit = self._commits[0]
            self._show(commit)
            with self._changed:
                self._commits.popleft()
                self._nbytes -= commit.nbytes
                self._large_logs -= commit.is_large_log
                self._changed.notify_all()
            self._made_room()
            for future, outcome in commit.answers:
                give(future, outcome)

    # On the thread.

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
        except NotWritten as refusal:
            with self._changed:
                self._refusal, self._is_handed_over = refusal, False
                self._changed.notify_all()
            self._wake()
