"""A target by its addresses alone, for a client in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import lakestore as ls

Reads = Literal["leader", "follower", "nearest"]
CALL_SECONDS = 5.0
"""A client waits so long for an answer; then the outcome of a write is unknown."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The addresses by which one process reaches the system. A value, which pickles."""

    address: str
    catalog: str = ""
    kafka: str = ""
    sql: str = ""
    reads: Reads = "leader"
    """Where reads go, of several servers."""

    def connect(self, process: int) -> ls.Lake:
        """A new connection."""
        return ls.connect(self.address, timeout=CALL_SECONDS, reads=self.reads)
