"""A draft: table metadata while updates are applied to it. Pure: the clock's reading is handed in.

A base is never changed: a draft replaces what it touches, and ends as the base itself when nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakestore.errors import Invalid
from lakestore_server.iceberg import schemas
from lakestore_server.iceberg.metadata import PREVIOUS_VERSIONS_MAX, by_id, main_of, snapshot_ids
from lakestore_server.iceberg.schemas import Json

_PREVIOUS_VERSIONS_DEFAULT = 100


class Draft:
    """Metadata while updates are applied to it."""

    def __init__(self, base: Json, now_ms: int) -> None:
        self.base = base
        self.doc: Json = dict(base)
        self.now_ms = now_ms
        self.changed = False
        self.snapshots = snapshot_ids(base)
        self.added: set[int] = set()
        self.was_main: set[int] = set()
        self.time_ms = int(base["last-updated-ms"])
        self._is_touched = False
        self.last_schema: int | None = None
        self.last_spec: int | None = None
        self.last_order: int | None = None

    def put(self, key: str, value: Any) -> None:
        """Set one top-level field."""
        if self.doc.get(key) != value:
            self.doc[key] = value
            self.changed = True

    def append(self, key: str, item: Any) -> None:
        """Add to a top-level list."""
        self.doc[key] = [*(self.doc.get(key) or ()), item]
        self.changed = True

    def keep(self, key: str, wanted: Callable[[Any], bool]) -> None:
        """Drop the unwanted from a top-level list."""
        old = self.doc.get(key) or []
        new = [item for item in old if wanted(item)]
        if len(new) != len(old):
            self.doc[key] = new
            self.changed = True

    def finished(self, base_location: str | None) -> Json:
        """The new metadata with its logs, or the base when nothing changed."""
        if not self.changed:
            return self.base
        self._check()
        self.touch()
        self.doc["last-updated-ms"] = self.time_ms
        self.doc["snapshot-log"] = self._snapshot_log()
        if base_location is not None:
            self.doc["metadata-log"] = self._metadata_log(base_location)
        return self.doc

    def touch(self, snapshot_ms: int | None = None) -> None:
        """Move the document's time to a new snapshot's, or to the catalog's if no change has moved it yet.

        It never goes back, and a client whose clock is ahead does not move it ahead of the catalog's.
        """
        if snapshot_ms is None and self._is_touched:
            return
        self.time_ms = max(self.time_ms, self.now_ms if snapshot_ms is None else min(snapshot_ms, self.now_ms))
        self._is_touched = True

    def _check(self) -> None:
        doc = self.doc
        schema = by_id(doc["schemas"], "schema-id", doc["current-schema-id"])
        spec = by_id(doc["partition-specs"], "spec-id", doc["default-spec-id"])
        order = by_id(doc["sort-orders"], "order-id", doc["default-sort-order-id"])
        if schema is None or spec is None or order is None or not doc["location"]:
            raise Invalid("a table needs a current schema, a default spec, a default sort order and a location")
        schemas.check_sources("default partition spec", spec, schema)
        schemas.check_sources("default sort order", order, schema)

    def _snapshot_log(self) -> list[Json]:
        """Without entries of snapshots that main only passed through, and without history before a gap."""
        main = main_of(self.doc)
        passed = {number for number in self.was_main & self.added if number != main}
        log: list[Json] = []
        for entry in self.doc.get("snapshot-log") or ():
            if entry["snapshot-id"] not in self.snapshots:
                log.clear()
            elif entry["snapshot-id"] not in passed:
                log.append(entry)
        return log

    def _metadata_log(self, base_location: str) -> list[Json]:
        try:
            kept = max(1, int(self.doc["properties"].get(PREVIOUS_VERSIONS_MAX, _PREVIOUS_VERSIONS_DEFAULT)))
        except ValueError as error:
            raise Invalid(f"{PREVIOUS_VERSIONS_MAX} is not a number") from error
        entry = {"timestamp-ms": self.base["last-updated-ms"], "metadata-file": base_location}
        return [*(self.base.get("metadata-log") or ()), entry][-kept:]
