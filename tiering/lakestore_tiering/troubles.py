"""Troubles: tables whose rounds fail, when each is tried again, and how long the server itself may be out of reach.

A table's trouble is its own: it is tried again at growing intervals while the others go on. Trouble with the server
is everybody's: it is waited for, and ends the service by its error after `SERVER_SECONDS_MAX`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakestore.errors import LakestoreError
from lakestore.model.table import Table
from lakestore.v1.lakestore_pb2 import TierProblem

RETRY_SECONDS = 2.0
RETRY_SECONDS_MAX = 300.0
SERVER_SECONDS_MAX = 600.0
"""Seconds for which a server may be out of reach, or refuse the tierer, before the service ends."""
_log = logging.getLogger("lakestore.tiering")


@dataclass(frozen=True, slots=True)
class Trouble:
    """A table whose last rounds failed."""

    table: str
    problem: str
    failures: int

    @property
    def retry_seconds(self) -> float:
        """Seconds until the next round: twice as long each time."""
        return min(RETRY_SECONDS_MAX, RETRY_SECONDS * float(2 ** min(self.failures - 1, 16)))


class Troubles:
    """All tables in trouble."""

    def __init__(self) -> None:
        self._of: dict[str, Trouble] = {}

    def failed(self, table: Table, error: Exception) -> Trouble:
        """Note a failed round; how the table stands now."""
        before = self._of.get(table.uuid)
        told = error.message if isinstance(error, LakestoreError) else f"{type(error).__name__}: {error}"
        found = Trouble(table.name, told, before.failures + 1 if before else 1)
        self._of[table.uuid] = found
        if before is None or before.problem != told:
            expected = isinstance(error, LakestoreError)
            text = "round of table %s failed, the next try is in %.0f s: %s"
            _log.warning(text, table.name, found.retry_seconds, told, exc_info=None if expected else error)
        return found

    def went_well(self, table: Table) -> None:
        """Note a round that did not fail."""
        before = self._of.pop(table.uuid, None)
        if before is not None:
            _log.warning("table %s is tiered again", table.name)

    def keep_only(self, tables: Sequence[Table]) -> None:
        """Forget tables that are gone."""
        known = {table.uuid for table in tables}
        self._of = {uuid: trouble for uuid, trouble in self._of.items() if uuid in known}

    def told(self) -> list[TierProblem]:
        """All of it, as the server is told."""
        return [
            TierProblem(table_uuid=uuid, problem=trouble.problem, failures=trouble.failures)
            for uuid, trouble in self._of.items()
        ]


class ServerTrouble:
    """The time that the server has been out of reach."""

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        self._address = address
        self._clock = clock
        self._since: float | None = None

    def failed(self, error: LakestoreError) -> float:
        """Seconds after which to ask again; the error itself once it has lasted too long."""
        now = self._clock()
        if self._since is None:
            self._since = now
            _log.warning("the server %s does not answer the tierer, which waits: %s", self._address, error.message)
        lasted = now - self._since
        if lasted >= SERVER_SECONDS_MAX:
            told = f"the server {self._address} has not answered the tierer for {lasted:.0f} s: {error.message}"
            raise type(error)(told, applied=error.applied) from error
        return min(10.0, RETRY_SECONDS + lasted / 10)

    def went_well(self) -> None:
        """Note an answer."""
        if self._since is not None:
            self._since = None
            _log.warning("the server %s answers the tierer again", self._address)
