"""Tracks the server's threads, so that no failure and no end of a thread goes unnoticed.

A failing duty is listed until it succeeds again; `status`, metrics and the log show it. If a thread ends that the
server needs, the process ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

log = logging.getLogger("lakestore.duties")


@dataclass(frozen=True, slots=True)
class DutyState:
    """The state of a thread's work."""

    failures: int = 0
    """Failures since the start."""
    in_a_row: int = 0
    """Failures since the last success; 0 while all is well."""
    error: str = ""
    """The newest error; empty while all is well."""

    def as_dict(self) -> dict[str, str | int]:
        """The state for JSON."""
        return {"state": "failing" if self.in_a_row else "ok", "failures": self.failures, "error": self.error}


class Supervisor:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, DutyState] = {}

    def begins(self, name: str) -> None:
        """Register a thread."""
        with self._lock:
            self._states.setdefault(name, DutyState())

    def failed(self, name: str, error: BaseException) -> int:
        """Record a failure. Returns the number of failures in a row."""
        with self._lock:
            known = self._states.get(name, DutyState())
            said = f"{type(error).__name__}: {error}"
            state = self._states[name] = DutyState(known.failures + 1, known.in_a_row + 1, said)
        return state.in_a_row

    def succeeded(self, name: str) -> None:
        """Record a success."""
        with self._lock:
            self._states[name] = replace(self._states.get(name, DutyState()), in_a_row=0, error="")

    def states(self) -> dict[str, DutyState]:
        """Every thread's state, by name."""
        with self._lock:
            return dict(self._states)

    def is_failing(self) -> bool:
        """Whether a thread is failing now."""
        return any(state.in_a_row for state in self.states().values())

    def once(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Run work once in a thread of its own. Returns the thread."""

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
