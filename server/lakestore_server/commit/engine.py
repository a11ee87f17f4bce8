"""The commit loop, one thread that owns all state, and the engine, the verbs' interface to it.

- A loop that leads takes a group of requests or one operation and builds a commit record on the next state, which has
  all commits so far. A failure until then is an error of its caller and changes nothing.
- The record is applied to the next state and appended to the journal; `in_flight` publishes and answers it when it is
  durable. A durable record has happened: no later failure tells a caller "refused". Tasks wait for that.
- A loop with a shared journal follows until it leads: it publishes the leader's records and refuses requests. It claims
  when the leader is silent. If another server leads then, it goes back to the durable state and follows.
- The engine decides who may submit work now: no rows during a drain, on a full disk or without room in the queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lakestore.errors import Exhausted, LakestoreError, NotLeader, OtherTimeline, Stopped, Unavailable, Violated
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore_server.commit import recovery
from lakestore_server.commit.build import GaveWay, Unmade, defect, try_build
from lakestore_server.commit.draft import RequestRefused
from lakestore_server.commit.durable import DurableState, Totals
from lakestore_server.commit.in_flight import InFlight, PendingCommit
from lakestore_server.commit.parts import PartStore
from lakestore_server.commit.priority import CommitPriority, JournalSize, Pace
from lakestore_server.commit.queue import CommitQueue
from lakestore_server.commit.recovery import Beside, JournalOf, OpenFolder
from lakestore_server.commit.replay import own_entries, record_of
from lakestore_server.commit.request import Completion, IndexEntries, Operation, Request, T, Task, Work, renewed
from lakestore_server.commit.sequences import Sequences, repeated
from lakestore_server.files.journal import encode, nbytes_of
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.files.part_file import FOLDER, PartFiles, PartFolder
from lakestore_server.host import event_log, priority
from lakestore_server.host.clock import Clock, Reading, Timekeeper
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.yield_points import at_yield_points
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.hints import Hint
from lakestore_server.index.keys import IndexKeys
from lakestore_server.state.commit_record import Buffer, CommitRecord, Deposed, Entry, NotWritten, Unknown
from lakestore_server.state.producers import ProducerState
from lakestore_server.state.registers import Register
from lakestore_server.state.state import FrozenState, State
from lakestore_server.state.view import View

log = logging.getLogger("lakestore.engine")
EXPECTED_KEYS_MAX = 4_096
"""Keys in flight of one table that look-ups of the next commit search; sorting more costs as much as putting them into
the index."""
QUICK_BYTES_MAX = 256 << 10
"""A commit up to this size is settled sooner than another thread wakes."""
REFUSED_FROM_MAX = 8
"""Up to this number of refused requests the rest of a group is built again whole. After that it is built in halves;
otherwise a group with every request refused would be built once per request."""
IN_FLIGHT_GROUPS = 2
"""Full groups in flight: one is written while the next is built."""
FOLLOW_SECONDS = 0.02
"""The longest wait for a record of the leader. Tasks of a loop that follows wait as long."""
LEASE_STRETCH = 1.02
"""A follower waits for the lease times this, because clocks do not run equally fast."""


class CommitLoop:
    """State, journal, index and the thread that owns them. Any thread may call public methods."""

    def __init__(
        self,
        *,
        opened: OpenFolder,
        parts: PartStore,
        disk: Disk,
        clock: Clock,
        limits: Limits,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.journal, self.index, self.limits = opened.journal, opened.index, limits
        self._disk, self._clock, self._on_fatal = disk, clock, on_fatal
        self.time = Timekeeper(clock, opened.state.view.clock_us, limits.clock_confirm_seconds)
        self.totals, self.supervisor = Totals(), Supervisor()
        self.parts = parts
        self.durable_state = DurableState(opened.state, opened.index, JournalSize(opened.journal_bytes))
        self._next = opened.state.copy()
        """The state with all commits in flight, on which the next commit is built."""
        self.pace, self.priority = Pace(self.durable_state.size, limits, clock.monotonic), CommitPriority()
        self.queue = CommitQueue(limits, self.pace, self.refuse_when_down, self.priority)
        self._in_flight = InFlight(
            journal=self.journal,
            durable=opened.state.view.lsn,
            bytes_max=IN_FLIGHT_GROUPS * limits.group_bytes,
            clock=clock,
            totals=self.totals,
            publish=self._publish,
            made_room=self.queue.wake,
            wake=self.queue.poke,
        )
        self._current: Sequence[Work] = ()
        self._is_leading = not self.journal.is_shared
        self._address = self._http = ""
        """Where clients reach gRPC and servers HTTP of this server, once they do: then it may lead."""
        self._claims_at = float("-inf")
        """Before this time the loop claims nothing, because it was not ready to lead."""
        self._beats_failure: BaseException | None = None
        """The error that ended the thread that beats."""
        self._is_behind = False
        """Whether the last look at the journal of another leader found records."""
        self._checkpoint_due: Callable[[], None] = lambda: None
        self._begin_to_lead: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        """The error that ended the loop."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="commit-loop", daemon=True)
        self._thread.start()
        self._beats = threading.Thread(target=self._beat, name="journal-beat", daemon=True)
        self._ended = threading.Event()
        if self.journal.is_shared:
            self._beats.start()

    @property
    def state(self) -> State:
        """The state at the newest durable commit."""
        return self.durable_state.state

    @property
    def view(self) -> View:
        """The newest durable view."""
        return self.durable_state.view

    def wait_beyond(self, lsn: int, seconds: float) -> View:
        """The view once it is above `lsn`, or the present one after `seconds`."""
        self.durable_state.wait_for(lambda: self.view.lsn > lsn or not self.is_running, seconds)
        self.refuse_when_down()
        return self.view

    def refuse_when_down(self) -> None:
        """`Stopped` once the loop has failed or is closing."""
        if self.failure is not None:
            raise Stopped("the server has failed and is going down", applied="unknown")
        if self._closing:
            raise Stopped("the server is shutting down")

    def refuse_when_following(self) -> None:
        """`NotLeader` while this server may not commit."""
        if not self._is_leading:
            raise self.not_leader()

    def not_leader(self) -> NotLeader:
        """The error of a server that does not lead, with the leader's address if it knows one."""
        leader = self.journal.leader
        is_gone = leader.has_left or leader.address == self._address  # it was this server, or will be in a moment
        return NotLeader.of("" if is_gone else leader.address)

    @property
    def is_leading(self) -> bool:
        """Whether this server commits. Always, unless the journal is shared."""
        return self._is_leading

    @property
    def address(self) -> str:
        """Where clients reach this server; empty before they do."""
        return self._address

    def lag_seconds(self) -> float:
        """The age of the newest applied commit, if the last look at the journal found more; the time since the last
        message, if that is longer than a lease: a leader beats, so this server reaches no log or nobody leads. Else
        0."""
        if self._is_leading:
            return 0.0
        behind = max(self._clock.now_us() - self.view.time_us, 0) / 1e6 if self._is_behind else 0.0
        silence = self._clock.monotonic() - self.journal.heard
        return max(behind, silence) if silence > self.journal.lease_seconds * LEASE_STRETCH else behind

    def reachable_at(self, address: str, http: str = "") -> None:
        """Clients reach this server at an address, other servers its HTTP port at `http`: from now on it may lead."""
        self._http, self._address = http, address

    @property
    def is_running(self) -> bool:
        """Whether the loop has neither failed nor begun to close."""
        return self.failure is None and not self._closing

    def run(self, work: Callable[[], T]) -> T:
        """Run a function on the loop while no commit is in flight; returns its result."""
        task = Task(work)
        self.queue.put(task)
        return task.answer.result()

    def on_lead(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop when this server begins to lead, before its first commit."""
        self._begin_to_lead = listener

    def on_checkpoint_due(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every turn or commit that leaves a checkpoint due, and now if one is due."""
        self._checkpoint_due = listener
        self._maybe_checkpoint()

    def freeze(self) -> FrozenState:
        """Begin a checkpoint: the present state; later commits go to a new journal file and a new overlay."""

        def freeze() -> FrozenState:
            place = self.journal.roll(self.state.view.lsn + 1)
            frozen = replace(self.state.freeze(), place=place)
            self.index.freeze(frozen.view.lsn)
            self.pace.begin()
            self._exchange(frozen.view)
            return frozen

        self.journal.prepare()
        self.index.prepare()
        return self.run(freeze)

    def exchange(self, change: Callable[[State], View]) -> None:
        """Publish the same commits in another form, which `change` makes of the durable state."""
        self.run(lambda: self._exchange(change(self.state)))

    def install(self, install: Callable[[State], View]) -> None:
        """End a durable checkpoint: `install` replaces rows in memory by its segments."""

        def exchange() -> None:
            view = install(self.state)
            self.index.merged()
            self.pace.end()
            self._exchange(view)

        self.run(exchange)
        self.queue.wake()

    def close(self) -> None:
        """Commit queued work, then stop. Acknowledged commits are durable with or without a checkpoint."""
        if self._closing:
            return
        self._closing = True
        self.queue.close()
        self._thread.join()
        self._in_flight.stop()
        self.durable_state.wake_all()
        self._ended.set()
        if self._beats.is_alive():
            self._beats.join()
        if self._is_leading and self.failure is None:
            self.journal.leave()
        self.journal.close()

    # The rest runs on the loop's thread, `_publish` also on the settling thread.

    def _run(self) -> None:
        priority.take_short_turns()
        try:
            while self._lead() if self._is_leading else self._follow():
                pass
        except BaseException as error:  # the boundary of the thread: nothing may be acknowledged after it
            self._fail(error)

    def _follow(self) -> bool:
        """A turn of a loop that follows. It waits while the index is rebuilt, because the rows under a rebuild stay."""
        for work in self.queue.take_all():
            if isinstance(work, Task):
                self._do(work)
            else:
                work.answer.set_exception(self.not_leader())
        if self.queue.is_over:
            return False
        if not self.index.ready:
            self.queue.wait(FOLLOW_SECONDS)
            return True
        self._is_behind = False
        for entry in self.journal.follow(FOLLOW_SECONDS):
            self._is_behind = True
            self._replay(entry)
        self._maybe_checkpoint()
        self._raise_beats_failure()
        if self._address and self._clock.monotonic() >= self._claims_at and self._is_leader_silent():
            self._claim()
        return True

    def _replay(self, entry: Entry) -> None:
        """Apply and publish a record of the leader."""
        record, rows = record_of(entry, self._next.view)
        view = self._next.view_after(record)
        self._next.follow(record, view)
        entries = list(own_entries(rows, view, self.index))
        self.index.expect(entries)
        self._publish(PendingCommit(record, view, entries, nbytes=nbytes_of(entry.record)))

    def _is_leader_silent(self) -> bool:
        leader = self.journal.leader
        silence = self._clock.monotonic() - leader.heard
        return not leader.epoch or leader.has_left or silence > self.journal.silence_seconds * LEASE_STRETCH

    def _claim(self) -> None:
        try:
            for entry in self.journal.lead(self._address, self._http):
                self._replay(entry)
        except (Deposed, Unknown) as error:
            log.info("another server leads, or may: %s", error)
            self.journal.follow_again()
            return
        self._in_flight.begin(self.view.lsn)
        self.parts.relist()
        self.time.begin(self.view.clock_us)
        try:
            self._begin_to_lead()
        except Unavailable as error:
            self._give_up_lead(error)
            return
        self._is_leading = True
        event_log.event(log, logging.INFO, "leads", epoch=self.journal.leader.epoch, lsn=self.view.lsn)

    def _give_up_lead(self, reason: Unavailable) -> None:
        """Follow again, because something that a leader needs before its first commit does not answer."""
        log.warning("this server does not lead yet, and tries again in %g s: %s", self.journal.lease_seconds, reason)
        self.journal.leave()
        self.journal.follow_again()
        self._claims_at = self._clock.monotonic() + self.journal.lease_seconds

    def _step_down(self, reason: Deposed | Unknown) -> None:
        """Follow from the durable state on. What was appended beyond it is read from the journal if it counts."""
        self._is_leading = False
        lost = self._take_back()
        self.journal.follow_again()
        event_log.event(log, logging.WARNING, "leads no more", reason=str(reason), unanswered=len(lost))
        unknown = Unavailable("this server leads no more: send it again, if it is not known again", applied="unknown")
        for future, _ in (answer for commit in lost for answer in commit.answers):
            future.set_exception(unknown)
        for work in self._current:
            if isinstance(work, Task):
                self._do(work)
            elif not work.answer.done():
                work.answer.set_exception(self.not_leader())

    def _beat(self) -> None:
        """Beat while this server leads, in a thread that does not wait for the commit loop."""
        priority.take_short_turns()
        while not self._ended.wait(self.journal.lease_seconds / 3):
            try:
                self.journal.beat(self._address, self._http)
            except (Deposed, Unknown):  # the loop learns it from the journal
                self.queue.poke()
            except BaseException as error:  # a leader that beats no more would be deposed again and again
                self._beats_failure = error
                self.queue.poke()
                return

    def _raise_beats_failure(self) -> None:
        if self._beats_failure is not None:
            raise self._beats_failure

    def _lead(self) -> bool:
        """A turn of a loop that leads."""
        try:
            return self._turn()
        except (Deposed, Unknown) as reason:
            if not self.journal.is_shared:
                raise
            self._step_down(reason)
            return True

    def _turn(self) -> bool:
        work = self._current = self.queue.take(self._in_flight.room)
        self._wait(self._in_flight.raise_failure)
        self._raise_beats_failure()
        if not work and self.journal.is_shared:
            self.journal.durable()  # the beats may have learned that another server leads
        if not work and self.queue.is_over:
            self._wait(self._in_flight.drain)
            return False
        first = work[0] if work else None
        if isinstance(first, Task):
            self._do(first)
        elif isinstance(first, Operation):
            self._operate(first)
        else:
            self._commit(
                [request for request in work if isinstance(request, Request)], set(), gives_way=self.queue.may_give_way
            )
        self._maybe_checkpoint()
        return True

    def _wait(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except NotWritten as refusal:
            self._undo(refusal)

    def _do(self, task: Task[T]) -> None:
        self._wait(self._in_flight.drain)
        try:
            result = task.run()
        except LakestoreError as error:
            task.answer.set_exception(error)
        else:
            task.answer.set_result(result)

    def _exchange(self, view: View) -> None:
        self._next.view = view
        self.durable_state.exchange(view)

    def _record(self, now: Reading) -> CommitRecord:
        """The next commit, empty, as of a time."""
        view = self._next.view
        stamp_us = now.stamp_us(view.time_us)
        return CommitRecord(view.lsn + 1, stamp_us, beside_us=now.beside_us(stamp_us), in_doubt=not now.may_delete)

    def _commit(self, requests: list[Request], refused: set[str], *, gives_way: bool = False) -> None:
        """Commit these requests as far as possible; `refused` has the producers of earlier refused requests. With
        `gives_way` they may return to the queue. Halves of a group never do, because that would reorder them."""
        if any(self._looks_up_many(change.table) for request in requests for change in request.changes):
            self._wait(self._in_flight.drain)
        now = self.time.read()
        group = self._admitted(requests, refused, now)
        while group:
            try:
                with at_yield_points(partial(self._give_way, group) if gives_way else None):
                    commit, encoded = try_build(group, self._next, self.index, self._record(now), self.limits)
                self._launch(commit, encoded)
            except GaveWay:
                return
            except RequestRefused as refusal:
                request = refusal.among(group)
                self._in_flight.answer(request.answer, refusal.error)
                refused.add(request.producer)
                group = [other for other in group if other is not request]
                if len(group) > REFUSED_FROM_MAX:
                    self._commit_halves(group, refused)
                    return
                group = self._admitted(group, refused, now)
                continue
            except Unmade as unmade:
                if len(group) > 1 and unmade.is_of_one:
                    self._commit_halves(group, refused)
                    return
                for request in group:
                    self._in_flight.answer(request.answer, unmade.error)
            return

    def _commit_halves(self, group: list[Request], refused: set[str]) -> None:
        half = len(group) // 2
        self._commit(group[:half], refused)
        self._commit(group[half:], refused)

    def _give_way(self, group: Sequence[Request]) -> None:
        if self.queue.give_back(group):
            raise GaveWay

    def _looks_up_many(self, table: Table) -> bool:
        """Whether a search of the keys in flight takes longer than waiting until they are in the index."""
        return table.keyed and self.index.expected_keys(table_prefix(table.number)) > EXPECTED_KEYS_MAX

    def _admitted(self, requests: list[Request], refused: set[str], now: Reading) -> list[Request]:
        """The requests to commit; the others already have their answers. A broken sequence refuses all later requests
        of its producer. `refused` has the producers of refused requests and gets new ones."""
        group = []
        sequences = Sequences(self._next.producers, self._record(now).clock_us, refused)
        for request in requests:
            try:
                known = sequences.answer(request) or repeated(request.moves, self._next.registers.known)
                ready = request if known else renewed(request, self._next.view, self.limits)
                if known is None:
                    self._refuse_unindexed(request)
                    if request.parts:
                        self.parts.check_uncommitted(request.parts)
            except LakestoreError as error:
                if isinstance(error, Violated):
                    self.totals.violations.add_refused(error)
                refused.add(request.producer)
                self._in_flight.answer(request.answer, error)
                continue
            except Exception as error:  # an error of this request alone
                refused.add(request.producer)
                self._in_flight.answer(request.answer, defect(error, "requests:", 1))
                continue
            if known is not None:
                self._in_flight.answer(request.answer, known)
                continue
            sequences.admitted(request)
            group.append(ready)
        return group

    def _refuse_unindexed(self, request: Request) -> None:
        for change in request.changes:
            if change.table.keyed:
                self.index.check(table_prefix(change.table.number))

    def _operate(self, operation: Operation[T]) -> None:
        record = self._record(self.time.read())
        try:
            result = operation.plan(self._next, record)
            view, encoded = self._next.view_after(record), encode(record)
            entries = operation.entries(result)
        except LakestoreError as error:
            self._in_flight.answer(operation.answer, error)
            return
        except Exception as error:  # an error of this operation alone: nothing of it is written or applied
            self._in_flight.answer(operation.answer, defect(error, "operations:", 1))
            return
        self._launch(
            PendingCommit(record, view, entries, answers=[(operation.answer, Completion(view, result))]), encoded
        )

    def _launch(self, commit: PendingCommit, encoded: Sequence[Buffer]) -> None:
        self._next.follow(commit.record, commit.view)
        self.index.expect(commit.entries)
        try:
            self._in_flight.add(commit, encoded)
            self._in_flight.go_on(in_place=self._is_settled_in_place(commit))
        except NotWritten as refusal:
            self._undo(refusal, commit)

    def _is_settled_in_place(self, commit: PendingCommit) -> bool:
        """Whether the loop has nothing else to do before the commit is durable."""
        is_quick = not len(self.queue) and commit.nbytes <= QUICK_BYTES_MAX
        return is_quick or sum(len(keys) for keys, _ in commit.entries) > EXPECTED_KEYS_MAX

    def _undo(self, refusal: NotWritten, *given_back: PendingCommit) -> None:
        """Continue from the durable state: no commit in flight is or will be in the journal."""
        lost = {id(commit): commit for commit in (*self._take_back(), *given_back)}
        for commit in lost.values():
            for future, _ in commit.answers:
                future.set_exception(Exhausted(refusal.message))

    def _take_back(self) -> list[PendingCommit]:
        """Go back to the durable state; returns the commits that were in flight."""
        lost = self._in_flight.undo()
        self._next = self.state.copy()
        self.index.forget_expected()
        return lost

    def _publish(self, commit: PendingCommit) -> None:
        record, totals = commit.record, self.totals
        self.durable_state.publish(record, commit.view, commit.entries)
        self.parts.committed(record.parts)
        self.durable_state.size.since_checkpoint += commit.nbytes
        totals.frames += 1
        totals.bytes += commit.nbytes
        totals.rows += sum(part.batch.num_rows for part in record.rows)
        for table, broken in commit.broken:
            totals.violations.add(table, broken)
        if commit.queued:
            self._disk.reach(CrashPoint.COMMIT_PUBLISHED)
            totals.group_requests.add(len(commit.queued))
            now = self._clock.monotonic()
            for queued in commit.queued:
                totals.commit_seconds.add(now - queued)
        self._maybe_checkpoint()  # a single commit may fill the journal without a further turn

    def _maybe_checkpoint(self) -> None:
        if (
            self.durable_state.size.since_checkpoint >= self.limits.journal_checkpoint_bytes
            or self.index.overlay_keys >= self.limits.overlay_checkpoint_keys
        ):
            self._checkpoint_due()

    def _fail(self, error: BaseException) -> None:
        log.critical("the commit loop failed: %s", error)
        self.failure = error
        unknown = [future for commit in self._in_flight.stop() for future, _ in commit.answers]
        unknown += [work.answer for work in (*self._current, *self.queue.abandon())]
        lost = Unavailable("the server failed before it could answer: try again", applied="unknown")
        for future in unknown:
            if not future.done():
                future.set_exception(lost)
        self.durable_state.wake_all()
        self._on_fatal(error)


FOR_LEADER = ContextVar("for_leader", default=False)
"""Whether only a leader may answer the call in which this code runs."""
DRAINING = "the server is going down: try again in a moment"
OPERATION_WAIT_SECONDS = 30.0
"""Seconds for which an operation waits for room. Operations are few and small, and some of them free room, so they wait
when rows are already refused."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 5.0
DISK_CHECK_SECONDS = 1.0


class Engine:
    """Reads the durable state and submits work to the commit loop. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        clock: Clock,
        *,
        on_fatal: Callable[[BaseException], None],
        limits: Limits = DEFAULT,
        journal_of: JournalOf = FileJournal,
        beside: Beside = lambda *_: None,
        parts_of: Callable[[str], PartFiles] | None = None,
    ) -> None:
        """`parts_of` returns the place of uploaded parts that the servers of a shared journal have, by the timeline of
        the journal. Without it they are in the folder."""
        self.folder, self.disk, self.limits, self._clock = folder, disk, limits, clock
        began = clock.monotonic()
        opened = recovery.open_folder(folder, disk, limits, journal_of, beside)
        self.recovery_seconds = clock.monotonic() - began
        files: PartFiles = PartFolder(disk, folder / FOLDER)
        if opened.journal.is_shared and parts_of is not None:
            files.remove(list(files.sizes()))  # of a folder that was a server alone, or of an earlier release
            files = parts_of(opened.journal.timeline())
        self.parts = PartStore(files, limits, opened.parts, clock.now_us())
        self.loop = CommitLoop(
            opened=opened, parts=self.parts, disk=disk, clock=clock, limits=limits, on_fatal=on_fatal
        )
        self.time, self._durable_state = self.loop.time, self.loop.durable_state
        self.index, self.wakeups, self.totals = self.loop.index, self.loop.durable_state.wakeups, self.loop.totals
        self.supervisor = self.loop.supervisor
        self.timeline = opened.state.timeline
        self.is_restored = opened.state.restored is not None
        """Whether this timeline began with a backup."""
        self.former_timeline = opened.state.restored.timeline if opened.state.restored else ""
        """The timeline from which this one was restored; empty for none."""
        self.lake_ahead: Mapping[str, str] = {}
        """Table uuid to the problem, for tables whose lake continued under another timeline."""
        self._disk_checked = float("-inf")
        self._disk_full = False
        self._draining = False

    @property
    def view(self) -> View:
        """The newest durable view."""
        return self._durable_state.view

    def serving(self) -> View:
        """The newest view, or `Unavailable` if no more will come."""
        self.loop.refuse_when_down()
        return self._durable_state.view

    def wait_beyond(self, lsn: int, seconds: float) -> View:
        """The view once it is above `lsn`, or the present one after `seconds`."""
        return self.loop.wait_beyond(lsn, seconds)

    def now_us(self) -> int:
        """The judged time."""
        return self.time.read().time_us

    def monotonic(self) -> float:
        """Seconds of the server's clock that never go back."""
        return self._clock.monotonic()

    def settled(self) -> View:
        """The view once every commit that has its time by now is durable. `NotLeader` at a server that follows, because
        it does not know which commits it lacks."""
        self.loop.refuse_when_following()
        self.loop.run(lambda: None)
        return self.loop.view

    def submit(self, *several: Request | Operation[Any]) -> None:
        """Queue work, all or nothing; futures get the answers. `Exhausted`, with a hint, if there is no room soon."""
        self.loop.refuse_when_following()
        waits = OPERATION_WAIT_SECONDS if isinstance(several[0], Operation) else None
        self.await_room(waits, max(work.nbytes for work in several))
        for work in several:
            work.queued = self._clock.monotonic()
        self.loop.queue.put(*several)

    def operate(
        self, plan: Callable[[State, CommitRecord], T], entries: Callable[[T], IndexEntries] | None = None
    ) -> Completion[T]:
        """Run an operation to its end: the view with it, and the result of `plan`. `entries` as in `Operation`."""
        operation = Operation(plan) if entries is None else Operation(plan, entries)
        self.submit(operation)
        return operation.answer.result()

    def foreseen(self, several: Sequence[IndexKeys]) -> list[Hint | None]:
        """The index values of changes' keys, if they can be looked up before the commit loop needs them."""
        return self.index.foreseen(several) if self.is_busy else [None] * len(several)

    @property
    def is_busy(self) -> bool:
        """Whether more work waits than the commit loop is doing."""
        return len(self.loop.queue) > 0

    def await_room(self, seconds: float | None = None, nbytes: int = 1 << 30) -> None:
        """Wait until the queue has room; for rows at most `queue_wait_ms`."""
        if seconds is not None:
            self.loop.queue.await_room(seconds, self._drain_seconds, nbytes)
            return
        with self._taking_rows():
            self.loop.queue.await_room(self.limits.queue_wait_ms / 1000, self._drain_seconds, nbytes)

    @contextmanager
    def turn(self, nbytes: int, *, waits: bool = True) -> Iterator[None]:
        """The turn of rows, from before their memory is taken until they are queued. Waits like `await_room`."""
        seconds = self.limits.queue_wait_ms / 1000 if waits else 0.0
        with ExitStack() as stack:
            with self._taking_rows():
                stack.enter_context(self.loop.queue.turn(seconds, self._drain_seconds, nbytes))
            yield

    @contextmanager
    def _taking_rows(self) -> Iterator[None]:
        """Refuse rows if disk or server cannot take them, before and after they have waited."""
        self.loop.refuse_when_following()
        if self.is_disk_full():
            kept = len(self.view.dropped)
            way = f", for example that of {kept} dropped tables by `lakestore drop TABLE --now`" if kept else ""
            raise Exhausted(
                f"less than {self.limits.disk_free_bytes >> 20} MB are free for {self.folder}: free space{way}",
                retry_after=RETRY_SECONDS_MAX,
            )
        self.refuse_when_draining()
        yield
        self.refuse_when_draining()

    def _drain_seconds(self) -> float:
        """Estimated seconds in which the loop does the waiting work, at the journal's pace so far."""
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
        """Whether a catalog change with this key was committed."""
        return key in self.loop.state.idempotency

    def producer(self, name: str) -> ProducerState | None:
        """The state of a producer; None if it is unknown."""
        return self.loop.state.producers.known(name)

    def named_producers(self) -> dict[str, ProducerState]:
        return self.loop.run(lambda: dict(self.loop.state.producers.named))

    def registers(self) -> Mapping[str, Register]:
        return self.loop.run(lambda: self.loop.state.registers.frozen())

    @property
    def is_leading(self) -> bool:
        """Whether this server commits. Always, unless its journal is shared; duties that commit wait for it."""
        return self.loop.is_leading

    def confirm(self) -> None:
        """Make sure that the view is the newest one. A follower's view will do, unless the call is for the leader."""
        if not self._leads() and FOR_LEADER.get():
            raise self.loop.not_leader()

    def _leads(self) -> bool:
        """Whether this server is known to lead at some moment after the call. `NotLeader` if it leads no more."""
        if not self.is_leading:
            return False
        try:
            self.loop.journal.confirm()
        except (Deposed, Unknown) as error:
            self.loop.queue.poke()
            raise NotLeader.of("") from error
        return True

    def certain(self, refusal: LakestoreError, *, for_leader: bool) -> LakestoreError:
        """A refusal that tells what this server has read; `NotLeader` in its place if another server may lead, since
        the present leader may know better. With `for_leader` also if this server follows: it may have led until now."""
        if not self.role or refusal.applied != "no" or isinstance(refusal, Unavailable | Exhausted):
            return refusal
        try:
            return refusal if self._leads() or not for_leader else self.loop.not_leader()
        except NotLeader as other:
            return other

    @property
    def role(self) -> str:
        """`leader` or `follower`; empty if the journal is not shared."""
        return ("leader" if self.is_leading else "follower") if self.loop.journal.is_shared else ""

    def check_timeline(self, timeline: str, what: str) -> None:
        """`OtherTimeline` if a request names another timeline; an empty name means any."""
        if timeline and timeline != self.timeline:
            raise OtherTimeline(f"{what} belongs to another timeline: the server was restored from a backup")

    def reach(self, point: CrashPoint) -> None:
        self.disk.reach(point)

    def drain(self) -> None:
        """Accept no more rows; queued rows are still committed."""
        self._draining = True

    @property
    def is_draining(self) -> bool:
        return self._draining

    def refuse_when_draining(self) -> None:
        """`Unavailable` once a drain has begun."""
        if self._draining:
            raise Unavailable(DRAINING, retry_after=RETRY_SECONDS_MAX)
