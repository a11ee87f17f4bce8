"""One server's journal on a log that several servers write: it follows, claims, and appends while its claim counts.

- A record is durable once every position up to its last part was judged. An unbroken succession of this server's own
  messages costs nothing. If another message lies in between, the gap is read and judged first.
- `Deposed` or `Unknown` end a leadership, not the journal. `settle` returns what was judged before it raises them, and
  `follow` returns what it did not. `follow_again` continues from the judge's standing, so this server reads its own
  later messages like every follower.
- Two locks: `_sending` for the order of messages, held for no wait; `_judging` for positions, held while a gap is read.
  Appends and beats need only the first one.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from lakestore.errors import Conflict, Corrupt, Invalid, LakestoreError
from lakestore_server.host.clock import Clock
from lakestore_server.journals.log import Log, Rounds
from lakestore_server.journals.replicas import KEEP_SECONDS, REPORT_SECONDS, Replicas, report_of
from lakestore_server.state.commit_record import (
    BEGINNING,
    COPIES,
    Buffer,
    Deposed,
    Entry,
    JournalFile,
    Leader,
    Place,
    Plain,
    Replica,
    Unknown,
    plain,
)
from lakestore_server.state.judge import (
    NOBODY,
    Content,
    CountedMessage,
    ForeignLog,
    Judge,
    Kind,
    Standing,
    messages,
    report_in,
)

log = logging.getLogger("lakestore.journal")
ANSWER_SECONDS = 30.0
"""The longest wait for an answer of the log. Kafka replaces a dead broker within about 15 s by default."""
LEAVE_SECONDS = 5.0
"""The longest wait of a server that leaves; then its followers wait for the lease."""
POLL_SECONDS = 0.1
LEASE_SHARE = 0.9
"""The part of its lease on which a leader relies for reads. Others wait for the whole lease by their own clocks, so two
clocks may differ in speed by a tenth."""
BEATS_PER_LEASE = 4
"""A beat is due after this share of the lease without a message. The server looks a little less often."""
RECENT_MESSAGES = 2_000
"""Messages at the end of the log in which a new server looks for others first; if they name none, it looks at more."""
Failure: TypeAlias = Deposed | Unknown | LakestoreError
"""The end of a leadership. Errors of other kinds than the first two also end the journal."""


class JournalEnd(ForeignLog):
    """The journal was continued elsewhere. `mark` is the id that the end has."""

    def __init__(self, position: int, mark: str) -> None:
        super().__init__(
            f"this journal ended at position {position}: `lakestore journal move` continued it in the files of one data"
            " folder. Serve that folder, or repeat the command there if it was interrupted"
        )
        self.mark = mark


@dataclass(slots=True, eq=False)
class _Sent:
    """A message of this server that is not judged yet."""

    data: bytes
    at: float
    """The time before it was sent."""
    position: int | None = None
    """None until the log has stored it; `SOMEWHERE` if the log did not say where."""

    def stored(self, position: int) -> None:
        self.position = position


class SharedJournal:
    """`LocalJournal` on a log, without files. The commit loop calls most methods. One other thread may settle; any may
    beat and trim."""

    is_shared = settles_in_place = True
    written = ("", 0)

    def __init__(
        self,
        log: Log,
        clock: Clock,
        lease_seconds: float,
        keep_seconds: float = KEEP_SECONDS,
        *,
        reads_by_lease: bool = False,
    ) -> None:
        """The log keeps what a server needs that was heard in the last `keep_seconds`. With `reads_by_lease` a leader
        confirms without a beat while no other server can have claimed."""
        self._log, self._clock, self.lease_seconds = log, clock, lease_seconds
        self._reads_by_lease, self._sure_until = reads_by_lease, float("-inf")
        """Until this time no other server claims, if this one leads."""
        self._replicas, self._confirmations = Replicas(clock, keep_seconds), Rounds()
        self.kind = log.kind
        self._identity = ""
        self._judge = Judge()
        self._lsn = 0
        """LSN of the last record that counts."""
        self._given_lsn, self._given_place = 0, Standing()
        """(LSN, standing) after the last record that the server got or was told to be durable."""
        self._claimed_at = -1
        """Position of the last claim that counts; -1 if it was not read."""
        self._leader = Leader()
        self._heard = self._looked_at = self.heard = clock.monotonic()
        """`_heard` is the time of the leader's last message, or of the end of a time in which this server did not look;
        `heard` the time of the last message of whatever server."""
        self.gaps = 0
        """Number of times that messages of others lay between this leader's own, so it read them first."""
        self._void_before = 0
        """Number of messages that did not count before this server had read the log to its end."""

        self._sending, self._judging = threading.Lock(), threading.Lock()
        self._needs, self._reported_at = 0, -REPORT_SECONDS
        """(position from which this server needs the log, time of its last report)."""
        self._copies: dict[object, Replica] = {}
        """The servers that copy a checkpoint of this one, with the position from which each needs the log."""
        self._stored_at: int | None = None
        """Position from which a checkpoint of the store needs the log; None if checkpoints go to no store."""
        self._is_leading = False
        self._address = self._http = ""
        self._process = secrets.token_hex(8)
        """The id of this process in its reports."""
        self.warehouse = self.leaders_warehouse = ""
        self._own_address = ""
        """The address of this process in the log; empty before a report of it was read."""
        self._doubles: set[str] = set()
        """The processes that say the same address."""
        self._writer = 0
        self._writers: set[int] = set()
        """The writers of this leadership: each `roll` draws a further one."""
        self._said = Standing()
        """The standing after all messages that were sent, if they count."""
        self._sent: deque[_Sent] = deque()
        self._unsent: deque[_Sent] = deque()
        """The last messages of `_sent`, for which the log had no room yet."""
        self._sent_at = self._beat_at = 0.0
        """The times of the last message and of the last one with this server's address."""
        self._untold: deque[CountedMessage] = deque()
        """Records of this server that count and that `settle` has not returned yet."""
        self._failure: Failure | None = None

    @property
    def leader(self) -> Leader:
        """The server that leads, by what was read so far."""
        return replace(self._leader, heard=self._heard)

    @property
    def silence_seconds(self) -> float:
        """The silence of a leader after which this server may claim: its own lease, or a longer one on which a server
        relies for reads."""
        return max([self.lease_seconds, *(lease or 0.0 for lease in self._replicas.leases())])

    @property
    def replicas(self) -> list[Replica]:
        """The servers that were heard not long ago."""
        return self._replicas.present()

    @property
    def void(self) -> int:
        """Number of messages that do not count, since this server had read the log to its end. Reports are left out."""
        return self._judge.void - self._judge.reports - self._void_before

    def is_cut(self) -> bool:
        """Whether messages are gone that this server needs after its newest checkpoint. By any thread."""
        return self._log.bounds()[0] > self._needs

    def check(self) -> None:
        """`Invalid` with the setting by which the log may lose messages; `ForeignLog` if it is another one by now. By
        any thread."""
        self._log.open(self._identity)

    # Before the first start, by any thread.

    def lacks_beginning(self) -> bool:
        """Whether the log's first messages are gone, so a server needs a checkpoint to follow it."""
        return self._log.bounds()[0] > 0

    def lacks(self, place: Place) -> bool:
        """Whether messages after a place of this log are gone, so a server at that place cannot follow any more."""
        return self.has_place(place) and self._log.bounds()[0] > _parsed(place)[1].position

    def has_place(self, place: Place) -> bool:
        """Whether a place is one of this log."""
        return _parsed(place)[0] == self._log.open("")

    def peers(self, besides: str) -> list[str]:
        """The addresses that the newest messages name, without one of them; the leader's comes last. Nothing is judged:
        a server at such an address must prove that it has this journal."""
        first, end = self._log.bounds()
        known, leader, count = Replicas(self._clock), "", RECENT_MESSAGES
        while True:
            start = max(first, end - count)
            for position, data in self._log.read(start, 0.0, to_end=True):
                found = report_in(position, data)
                heard = known.hear(found[1]) if found is not None else None
                address = heard.address if heard is not None else ""
                if found is not None and found[0] is not Kind.REPORT:
                    leader = address or leader
            peers = [each.address for each in known.present(besides) if each.lsn != COPIES]
            if peers or start == first:
                return sorted(peers, key=lambda address: address == leader)
            count *= 10

    # Following, on the commit loop's thread.

    def timeline(self) -> str:
        """A timeline that follows from the log's identity, so every server of the log has the same one."""
        return hashlib.sha256((self._identity or self._log.open("")).encode()).hexdigest()[:12]

    def read(self, lsn: int, place: Place = BEGINNING) -> Iterator[Entry]:
        """The records after a checkpoint's LSN and place, to the end of what is there."""
        identity, standing, replicas = _parsed(place)
        if not identity and (place or lsn):
            raise Invalid(
                f"the checkpoint at LSN {lsn} continues another journal ({place or 'files'}): start with the journal as"
                " before, or with an empty data folder"
            )
        self._identity = self._log.open(identity)
        self._begin(lsn, standing)
        self._replicas.restore(replicas)
        yield from self._entries(self._log.read(standing.position, 0.0, to_end=True))
        self._void_before = self._judge.void - self._judge.reports
        self._heard = self.heard = self._clock.monotonic()
        self._log.prepare()

    def _begin(self, lsn: int, standing: Standing) -> None:
        self._judge = Judge(standing, reported=self._hear)
        self._lsn = self._given_lsn = lsn
        self._given_place = standing
        self._needs = standing.position
        self._leader = Leader(epoch=standing.epoch, has_left=standing.epoch > 0 and not standing.writer)

    def begin(self, lsn: int) -> None:
        """Begin a log that nobody has led, for the records after an LSN of another journal; `lead` claims it.
        `Conflict` if somebody has led it."""
        self._identity = self._log.open("")
        self._begin(lsn, Standing())
        used = Conflict(
            "a server has led this journal already, so it has a history of its own: create another one with"
            " `lakestore init-journal`"
        )
        try:
            for position, data in self._log.read(0, 0.0, to_end=True):
                self._judge.take(position, data)
                if self._judge.standing.epoch:
                    raise used
        except ForeignLog as error:  # its first messages are gone
            raise used from error
        self._log.prepare()

    def follow(self, seconds: float) -> Iterator[Entry]:
        """The records of the messages that are there; waits at most so long for the first message.

        Time in which this server did not look, or worked on what it got, is no silence of the leader.
        """
        began = self._clock.monotonic()
        if began - self._looked_at > self.lease_seconds / 2:
            self._heard = began
        heard = self._heard
        yield from self._entries(self._log.read(self._judge.standing.position, seconds))
        self._looked_at = self._clock.monotonic()
        if self._heard != heard:
            self._heard = self._looked_at

    def _entries(self, log: Iterator[tuple[int, bytes | None]]) -> Iterator[Entry]:
        while self._untold:
            yield self._given(self._untold.popleft())
        for position, data in log:
            counted = self._judged(position, data)
            if counted is not None and counted.kind is Kind.RECORD:
                yield self._given(counted)

    def _given(self, counted: CountedMessage) -> Entry:
        """The record for the server, which has it from now on."""
        self._given_lsn, self._given_place = counted.lsn, counted.after
        return Entry(counted.lsn, counted.record(), self._place(counted.after))

    def _place(self, standing: Standing) -> Place:
        return Place(f"{self._identity}/{standing}")

    def _judged(self, position: int, data: bytes | None) -> CountedMessage | None:
        """Judge a message, and note what it says about the leader."""
        void, is_own = self._judge.void, self._judge.standing.writer in self._writers
        counted = self._judge.take(position, data)
        self.heard = self._replicas.listen()
        if counted is not None or self._judge.void == void:
            self._heard = self.heard
        if counted is None:
            return None
        if counted.kind is Kind.RECORD:
            self._check_lsn(counted.lsn, position)
            return counted
        if counted.kind is Kind.END and not is_own:
            raise JournalEnd(position, counted.record()[0].to_pybytes().decode("utf-8", "replace"))
        if counted.kind in (Kind.LEAVE, Kind.END):
            self._leader = replace(self._leader, has_left=True)
        else:
            replica = self._hear(counted.record()[0].to_pybytes())
            self._leader = Leader("" if replica is None else replica.address, counted.after.epoch)
            if replica is not None and replica.process != self._process:
                self.leaders_warehouse = replica.warehouse or self.leaders_warehouse
        if counted.kind is Kind.CLAIM:
            self._claimed_at = position
        if self._given_lsn == self._lsn:
            self._given_place = counted.after
        return counted

    def _hear(self, report: bytes) -> Replica | None:
        """Take a report. Tells of another process that says the address of this one."""
        replica = self._replicas.hear(report)
        if replica is None:
            return None
        if replica.process == self._process:
            self._own_address = replica.address
        elif replica.process and replica.address == self._own_address and replica.process not in self._doubles:
            self._doubles.add(replica.process)
            log.error(
                "another server says that it is reached at %s, as this one: give each server an --advertise of its own."
                " Clients and other servers reach one of the two at most",
                replica.address,
            )
        return replica

    def _check_lsn(self, lsn: int, position: int) -> None:
        if lsn != self._lsn + 1:
            raise Corrupt(
                f"the journal has LSN {lsn} at position {position}, where LSN {self._lsn + 1} belongs: restore the data"
                " folder from a checkpoint of this journal"
            )
        self._lsn = lsn

    # From following to leading and back, on the commit loop's thread.

    def lead(self, address: str, http: str = "") -> Iterator[Entry]:
        """Claim the journal. Yields the records before the claim that were not read yet; then `Deposed` if another
        claim was faster. `Unknown` without an answer."""
        try:
            yield from self._lead(address, http)
        except Unknown:
            self._log.confirm()
            raise

    def _lead(self, address: str, http: str) -> Iterator[Entry]:
        with self._sending:
            self._address, self._http = address, http
            self._said = self._judge.standing
            self._writers = set()
            claim = self._claim()
        deadline = self._deadline(ANSWER_SECONDS)
        while claim.position is None:
            self._log.poll(POLL_SECONDS)
            self._push()
            deadline.check("the claim is not answered")
        self._check_position(claim.position)
        while claim in self._sent:
            yield from self._entries(self._up_to(claim))
            deadline.check("the claim cannot be read")
        if self._judge.standing.writer != self._writer:
            raise Deposed(f"another server leads since epoch {self._judge.standing.epoch}")
        self._log.stop_reading()
        if self._stored_at is not None:
            self.await_store()  # another leader may have moved the store's oldest checkpoint
        self._is_leading = True
        self._renew(claim.at)

    def _claim(self) -> _Sent:
        """Claim after everything that was sent, as a new writer."""
        self._writer = secrets.randbits(63) + 1
        self._writers.add(self._writer)
        return self._send(Content(Kind.CLAIM, meta=self._own_report(self._address, self._http)))

    def _up_to(self, claim: _Sent) -> Iterator[tuple[int, bytes | None]]:
        """The messages up to the claim, which stays in `_sent` until it was read."""
        if claim.position == self._judge.standing.position:
            self._sent.clear()
            yield claim.position, claim.data
            return
        for position, data in self._log.read(self._judge.standing.position, POLL_SECONDS):
            if data == claim.data:
                self._sent.clear()
            yield position, data
            if not self._sent:
                return

    def follow_again(self) -> None:
        """After `Deposed` or `Unknown`: forget what was sent. `follow` returns the part of it that counts."""
        with self._judging, self._sending:
            self._stop()
            self._failure = None
        self._log.prepare()

    def leave(self) -> None:
        """Say that this server leads no more. Followers that do not hear it wait for the lease."""
        with self._judging:
            with self._sending:
                if not self._is_leading or self._failure is not None:
                    return
                self._is_leading = False  # before others may read it and claim: reads rely on the lease no more
                self._send(Content(Kind.LEAVE))
            with suppress(Deposed, Unknown, LakestoreError):
                self._judge_all(self._deadline(LEAVE_SECONDS))
            with self._sending:
                self._stop()

    def end(self, mark: str) -> None:
        """End the journal: every other server stops at the end. `Deposed` if another server has claimed it; `Unknown`
        without an answer."""
        with self._judging:
            with self._sending:
                self._raise_failure()
                self._is_leading = False
                self._send(Content(Kind.END, meta=mark.encode()))
            self._judge_all(self._deadline(ANSWER_SECONDS))
            self._raise_failure()

    def _stop(self) -> None:
        self._is_leading, self._sure_until = False, float("-inf")
        self._log.stop_sending()
        self._log.stop_reading()
        self._sent.clear()
        self._unsent.clear()

    # Leading.

    def append(self, lsn: int, record: Sequence[Buffer]) -> None:
        """Send the next record without waiting. After the end of a leadership it sends nothing; `settle` tells why."""
        meta, *body = map(plain, record)
        with self._sending:
            assert self._is_leading, "a server that follows appends nothing"
            if self._failure is None:
                self._send(Content(Kind.RECORD, lsn, _bytes(meta), body))

    def beat(self, address: str = "", http: str = "") -> None:
        """Say that this server leads, or what the server at these addresses needs, if it is due. Raises `Deposed` or
        `Unknown` once a leadership is over."""
        with self._sending:
            if not self._is_leading:
                self._report(address, http)
                return
            self._report_copies()
            if self._failure is None and self._is_beat_due():
                self._send(Content(Kind.BEAT, meta=self._own_report(self._address, self._http)))
        self._glance()
        if isinstance(self._failure, LakestoreError):
            raise Unknown(str(self._failure))
        self._raise_failure()

    def _report(self, address: str, http: str) -> None:
        """Write a report if it is due. A lost one does no harm, so nobody waits for it."""
        now = self._clock.monotonic()
        if not address or self._sent or now - self._reported_at < REPORT_SECONDS:
            return
        self._reported_at = now
        self._send_report(self._own_report(address, http))
        for copy in self._copies.values():
            self._send_report(report_of(copy))

    def _report_copies(self) -> None:
        """Write the reports of servers that copy from this leader, if they are due. Its beats are its own reports."""
        now = self._clock.monotonic()
        if self._copies and now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            for copy in self._copies.values():
                self._send_report(report_of(copy))

    def _send_report(self, report: bytes) -> None:
        (message,), _ = messages(Standing(), Content(Kind.REPORT, meta=report), NOBODY, self._log.part_bytes)
        self._log.send(message, lambda _: None)
        if self._is_leading or self._sent:
            return
        try:
            self._log.poll(0.0)
        except Unknown:
            self._log.stop_sending()
            self._log.prepare()

    def _own_report(self, address: str, http: str) -> bytes:
        needs, lease = self._least_needs(), self.lease_seconds if self._reads_by_lease else 0.0
        about = self._clock.monotonic(), http, self._process, self.warehouse, lease
        return report_of(Replica(address, self._given_lsn, needs, *about))

    def _least_needs(self) -> int:
        """The position from which this server or a copy of its checkpoint needs the log."""
        return min([self._needs, *(copy.needs for copy in list(self._copies.values()))])

    def hold(self, address: str, place: Place) -> object:
        """Keep the log from a place on for a server that copies this checkpoint, until `release` gets the returned
        object. This server's reports say so, and it reports for the other one."""
        copy = Replica(address, COPIES, position_of(place), self._clock.monotonic(), lease=0.0)
        key = object()
        with self._sending:
            self._copies[key] = copy
            self._replicas.hear(report_of(copy))
            self._reported_at = -REPORT_SECONDS
        return key

    def release(self, key: object) -> None:
        """End a `hold`. A last report keeps the log for as long as for any server that is not heard."""
        with self._sending:
            report = report_of(self._copies[key])
            self._replicas.hear(report)
            self._send_report(report)
            del self._copies[key]

    def confirm(self) -> None:
        """Return once this server is known to lead at a moment after the call. Raises like `durable`.

        It leads then if a beat counts that was sent after the call; calls that wait together share one. With
        `reads_by_lease` it is enough that no other server can have claimed yet.
        """
        if not self._is_sure():
            self._confirmations.run(self._confirm)

    def _is_sure(self) -> bool:
        """Whether no other server can have claimed before this call."""
        now = self._clock.monotonic()  # first: a pause after it does no harm, because the call had begun
        return now < self._sure_until and self._is_leading and self._failure is None

    def _renew(self, sent_at: float) -> None:
        """Rely on the lease after a message that counts. Others measure it from when they read the message, so not
        before it was sent. A server of an earlier release may have a shorter lease and know nothing of this one."""
        if self._reads_by_lease and None not in self._replicas.leases():
            self._sure_until = max(self._sure_until, sent_at + self.lease_seconds * LEASE_SHARE)

    def _confirm(self) -> None:
        with self._sending:
            self._check_leads()
            self._send(Content(Kind.BEAT, meta=self._own_report(self._address, self._http)))
            number = self._said.number
        deadline = self._deadline(ANSWER_SECONDS)
        while self._judge.standing.number < number:
            with self._judging:
                self._check_leads()  # the loop may follow or claim by now, and then it alone judges
                if self._judge.standing.number < number:
                    self._advance(POLL_SECONDS)
            self._raise_failure()
            deadline.check("the journal did not store a beat in time")
        with self._judging:  # a claim counts at the same number, and another thread may have judged it
            self._check_leads()

    def _check_leads(self) -> None:
        self._raise_failure()
        if not self._is_leading:
            raise Deposed("this server leads no more")

    def _is_beat_due(self) -> bool:
        """Whether followers heard nothing for a while; once a lease a beat tells new followers the address."""
        now = self._clock.monotonic()
        is_silent = not self._sent and now - self._sent_at >= self.lease_seconds / BEATS_PER_LEASE
        return is_silent or now - self._beat_at >= self.lease_seconds

    def durable(self) -> int:
        """The last LSN that stands, without waiting. Raises `Deposed` or `Unknown` once `settle` has returned all of
        them, until `follow_again`."""
        self._glance()
        if not self._untold:
            self._raise_failure()
        return self._lsn

    def settle(self, beyond: int) -> int:
        """Wait until a record after `beyond` stands, and return the last one. Raises `Deposed` or `Unknown` if none
        will, until `follow_again`."""
        deadline = self._deadline(ANSWER_SECONDS)
        with self._judging:
            while self._lsn <= beyond and self._failure is None:
                self._advance(POLL_SECONDS)
                if self._lsn <= beyond and deadline.is_over:
                    self._fail(Unknown("the journal did not store a record in time"))
            if self._lsn <= beyond:
                self._raise_failure()
            for counted in self._untold:
                self._given_lsn, self._given_place = counted.lsn, counted.after
            self._untold.clear()
            return self._lsn

    def _glance(self) -> None:
        """Judge what is stored by now, unless another thread does."""
        if self._judging.acquire(blocking=False):
            try:
                if self._is_leading:
                    self._advance(0.0)
            finally:
                self._judging.release()

    def prepare(self) -> None:
        """Nothing of `roll` can be done ahead of it."""

    def roll(self, first_lsn: int) -> Place:
        """The place after everything that the server has. A leader claims again behind it, so `trim` can remove all
        messages before the place and keep the last claim."""
        assert first_lsn == self._given_lsn + 1, f"the server has LSN {self._given_lsn}, not {first_lsn - 1}"
        place = Place(f"{self._place(self._given_place)}/{self._replicas}")
        if self._is_leading:
            with self._judging:
                with self._sending:
                    self._raise_failure()
                    self._claim()
                self._judge_all(self._deadline(ANSWER_SECONDS))
        return place

    def trim(self, below: Place) -> None:
        """Remove the messages before a place that no server needs, but not the last claim. A server that follows
        removes nothing and reports that it needs no more than this."""
        self._needs, self._reported_at = position_of(below), -REPORT_SECONDS
        self._remove_needless()

    def await_store(self) -> None:
        """Remove nothing before `stored` says what the checkpoints of the store need."""
        self._stored_at = 0

    def stored(self, below: Place) -> None:
        """A checkpoint is in the store, and no kept one of the store needs the messages before `below`."""
        self._stored_at = max(self._stored_at or 0, position_of(below))
        self._remove_needless()

    def _remove_needless(self) -> None:
        if not self._is_leading:
            return
        position = self._replicas.needed(min(self._least_needs(), self._claimed_at), self._process)
        if self._stored_at is not None:
            position = min(position, self._stored_at)
        if not position:
            return
        try:
            self._log.remove_before(position)
        except LakestoreError as error:
            log.warning("old messages stay in the journal until the next checkpoint: %s", error)

    def files(self, below: Place, bytes_min: int) -> Iterator[JournalFile]:
        """No rows stay in files of the journal."""
        return iter(())

    def close(self) -> None:
        """Append nothing more. What is under way may still be stored; it is void after the next claim."""
        with self._judging, self._sending:
            self._stop()
            self._log.close()

    # Sending, under `_sending`.

    def _send(self, content: Content) -> _Sent:
        """Send the messages of a content; returns the last one."""
        self._sent_at = self._clock.monotonic()
        parts, self._said = messages(self._said, content, self._writer, self._log.part_bytes)
        for data in parts:
            sent = _Sent(data, self._sent_at)
            self._sent.append(sent)
            self._unsent.append(sent)
        if content.kind is not Kind.RECORD:
            self._beat_at = self._sent_at
        self._push_unsent()
        return sent

    def _push_unsent(self) -> None:
        while self._unsent and self._log.send(self._unsent[0].data, self._unsent[0].stored):
            self._unsent.popleft()

    def _push(self) -> None:
        if self._unsent:
            with self._sending:
                self._push_unsent()

    # Judging, under `_judging`.

    def _judge_all(self, deadline: _Deadline) -> None:
        """Wait until everything that was sent is judged."""
        while self._sent:
            self._advance(POLL_SECONDS)
            self._raise_failure()
            deadline.check("the journal did not store a message in time")

    def _advance(self, seconds: float) -> None:
        """Wait for messages to be stored, and judge them."""
        unknown: Unknown | None = None
        try:
            self._log.poll(seconds)
        except Unknown as error:
            unknown = error
        self._push()
        if self._failure is None:
            try:
                self._judge_stored()
            except (Deposed, Unknown, LakestoreError) as error:
                self._fail(error)
        if unknown is not None:  # after the messages whose outcome is known
            self._fail(unknown)

    def _judge_stored(self) -> None:
        while self._sent and (position := self._sent[0].position) is not None:
            self._check_position(position)
            if position == self._judge.standing.position:
                sent = self._sent.popleft()
                self._judge_one(position, sent.data, sent)
            else:
                self._read_gap(self._sent[0])

    def _check_position(self, position: int) -> None:
        """Refuse a position of a message that was not read, but lies before what was."""
        if 0 <= position < self._judge.standing.position:
            raise ForeignLog(
                f"a message was stored at position {position}, before {self._judge.standing.position}: the log was cut"
                " or created again"
            )

    def _judge_one(self, position: int, data: bytes | None, sent: _Sent | None = None) -> None:
        """Judge a message; `sent` if it is one of this server."""
        counted = self._judged(position, data)
        if counted is None:
            return
        if sent is not None:
            self._renew(sent.at)
        if counted.kind is Kind.RECORD:
            self._untold.append(counted)
        elif counted.kind is Kind.CLAIM and counted.after.writer not in self._writers:
            raise Deposed(f"another server leads since epoch {counted.after.epoch}")

    def _read_gap(self, sent: _Sent) -> None:
        """Read and judge the messages of others and of this server up to a message of this server."""
        self.gaps += 1
        deadline = self._deadline(ANSWER_SECONDS)
        while self._sent and self._sent[0] is sent:
            for position, data in self._log.read(self._judge.standing.position, POLL_SECONDS):
                is_end = data == sent.data
                if is_end:
                    self._sent.popleft()
                self._judge_one(position, data, sent if is_end else None)
                if is_end:
                    break
            deadline.check("the messages between this server's own cannot be read")
        read = self._judge.standing.position  # a message that was stored late may count after later ones were read
        with self._sending:
            self._sent = deque(each for each in self._sent if each.position is None or not 0 <= each.position < read)
        self._log.stop_reading()

    def _fail(self, error: Failure) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _deadline(self, seconds: float) -> _Deadline:
        return _Deadline(self._clock, self._clock.monotonic() + seconds)


@dataclass(frozen=True, slots=True)
class _Deadline:
    """The end of a wait."""

    clock: Clock
    at: float

    @property
    def is_over(self) -> bool:
        return self.clock.monotonic() > self.at

    def check(self, lack: str) -> None:
        if self.is_over:
            raise Unknown(lack)


def position_of(place: Place) -> int:
    """The position from which a checkpoint at a place needs the log."""
    return _parsed(place)[1].position


def _parsed(place: Place) -> tuple[str, Standing, str]:
    """(identity of the log, standing, replicas) of a place; an empty identity for a place of another kind of
    journal."""
    identity, _, rest = place.partition("/")
    standing, _, replicas = rest.partition("/")
    return identity if standing else "", Standing.parse(standing) if standing else Standing(), replicas or "[]"


def _bytes(part: Plain) -> bytes:
    return part if isinstance(part, bytes) else bytes(memoryview(part))
