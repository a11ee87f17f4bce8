"""The supervisor: how each of a server's threads fares, so that none fails or ends unseen.

A duty that fails is said here until it has done its work again; `status`, the metrics and the log tell of it. A thread
that no server can do without ends the process when it ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

log = logging.getLogger("lakestore.duties")


@dataclass(frozen=True, slots=True)
class DutyState:
    """A thread's work so far."""

    failures: int = 0
    """Since the start."""
    in_a_row: int = 0
    """Since the work was done last; 0 while all is well."""
    error: str = ""
    """The newest failure; empty while all is well."""

    def as_dict(self) -> dict[str, str | int]:
        """The JSON form."""
        return {"state": "failing" if self.in_a_row else "ok", "failures": self.failures, "error": self.error}


class Supervisor:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, DutyState] = {}

    def begins(self, name: str) -> None:
        """Note that there is such a thread."""
        with self._lock:
            self._states.setdefault(name, DutyState())

    def failed(self, name: str, error: BaseException) -> int:
        """Note a failure; how many there are in a row."""
        with self._lock:
            known = self._states.get(name, DutyState())
            said = f"{type(error).__name__}: {error}"
            state = self._states[name] = DutyState(known.failures + 1, known.in_a_row + 1, said)
        return state.in_a_row

    def succeeded(self, name: str) -> None:
        """Note that the work was done."""
        with self._lock:
            self._states[name] = replace(self._states.get(name, DutyState()), in_a_row=0, error="")

    def states(self) -> dict[str, DutyState]:
        """Every thread's state, by name."""
        with self._lock:
            return dict(self._states)

    def is_failing(self) -> bool:
        """Whether some work fails now."""
        return any(state.in_a_row for state in self.states().values())

    def once(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Do work in a thread of its own; the thread, begun."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # the boundary of the thread
                self.failed(name, error)
                log.exception("%s failed", name)
            else:
                self.succeeded(name)

        self.begins(name)
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread
