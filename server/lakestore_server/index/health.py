"""Whether the key index answers: a problem means a rebuild of all of it, damaged rows cost one table its index."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from lakestore.errors import Corrupt, Unavailable

log = logging.getLogger("lakestore.index")


class Health:
    """The problem of an index, if there is one, and the progress of the rebuild."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while the problem changes."""
        self.generation = 0
        """The generation of LMDB's files: an answer of an earlier one does not count."""
        self.progress = 0.0
        """The part of the rebuild that is done, 0 to 1."""
        self.damaged = False
        """Whether LMDB's files must not be used any more."""
        self.broken: Mapping[bytes, str] = {}
        """Prefix of each table that has no index to the reason."""
        self.on_problem: Callable[[], None] = lambda: None
        self._problem = ""

    @property
    def has_problem(self) -> bool:
        """Whether all of the index has to be rebuilt."""
        return bool(self._problem)

    @property
    def ready(self) -> bool:
        """Whether the index answers, for every table."""
        return not self._problem and not self.broken

    @property
    def state(self) -> str:
        """`ready`, or how far the rebuild is and why."""
        if self._problem:
            return f"rebuilding, {self.progress:.0%} done, for {self._problem}"
        return "; ".join(self.broken.values()) or "ready"

    def check(self, prefix: bytes) -> None:
        """`Unavailable` while the index is being rebuilt, `Corrupt` for a table whose rows are damaged."""
        if self._problem:
            raise Unavailable(
                f"the key index is being rebuilt, {self.progress:.0%} done: upserts, deletes and look-ups wait for it; "
                "log tables and scans are served"
            )
        if prefix in self.broken:
            raise Corrupt(self.broken[prefix])

    def found_problem(self, problem: str, *, damaged: bool) -> None:
        """Answer nothing any more from the index as it is; damaged files are set aside, not used again."""
        with self.lock:
            first = not self._problem
            self._problem = self._problem or problem
            self.damaged = self.damaged or damaged
            self.generation += first
            self.progress = 0.0 if first else self.progress
        if first:
            log.error("the key index is rebuilt: %s", problem)
            self.on_problem()

    def found_damage(self, error: Exception) -> None:
        """Set the files aside, whose content cannot be trusted."""
        self.found_problem(f"it is damaged: {error}", damaged=True)

    def rebuilt(self, broken: Mapping[bytes, str]) -> None:
        """Answer again, but for tables whose rows are damaged; the caller holds `lock`."""
        self.broken = broken
        self.generation += 1
        self._problem = ""
