"""Commits to tables of the catalog: checked, written as new metadata, and made current by a pointer move.

Optimistic: read the pointer, apply the request to its metadata, write the new file, compare-and-set the pointer. A lost
race starts again from the new pointer, including the requirements. Several tables commit all or nothing, because their
pointers move in one journal record.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakestore.errors import Conflict, Invalid, LakestoreError
from lakestore.evolution import Step
from lakestore.iceberg.manifest_lists import write_list
from lakestore.model.table import Table
from lakestore_server.catalog import engine_alterations, gate, locations, metadata, metadata_updates, our_tables
from lakestore_server.catalog.contents import Contents, Name
from lakestore_server.catalog.errors import Forbidden, NoSuchTable
from lakestore_server.catalog.ledger import Ledger
from lakestore_server.catalog.metadata_store import MetadataStore, StoredMetadata
from lakestore_server.catalog.outside_tables import OutsideTables, is_outside
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import CatalogChange, CatalogStep, Pointer, SetPointer

_COUNTS = {
    "total-records": "deleted-records",
    "total-data-files": "deleted-data-files",
    "total-delete-files": "removed-delete-files",
    "total-position-deletes": "removed-position-deletes",
    "total-equality-deletes": "removed-equality-deletes",
    "total-files-size": "removed-files-size",
}
"""A summary's totals, and the keys under which a snapshot reports what it removed."""


@dataclass(frozen=True, slots=True)
class EmptySnapshot:
    """A snapshot without rows on top of a document's main."""

    number: int
    doc: Json
    manifest_list: str
    data: bytes
    """The empty manifest list."""


def truncated_snapshot(doc: Json, location: str, number: int, now_ms: int, name: str) -> EmptySnapshot:
    """The metadata at `location` with an empty snapshot `number`; `name` is unused so far."""
    main = metadata.snapshot_of(doc, metadata.main_of(doc)) or {}
    sequence, time_ms = doc["last-sequence-number"] + 1, max(now_ms, doc["last-updated-ms"] + 1)
    place = f"{doc['location']}/metadata/snap-{number}-1-{name}.avro"
    had = main.get("summary") or {}
    snapshot: Json = {
        "snapshot-id": number,
        **({"parent-snapshot-id": main["snapshot-id"]} if main else {}),
        "sequence-number": sequence,
        "timestamp-ms": time_ms,
        "manifest-list": place,
        "summary": {
            "operation": "delete",
            "lakestore.truncate": "true",
            **{gone: str(had[total]) for total, gone in _COUNTS.items() if str(had.get(total, "0")) != "0"},
            **dict.fromkeys(_COUNTS, "0"),
        },
        "schema-id": doc["current-schema-id"],
    }
    first_row_id = None
    if doc["format-version"] >= 3:
        first_row_id = doc["next-row-id"]
        snapshot |= {"first-row-id": first_row_id, "added-rows": 0}
    data = write_list(
        (),
        format_version=doc["format-version"],
        snapshot_id=number,
        parent_id=main.get("snapshot-id"),
        sequence=sequence,
        first_row_id=first_row_id,
    )
    updates: list[Json] = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": metadata.MAIN, "type": "branch", "snapshot-id": number},
        {"action": "set-snapshot-ref", "ref-name": gate.TIER_TAG, "type": "tag", "snapshot-id": number},
    ]
    made = metadata_updates.updated(doc, updates, now_ms=time_ms, base_location=location)
    return EmptySnapshot(number, made, place, data)


ASSERT_CREATE = "assert-create"


def creates(requirements: Sequence[Json]) -> bool:
    """Whether the request creates the table."""
    return any(each.get("type") == ASSERT_CREATE for each in requirements)


def check_requirements(requirements: Sequence[Json], base: Json | None) -> None:
    """`Conflict` for the first requirement that the table does not meet; `Invalid` for a malformed one."""
    for requirement in requirements:
        kind = requirement.get("type")
        checker = _CHECKS.get(kind) if isinstance(kind, str) else None
        if checker is None:
            raise Invalid(f"requirement {kind!r} is not known")
        try:
            problem = checker(requirement, base)
        except KeyError as error:
            raise Invalid(f"requirement {kind!r} lacks {error}") from error
        except (TypeError, AttributeError) as error:
            raise Invalid(f"requirement {kind!r} is malformed: {error}") from error
        if problem:
            raise Conflict(f"Requirement failed: {problem}")


def _create(requirement: Json, base: Json | None) -> str:
    return "table already exists" if base is not None else ""


def _uuid(requirement: Json, base: Json | None) -> str:
    found = base["table-uuid"] if base else None
    wanted = requirement["uuid"]
    if found is not None and str(found).lower() == str(wanted).lower():
        return ""
    return f"UUID does not match: expected {found} != {wanted}"


def _ref(requirement: Json, base: Json | None) -> str:
    name, wanted = requirement["ref"], requirement.get("snapshot-id")
    found = ((base or {}).get("refs") or {}).get(name, {}).get("snapshot-id")
    if found == wanted:
        return ""
    if wanted is None:
        return f"branch or tag {name} was created concurrently"
    if found is None:
        return f"branch or tag {name} is missing, expected {wanted}"
    return f"branch or tag {name} has changed: expected id {wanted} != {found}"


def _same(field: str, asked: str, what: str) -> Callable[[Json, Json | None], str]:
    def checker(requirement: Json, base: Json | None) -> str:
        found = base[field] if base else None
        wanted = requirement[asked]
        return "" if found == wanted else f"{what} changed: expected id {wanted} != {found}"

    return checker


_CHECKS: dict[str, Callable[[Json, Json | None], str]] = {
    ASSERT_CREATE: _create,
    "assert-table-uuid": _uuid,
    "assert-ref-snapshot-id": _ref,
    "assert-last-assigned-field-id": _same("last-column-id", "last-assigned-field-id", "last assigned field id"),
    "assert-current-schema-id": _same("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": _same(
        "last-partition-id", "last-assigned-partition-id", "last assigned partition id"
    ),
    "assert-default-spec-id": _same("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": _same("default-sort-order-id", "default-sort-order-id", "default sort order"),
}


class OldMetadata:
    """Metadata files to remove. Thread-safe."""

    def __init__(self, ledger: Ledger, store: MetadataStore) -> None:
        self._ledger, self._store = ledger, store
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._looked: set[str] = set()

    def discard(self, places: Iterable[str]) -> None:
        """Remove these files and earlier ones unless a read holds them; held files wait for the next call."""
        with self._lock:
            self._waiting.update(places)
            free = {place for place in self._waiting if not self._ledger.holds_metadata(place)}
            self._waiting -= free
        for place in free:
            self._store.discard(place)

    def look_once(self, current: StoredMetadata) -> None:
        """Once for each of our tables: discard the files that its current metadata does not know."""
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


COMMIT_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class TableChange:
    """A client's request to one table: requirements on its metadata, and updates."""

    name: Name
    requirements: Sequence[Json]
    updates: Sequence[Json]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One table's part of a commit, written but not yet named by a pointer."""

    stored: StoredMetadata
    step: SetPointer | None = None
    moves_main: bool = False
    obsolete: tuple[str, ...] = ()
    erasure: str = ""
    """The erasure whose rows the table, a log table, loses by the commit."""


@dataclass(frozen=True, slots=True)
class TruncatedSnapshot:
    """The lake's part of a truncate, written but not yet named by a pointer."""

    step: SetPointer
    """Without the tier record, which the commit adds."""
    snapshot_id: int
    """The empty snapshot."""
    before: int | None
    """Main's snapshot before; None if there was none."""
    manifest_list: str
    obsolete: tuple[str, ...]


class Commits:
    """The commits of one catalog, from request to ledger. Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        store: MetadataStore,
        contents: Contents,
        *,
        now_ms: Callable[[], int],
        new_uuid: Callable[[], str],
        timeline: str,
        outside: OutsideTables,
    ) -> None:
        self._ledger, self._store, self._contents, self._outside = ledger, store, contents, outside
        self._now_ms, self._new_uuid, self._timeline = now_ms, new_uuid, timeline
        self._old = OldMetadata(ledger, store)
        self.ahead: Mapping[str, str] = {}
        """Uuids of our tables that refuse commits from outside, with the reason."""

    def attempts(self, changes: Sequence[TableChange], key: str, *, trusted: bool) -> list[StoredMetadata]:
        """Commit to one or more tables, all or nothing; returns their new metadata. The gate accepts `trusted`
        changes."""
        tables = [self._own_table(change) for change in changes]
        if any(map(is_outside, tables)):
            if len(changes) > 1:
                raise Forbidden("a commit over several tables cannot take in one that lives in an outside catalog")
            assert tables[0] is not None
            return [self._sent(changes[0], tables[0], trusted=trusted)]
        for _ in range(COMMIT_ATTEMPTS_MAX):
            plans: list[_Plan] = []
            try:
                plans.extend(self._planned(change, trusted=trusted) for change in changes)
            except LakestoreError:
                self._discard(plans)
                raise
            try:
                return self._finish(plans, key)
            except Conflict:
                continue
        raise Conflict(f"{changes[0].name} changes faster than this commit can follow: try again")

    def _own_table(self, change: TableChange) -> Table | None:
        name, _ = self._contents.resolved(change.name)
        return self._ledger.own_table(name.namespace, name.table)

    def _sent(self, change: TableChange, table: Table, *, trusted: bool) -> StoredMetadata:
        """Commit to a table in an outside catalog: judged here, made there, then journaled."""
        name, version = self._contents.resolved(change.name)
        why = ""
        with self._outside.turn(table) as catalog:
            for _ in range(COMMIT_ATTEMPTS_MAX):
                base = self._outside.synced(catalog, table, lambda: self._knowledge(table))
                if _is_applied(base.doc, change.updates):
                    return base
                check_requirements(change.requirements, self._contents.seen_as(base, version).doc)
                doc, _ = self._changed(change, version, base, table, trusted=trusted)
                if doc is base.doc:
                    return base
                doc = {**doc, "properties": our_tables.stored_properties(doc["properties"], self._timeline)}
                try:
                    stored = self._outside.send(catalog, table, base, doc, self._knowledge(table))
                except Conflict as error:
                    why = error.message
                    continue
                self._old.discard(_obsolete(base, stored.doc))
                self._old.look_once(stored)
                return stored
        raise Conflict(f"{name} changes faster at its catalog than this commit can follow, try again: {why}")

    def look_outside(self, table: Table) -> None:
        """Adopt what others committed to a table at its outside catalog."""
        self._outside.look(table, lambda: self._knowledge(table))

    def alters_columns(self, change: TableChange) -> bool:
        """Whether another engine changes the columns of a table with a contract, and nothing else."""
        name, version = self._contents.resolved(change.name)
        table = self._ledger.own_table(name.namespace, name.table)
        has_contract = table is not None and table.contract is not None and not is_outside(table)
        return has_contract and version is None and engine_alterations.is_about_columns(change.updates)

    def alteration(self, change: TableChange) -> tuple[Table, list[Step]]:
        """The table whose columns a change is about, and the steps of the change."""
        name = change.name
        table = self._ledger.own_table(name.namespace, name.table)
        if table is None:
            raise NoSuchTable(f"Table does not exist: {name}")
        base = self._contents.current(name, self._contents.pointer(name))
        check_requirements(change.requirements, base.doc)
        doc = metadata_updates.updated(base.doc, change.updates, now_ms=self._now_ms(), base_location=base.location)
        return table, engine_alterations.steps_of(table, base.doc, doc)

    def create(self, name: Name, doc: Json, key: str) -> StoredMetadata:
        """Create a table with its first metadata; `Conflict` if another creation came first."""
        return self._finish((self._written(name, None, doc),), key)[0]

    def write_truncated(self, table: Table) -> TruncatedSnapshot:
        """Metadata of one of our tables without rows, written but not yet named."""
        name = Name(table.namespace, table.short_name)
        base = self._contents.current(name, self._contents.pointer(name))
        main = metadata.main_of(base.doc)
        number, unique = secrets.randbits(62) + 1, self._new_uuid()
        made = truncated_snapshot(base.doc, base.location, number, self._now_ms(), unique)
        self._store.put(made.manifest_list, made.data)
        plan = self._written(name, base, made.doc)
        assert plan.step is not None
        return TruncatedSnapshot(plan.step, number, main, made.manifest_list, plan.obsolete)

    def settled(self, made: TruncatedSnapshot, *, done: bool) -> None:
        """Remove leftovers of a truncate: the files of a refused one, or metadata that left the log."""
        if done:
            self._old.discard(made.obsolete)
            return
        self._store.discard(made.step.pointer.location)
        self._store.discard(made.manifest_list)

    def saved(self, doc: Json, base: StoredMetadata | None) -> StoredMetadata:
        """Metadata written durably as a new file that no pointer names yet."""
        return self._store.save(self._place(doc, base), doc)

    def journal(self, *steps: CatalogStep, key: str) -> None:
        self._ledger.commit(CatalogChange(steps, idempotency_key=key))

    def _planned(self, change: TableChange, *, trusted: bool) -> _Plan:
        name, version = self._contents.resolved(change.name)
        pointer = self._ledger.pointers(name.namespace).get(name.table)
        if pointer is None:
            return self._planned_create(change)
        base = self._contents.current(name, pointer)
        # Before the requirements: a client that repeats a commit after a lost answer still requires the state before
        # it.
        if _is_applied(base.doc, change.updates):
            return _Plan(base)
        check_requirements(change.requirements, self._contents.seen_as(base, version).doc)
        table = self._ledger.own_table(name.namespace, name.table)
        doc, verdict = self._changed(change, version, base, table, trusted=trusted)
        if doc is base.doc:
            return _Plan(base)
        if table is None:
            self._contents.check_free(name, base.doc, doc)
        return self._written(name, base, doc, verdict)

    def _changed(
        self, change: TableChange, version: Table | None, base: StoredMetadata, table: Table | None, *, trusted: bool
    ) -> tuple[Json, gate.Verdict | None]:
        """The document after a change, and the gate's verdict on it. The same document if nothing changes."""
        is_foreign = version is None
        known = self._knowledge(table, is_foreign=is_foreign) if table is not None and not trusted else None
        if table is not None and known is not None and table.uuid in self.ahead:
            raise Forbidden(self.ahead[table.uuid])
        updates = _versioned(base.doc, change.updates, version, known) if known else change.updates
        now = self._now_ms()
        doc = metadata_updates.updated(base.doc, updates, now_ms=now, base_location=base.location)
        if doc is base.doc:
            return doc, None
        landed = gate.staged_for(base.doc, doc, known) if known else None
        if landed:
            updates = [*updates, {"action": "remove-snapshots", "snapshot-ids": sorted(landed)}]
            doc = metadata_updates.updated(base.doc, updates, now_ms=now, base_location=base.location)
        return doc, gate.judge(table, base.doc, doc, known) if table is not None and known is not None else None

    def _planned_create(self, change: TableChange) -> _Plan:
        locations.check_name(change.name.table)
        self._contents.namespace(change.name.namespace)
        if not creates(change.requirements):
            raise NoSuchTable(f"Table does not exist: {change.name}")
        self._contents.check_absent(change.name)
        check_requirements(change.requirements, None)
        now = self._now_ms()
        doc = metadata_updates.updated(
            metadata.empty(self._new_uuid(), 0, _first_format(change.updates)),
            change.updates,
            now_ms=now,
            base_location=None,
        )
        if not doc["location"]:
            raise Invalid(f"the commit that creates {change.name} sets no schema and no location")
        self._contents.check_free(change.name, None, doc)
        return self._written(change.name, None, doc)

    def _written(
        self, name: Name, base: StoredMetadata | None, doc: Json, verdict: gate.Verdict | None = None
    ) -> _Plan:
        own = self._ledger.own_table(name.namespace, name.table) is not None
        if own:
            doc = {**doc, "properties": our_tables.stored_properties(doc["properties"], self._timeline)}
        stored = self.saved(doc, base)
        step = SetPointer(
            name.namespace,
            name.table,
            base.location if base else None,
            Pointer(stored.location, doc["table-uuid"]),
            tiers=verdict.tiers if verdict else (),
            forget=verdict.forget if verdict else (),
        )
        moves = metadata.main_of(doc) != (metadata.main_of(base.doc) if base else None)
        wanted = own or doc["properties"].get(metadata.DELETE_AFTER_COMMIT, "").lower() == "true"
        return _Plan(stored, step, moves, _obsolete(base, doc) if wanted else (), verdict.erasure if verdict else "")

    def _finish(self, plans: Sequence[_Plan], key: str) -> list[StoredMetadata]:
        """Journal the plans' steps. Files of a refused change are removed; obsolete files are removed after a
        change."""
        steps = [plan.step for plan in plans if plan.step is not None]
        if steps:
            try:
                if any(plan.moves_main for plan in plans):
                    self._store.sync_warehouse()
                erasures = [plan.erasure for plan in plans if plan.erasure]
                self._ledger.commit(CatalogChange(tuple(steps), idempotency_key=key), erasures)
            except LakestoreError as error:
                # After an unknown outcome the files stay: a pointer may name them after the next start.
                if error.applied == "no":
                    self._discard(plans)
                raise
        self._old.discard(place for plan in plans for place in plan.obsolete)
        for plan in plans:
            if plan.step is not None and self._ledger.own_table(plan.step.namespace, plan.step.name) is not None:
                self._old.look_once(plan.stored)
        return [plan.stored for plan in plans]

    def _discard(self, plans: Sequence[_Plan]) -> None:
        for plan in plans:
            if plan.step is not None:
                self._store.discard(plan.stored.location)

    def _knowledge(self, table: Table, *, is_foreign: bool = False) -> gate.Knowledge:
        erasure, erased = self._ledger.dying_rows(table.uuid)
        return gate.Knowledge(
            records=self._ledger.tier_records(table.uuid),
            epoch=self._ledger.tierer_epoch(),
            pinned=self._ledger.pinned_snapshots(table.uuid),
            live_sums_at=lambda point: self._ledger.live_sums_at(table.uuid, point),
            live_rows_at=lambda point: self._ledger.live_rows_at(table.uuid, point),
            versions={version.schema_id: version for version in self._ledger.versions(table.uuid)},
            is_foreign=is_foreign,
            erasure=erasure,
            erased=erased,
        )

    def _place(self, doc: Json, base: StoredMetadata | None) -> str:
        version = 0
        if base is not None:
            number = base.location.rsplit("/", 1)[-1].split("-", 1)[0]
            version = int(number) + 1 if number.isdecimal() else 1
        return f"{doc['location']}/metadata/{version:05d}-{self._new_uuid()}.metadata.json"


def _versioned(base: Json, updates: Sequence[Json], version: Table | None, known: gate.Knowledge) -> Sequence[Json]:
    """The client's updates, with the schema and partition spec of its rows and its landing, which it leaves to the
    catalog. So both move in the commit of the first rows that need them, with the definition's field ids."""
    used = our_tables.version_updates(version, base) if version else []
    used = [each for each in used if each["action"] in ("add-schema", "add-spec")]
    landing = gate.landing(updates, known.versions)
    if landing is None:
        return [*used, *updates]
    if landing.schema_id == gate.schema_id_of(base, known.records):
        return [*used, *updates, *our_tables.layout_updates(landing, base), our_tables.option_updates(landing)]
    return [*used, *updates, *our_tables.version_updates(landing, base)]


def _first_format(updates: Sequence[Json]) -> int:
    """The format version with which a commit creates its table: 1 if it asks for that, else 2, which may go up."""
    return 1 if any(each.get("format-version") == 1 for each in updates) else 2


def _is_applied(base: Json, updates: Sequence[Json]) -> bool:
    """Whether this commit was already applied and its answer was lost: all its snapshots are in the table."""
    try:
        wanted = {update["snapshot"]["snapshot-id"] for update in updates if update["action"] == "add-snapshot"}
    except (KeyError, TypeError) as error:
        raise Invalid(f"an update is malformed: {error!r}") from error
    return bool(wanted) and wanted <= metadata.snapshot_ids(base)


def _obsolete(base: StoredMetadata | None, doc: Json) -> tuple[str, ...]:
    if base is None:
        return ()
    kept = {entry["metadata-file"] for entry in doc["metadata-log"]}
    fell = [entry["metadata-file"] for entry in base.doc["metadata-log"] if entry["metadata-file"] not in kept]
    return tuple(place for place in fell if locations.inside(place, doc["location"]))
