"""The catalog's ledger on the journal: pointers and tier records are journal records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakestore.errors import Conflict, Corrupt, LakestoreError, NotFound
from lakestore.model.table import Table
from lakestore_server.catalog import locations, metadata, owners, tables
from lakestore_server.catalog.metadata_store import MetadataStore
from lakestore_server.commit.engine import Engine
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.read.leases import Leases
from lakestore_server.read.plan import usable_tier
from lakestore_server.state import catalog_change
from lakestore_server.state.catalog_change import CatalogChange, Pointer, SqlView, TierRecord
from lakestore_server.state.chunk import Position
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.erasure import Erasure, dead_since
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View


class JournalLedger:
    """The `Ledger` over the engine. Thread-safe: reads use views, changes go through the commit loop."""

    def __init__(self, engine: Engine, leases: Leases, store: MetadataStore | None = None) -> None:
        """`store` has the metadata; without it no reader predates the start."""
        self._engine, self._leases, self._store = engine, leases, store
        self._at_start: dict[str, int] = {}
        """Folder to number of the newest metadata file that a reader from before the start may open."""
        self._truncated: dict[str, str] = {}
        """Table uuid to the metadata at the start, for tables whose earlier snapshots have lost their tier records."""
        self._former: dict[str, frozenset[int]] = {}
        self.begin()

    def begin(self) -> None:
        """Note what readers may hold that another process served: at a start, and when this server begins to lead."""
        view = self._engine.view
        self._leases.begin(view.kept)
        numbered = (locations.numbered(each.location) for each in view.pointers.values())
        uuids = {uuid for uuid, state in view.kept.items() if state.truncated_lsn}
        self._at_start = {folder: number for folder, number in numbered if number is not None}
        self._truncated = {each.uuid: each.location for each in view.pointers.values() if each.uuid in uuids}
        self._former = {}

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        return self._engine.view.namespaces

    def pointers(self, namespace: str) -> Mapping[str, Pointer]:
        return {name: p for (ns, name), p in self._engine.view.pointers.items() if ns == namespace}

    def views(self, namespace: str) -> Mapping[str, SqlView]:
        return {name: view for (ns, name), view in self._engine.view.sql_views.items() if ns == namespace}

    def own_table(self, namespace: str, name: str) -> Table | None:
        view = self._engine.view
        uuid = view.names.get(f"{namespace}.{name}")
        return view.tables[uuid].table if uuid else None

    def tier_records(self, table_uuid: str) -> Mapping[int, TierRecord]:
        state = self._engine.view.tables.get(table_uuid)
        return state.tiers if state else {}

    def live_sums_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> tuple[int, ...] | None:
        found = self._positions(table_uuid, tier_point)
        return None if found is None else tuple(position.live_sum for position in found)

    def live_rows_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> int | None:
        found = self._positions(table_uuid, tier_point)
        return None if found is None else sum(position.live_rows for position in found)

    def _positions(self, table_uuid: str, tier_point: tuple[int, ...]) -> list[Position] | None:
        state = self._engine.view.tables.get(table_uuid)
        if state is None or len(tier_point) != len(state.logs):
            return None
        found = [log.at_end(end) for log, end in zip(state.logs, tier_point, strict=True)]
        known = [entry for entry in found if entry is not None]
        if len(known) != len(found):
            return None
        lsn = max((lsn for lsn, _ in known), default=0)
        if any(log.at_lsn(lsn).end != end for log, end in zip(state.logs, tier_point, strict=True)):
            return None
        return [position for _, position in known]

    def dying_rows(self, table_uuid: str) -> tuple[str, tuple[Position, ...]]:
        view = self._engine.view
        part = view.dying(table_uuid)
        if part is None:
            return "", ()
        held = view.erasing(table_uuid)
        return held.id if held else "", tuple(part.lost(0))

    def versions(self, table_uuid: str) -> tuple[Table, ...]:
        state = self._engine.view.tables.get(table_uuid)
        return state.versions.tables if state else ()

    def tierer_epoch(self) -> int:
        return self._engine.view.tierer_epoch

    def pinned_snapshots(self, table_uuid: str) -> frozenset[int]:
        state = self._engine.view.tables.get(table_uuid)
        own = self._leases.pinned(table_uuid) | self._before_truncate(table_uuid)
        return own | (self._of_cuts(state) if state else frozenset())

    def _before_truncate(self, table_uuid: str) -> frozenset[int]:
        """The snapshots of a truncated table that readers from before the start may use: all of them. `Unavailable` if
        the storage does not answer."""
        location = self._truncated.get(table_uuid)
        if location is None or self._store is None or not self._leases.in_grace:
            return frozenset()
        if table_uuid not in self._former:
            try:
                self._former[table_uuid] = frozenset(metadata.snapshot_ids(self._store.load(location).doc))
            except (Corrupt, NotFound):  # a lake that is gone has no snapshot to hold
                self._former[table_uuid] = frozenset()
        return self._former[table_uuid]

    def _of_cuts(self, state: TableState) -> frozenset[int]:
        """The snapshots from which a table is read at leased cuts."""
        begin = max(state.created_lsn, state.log_start_lsn)
        cuts = self._leases.cuts(state.table.uuid)
        found = [usable_tier(state, cut, self._leases) for cut in cuts if cut >= begin]
        before = [
            (self._leases.pre_truncate.at(state.table.uuid, cut), cut) for cut in cuts if cut < state.truncated_lsn
        ]
        found += [usable_tier(each, cut, self._leases) for each, cut in before if each is not None]
        return frozenset(tier.snapshot_id for tier in found if tier is not None)

    def holds_metadata(self, location: str) -> bool:
        return self.holds_from_before(location) or self._leases.holds_metadata(location)

    def holds_from_before(self, location: str) -> bool:
        """Whether a metadata file stays for reads whose leases another process granted."""
        folder, number = locations.numbered(location)
        return number is not None and number <= self._at_start.get(folder, -1) and self._leases.in_grace

    def seen(self, idempotency_key: str) -> bool:
        return self._engine.has_idempotency_key(idempotency_key)

    def rename_own(self, table: Table, new_name: str, key: str, outside_letters: str) -> None:
        made = tables.plan(self._engine.limits, table.name, table.uuid, new_name, key, outside_letters)
        owners.decided(self._engine, made)

    def commit(self, change: CatalogChange, erasures: Sequence[str] = ()) -> None:
        retired: list[tuple[str, frozenset[int]]] = []
        """Restored if the change is refused."""

        def plan(state: State, record: CommitRecord) -> None:
            catalog_change.check_change(change, state.view.namespaces, state.view.pointers, state.view.sql_views)
            self._check_still_true(change, state, retired)
            record.catalog.append(change)
            record.erase += [_without_rows(state.view, change, number, record.lsn) for number in erasures]

        self._engine.reach(CrashPoint.CATALOG_READY)
        try:
            self._engine.operate(plan)
        except LakestoreError as error:
            if error.applied == "no":
                for uuid, snapshots in retired:
                    self._leases.keep(uuid, snapshots)
            raise
        self._engine.reach(CrashPoint.CATALOG_COMMITTED)

    def _check_still_true(self, change: CatalogChange, state: State, retired: list[tuple[str, frozenset[int]]]) -> None:
        """`Conflict`, to be judged again, if epoch or leases changed since the verdict."""
        for uuid, added, forgotten in catalog_change.tier_changes(change):
            known = state.view.tables.get(uuid)
            points = {tier.tier_point for tier in known.tiers.values()} if known else set()
            if any(tier.tier_point not in points and tier.epoch != state.view.tierer_epoch for tier in added):
                raise Conflict("another tierer has taken over")
            of_cuts = self._of_cuts(known) if known and forgotten else frozenset[int]()
            if forgotten & of_cuts or (forgotten and not self._leases.retire(uuid, forgotten)):
                raise Conflict("a read has begun on a snapshot that was to expire")
            retired.append((uuid, forgotten))


def _without_rows(view: View, change: CatalogChange, number: str, lsn: int) -> Erasure:
    """The erasure after the commit in which its log table loses the rows. `Conflict` if it is not its turn."""
    for uuid, _, _ in catalog_change.tier_changes(change):
        held = view.erasing(uuid)
        if held is not None and held.id == number and view.dying(uuid) is not None:
            return dead_since(held, uuid, lsn)
    raise Conflict(f"erasure {number} does not wait for the lake")
