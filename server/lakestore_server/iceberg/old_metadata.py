"""Old metadata files: those that fell out of a table's metadata log go, unless a read's lease holds them.

A plan names a metadata file, and its reader opens the file whenever it comes to it. So a file that a lease holds waits
here for the next commit after the lease. Files that a stopped server left behind, never named or not yet removed, are
found once for each of our tables: a file numbered below the current one can be named by no later commit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from lakestore_server.iceberg import locations
from lakestore_server.iceberg.ledger import Ledger
from lakestore_server.iceberg.metadata_store import MetadataStore, StoredMetadata


class OldMetadata:
    """The metadata files of one catalog that are to go. Thread-safe."""

    def __init__(self, ledger: Ledger, store: MetadataStore) -> None:
        self._ledger, self._store = ledger, store
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._looked: set[str] = set()

    def discard(self, places: Iterable[str]) -> None:
        """Remove these files, and those that waited, as far as nobody holds them; the others wait."""
        with self._lock:
            self._waiting.update(places)
            free = {place for place in self._waiting if not self._ledger.holds_metadata(place)}
            self._waiting -= free
        for place in free:
            self._store.discard(place)

    def look_once(self, current: StoredMetadata) -> None:
        """Discard the files of one of our tables that its current metadata does not know; once for each table."""
        folder, number = locations.numbered(current.location)
        with self._lock:
            if folder in self._looked or number is None:
                return
            self._looked.add(folder)
        known = {entry["metadata-file"].rsplit("/", 1)[-1] for entry in current.doc["metadata-log"]}
        older = [each for each in self._store.names(folder) if _below(each, number) and each not in known]
        self.discard(f"{folder}/{each}" for each in older)


def _below(name: str, current: int) -> bool:
    number = locations.metadata_number(name)
    return number is not None and number < current
