"""The way from one machine to the object store of a shared journal, over all lives of its server.

While the link is cut no request gets an answer. A request waits at the sender, or the store does it and the answer is
lost. A request that waits goes on when the link is mended in time, as a client's connection does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lakestore_server.journals.object_log import ObjectLog
from lakestore_server.journals.object_store import StoreError
from tests.simulation.log_link import AGAIN_SECONDS, Cut
from tests.simulation.marks import PUTS_IN_FLIGHT
from tests.simulation.world import World
from tests.support.object_logs import REQUEST_SECONDS, SimulatedStore

Answer = TypeVar("Answer")
PLACE = "s3://simulated"


class StoreLink:
    """`Store` of one machine."""

    def __init__(
        self, world: World, store: SimulatedStore, part_bytes: int, *, group_seconds: float, block: int
    ) -> None:
        """`block`: numbers of a block, few so that runs remove some."""
        self.world, self._store, self.part_bytes = world, store, part_bytes
        self._group_seconds, self._block = group_seconds, block
        self.cut: Cut = ""
        self._puts = 0
        """Puts on their way."""

    def mend(self) -> None:
        """Let everything through."""
        self.cut = ""

    def end(self) -> ObjectLog:
        """The log of the server that starts now."""
        self._puts = 0
        log = ObjectLog(self, PLACE, group_seconds=self._group_seconds, block=self._block, races=False)
        log.part_bytes = self.part_bytes
        return log

    def put_new(self, name: str, data: bytes) -> bool:
        self._puts += 1
        if self._puts > 1:
            self.world.mark(PUTS_IN_FLIGHT)
        try:
            return self._passed(lambda: self._store.put_new(name, data))
        finally:
            self._puts -= 1

    def get(self, name: str) -> bytes | None:
        return self._passed(lambda: self._store.get(name))

    def has(self, name: str) -> bool:
        return self._passed(lambda: self._store.has(name))

    def remove(self, names: Sequence[str]) -> None:
        self._passed(lambda: self._store.remove(names))

    def _passed(self, request: Callable[[], Answer]) -> Answer:
        until = self.world.now + REQUEST_SECONDS
        while self.cut == "requests":
            self._wait(until)
        answer = request()
        while self.cut == "answers":
            self._wait(until)
        return answer

    def _wait(self, until: float) -> None:
        if self.world.now >= until:
            raise StoreError("the store did not answer")
        self.world.sleep(AGAIN_SECONDS)
