"""The seam between the catalog and the server's journal.

The catalog decides; the ledger keeps. A ledger applies one `CatalogChange` as a journal record: compare-and-set
of pointers, durable when `commit` returns. Everything it answers is as of the last durable commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lakestore.model.table import Table
from lakestore_server.state.catalog_change import CatalogChange, Pointer, TierRecord


class Ledger(Protocol):
    """The server's side of the catalog. Thread-safe."""

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Name to properties. One-level namespaces only."""

    def pointers(self, namespace: str) -> Mapping[str, Pointer]:
        """Table name to pointer, of one namespace."""

    def own_table(self, namespace: str, name: str) -> Table | None:
        """The Lakestore table of that name, if it is one of ours."""

    def tier_records(self, table_uuid: str) -> Mapping[int, TierRecord]:
        """Snapshot id to tier record, of one of our tables."""

    def live_sums_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> tuple[int, ...] | None:
        """The table's live sums at a tier point; None unless the point is a commit end of that table."""

    def live_rows_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> int | None:
        """The number of live rows at a tier point; None as of `live_sums_at`."""

    def versions(self, table_uuid: str) -> tuple[Table, ...]:
        """Every version of the table's definition, the oldest first."""

    def tierer_epoch(self) -> int:
        """The epoch of the current tierer; commits with a lower one are fenced."""

    def pinned_snapshots(self, table_uuid: str) -> frozenset[int]:
        """Snapshots that running reads hold by lease; they must not expire."""

    def holds_metadata(self, location: str) -> bool:
        """Whether a running read may still open this metadata file."""

    def seen(self, idempotency_key: str) -> bool:
        """Whether a change with that key was committed."""

    def rename_own(self, name: str, new_name: str, key: str) -> None:
        """Give one of our tables another name, with its pointer."""

    def commit(self, change: CatalogChange) -> None:
        """Journal the change. Raises Conflict before anything is written; after that begins only success or an
        error whose `applied` is "unknown"."""
