"""Tables as they were before a truncate, for reads that hold a cut from before: in memory, while their leases run.

The chunks of such a state keep the bytes that they have mapped, whatever becomes of the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lakestore_server.state.view import TableState


@dataclass(slots=True)
class _Earlier:
    """A table up to a truncate."""

    state: TableState
    lsn: int
    """The commit that truncated it."""
    leases: set[str]
    """The leases of reads from before."""


class EarlierTables:
    """The tables that were truncated under a read. Thread-safe."""

    def __init__(self, running: Callable[[Iterable[str]], set[str]]) -> None:
        """`running` says which of some leases are not over."""
        self._running = running
        self._lock = threading.Lock()
        self._kept: list[_Earlier] = []

    def keep(self, state: TableState, lsn: int, leases: Iterable[str]) -> None:
        """Keep a table as it is before the commit `lsn`, while one of these leases runs."""
        self._forget()
        held = set(leases)
        if held:
            with self._lock:
                self._kept.append(_Earlier(state, lsn, held))

    def of_lease(self, table_uuid: str, lease: str) -> TableState | None:
        """The table that a lease reads, if it was truncated since."""
        with self._lock:
            mine = [each for each in self._kept if lease in each.leases and each.state.table.uuid == table_uuid]
        return mine[0].state if mine else None

    def at(self, table_uuid: str, lsn: int) -> TableState | None:
        """A table that was truncated after `lsn`, as reads at that cut need it; None if it is not kept."""
        self._forget()
        with self._lock:
            for each in self._kept:
                if each.state.table.uuid == table_uuid and each.state.log_start_lsn <= lsn < each.lsn:
                    return each.state
        return None

    def read_by(self, lease: str, states: Iterable[TableState]) -> None:
        """Note that a lease reads those of the states that are kept here."""
        wanted = {id(state) for state in states}
        with self._lock:
            for each in self._kept:
                if id(each.state) in wanted:
                    each.leases.add(lease)

    def _forget(self) -> None:
        """Let go of what no running lease needs."""
        with self._lock:
            every = {lease for each in self._kept for lease in each.leases}
        if not every:
            return
        over = every - self._running(every)
        with self._lock:
            for each in self._kept:
                each.leases -= over
            self._kept = [each for each in self._kept if each.leases]
