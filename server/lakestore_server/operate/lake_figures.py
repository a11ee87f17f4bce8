"""Figures of the lake: files and deletes of each table's newest snapshot, from the snapshot's summary.

Summaries are in metadata files. They are read beside serving, a few tables at a time, once for each commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakestore.errors import LakestoreError
from lakestore_server.catalog import metadata
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.view import View

LOOKS_MAX = 50
"""Metadata files that one call of `look` reads."""


@dataclass(frozen=True, slots=True)
class LakeFigures:
    """Figures of a table's newest snapshot; 0 if its writer did not count."""

    files: int
    delete_files: int
    deleted_rows: int
    """Rows of the data files that position deletes name: compaction removes them."""
    rows: int
    """Rows of the data files, including deleted rows."""
    bytes: int
    oldest_snapshot_ms: int = 0
    """Milliseconds since 1970 of the oldest snapshot but the current one; 0 without others."""

    @staticmethod
    def from_metadata(doc: Json) -> LakeFigures | None:
        """The figures in a table's metadata; None without a snapshot."""
        main = metadata.main_of(doc)
        if metadata.snapshot_of(doc, main) is None:
            return None
        others = [int(each["timestamp-ms"]) for each in doc.get("snapshots", ()) if each["snapshot-id"] != main]
        return LakeFigures(
            files=metadata.total_of(doc, "total-data-files"),
            delete_files=metadata.total_of(doc, "total-delete-files"),
            deleted_rows=metadata.total_of(doc, "total-position-deletes"),
            rows=metadata.total_of(doc, "total-records"),
            bytes=metadata.total_of(doc, "total-files-size"),
            oldest_snapshot_ms=min(others, default=0),
        )


class Lakes:
    """The figures of all tables that were looked at. Any thread reads, one thread renews."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[str, tuple[str, LakeFigures | None]] = {}
        """Table uuid to the location of the metadata that was read, and its figures."""

    def figures_of(self, uuid: str) -> LakeFigures | None:
        """The figures of a table; None before the first look at it."""
        return self._known.get(uuid, ("", None))[1]

    def look(self, view: View) -> None:
        """Read the metadata of some tables with new commits; raises the first failure at the end."""
        known = {uuid: held for uuid, held in self._known.items() if uuid in view.tables}
        failures: list[LakestoreError] = []
        left = LOOKS_MAX
        for uuid, state in view.tables.items():
            pointer = view.pointers.get((state.table.namespace, state.table.short_name))
            if pointer is None or known.get(uuid, ("",))[0] == pointer.location:
                continue
            if not left:
                break
            left -= 1
            try:
                known[uuid] = pointer.location, LakeFigures.from_metadata(self._catalog.stored(pointer).doc)
            except LakestoreError as error:
                failures.append(error)
        self._known = known
        if failures:
            raise failures[0]
