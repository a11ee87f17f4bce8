"""A ledger in memory: the catalog's seam with everything but durability, which is the server's."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from lakestore.errors import NotFound
from lakestore.model.table import Table
from lakestore_server.state import catalog_change
from lakestore_server.state.catalog_change import CatalogChange, Pointer, SetPointer, SqlView, TierRecord
from lakestore_server.state.chunk import Position


class MemoryLedger:
    """Steps are applied in order to copies, which become the state only if none is refused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spaces: catalog_change.Namespaces = {}
        self._pointers: catalog_change.Pointers = {}
        self._views: catalog_change.SqlViews = {}
        self._tiers: dict[str, dict[int, TierRecord]] = {}
        self._keys: set[str] = set()
        self.tables: dict[str, Table] = {}
        self.older: dict[str, tuple[Table, ...]] = {}
        self.sums: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self.rows: dict[tuple[str, tuple[int, ...]], int] = {}
        self.epoch = 1
        self.pinned: dict[str, frozenset[int]] = {}
        self.held_metadata: set[str] = set()
        self.changes: list[CatalogChange] = []

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        return self._spaces

    def pointers(self, namespace: str) -> Mapping[str, Pointer]:
        return {name: pointer for (space, name), pointer in self._pointers.items() if space == namespace}

    def views(self, namespace: str) -> Mapping[str, SqlView]:
        return {name: view for (space, name), view in self._views.items() if space == namespace}

    def own_table(self, namespace: str, name: str) -> Table | None:
        return self.tables.get(f"{namespace}.{name}")

    def tier_records(self, table_uuid: str) -> Mapping[int, TierRecord]:
        return self._tiers.get(table_uuid, {})

    def live_sums_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> tuple[int, ...] | None:
        return self.sums.get((table_uuid, tier_point))

    def live_rows_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> int | None:
        return self.rows.get((table_uuid, tier_point))

    def versions(self, table_uuid: str) -> tuple[Table, ...]:
        current = tuple(table for table in self.tables.values() if table.uuid == table_uuid)
        return (*self.older.get(table_uuid, ()), *current)

    def dying_rows(self, table_uuid: str) -> tuple[str, tuple[Position, ...]]:
        return "", ()

    def tierer_epoch(self) -> int:
        return self.epoch

    def pinned_snapshots(self, table_uuid: str) -> frozenset[int]:
        return self.pinned.get(table_uuid, frozenset())

    def holds_metadata(self, location: str) -> bool:
        return location in self.held_metadata

    def seen(self, idempotency_key: str) -> bool:
        return idempotency_key in self._keys

    def commit(self, change: CatalogChange, erasures: Sequence[str] = ()) -> None:
        with self._lock:
            spaces, pointers, views = dict(self._spaces), dict(self._pointers), dict(self._views)
            catalog_change.check_change(change, spaces, pointers, views)
            catalog_change.apply(change, spaces, pointers, views)
            self._spaces, self._pointers, self._views = spaces, pointers, views
            for step in change.steps:
                if isinstance(step, SetPointer):
                    self._note_tiers(step)
            if change.idempotency_key:
                self._keys.add(change.idempotency_key)
            self.changes.append(change)

    def _note_tiers(self, step: SetPointer) -> None:
        records = dict(self._tiers.get(step.pointer.uuid, {}))
        records.update({record.snapshot_id: record for record in step.tiers})
        self._tiers[step.pointer.uuid] = {key: value for key, value in records.items() if key not in step.forget}

    def rename_own(self, table: Table, new_name: str, key: str, outside_letters: str) -> None:
        """This ledger keeps no tables of ours that could be renamed."""
        raise NotFound(f"there is no table {table.name!r} to call {new_name!r} ({key}{outside_letters})")
