"""A log in a world of tasks: `Log` of the server, with delays, lost answers, doubles, late messages and strangers.

`SharedLog` is the service, `LogEnd` one server's end of it. Each message has a fate: a scripted one, or one that chance
draws by `Faults`. What the service stores is never lost; `messages` has all of it, also what was removed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lakestore_server.journals.log import SOMEWHERE
from lakestore_server.state.commit_record import Unknown
from lakestore_server.state.judge import ForeignLog
from tests.simulation.world import Task, World

STRANGERS = (b"a stranger's message, as long as a header of ours or longer, whatever it says", b"", None)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one message."""

    is_stored: bool = True
    delay: float = 0.001
    """Seconds until it is stored."""
    answer: float | None = 0.001
    """Seconds from then until its sender learns that; None if the sender gives up instead."""
    gives_up: float = 0.1
    """Seconds after which a sender without an answer gives up."""
    is_somewhere: bool = False
    """Whether the answer lacks the position."""
    again: float | None = None
    """Seconds until it is stored a second time."""
    strangers: int = 0
    """Messages of strangers before it."""
    skipped: int = 0
    """Positions that the log leaves out before it."""
    survives: bool = True
    """Whether it is stored although its sender has stopped sending."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault befalls a message."""

    lost: float = 0.0
    """Neither stored nor answered."""
    unanswered: float = 0.0
    """Stored, perhaps late, and not answered."""
    twice: float = 0.0
    somewhere: float = 0.0
    strangers: float = 0.0
    skips: float = 0.0
    refused: float = 0.0
    """Refused by a store (503) and not done; a log refuses nothing."""
    no_room: float = 0.0
    """The sender must wait for the next `poll`."""
    delay: float = 0.01
    """The longest usual delay in seconds."""
    late: float = 3.0
    """The longest delay of a message without an answer, and of a double."""

    def fate(self, chance: random.Random) -> Fate:
        fate = Fate(
            delay=chance.random() * self.delay,
            answer=chance.random() * self.delay,
            strangers=int(chance.random() < self.strangers),
            skipped=int(chance.random() < self.skips) * chance.randint(1, 3),
            is_somewhere=chance.random() < self.somewhere,
            again=chance.random() * self.late if chance.random() < self.twice else None,
            survives=chance.random() < 0.5,
        )
        gives_up = chance.random() * self.late / 2
        if chance.random() < self.lost:
            return replace(fate, is_stored=False, answer=None, gives_up=gives_up)
        if chance.random() < self.unanswered:
            return replace(fate, delay=chance.random() * self.late, answer=None, gives_up=gives_up)
        return fate


class SharedLog:
    """The service."""

    def __init__(self, world: World, seed: str, faults: Faults | None = None) -> None:
        self.world, self.faults = world, faults or Faults()
        self.chance = random.Random(f"{seed} log")
        self.identity = f"log{self.chance.randrange(1 << 32):08x}"
        self.fates: deque[Fate] = deque()
        """Fates of the next messages; chance draws the later ones."""
        self.messages: list[tuple[int, bytes | None]] = []
        self.first = self.end = 0
        """The first position that was not removed, and the next one."""
        self.stalled_until = 0.0
        self.is_gone = False
        self._readers: list[Task] = []

    def stall(self, seconds: float) -> None:
        """Store nothing and answer nobody for a time, as while a broker is replaced. A stall within a longer one ends
        with it: messages that wait for the end of that one would be stored after later ones."""
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)

    def store(self, message: bytes | None) -> int:
        position = self.end
        self.messages.append((position, message))
        self.end += 1
        self.wake(self._readers)
        return position

    def store_again(self, message: bytes) -> None:
        self.store(message)

    def draw(self) -> Fate:
        return self.fates.popleft() if self.fates else self.faults.fate(self.chance)

    def wake(self, tasks: list[Task]) -> None:
        for task in tasks:
            self.world.wake(task)
        tasks.clear()

    def wait(self, tasks: list[Task], until: float) -> None:
        """Let this task wait for one of `wake`, or for a time."""
        task = self.world.current
        assert task is not None
        tasks.append(task)
        self.world.block(until, "the log")
        if task in tasks:
            tasks.remove(task)

    def read(self, start: int, seconds: float) -> list[tuple[int, bytes | None]]:
        """All messages from a position on; waits for the first one."""
        deadline = self.world.now + seconds
        while True:
            if not self.first <= start <= self.end:
                raise ForeignLog(f"position {start} is not in the log any more")
            batch = [] if self.world.now < self.stalled_until else self.since(start)
            if batch or self.world.now >= deadline:
                return batch
            self.wait(self._readers, deadline)

    def since(self, start: int) -> list[tuple[int, bytes | None]]:
        at = len(self.messages)
        while at and self.messages[at - 1][0] >= start:
            at -= 1
        return self.messages[at:]


@dataclass(eq=False)
class _Session:
    """The messages of one server from its first one until it stops sending."""

    answers: deque[tuple[Callable[[int], None], int]] = field(default_factory=deque)
    waiters: list[Task] = field(default_factory=list)
    unknown: Unknown | None = None
    last_at: float = 0.0
    """The time at which the last message is stored."""
    under_way: int = 0
    is_over: bool = False


ROOM = 8
"""Messages under way at which a log of `no_room` refuses another one."""


class LogEnd:
    """`Log`: one server's end."""

    kind = "simulated"

    def __init__(self, log: SharedLog, part_bytes: int = 200) -> None:
        self._log, self.part_bytes = log, part_bytes
        self._session = _Session()
        self.is_reading = False

    def open(self, known: str) -> str:
        if known and known != self._log.identity:
            raise ForeignLog(f"the log is {self._log.identity}, not {known}")
        return self._log.identity

    def confirm(self) -> None:
        if self._log.is_gone:
            raise ForeignLog("the log is gone")

    def bounds(self) -> tuple[int, int]:
        return self._log.first, self._log.end

    def read(self, start: int, seconds: float, *, to_end: bool = False) -> Iterator[tuple[int, bytes | None]]:
        self.is_reading = True
        batch = self._log.read(start, seconds)
        if batch:
            self._log.world.sleep(self._log.chance.random() * self._log.faults.delay)
        count = len(batch) if to_end else self._log.chance.randint(1, max(len(batch), 1))
        yield from batch[:count]

    def stop_reading(self) -> None:
        self.is_reading = False

    def prepare(self) -> None: ...

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        log, session, now = self._log, self._session, self._log.world.now
        if session.under_way >= ROOM and log.chance.random() < log.faults.no_room:
            return False
        fate = log.draw()
        if fate.answer is None:
            log.world.later(fate.gives_up, lambda: self._give_up(session))
        if fate.is_stored:
            session.under_way += 1
            at = max(now, log.stalled_until) + fate.delay
            if fate.answer is not None:  # a message without an answer may come after later ones
                at = session.last_at = max(at, session.last_at)
            log.world.later(at - now, lambda: self._store(session, message, fate, stored))
        return True

    def _store(self, session: _Session, message: bytes, fate: Fate, stored: Callable[[int], None]) -> None:
        log = self._log
        if log.world.now < log.stalled_until:
            log.world.later(log.stalled_until - log.world.now, lambda: self._store(session, message, fate, stored))
            return
        session.under_way -= 1
        if session.is_over and not fate.survives:
            return
        for _ in range(fate.strangers):
            log.store(log.chance.choice(STRANGERS))
        log.end += fate.skipped
        position = log.store(message)
        if fate.again is not None:
            log.world.later(fate.again, lambda: log.store_again(message))
        if fate.answer is not None:
            answer = stored, SOMEWHERE if fate.is_somewhere else position
            log.world.later(fate.answer, lambda: self._answer(session, answer))

    def _answer(self, session: _Session, answer: tuple[Callable[[int], None], int]) -> None:
        session.answers.append(answer)
        self._log.wake(session.waiters)

    def _give_up(self, session: _Session) -> None:
        session.unknown = Unknown("a message has no answer")
        self._log.wake(session.waiters)

    def poll(self, seconds: float) -> None:
        session = self._session
        if not session.answers and session.unknown is None and seconds:
            self._log.wait(session.waiters, self._log.world.now + seconds)
        while session.answers:
            stored, position = session.answers.popleft()
            stored(position)
        if session.unknown is not None:
            raise session.unknown

    def stop_sending(self) -> None:
        self._session.is_over = True
        self._session = _Session()

    def remove_before(self, position: int) -> None:
        self._log.first = max(self._log.first, position)

    def close(self) -> None:
        self.stop_sending()
