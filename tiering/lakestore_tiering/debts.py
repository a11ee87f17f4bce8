"""The debts of a lake table's upkeep: what each duty would still do, and why a run left it.

1. A debt is a number of things that a run would change now. It is computed from columns of the manifests.
2. Its note says what happens next, or why a run would not help.
3. A debt is told, never acted upon: the duties decide by their own rules.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from lakestore.v1.lakestore_pb2 import TableUpkeep, UpkeepDebt
from lakestore_tiering.live_files import MainFiles

COMPACTION, DELETE_FILES, MANIFESTS, SNAPSHOTS, ORPHANS, ERASURE = (
    "compaction",
    "delete_files",
    "manifests",
    "snapshots",
    "orphans",
    "erasure",
)
"""The duties, as `status` and metrics name them."""


@dataclass(frozen=True, slots=True)
class Debt:
    """The work that one duty would still do for a table."""

    duty: str
    count: int
    """Files, manifests or snapshots that a run would change."""
    note: str = ""


MANIFEST_BYTES = 8 << 20
"""Size to which Iceberg merges manifests."""


def of_manifests(main: MainFiles) -> tuple[Debt, Debt]:
    """The debts of delete files and of manifests."""
    more = main.delete_files - main.files_with_deletes
    merged = "they are merged when a data file has four" if more else ""
    excess = sum(len(sizes) - max(-(-sum(sizes) // MANIFEST_BYTES), 1) for sizes in main.manifest_sizes() if sizes)
    return Debt(DELETE_FILES, max(more, 0), merged), Debt(MANIFESTS, excess)


class TableDebts:
    """The debts of all tables, as last computed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._debts: dict[str, dict[str, Debt]] = {}
        self._slowed: dict[str, str] = {}
        self._spent: dict[str, float] = {}
        self._deleted: dict[str, float] = {}

    def put(self, table_uuid: str, *debts: Debt) -> None:
        """Replace the debts of these duties."""
        with self._lock:
            self._debts.setdefault(table_uuid, {}).update({debt.duty: debt for debt in debts})

    def end(self, table_uuid: str, duty: str) -> None:
        """Forget a duty that has nothing to do any more."""
        with self._lock:
            self._debts.get(table_uuid, {}).pop(duty, None)

    def slow(self, table_uuid: str, why: str) -> None:
        """Say why a table's rounds are slowed down; empty if they are not."""
        with self._lock:
            self._slowed[table_uuid] = why

    def spend(self, table_uuid: str, percent: float) -> None:
        """Tell the percentage of the last hour that a table's compactions took."""
        with self._lock:
            self._spent[table_uuid] = percent

    def count_deleted(self, table_uuid: str, rows: int, deleted: int) -> None:
        """Note how many rows of a table's data files are deleted."""
        with self._lock:
            self._deleted[table_uuid] = deleted / rows if rows else 0.0

    def deleted_share(self, table_uuid: str) -> float:
        """The share of deleted rows in a table's data files, as last counted."""
        with self._lock:
            return self._deleted.get(table_uuid, 0.0)

    def of(self, table_uuid: str) -> dict[str, Debt]:
        """The known debts of a table, by duty."""
        with self._lock:
            return dict(self._debts.get(table_uuid, {}))

    def keep_only(self, table_uuids: Iterable[str]) -> None:
        """Forget dropped tables."""
        known = set(table_uuids)
        with self._lock:
            self._debts = {uuid: debts for uuid, debts in self._debts.items() if uuid in known}
            self._slowed = {uuid: why for uuid, why in self._slowed.items() if uuid in known}
            self._spent = {uuid: percent for uuid, percent in self._spent.items() if uuid in known}
            self._deleted = {uuid: share for uuid, share in self._deleted.items() if uuid in known}

    def messages(self) -> list[TableUpkeep]:
        """The debts as the server is told them."""
        with self._lock:
            return [
                TableUpkeep(
                    table_uuid=uuid,
                    slowed=self._slowed.get(uuid, ""),
                    spent_percent=self._spent.get(uuid, 0.0),
                    debts=[UpkeepDebt(duty=each.duty, count=each.count, note=each.note) for each in debts.values()],
                )
                for uuid, debts in self._debts.items()
            ]
