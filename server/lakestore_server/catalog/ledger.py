"""The interface between catalog and journal.

The catalog decides, the ledger stores. A ledger applies one `CatalogChange` as a journal record: compare-and-set of
pointers, durable when `commit` returns. Every answer is as of the last durable commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lakestore.model.table import Table
from lakestore_server.state.catalog_change import CatalogChange, Pointer, SqlView, TierRecord
from lakestore_server.state.chunk import Position


class Ledger(Protocol):
    """The server's side of the catalog. Thread-safe."""

    def namespaces(self) -> Mapping[str, Mapping[str, str]]: ...

    def pointers(self, namespace: str) -> Mapping[str, Pointer]: ...

    def views(self, namespace: str) -> Mapping[str, SqlView]: ...

    def own_table(self, namespace: str, name: str) -> Table | None:
        """Our table of this name; None if there is none."""

    def tier_records(self, table_uuid: str) -> Mapping[int, TierRecord]: ...

    def live_sums_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> tuple[int, ...] | None:
        """The table's live sums at a tier point; None unless the point is a commit end of the table."""

    def live_rows_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> int | None:
        """The number of live rows at a tier point; None unless the point is a commit end of the table."""

    def dying_rows(self, table_uuid: str) -> tuple[str, tuple[Position, ...]]:
        """(id, rows by bucket) of the erasure for which the lake of a log table must lose rows now."""

    def versions(self, table_uuid: str) -> tuple[Table, ...]:
        """Every version of the table's definition, oldest first."""

    def tierer_epoch(self) -> int:
        """The current tierer's epoch; commits with a lower one are fenced."""

    def pinned_snapshots(self, table_uuid: str) -> frozenset[int]:
        """Snapshots that reads lease; they must not expire."""

    def holds_metadata(self, location: str) -> bool:
        """Whether a running read may still open this metadata file."""

    def seen(self, idempotency_key: str) -> bool:
        """Whether a change with this key was committed."""

    def rename_own(self, table: Table, new_name: str, key: str, outside_letters: str) -> None:
        """Rename one of our tables together with its pointer and its dead letters. `outside_letters` is the uuid of the
        dead-letter table that has its new name in an outside catalog already."""

    def commit(self, change: CatalogChange, erasures: Sequence[str] = ()) -> None:
        """Journal the change, by which log tables lose the rows of these erasures. `Conflict` is raised before anything
        is written; later errors have `applied="unknown"`."""
