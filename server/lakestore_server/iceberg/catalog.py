"""The catalog's verbs over a ledger and a store.

Optimistic: read the pointer, apply the request to the metadata it names, write the new file, compare-and-set the
pointer. A lost race starts again from the pointer as it is now, requirements included. Verbs block and are
thread-safe.
"""

from __future__ import annotations

import time
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound
from lakestore.model import names
from lakestore.model.table import Table
from lakestore_server.iceberg import gate, locations, metadata, our_tables, requirements
from lakestore_server.iceberg.errors import AlreadyExists, Forbidden, NamespaceNotEmpty, NoSuchNamespace, NoSuchTable
from lakestore_server.iceberg.ledger import Ledger
from lakestore_server.iceberg.metadata_store import Store, Stored
from lakestore_server.iceberg.schemas import Json
from lakestore_server.state.catalog_change import (
    CatalogChange,
    CatalogStep,
    DropNamespace,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
)

TIMELINE_PROPERTY = "lakestore.timeline"
"""Of our tables' metadata: the history that wrote it."""
COMMIT_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name in the catalog."""

    namespace: str
    table: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}"


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a client asks of one table."""

    name: Name
    requirements: Sequence[Json]
    updates: Sequence[Json]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One table's share of a commit, written but not yet named by a pointer."""

    stored: Stored
    step: SetPointer | None = None
    moves_main: bool = False
    obsolete: tuple[str, ...] = ()


class Catalog:
    """Namespaces and tables."""

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        warehouse_uri: str,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_uuid: Callable[[], str] = lambda: str(uuids.uuid4()),
        timeline: str = "",
    ) -> None:
        self._timeline = timeline
        self.ahead: Mapping[str, str] = {}
        """Uuids of our tables that take no commit from outside, and why."""
        self.warehouse = warehouse_uri.rstrip("/")
        self._ledger = ledger
        self._store = store
        self._now_ms = now_ms
        self._new_uuid = new_uuid
        self.commits = 0
        """Since the start."""
        self.refusals: Counter[str] = Counter()
        """Commits that were refused, by the error's name."""

    # Namespaces.

    def namespaces(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._ledger.namespaces())

    def namespace(self, name: str) -> Mapping[str, str]:
        """A namespace's properties."""
        found = self._ledger.namespaces().get(name)
        if found is None:
            raise NoSuchNamespace(f"Namespace does not exist: {name}")
        return found

    def create_namespace(self, name: str, properties: Mapping[str, str], key: str = "") -> None:
        """Create a namespace."""
        locations.check_name(name)
        if self._seen(key):
            return
        if name in self._ledger.namespaces():
            raise AlreadyExists(f"Namespace already exists: {name}")
        self._commit(SetNamespace(name, dict(properties)), key=key)

    def update_namespace(self, name: str, removals: Sequence[str], updates: Mapping[str, str], key: str = "") -> Json:
        """Change properties; which were updated, removed and missing."""
        before = self.namespace(name)
        kept = {prop: value for prop, value in before.items() if prop not in set(removals)}
        if not self._seen(key):
            self._commit(SetNamespace(name, {**kept, **updates}), key=key)
        return {
            "updated": sorted(updates),
            "removed": [prop for prop in removals if prop in before],
            "missing": [prop for prop in removals if prop not in before],
        }

    def drop_namespace(self, name: str, key: str = "") -> None:
        """Drop an empty namespace."""
        if self._seen(key):
            return
        self.namespace(name)
        if self._ledger.pointers(name):
            raise NamespaceNotEmpty(f"Namespace {name} is not empty")
        self._commit(DropNamespace(name), key=key)

    # Tables.

    def tables(self, namespace: str) -> list[str]:
        """The names of a namespace's tables, sorted."""
        self.namespace(namespace)
        return sorted(self._ledger.pointers(namespace))

    def load(self, name: Name) -> Stored:
        """A table's current metadata. `orders$3` is our table `orders` with the schema of its version 3."""
        base, version = self._resolved(name)
        return self._seen_as(self._current(base, self._pointer(base)), version)

    def create_own(self, table: Table) -> SetPointer:
        """Write the first metadata of one of our tables, durable; the step that the server journals with the table."""
        doc = our_tables.first_metadata(table, self.warehouse, self._now_ms())
        stored = self._store.save(self._place(doc, None), doc)
        return SetPointer(table.namespace, table.short_name, None, Pointer(stored.location, table.uuid))

    def pin(self, table: Table, tag: str, snapshot_id: int | None) -> Stored:
        """Set the tag `lakestore-pin-<tag>` of one of our tables, or remove it: foreign expiry skips what it names."""
        ref = gate.PIN_PREFIX + tag
        update: Json = {"action": "remove-snapshot-ref", "ref-name": ref}
        if snapshot_id is not None:
            update = {"action": "set-snapshot-ref", "ref-name": ref, "type": "tag", "snapshot-id": snapshot_id}
        change = TableChange(Name(table.namespace, table.short_name), (), (update,))
        return self._attempts((change,), "", trusted=True)[0]

    def create_table(self, namespace: str, request: Json, key: str = "") -> Stored:
        """Create a table that is not ours; with `stage-create` nothing is stored, and the location is empty."""
        name = Name(namespace, locations.check_name(request.get("name")))
        if self._seen(key):
            return self.load(name)
        self._check_absent(name)
        uuid = self._new_uuid()
        location = request.get("location") or f"{self.warehouse}/{namespace}/{name.table}-{uuid[:8]}"
        doc = metadata.created(
            uuid=uuid,
            location=str(location),
            schema=request.get("schema") or {},
            spec=request.get("partition-spec"),
            order=request.get("write-order"),
            properties=request.get("properties") or {},
            now_ms=self._now_ms(),
        )
        self._check_free(name, None, doc)
        if request.get("stage-create"):
            return Stored("", doc, b"")
        try:
            return self._finish((self._written(name, None, doc),), key)[0]
        except Conflict as error:
            raise AlreadyExists(f"Table already exists: {name}") from error

    def register(self, namespace: str, table: str, location: str, *, overwrite: bool = False, key: str = "") -> Stored:
        """Make a table of a metadata file that is in the warehouse already."""
        name = Name(namespace, locations.check_name(table))
        if self._seen(key):
            return self.load(name)
        if not locations.inside(location, self.warehouse):
            raise Forbidden(f"metadata file {location} must lie inside the warehouse {self.warehouse}")
        if not overwrite:
            self._check_absent(name)
        elif self._ledger.own_table(namespace, table) is not None:
            raise Forbidden(f"{name} is a Lakestore table; drop it with `lake.drop_table('{name}')` first")
        old = self._ledger.pointers(namespace).get(table)
        self.namespace(namespace)
        stored = self._store.load(location)
        self._check_free(name, None, stored.doc)
        pointer = Pointer(location, stored.doc["table-uuid"])
        self._commit(SetPointer(namespace, table, old.location if old else None, pointer), key=key)
        return stored

    def drop_table(self, name: Name, key: str = "") -> None:
        """Drop a table that is not ours; its files stay."""
        if self._seen(key):
            return
        self._pointer(name)
        if self._ledger.own_table(name.namespace, name.table) is not None:
            raise Forbidden(f"{name} is a Lakestore table; drop it with `lake.drop_table('{name}')` instead")
        self._commit(DropPointer(name.namespace, name.table), key=key)

    def rename_table(self, source: Name, target: Name, key: str = "") -> None:
        """Rename a table that is not ours."""
        if self._seen(key):
            return
        locations.check_name(target.table)
        pointer = self._pointer(source)
        if self._ledger.own_table(source.namespace, source.table) is not None:
            raise Forbidden(
                f"{source} is a Lakestore table and cannot be renamed; create another and copy with `lakestore`"
            )
        self._check_absent(target)
        held = SetPointer(source.namespace, source.table, pointer.location, pointer)
        gone = DropPointer(source.namespace, source.table)
        self._commit(held, gone, SetPointer(target.namespace, target.table, None, pointer), key=key)

    def commit(self, changes: Sequence[TableChange], key: str = "") -> list[Stored]:
        """Commit to one or more tables, all or nothing; the metadata they then have."""
        if not changes or len({self._resolved(change.name)[0] for change in changes}) != len(changes):
            raise Invalid("a commit names one or more tables, each of them once")
        if self._seen(key):
            return [self.load(change.name) for change in changes]
        try:
            done = self._attempts(changes, key, trusted=False)
        except LakestoreError as error:
            self.refusals[type(error).__name__] += 1
            raise
        self.commits += 1
        return [self._seen_as(made, self._resolved(change.name)[1]) for made, change in zip(done, changes, strict=True)]

    # How a commit is made.

    def _attempts(self, changes: Sequence[TableChange], key: str, *, trusted: bool) -> list[Stored]:
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

    def _planned(self, change: TableChange, *, trusted: bool) -> _Plan:
        name, version = self._resolved(change.name)
        pointer = self._ledger.pointers(name.namespace).get(name.table)
        if pointer is None:
            return self._planned_create(change)
        base = self._current(name, pointer)
        if _is_applied(base.doc, change.updates):
            return _Plan(base)
        requirements.check(change.requirements, self._seen_as(base, version).doc)
        table = self._ledger.own_table(name.namespace, name.table)
        known = self._knowledge(table) if table is not None and not trusted else None
        if table is not None and known is not None and table.uuid in self.ahead:
            raise Forbidden(self.ahead[table.uuid])
        updates = _versioned(base.doc, change.updates, version, known) if known else change.updates
        doc = metadata.updated(base.doc, updates, now_ms=self._now_ms(), base_location=base.location)
        if doc is base.doc:
            return _Plan(base)
        if table is not None and known is not None:
            return self._written(name, base, doc, gate.judge(table, base.doc, doc, known))
        if table is None:
            self._check_free(name, base.doc, doc)
        return self._written(name, base, doc)

    def _resolved(self, name: Name) -> tuple[Name, Table | None]:
        """The table that a name stands for, and the version if it is one of ours with a version in its name."""
        parted = names.parted(name.table)
        table = self._ledger.own_table(name.namespace, parted[0]) if parted else None
        if parted is None or table is None:
            return name, None
        found = [version for version in self._ledger.versions(table.uuid) if version.schema_id == parted[1]]
        if not found:
            raise NoSuchTable(f"Table does not exist: {name}")
        return Name(name.namespace, parted[0]), found[0]

    def _seen_as(self, stored: Stored, version: Table | None) -> Stored:
        """Metadata as if main had that version of the schema already; nothing of it is stored."""
        if version is None:
            return stored
        updates, now = our_tables.version_updates(version), stored.doc["last-updated-ms"]
        doc = metadata.updated(stored.doc, updates, now_ms=now, base_location=None)
        return stored if doc is stored.doc else Stored(stored.location, doc, b"")

    def _planned_create(self, change: TableChange) -> _Plan:
        """The commit that ends a staged create."""
        locations.check_name(change.name.table)
        self.namespace(change.name.namespace)
        if not requirements.creates(change.requirements):
            raise NoSuchTable(f"Table does not exist: {change.name}")
        self._check_absent(change.name)
        requirements.check(change.requirements, None)
        now = self._now_ms()
        doc = metadata.updated(metadata.empty(self._new_uuid(), now), change.updates, now_ms=now, base_location=None)
        if not doc["location"]:
            raise Invalid(f"the commit that creates {change.name} sets no schema and no location")
        self._check_free(change.name, None, doc)
        return self._written(change.name, None, doc)

    def _written(self, name: Name, base: Stored | None, doc: Json, verdict: gate.Verdict | None = None) -> _Plan:
        if self._timeline and self._ledger.own_table(name.namespace, name.table) is not None:
            doc = {**doc, "properties": {**doc["properties"], TIMELINE_PROPERTY: self._timeline}}
        stored = self._store.save(self._place(doc, base), doc)
        step = SetPointer(
            name.namespace,
            name.table,
            base.location if base else None,
            Pointer(stored.location, doc["table-uuid"]),
            tiers=verdict.tiers if verdict else (),
            forget=verdict.forget if verdict else (),
        )
        moves = metadata.main_of(doc) != (metadata.main_of(base.doc) if base else None)
        return _Plan(stored, step, moves, _obsolete(base, doc))

    def _finish(self, plans: Sequence[_Plan], key: str) -> list[Stored]:
        """Journal the plans' steps; files of a refused change go, files that it made obsolete go after it."""
        steps = [plan.step for plan in plans if plan.step is not None]
        if steps:
            try:
                if any(plan.moves_main for plan in plans):
                    self._store.sync_warehouse()
                self._commit(*steps, key=key)
            except LakestoreError as error:
                if error.applied == "no":
                    self._discard(plans)
                raise
        for plan in plans:
            for location in plan.obsolete:
                self._store.discard(location)
        return [plan.stored for plan in plans]

    def _current(self, name: Name, pointer: Pointer) -> Stored:
        """What the pointer names; should that be removed since, what the pointer names by now."""
        try:
            return self._store.load(pointer.location)
        except NotFound:
            now = self._pointer(name)
            if now == pointer:
                raise
            return self._store.load(now.location)

    def _seen(self, key: str) -> bool:
        return bool(key) and self._ledger.seen(key)

    def _commit(self, *steps: CatalogStep, key: str) -> None:
        self._ledger.commit(CatalogChange(steps, idempotency_key=key))

    def _discard(self, plans: Sequence[_Plan]) -> None:
        for plan in plans:
            if plan.step is not None:
                self._store.discard(plan.stored.location)

    def _knowledge(self, table: Table) -> gate.Knowledge:
        return gate.Knowledge(
            records=self._ledger.tier_records(table.uuid),
            epoch=self._ledger.tierer_epoch(),
            pinned=self._ledger.pinned_snapshots(table.uuid),
            live_sums_at=lambda point: self._ledger.live_sums_at(table.uuid, point),
            live_rows_at=lambda point: self._ledger.live_rows_at(table.uuid, point),
            versions={version.schema_id: version for version in self._ledger.versions(table.uuid)},
        )

    def _place(self, doc: Json, base: Stored | None) -> str:
        """A new metadata file's name, numbered for people; the uuid is what makes it new."""
        version = 0
        if base is not None:
            number = base.location.rsplit("/", 1)[-1].split("-", 1)[0]
            version = int(number) + 1 if number.isdecimal() else 1
        return f"{doc['location']}/metadata/{version:05d}-{self._new_uuid()}.metadata.json"

    def _pointer(self, name: Name) -> Pointer:
        found = self._ledger.pointers(name.namespace).get(name.table)
        if found is None:
            raise NoSuchTable(f"Table does not exist: {name}")
        return found

    def _check_absent(self, name: Name) -> None:
        self.namespace(name.namespace)
        taken = name.table in self._ledger.pointers(name.namespace) or self._resolved(name)[1] is not None
        if taken or self._ledger.own_table(name.namespace, name.table) is not None:
            raise AlreadyExists(f"Table already exists: {name}")

    def _check_free(self, name: Name, old: Json | None, new: Json) -> None:
        """What a table that is not ours may say of places and properties."""
        locations.check_table(new, self.warehouse)
        if old is None or locations.folders(old) != locations.folders(new):
            locations.check_free(new, self._others(name))

    def _others(self, name: Name) -> Iterator[str]:
        for namespace in self._ledger.namespaces():
            for table, pointer in self._ledger.pointers(namespace).items():
                if Name(namespace, table) != name:
                    yield pointer.location


def _versioned(base: Json, updates: Sequence[Json], version: Table | None, known: gate.Knowledge) -> Sequence[Json]:
    """The updates with what the client leaves to the catalog: the schema that they were made with, and its landing.

    So the schema moves in the very commit of the first rows that need it, with the field ids of the definition.
    """
    used = our_tables.version_updates(version)[:1] if version else []
    landing = gate.landing(updates, known.versions)
    if landing is None or landing.schema_id == gate.schema_id_of(base, known.records):
        return [*used, *updates, *([our_tables.option_updates(landing)] if landing else [])]
    return [*used, *updates, *our_tables.version_updates(landing)]


def _is_applied(base: Json, updates: Sequence[Json]) -> bool:
    """Whether this commit happened already and only its answer was lost: its snapshots are all here."""
    try:
        wanted = {update["snapshot"]["snapshot-id"] for update in updates if update["action"] == "add-snapshot"}
    except (KeyError, TypeError) as error:
        raise Invalid(f"an update is malformed: {error!r}") from error
    return bool(wanted) and wanted <= metadata.snapshot_ids(base)


def _obsolete(base: Stored | None, doc: Json) -> tuple[str, ...]:
    """Metadata files that fell out of the log, if the table wants them removed."""
    if base is None or doc["properties"].get(metadata.DELETE_AFTER_COMMIT, "").lower() != "true":
        return ()
    kept = {entry["metadata-file"] for entry in doc["metadata-log"]}
    fell = [entry["metadata-file"] for entry in base.doc["metadata-log"] if entry["metadata-file"] not in kept]
    return tuple(place for place in fell if locations.inside(place, doc["location"]))
