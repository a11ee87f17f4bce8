"""The catalog's verbs over a ledger and a store. Verbs block and are thread-safe.

A verb with an idempotency key is done once; a repetition is answered from the present state.
"""

from __future__ import annotations

import logging
import time
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from lakestore.errors import Conflict, Corrupt, Invalid, LakestoreError, NotFound
from lakestore.evolution import to_json
from lakestore.model import dead_letter_table
from lakestore.model.table import Table, refuse_system_database
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import foreign_history, gate, locations, metadata_updates, our_tables
from lakestore_server.catalog.commits import Commits, TableChange, TruncatedSnapshot
from lakestore_server.catalog.contents import Contents, Name
from lakestore_server.catalog.errors import AlreadyExists, Forbidden, NamespaceNotEmpty
from lakestore_server.catalog.ledger import Ledger
from lakestore_server.catalog.metadata_store import MetadataStore, StoredMetadata
from lakestore_server.catalog.outside_tables import OutsideCatalogs, OutsideTables, is_outside
from lakestore_server.catalog.owners import CALLER
from lakestore_server.catalog.schemas import Json
from lakestore_server.catalog.views import SqlViews
from lakestore_server.host.clock import RealClock
from lakestore_server.state import catalog_change
from lakestore_server.state.catalog_change import (
    DROPPED,
    CatalogChange,
    CatalogStep,
    DropNamespace,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
)
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.view import TableState, View

Key = tuple[str, str]
"""Namespace and name of a pointer."""


def add_steps(view: View, record: CommitRecord, *steps: CatalogStep, key: str = "") -> None:
    """Add steps to a commit; `Conflict` if one does not fit the present state."""
    change = CatalogChange(steps, key)
    catalog_change.check_change(change, view.namespaces, view.pointers, view.sql_views)
    record.catalog.append(change)


def move_pointer(view: View, record: CommitRecord, source: Key, target: Key, key: str = "") -> None:
    """Rename a table's pointer, if it has one."""
    pointer = view.pointers.get(source)
    steps: list[CatalogStep] = []
    if target[0] != DROPPED and target[0] not in view.namespaces:
        steps.append(SetNamespace(target[0]))
    if pointer is not None:
        steps += [DropPointer(*source), SetPointer(*target, None, pointer)]
    if steps or key:
        add_steps(view, record, *steps, key=key)


log = logging.getLogger("lakestore.catalog")


@dataclass(frozen=True, slots=True)
class TierProblem:
    """The tierer's report on a table whose last rounds failed."""

    problem: str
    """The last error, as a sentence."""
    failures: int
    """Failed rounds in a row."""


@dataclass(frozen=True, slots=True)
class RunningRound:
    """The tierer's report on a round that runs."""

    step: str
    changes: int
    """Offsets that the round takes; 0 before its plan."""
    tasks: int
    """Tasks of its Spark job; 0 without one."""
    tasks_done: int
    began: float
    """Seconds of the monotonic clock."""
    until: float
    """When the tierer's epoch ends unless it is renewed: a silent tierer may be dead."""


@dataclass(frozen=True, slots=True)
class UpkeepDebt:
    """The debt of one duty of a table's upkeep, as the tierer reports it."""

    duty: str
    count: int
    note: str
    """The next step, or the reason why a run would not help."""


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """The tierer's report on the upkeep of a table."""

    debts: tuple[UpkeepDebt, ...]
    slowed: str
    """Why rounds are slowed down; empty if they are not."""
    spent_percent: float = 0.0
    """Percent of the last hour that compactions of the table took."""


class Catalog:
    """Namespaces and tables, ours and foreign ones."""

    def __init__(
        self,
        ledger: Ledger,
        store: MetadataStore,
        warehouse_uri: str,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_uuid: Callable[[], str] = lambda: str(uuids.uuid4()),
        timeline: str = "",
        outside: OutsideCatalogs | None = None,
    ) -> None:
        self.warehouse = warehouse_uri.rstrip("/")
        self.ledger, self._store = ledger, store
        self._now_ms, self._new_uuid, self.timeline = now_ms, new_uuid, timeline
        self._contents = Contents(ledger, store, self.warehouse, now_ms)
        self.outside = OutsideTables(
            outside or OutsideCatalogs((), RealClock()), ledger, store, self._contents, timeline
        )
        self._commits = Commits(
            ledger,
            store,
            self._contents,
            now_ms=now_ms,
            new_uuid=new_uuid,
            timeline=timeline,
            outside=self.outside,
        )
        self.views = SqlViews(ledger, store, self._contents, self.warehouse, now_ms=now_ms, new_uuid=new_uuid)
        """The verbs of SQL views."""
        self.alter_table: Callable[[pb.AlterTableRequest], pb.TableInfo] | None = None
        """The verb of alterations, which an engine's ALTER TABLE uses; None in tests of the catalog alone."""
        self.commits = 0
        """Commits since the start."""
        self.refusals: Counter[str] = Counter()
        """Refused commits by the error's name."""
        self.tier_problems: Mapping[str, TierProblem] = {}
        """Table uuid to the tierer's last reported problem."""
        self.running_rounds: Mapping[str, RunningRound] = {}
        """Table uuid to its running round, as the tierer last reported."""
        self.table_upkeep: Mapping[str, TableUpkeep] = {}
        """Table uuid to the tierer's last report on its upkeep."""

    @property
    def ahead(self) -> Mapping[str, str]:
        """Uuids of our tables that refuse commits from outside, with the reason."""
        return self._commits.ahead

    @ahead.setter
    def ahead(self, found: Mapping[str, str]) -> None:
        """Refuse commits from outside to these tables."""
        self._commits.ahead = found

    def namespaces(self) -> list[str]:
        return sorted(self.ledger.namespaces())

    def namespace(self, name: str) -> Mapping[str, str]:
        """A namespace's properties, or `NoSuchNamespace`."""
        return self._contents.namespace(name)

    def create_namespace(self, name: str, properties: Mapping[str, str], key: str = "") -> None:
        locations.check_namespace(name)
        refuse_system_database(name)
        locations.check_size(properties, "a namespace")
        if self._seen(key):
            return
        if name in self.ledger.namespaces():
            raise AlreadyExists(f"Namespace already exists: {name}")
        self._commits.journal(SetNamespace(name, dict(properties)), key=key)

    def update_namespace(self, name: str, removals: Sequence[str], updates: Mapping[str, str], key: str = "") -> Json:
        """Change properties; returns the updated, removed and missing names."""
        before = self.namespace(name)
        refuse_system_database(name)
        kept = {prop: value for prop, value in before.items() if prop not in set(removals)}
        after = {**kept, **updates}
        if after.keys() - before.keys() or any(len(after[prop]) > len(before[prop]) for prop in after):
            locations.check_size(after, "a namespace")
        if not self._seen(key):
            self._commits.journal(SetNamespace(name, after), key=key)
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
        if self.ledger.pointers(name) or self.ledger.views(name):
            raise NamespaceNotEmpty(f"Namespace {name} is not empty")
        self._commits.journal(DropNamespace(name), key=key)

    def tables(self, namespace: str) -> list[str]:
        self.namespace(namespace)
        return sorted(self.ledger.pointers(namespace))

    def stored(self, pointer: Pointer) -> StoredMetadata:
        return self._store.load(pointer.location)

    def load(self, name: Name) -> StoredMetadata:
        """A table's current metadata. `orders$3` is our table `orders` with the schema of its version 3."""
        return self._contents.load(name)

    def resolved(self, name: Name) -> tuple[Name, Table | None]:
        """The table of a name, and the version if the table is ours and the name has one."""
        return self._contents.resolved(name)

    def metadata(self, location: str) -> StoredMetadata:
        return self._store.load(location)

    def create_own(self, table: Table) -> SetPointer:
        """Write the first metadata of one of our tables, durably; returns the step to journal with the table."""
        doc = our_tables.first_metadata(table, self.warehouse, self._now_ms())
        if is_outside(table):
            doc = {**doc, "properties": our_tables.stored_properties(doc["properties"], self.timeline)}
        stored = self._commits.saved(doc, None)
        return SetPointer(table.namespace, table.short_name, None, Pointer(stored.location, table.uuid))

    @contextmanager
    def creating(self, table: Table) -> Iterator[SetPointer]:
        """`create_own`, and the entry in the table's outside catalog. The block journals the table."""
        step = self.create_own(table)
        if not is_outside(table):
            yield step
            return
        with self.outside.creating(table, step.pointer.location):
            yield step

    @contextmanager
    def renaming(self, table: Table, new_name: str) -> Iterator[str]:
        """Rename a table and its dead-letter table in their outside catalogs, if they live in one. The block journals
        the rename of this uuid. Yields what `renaming_letters` yields."""
        with self.outside.renaming(table, new_name) if is_outside(table) else nullcontext():
            with self.renaming_letters(table.name, new_name) as letters:
                yield letters

    @contextmanager
    def renaming_letters(self, name: str, new_name: str) -> Iterator[str]:
        """Rename the dead-letter table of `name` in its outside catalog. Yields its uuid, or an empty string if it
        lives in none: the block checks that it journals the rename of the same table."""
        namespace, short = dead_letter_table.table_of(name).split(".", 1)
        letters = self.ledger.own_table(namespace, short)
        if letters is None or not dead_letter_table.has_letters(letters) or not is_outside(letters):
            yield ""
            return
        with self.outside.renaming(letters, dead_letter_table.table_of(new_name)):
            yield letters.uuid

    def dropping(self, table: Table) -> AbstractContextManager[None]:
        """Drop a table in its outside catalog, if it lives in one. The block journals the drop."""
        if not is_outside(table):
            return nullcontext()
        return self.outside.dropping(table, self._contents.pointer(Name(table.namespace, table.short_name)).location)

    def undropping(self, table: Table) -> AbstractContextManager[None]:
        """Register a dropped table in its outside catalog, if it lived in one. The block journals its return."""
        pointer = self.ledger.pointers(DROPPED).get(table.uuid)
        return self.outside.undropping(table, pointer.location) if is_outside(table) and pointer else nullcontext()

    def is_kept_outside(self, table: Table) -> bool:
        """Whether the files of a dropped table stay, because its outside catalog has it again or is not known here.
        `Unavailable` if that catalog does not answer."""
        return is_outside(table) and self.outside.keeps(table)

    def look_outside(self, table: Table) -> None:
        """Adopt what others committed to a table at its outside catalog."""
        self._commits.look_outside(table)

    def tier_problem(self, table_uuid: str) -> TierProblem | None:
        """Why a table is not tiered: by its outside catalog, or else by the tierer's report."""
        problem = self.outside.problems.get(table_uuid)
        reported = self.tier_problems.get(table_uuid)
        return TierProblem(problem, max(1, reported.failures if reported else 0)) if problem else reported

    def write(self, doc: Json, base: StoredMetadata) -> StoredMetadata:
        """Write metadata on top of `base`, durably, after a sync of the warehouse; no pointer names it yet."""
        self._store.sync_warehouse()
        if our_tables.UUID_PROPERTY in doc["properties"]:
            doc = {**doc, "properties": our_tables.stored_properties(doc["properties"], self.timeline)}
        return self._commits.saved(doc, base)

    def unwrite(self, stored: StoredMetadata) -> None:
        """Remove metadata that no pointer names."""
        self._store.discard(stored.location)

    def fresh_uuid(self) -> str:
        """A uuid for a new Iceberg table."""
        return self._new_uuid()

    def purge_folder(self, folder: str) -> None:
        """Remove the folder of a table that no pointer names."""
        self._store.purge(folder)

    def write_truncated(self, table: Table) -> TruncatedSnapshot:
        """Write metadata of one of our tables without rows, durably."""
        return self._commits.write_truncated(table)

    def settled(self, made: TruncatedSnapshot, *, done: bool) -> None:
        """Remove leftovers of a truncate that was done or refused."""
        self._commits.settled(made, done=done)

    def problem_of_dropped(self, held: TableState) -> str:
        """A sentence on a dropped table's lake that is gone or continued under another timeline; empty if all is well.
        `Unavailable` if the storage does not answer."""
        pointer = self.ledger.pointers(DROPPED).get(held.table.uuid)
        return foreign_history.problem(held, pointer, self._store, self.timeline) if pointer else ""

    def purge(self, pointer: Pointer) -> None:
        """Remove the files of one of our dropped tables from folders that only it uses. If the lake continued under
        another timeline, its files belong to that timeline and are kept."""
        try:
            if foreign_history.newest(self._store, pointer, self.timeline):
                log.warning("the files of a dropped table stay, for its lake went on without this server: %s", pointer)
                return
            places = self._contents.places_of(pointer)
        except NotFound:
            return
        except (Forbidden, Corrupt, Invalid) as error:
            log.warning("the files of a dropped table stay in the lake: %s", error.message)
            return
        for place in places:
            self._store.purge(place)

    def pin(self, table: Table, tag: str, snapshot_id: int | None) -> StoredMetadata:
        """Set or remove the tag `lakestore-pin-<tag>` of one of our tables. Foreign expiry skips a tagged snapshot."""
        ref = gate.PIN_PREFIX + tag
        update: Json = {"action": "remove-snapshot-ref", "ref-name": ref}
        if snapshot_id is not None:
            update = {"action": "set-snapshot-ref", "ref-name": ref, "type": "tag", "snapshot-id": snapshot_id}
        change = TableChange(Name(table.namespace, table.short_name), (), (update,))
        return self._commits.attempts((change,), "", trusted=True)[0]

    def create_table(self, namespace: str, request: Json, key: str = "") -> StoredMetadata:
        """Create a foreign table. With `stage-create` nothing is stored and the location is empty."""
        name = Name(namespace, locations.check_name(request.get("name")))
        if self._seen(key):
            return self.load(name)
        self._contents.check_absent(name)
        uuid = self._new_uuid()
        location = request.get("location") or f"{self.warehouse}/{namespace}/{name.table}-{uuid[:8]}"
        doc = metadata_updates.created(
            uuid=uuid,
            location=str(location),
            schema=request.get("schema") or {},
            spec=request.get("partition-spec"),
            order=request.get("write-order"),
            properties=request.get("properties") or {},
            now_ms=self._now_ms(),
        )
        self._contents.check_free(name, None, doc)
        if request.get("stage-create"):
            return StoredMetadata("", doc, b"")
        try:
            return self._commits.create(name, doc, key)
        except Conflict as error:
            raise AlreadyExists(f"Table already exists: {name}") from error

    def register(
        self, namespace: str, table: str, location: str, *, overwrite: bool = False, key: str = ""
    ) -> StoredMetadata:
        """Make a table of a metadata file in the warehouse."""
        name = Name(namespace, locations.check_name(table))
        if self._seen(key):
            return self.load(name)
        if not locations.inside(location, self.warehouse):
            raise Forbidden(f"metadata file {location} must lie inside the warehouse {self.warehouse}")
        refuse_system_database(namespace)
        if not overwrite:
            self._contents.check_absent(name)
        elif self.ledger.own_table(namespace, table) is not None:
            raise Forbidden(f"{name} is a Lakestore table; drop it with `lake.drop_table('{name}')` first")
        old = self.ledger.pointers(namespace).get(table)
        self.namespace(namespace)
        stored = self._store.load(location)
        self._contents.check_free(name, None, stored.doc)
        pointer = Pointer(location, stored.doc["table-uuid"])
        self._commits.journal(SetPointer(namespace, table, old.location if old else None, pointer), key=key)
        return stored

    def drop_table(self, name: Name, key: str = "", *, purge: bool = False) -> None:
        """Drop a foreign table. With `purge` its files are removed from folders that only it uses."""
        if self._seen(key):
            return
        places = self._contents.own_places(name) if purge else []
        if self.ledger.own_table(name.namespace, name.table) is not None:
            raise Forbidden(f"{name} is a Lakestore table; drop it with `lake.drop_table('{name}')` instead")
        self._contents.pointer(name)
        self._commits.journal(DropPointer(name.namespace, name.table), key=key)
        for place in places:
            self._store.purge(place)

    def rename_table(self, source: Name, target: Name, key: str = "") -> None:
        if self._seen(key):
            return
        locations.check_name(target.table)
        pointer = self._contents.pointer(source)
        if target.table in self.ledger.views(target.namespace):
            raise AlreadyExists(f"Cannot rename {source} to {target}. View already exists")
        own = self.ledger.own_table(source.namespace, source.table)
        if own is not None:
            self._contents.check_absent(target)
            with self.renaming(own, str(target)) as letters:
                self.ledger.rename_own(own, str(target), key, letters)
            return
        self._contents.check_absent(target)
        held = SetPointer(source.namespace, source.table, pointer.location, pointer)
        gone = DropPointer(source.namespace, source.table)
        self._commits.journal(held, gone, SetPointer(target.namespace, target.table, None, pointer), key=key)

    def commit(self, changes: Sequence[TableChange], key: str = "") -> list[StoredMetadata]:
        """Commit to one or more tables, all or nothing; returns their new metadata."""
        if not changes or len({self._contents.resolved(change.name)[0] for change in changes}) != len(changes):
            raise Invalid("a commit names one or more tables, each of them once")
        if self._seen(key):
            return [self.load(change.name) for change in changes]
        if len(changes) == 1 and self._commits.alters_columns(changes[0]):
            self._alter(changes[0])
            return [self.load(changes[0].name)]
        try:
            done = self._commits.attempts(changes, key, trusted=False)
        except LakestoreError as error:
            self.refusals[type(error).__name__] += 1
            raise
        self.commits += 1
        return [
            self._contents.seen_as(made, self._contents.resolved(change.name)[1])
            for made, change in zip(done, changes, strict=True)
        ]

    def _alter(self, change: TableChange) -> None:
        """Alter a table as its contract says for whoever asks. The lake has the columns with its next round."""
        table, steps = self._commits.alteration(change)
        if not CALLER.get().may("admin", table.name):
            raise Forbidden(f"columns of {table.name} are changed by principals with the right 'admin' on it")
        if steps and self.alter_table is not None:
            request = pb.AlterTableRequest(
                table=table.name,
                table_uuid=table.uuid,
                schema_id=table.schema_id,
                alteration=to_json(steps),
            )
            self.alter_table(request)

    def _seen(self, key: str) -> bool:
        return bool(key) and self.ledger.seen(key)
