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

COMPACTION, DELETE_FILES, MANIFESTS, SNAPSHOTS, ORPHANS = (
    "compaction",
    "delete_files",
    "manifests",
    "snapshots",
    "orphans",
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

    def put(self, table_uuid: str, *debts: Debt) -> None:
        """Replace the debts of these duties."""
        with self._lock:
            self._debts.setdefault(table_uuid, {}).update({debt.duty: debt for debt in debts})

    def slow(self, table_uuid: str, why: str) -> None:
        """Say why a table's rounds are slowed down; empty if they are not."""
        with self._lock:
            self._slowed[table_uuid] = why

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

    def messages(self) -> list[TableUpkeep]:
        """The debts as the server is told them."""
        with self._lock:
            return [
                TableUpkeep(
                    table_uuid=uuid,
                    slowed=self._slowed.get(uuid, ""),
                    debts=[UpkeepDebt(duty=each.duty, count=each.count, note=each.note) for each in debts.values()],
                )
                for uuid, debts in self._debts.items()
            ]
