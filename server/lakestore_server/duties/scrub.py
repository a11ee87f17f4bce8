"""The scrub: in the background, at a bounded rate, every stored byte is read again before somebody needs it.

Damage is a log line, a metric and a part of the status, and is never served. A damaged index is rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakestore_server.duties.integrity import Findings, Integrity
from lakestore_server.files import data_folder
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.worker import Worker
from lakestore_server.index.key_index import Index
from lakestore_server.state.view import View

log = logging.getLogger("lakestore.scrub")
FIRST_SECONDS = 60.0
PAUSE_SECONDS = 3600.0


class _Stopped(Exception):
    """The scrub closes in the middle of a round."""


class Scrubber:
    """One round after the other, in its own thread or called by `run_once`."""

    def __init__(
        self,
        supervisor: Supervisor,
        integrity: Integrity,
        index: Index,
        view: Callable[[], View],
        bytes_per_second: int,
    ) -> None:
        """A rate of 0 switches the thread off."""
        self._integrity, self._index, self._view = integrity, index, view
        self._rate = bytes_per_second
        self._rebuilt: set[str] = set()
        self.damage: list[str] = []
        """Damage found by the last finished round, and by this one so far."""
        self.bytes = 0
        self.rounds = 0
        self._duty = Worker(supervisor, "scrub", self._round, _failed, PAUSE_SECONDS, FIRST_SECONDS)
        if bytes_per_second:
            self._duty.start()

    @property
    def is_on(self) -> bool:
        """Whether rounds begin by themselves."""
        return self._duty.is_alive

    def close(self) -> None:
        """Stop at once."""
        self._duty.close()

    def _round(self) -> None:
        try:
            self.run_once(self._pause)
        except _Stopped:
            return

    def _pause(self, size: int) -> None:
        self.bytes += size
        if self._duty.wait(size / self._rate):
            raise _Stopped

    def run_once(self, pause: Callable[[int], None] = lambda _: None) -> list[str]:
        """One round over everything; the damage."""
        found: list[str] = []
        shared = self._integrity.shared(pause)
        self._note(found, shared)
        if shared.index_damage:
            self._rebuild(data_folder.INDEX, shared.index_damage)
        for state in list(self._view().kept.values()):
            part = self._integrity.table(state, pause)
            self._note(found, part)
            if part.index_damage:
                self._rebuild(state.table.uuid, part.index_damage)
        self.damage = found
        self.rounds += 1
        return found

    def _note(self, found: list[str], part: Findings) -> None:
        for sentence in part.damage:
            found.append(sentence)
            log.error("%s", sentence)
            if sentence not in self.damage:
                self.damage = [*self.damage, sentence]

    def _rebuild(self, part: str, why: str) -> None:
        """Once for each part of the index: what comes back after a rebuild is no damage of the index."""
        if part not in self._rebuilt:
            self._rebuilt.add(part)
            self._index.found_problem(why, damaged=True)


def _failed(error: Exception) -> None:
    log.error("the scrub was broken off and begins anew: %s", error)
