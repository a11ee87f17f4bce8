"""Counts of the requests that this process sent to object stores, by kind.

- A request that obstore or Arrow repeats by itself counts once; each attempt of ours counts.
- A file above 4 MB counts one `get` or one `put`, whatever ranges or parts it takes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

PUT, CREATE, HEAD, GET, LIST, DELETE = "put", "create", "head", "get", "list", "delete"
"""Kinds of requests. `create` is a put that never replaces an object."""


class StoreCounts:
    """Requests since the start. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, *kinds: str) -> None:
        """Count one request of each kind."""
        with self._lock:
            self._counts.update(kinds)

    def by_kind(self) -> Mapping[str, int]:
        """Number of requests by kind, without kinds that never came."""
        with self._lock:
            return dict(self._counts)


_counts = StoreCounts()


def of_process() -> StoreCounts:
    """The counts of this process."""
    return _counts
