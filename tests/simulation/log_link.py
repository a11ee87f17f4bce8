"""The way from one machine to the shared log: an end of the log for each life of the server, which can be cut off.

While the link is cut nothing can be read. What is sent either waits at the sender, or it is stored and the answer
waits. All of it arrives in order when the link is mended, as Kafka's clients send until they have an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from lakestore.errors import Unavailable
from tests.simulation.world import World
from tests.support.shared_log import LogEnd, SharedLog

SILENT_SECONDS = 2.0
"""After so long a server gives up to open a log that does not answer."""
AGAIN_SECONDS = 0.05
PART_BYTES = 200, 4_000, 4_000, 100_000
"""Most bytes of a message, of which the seed chooses one: records are longer than the first."""
Cut = Literal["requests", "answers", ""]
"""What does not come through; empty if all does."""


class LogLink:
    """One machine's way to the log, over all lives of its server."""

    def __init__(self, world: World, log: SharedLog, part_bytes: int) -> None:
        self.world, self.log, self.part_bytes = world, log, part_bytes
        self.cut: Cut = ""
        self._waiting: list[Callable[[], None]] = []

    def mend(self) -> None:
        """Let everything through that waits."""
        self.cut = ""
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            arrive()

    def end(self) -> LogEnd:
        """The end of the server that starts now."""
        return _LinkedEnd(self)

    def pass_on(self, cut: Cut, arrive: Callable[[], None]) -> None:
        """Call `arrive` now, or when the link is mended if it is cut this way."""
        if self.cut == cut:
            self._waiting.append(arrive)
        else:
            arrive()

    def is_silent(self) -> bool:
        """Whether nothing can be read."""
        return bool(self.cut) or self.world.now < self.log.stalled_until


class _LinkedEnd(LogEnd):
    """`Log` over a link."""

    def __init__(self, link: LogLink) -> None:
        super().__init__(link.log, link.part_bytes)
        self._link, self._world = link, link.world
        task = link.world.current
        assert task is not None
        self._process = task.process

    def _await_answer(self) -> None:
        until = self._world.now + SILENT_SECONDS
        while self._link.is_silent():
            if self._world.now > until:
                raise Unavailable("the log does not answer: do its brokers run?")
            self._world.sleep(AGAIN_SECONDS)

    def open(self, known: str) -> str:
        self._await_answer()
        return super().open(known)

    def read(self, start: int, seconds: float, *, to_end: bool = False) -> Iterator[tuple[int, bytes | None]]:
        if to_end:
            self._await_answer()
        elif self._link.cut:
            self._world.sleep(seconds)
            return
        yield from super().read(start, seconds, to_end=to_end)

    def remove_before(self, position: int) -> None:
        self._await_answer()
        super().remove_before(position)

    def _store(self, session: Any, message: bytes, fate: Any, stored: Callable[[int], None]) -> None:
        def arrive() -> None:
            if not (is_cut and self._process.is_dead):  # what waits at a sender goes with it
                super(_LinkedEnd, self)._store(session, message, fate, stored)

        is_cut = self._link.cut == "requests"
        self._link.pass_on("requests", arrive)

    def _answer(self, session: Any, answer: tuple[Callable[[int], None], int]) -> None:
        self._link.pass_on("answers", lambda: super(_LinkedEnd, self)._answer(session, answer))
