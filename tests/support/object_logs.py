"""An object store in a world of tasks, and servers whose shared journal is in it.

`SimulatedStore` is the service: a put creates an object or leaves the one that is there. Requests come late, get lost,
or lose their answers, and one that was sent before its process was killed may still arrive. `first_puts` has what was
put first under each name, also what was removed: that is what every server must have read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lakestore_server.journals.object_format import messages_of
from lakestore_server.journals.object_log import IDENTITY, INDEX_BITS, ObjectLog
from lakestore_server.journals.object_store import StoreError
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.state.judge import ForeignLog
from tests.simulation.machine import Clock
from tests.simulation.marks import ANSWER_LOST, BLOCK_CLOSED, STORE_REFUSED
from tests.simulation.world import World
from tests.support.journal_servers import LEASE_SECONDS, Run, Server
from tests.support.shared_log import Faults

Answer = TypeVar("Answer")
REQUEST_SECONDS = 1.0
BLOCK = 4
"""Numbers of a block: so few that runs remove many."""
KEEP_SECONDS, PAUSE_SECONDS = 1.0, 6.0


@dataclass
class _Call:
    """A request on its way."""

    answer: object = None
    is_done: bool = False


class SimulatedStore:
    """`Store` of the product."""

    def __init__(self, world: World, seed: str, faults: Faults | None = None) -> None:
        """Of the faults, `lost`, `unanswered`, `refused`, `delay` and `late` apply."""
        self.world, self.faults = world, faults or Faults()
        self.chance = random.Random(f"{seed} store")
        self.objects: dict[str, bytes] = {}
        self.first_puts: dict[str, bytes] = {}
        self.stalled_until = 0.0
        self.requests = 0

    def stall(self, seconds: float) -> None:
        """Do and answer nothing for a time."""
        self.stalled_until = self.world.now + seconds

    # The log as `Run` sees it

    @property
    def messages(self) -> list[tuple[int, bytes | None]]:
        """All messages that servers must have read, also those that were removed."""
        messages: list[tuple[int, bytes | None]] = []
        number = 0
        while (data := self.first_puts.get(f"log/{number:020}")) is not None:
            messages += [((number << INDEX_BITS) + at, each) for at, each in enumerate(messages_of(number, data))]
            number += 1
        return messages

    @property
    def first(self) -> int:
        """The number of blocks that are closed."""
        return sum(name.startswith("closed/") for name in self.objects)

    # Requests

    def put_new(self, name: str, data: bytes) -> bool:
        def put() -> bool:
            if name in self.objects:
                return False
            self.objects[name] = data
            if name.startswith("closed/"):
                self.world.mark(BLOCK_CLOSED)
            self.first_puts.setdefault(name, data)
            return True

        return self._call(put)

    def get(self, name: str) -> bytes | None:
        return self._call(lambda: self.objects.get(name))

    def has(self, name: str) -> bool:
        return self._call(lambda: name in self.objects)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:  # a removal is not atomic
            self.objects.pop(name, None)
            if self.chance.random() < 0.2:
                self._call(lambda: None)

    def _maybe_refuse(self, delay: float) -> None:
        if self.faults.refused and self.chance.random() < self.faults.refused:
            self.world.mark(STORE_REFUSED)
            self.world.sleep(delay)
            raise StoreError("the store answered 503: slow down")

    def _call(self, work: Callable[[], Answer]) -> Answer:
        """The answer of the service, or `StoreError` without one."""
        world, chance, faults = self.world, self.chance, self.faults
        self.requests += 1
        call, task, fate = _Call(), world.current, faults.fate(chance)
        assert task is not None
        process = task.process
        self._maybe_refuse(fate.delay)

        def arrive() -> None:
            if world.now < self.stalled_until:
                world.later(self.stalled_until - world.now, arrive)
            elif process.is_paused and not fate.survives:  # it was not sent yet
                world.later(0.01, arrive)
            elif fate.is_stored and (fate.survives or not process.is_dead):
                call.answer = work()
                if fate.answer is None:
                    world.mark(ANSWER_LOST)
                if fate.answer is not None:
                    world.later(fate.answer, done)

        def done() -> None:
            call.is_done = True
            world.wake(task)

        world.later(fate.delay, arrive)
        until = world.now + (REQUEST_SECONDS if fate.answer is not None else fate.gives_up)
        while not call.is_done and world.now < until:
            world.block(until, "the store")
        if not call.is_done:
            raise StoreError("the store did not answer")
        return call.answer  # type: ignore[return-value]


class ObjectServer(Server):
    """A server that continues with the checkpoint of another one if the store does not have what it needs any more."""

    restored = 0

    def _run(self) -> None:
        try:
            super()._run()
        except ForeignLog as error:
            if "any more" not in str(error):
                raise
            assert isinstance(self.world, World)
            self.world.later(0.0, self._restore)

    def _trim(self) -> None:
        """Remove all that this server does not need, whatever the others need."""
        self._story.trims += self.is_leading
        self.journal.trim(self.checkpoint.place)

    def _restore(self) -> None:
        self.restored += 1
        assert isinstance(self.world, World)
        self.world.kill(self.process)
        self.is_leading = False
        self.checkpoint = max((each.checkpoint for each in self._others), key=lambda each: len(each.applied))
        self.start()


class ObjectRun(Run):
    """Servers on one store. What a server needs is kept for a short time only, and pauses may be longer."""

    log: SimulatedStore  # type: ignore[assignment]
    server_kind = ObjectServer

    def __init__(self, seed: str, faults: Faults | None = None, *, servers: int = 3, blows: int = 12) -> None:
        super().__init__(seed, faults, servers=servers, blows=blows)
        self.log = SimulatedStore(self.world, seed, faults)
        self.log.objects[IDENTITY] = b'{"format": 1, "id": "simulated"}'

    def _journal(self, name: str) -> SharedJournal:
        log = ObjectLog(self.log, "s3://simulated", block=BLOCK, races=False)
        log.part_bytes = 200
        return SharedJournal(log, Clock(self.world), LEASE_SECONDS, KEEP_SECONDS)

    def _strike(self, server: Server) -> None:
        if self._chance.random() < 0.3:
            self.world.pause(server.process)
            self.world.later(self._chance.random() * PAUSE_SECONDS, partial(self.world.resume, server.process))
        else:
            super()._strike(server)
