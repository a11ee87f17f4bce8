"""Servers of a shared journal without anything else: each follows, claims, appends, and keeps what it applied.

A run puts several of them on one `SharedLog`, lets chance pause, kill and hurry them, heals everything, and then holds
what they acknowledged and applied against the log, as a fresh judge reads it. The same servers run in threads on a real
log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.state.commit_record import BEGINNING, Deposed, Entry, Place, Unknown, plain
from lakestore_server.state.judge import CountedMessage, Judge, Kind
from tests.simulation.machine import Clock
from tests.simulation.threads import installed
from tests.simulation.world import Process, World
from tests.support.shared_log import Faults, LogEnd, SharedLog

LEASE_SECONDS = 0.5
STRETCH = 1.02
Applied = tuple[int, bytes]
"""(LSN, bytes of the record)."""


def applied_of(entry: Entry) -> Applied:
    return entry.lsn, b"".join(bytes(memoryview(plain(part))) for part in entry.record)


def record_of(counted: CountedMessage) -> Applied:
    return counted.lsn, b"".join(part.to_pybytes() for part in counted.record())


def counted_in(messages: Iterable[tuple[int, bytes | None]]) -> list[CountedMessage]:
    """What counts in all messages of a log."""
    judge = Judge()
    taken = [judge.take(position, data) for position, data in messages]
    return [counted for counted in taken if counted is not None]


class Messages(Protocol):
    """A log, or what holds one."""

    @property
    def messages(self) -> list[tuple[int, bytes | None]]:
        """(position, message) of all that was ever stored."""


def truth(log: Messages) -> list[CountedMessage]:
    """What counts in all messages that the log ever stored."""
    return counted_in(log.messages)


class Tasks(Protocol):
    """The part of a world that servers need."""

    @property
    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def point(self) -> None: ...
    def spawn(self, name: str, process: Process, work: Callable[[], object]) -> Any: ...


@dataclass
class Story:
    """What servers told their clients, and how their leaderships ended."""

    acknowledged: list[tuple[str, Applied]] = field(default_factory=list)
    began: int = 0
    deposed: int = 0
    unknown: int = 0
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    """(server, newest LSN that any server had acknowledged before the read, newest LSN that the read saw)."""
    sure: int = 0
    """Number of reads that needed no beat."""
    trims: int = 0
    left: int = 0


@dataclass
class Checkpoint:
    place: Place = BEGINNING
    applied: tuple[Applied, ...] = ()


class Server:
    """One server over all its lives."""

    def __init__(
        self,
        world: Tasks,
        name: str,
        others: list[Server],
        story: Story,
        seed: str,
        journal_of: Callable[[], SharedJournal],
        *,
        trims: bool = True,
    ) -> None:
        self._trims = trims
        self.world, self.name, self._others, self._story, self._journal_of = world, name, others, story, journal_of
        self.chance = random.Random(f"{seed} {name}")
        self.process = Process(name)
        self.checkpoint = Checkpoint()
        self.applied: list[Applied] = []
        self.is_leading = self.is_hurried = self.is_quiet = self.leaves = False
        """Hurried: claims before the lease is over. Quiet: appends nothing more."""
        self._records = 0
        self.journal: SharedJournal

    def start(self) -> None:
        self.process = Process(self.name)
        self.world.spawn("loop", self.process, self._run)

    @property
    def lsn(self) -> int:
        return len(self.applied)

    def _run(self) -> None:
        self.journal = self._journal_of()
        self.applied = list(self.checkpoint.applied)
        self._apply(self.journal.read(self.lsn, self.checkpoint.place))
        self.world.spawn("beats", self.process, partial(self._beat, self.journal))
        while True:
            self.world.point()
            try:
                self._lead() if self.is_leading else self._follow()
            except (Deposed, Unknown) as error:
                self._story.deposed += isinstance(error, Deposed) and self.is_leading
                self._story.unknown += isinstance(error, Unknown)
                self.is_leading = False
                self.journal.follow_again()

    def _apply(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            self.applied.append(applied_of(entry))
            self.world.point()

    def _beat(self, journal: SharedJournal) -> None:
        while True:
            self.world.sleep(journal.lease_seconds / 5)
            try:
                journal.beat(self.address)
            except (Deposed, Unknown):
                pass  # the loop learns it by `durable`

    def _follow(self) -> None:
        self._apply(self.journal.follow(0.05))
        if self.chance.random() < 0.05:
            self._roll()
            self._trim()
        leader = self.journal.leader
        silence = self.journal._clock.monotonic() - leader.heard
        if self.is_hurried or not leader.epoch or leader.has_left or silence > self.journal.silence_seconds * STRETCH:
            self.is_hurried = False
            self._apply(self.journal.lead(self.address))
            self.is_leading = True
            self._story.began += 1

    def _lead(self) -> None:
        if self.leaves:
            self.leaves = self.is_leading = False
            self._story.left += 1
            self.journal.leave()
            return
        if self.chance.random() < 0.1:
            self._roll()
            if self._trims:
                self._trim()
        if self.is_quiet or self.chance.random() < 0.4:
            self.journal.durable()
            self.world.sleep(0.05 * self.chance.random())
            return
        sent = [self._append(self.lsn + 1 + n) for n in range(self.chance.randint(1, 5))]
        while sent:
            stands = self.journal.settle(self.lsn)
            while sent and sent[0][0] <= stands:
                self._story.acknowledged.append((self.name, sent[0]))
                self.applied.append(sent.pop(0))

    def _append(self, lsn: int) -> Applied:
        self._records += 1
        text = f"{self.name} {self._records} ".encode() + b"x" * self.chance.choice((0, 5, 150, 450, 900))
        cut = self.chance.randint(0, len(text))
        self.journal.append(lsn, [text[:cut], text[cut : cut + 20], memoryview(text[cut + 20 :])])
        return lsn, text

    def _roll(self) -> None:
        self.checkpoint = Checkpoint(self.journal.roll(self.lsn + 1), tuple(self.applied))

    def _trim(self) -> None:
        known = {each.address for each in self.journal.replicas}
        if known >= {each.address for each in self._others}:  # who never reported is not waited for
            self._story.trims += self.is_leading
            self.journal.trim(self.checkpoint.place)

    @property
    def address(self) -> str:
        return f"{self.name}:7340"


class ReadServer(Server):
    """A server with a client that reads its newest state while it leads."""

    def _beat(self, journal: SharedJournal) -> None:
        self.world.spawn("reads", self.process, partial(self._read, journal))
        super()._beat(journal)

    def _read(self, journal: SharedJournal) -> None:
        while True:
            self.world.sleep(0.03 * self.chance.random())
            if not self.is_leading:
                continue
            newest = max((lsn for _, (lsn, _) in self._story.acknowledged), default=0)
            self.world.point()
            try:
                self._story.sure += journal._is_sure()
                journal.confirm()
            except (Deposed, Unknown):
                continue
            self.world.point()
            self._story.reads.append((self.name, newest, self.lsn))


class Run:
    """Servers on one log, from the first claim until all of them have applied everything."""

    server_kind = Server
    strikes: tuple[str, ...] = ("pause", "kill", "hurry", "leave", "stall")

    def __init__(self, seed: str, faults: Faults | None = None, *, servers: int = 3, blows: int = 12) -> None:
        """Chance strikes `blows` times."""
        self.world = World(seed, preempt=0.02, steps_max=400_000)
        self.log = SharedLog(self.world, seed, faults)
        self.story = Story()
        self.servers: list[Server] = []
        for name in ("a", "b", "c")[:servers]:
            made = self.server_kind(self.world, name, self.servers, self.story, seed, partial(self._journal, name))
            self.servers.append(made)
        self._chance = random.Random(f"{seed} blows")
        self._blows = blows
        self.truth: list[CountedMessage] = []

    def _journal(self, name: str) -> SharedJournal:
        return SharedJournal(LogEnd(self.log), Clock(self.world), LEASE_SECONDS)

    def run(self) -> None:
        with installed(self.world):
            self.world.run(self._main)
        self.truth = truth(self.log)
        check(self.truth, self.servers, self.story)

    def _main(self) -> None:
        for server in self.servers:
            server.start()
        self.world.sleep(1.0)
        for _ in range(self._blows):
            self._strike(self._chance.choice(self.servers))
            self.world.sleep(self._chance.random())
        self._heal()

    def _strike(self, server: Server) -> None:
        blow = self._chance.choice(self.strikes)
        if blow == "pause":
            self.world.pause(server.process)
            self.world.later(self._chance.random() * 2, partial(self.world.resume, server.process))
        elif blow == "kill":
            self.world.kill(server.process)
            server.is_leading = False
            self.world.sleep(self._chance.random())
            server.start()
        elif blow == "hurry":
            server.is_hurried = True
        elif blow == "leave":
            server.leaves = server.is_leading
        else:
            self.log.stall(self._chance.random() * 1.5)

    def _heal(self) -> None:
        """Let one server lead, and all apply what it appends, without any further fault."""
        self.log.faults = Faults()
        self.world.sleep(4.0)
        for server in self.servers:
            server.is_quiet = True
        self.world.sleep(5.0)


class LeaseRun(Run):
    """Servers whose reads rely on their leases. Their clocks run differently fast, within the bound."""

    server_kind = ReadServer
    strikes = ("pause", "pause", "kill", "leave", "stall", "stall")

    def _journal(self, name: str) -> SharedJournal:
        rate = self.rates[name]
        return SharedJournal(LogEnd(self.log), Clock(self.world, rate), LEASE_SECONDS, reads_by_lease=True)

    @property
    def rates(self) -> dict[str, float]:
        """Speed of each server's clock."""
        return {"a": 1.05, "b": 0.96, "c": 1.0}

    def stale(self) -> list[tuple[str, int, int]]:
        """Reads that did not see what was acknowledged before them."""
        return [read for read in self.story.reads if read[2] < read[1]]


def check(truth: list[CountedMessage], servers: list[Server], story: Story) -> None:
    """Hold what servers acknowledged and applied against what counts."""
    records = [record_of(counted) for counted in truth if counted.kind is Kind.RECORD]
    assert [lsn for lsn, _ in records] == list(range(1, len(records) + 1)), "LSNs are dense"
    for name, (lsn, text) in story.acknowledged:
        assert records[lsn - 1 : lsn] == [(lsn, text)], f"{name} acknowledged {text[:9]!r} as LSN {lsn}"
    for server in servers:
        assert server.applied == records, f"{server.name} applied something else"
    assert [server for server in servers if server.is_leading][1:] == [], "one leads"
    assert story.acknowledged
