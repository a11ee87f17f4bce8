"""Our tables in outside catalogs: commits passed on, and the outside catalog's commits adopted by proof.

- The outside catalog decides the order of commits. The journal follows: outside first, then pointer and tier record.
- Whatever the outside catalog has passes the gate before it is journaled. What does not pass is neither journaled nor
  taken back: reads go on from the last state that passed, and `problems` has the sentence.
- One commit or look at a time for each table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound
from lakestore.model.columns import OWN_CATALOG
from lakestore.model.table import Table
from lakestore_server.catalog import gate, locations, metadata, our_tables
from lakestore_server.catalog.contents import Contents, Name
from lakestore_server.catalog.errors import AlreadyExists, Forbidden, NoSuchTable
from lakestore_server.catalog.ledger import Ledger
from lakestore_server.catalog.metadata_store import MetadataStore, StoredMetadata
from lakestore_server.catalog.outside_catalog import OutsideCatalog, OutsideSettings, OutsideTable
from lakestore_server.catalog.schemas import Json
from lakestore_server.host.clock import Clock
from lakestore_server.state.catalog_change import DROPPED, CatalogChange, Pointer, SetPointer

log = logging.getLogger("lakestore.catalog")
ATTEMPTS_MAX = 20
READY, COMMITTED = "judged-not-sent", "committed-not-journaled"
"""Moments of a commit at which tests end the server."""


class OutsideCatalogs:
    """The outside catalogs of a server, by name."""

    def __init__(
        self,
        settings: Sequence[OutsideSettings],
        clock: Clock,
        *,
        default: str = "",
        reach: Callable[[str], None] = lambda _: None,
        open_with: Callable[[OutsideSettings, Clock], OutsideCatalog] = OutsideCatalog,
    ) -> None:
        """`default` is the catalog of new tables that name none; empty means the server's own."""
        self.default, self.reach = default, reach
        self._catalogs = {each.name: open_with(each, clock) for each in settings}

    def named(self, name: str) -> OutsideCatalog:
        """The catalog of this name, or `Invalid`."""
        found = self._catalogs.get(name)
        if found is None:
            known = ", ".join([OWN_CATALOG, *sorted(self._catalogs)])
            raise Invalid(f"this server has no catalog {name!r}; its settings name {known}")
        return found

    def close(self) -> None:
        """End all connections."""
        for catalog in self._catalogs.values():
            catalog.close()

    def placed(self, table: Table) -> Table:
        """A new table with its catalog: the named one, or the default. `Invalid` if there is none of that name."""
        name = table.lake.catalog or self.default
        if name and name != OWN_CATALOG:
            kind = self.named(name).kind
            if table.lake.format_version > 2 and kind != "rest":
                raise Invalid(
                    f"table {table.name}: PyIceberg commits no table of format version 3 to a catalog of kind {kind}:"
                    " use format_version 2, or a catalog of kind rest"
                )
        return replace(table, lake=replace(table.lake, catalog=name))


def is_outside(table: Table | None) -> bool:
    """Whether a table of ours lives in an outside catalog. A table that takes the rows of an adoption does not yet."""
    return table is not None and table.lake.catalog not in ("", OWN_CATALOG) and not table.is_adopting


class OutsideTables:
    """Commits, looks and verbs of our tables in outside catalogs. Thread-safe."""

    def __init__(
        self, catalogs: OutsideCatalogs, ledger: Ledger, store: MetadataStore, contents: Contents, timeline: str
    ) -> None:
        self.catalogs = catalogs
        self._ledger, self._store, self._contents, self._timeline = ledger, store, contents, timeline
        self._lock = threading.Lock()
        self._turns: dict[str, threading.RLock] = {}
        self._creating: set[str] = set()
        self.problems: Mapping[str, str] = {}
        """Table uuid to why the last look or commit failed."""

    @contextmanager
    def turn(self, table: Table) -> Iterator[OutsideCatalog]:
        """Hold a table's turn."""
        with self._lock:
            turn = self._turns.setdefault(table.uuid, threading.RLock())
        with turn:
            with self._noted(table):
                catalog = self.catalogs.named(table.lake.catalog)
            yield catalog

    @contextmanager
    def _noted(self, table: Table) -> Iterator[None]:
        """Note a failure of the block as the table's problem; a block without one ends the problem. What the gate says
        to a commit of a client is no problem of the table."""
        try:
            yield
        except Conflict:
            raise  # the tierer plans again
        except LakestoreError as error:
            self._note(table, error.message)
            raise
        self._note(table, "")

    def _note(self, table: Table, problem: str) -> None:
        with self._lock:
            if problem != self.problems.get(table.uuid, ""):
                if problem:
                    log.warning("table %s is not tiered: %s", table.name, problem)
                rest = {uuid: text for uuid, text in self.problems.items() if uuid != table.uuid}
                self.problems = rest | ({table.uuid: problem} if problem else {})

    def look(self, table: Table, known: Callable[[], gate.Knowledge]) -> None:
        """Adopt what others committed to a table at its catalog."""
        with self.turn(table) as catalog:
            self.synced(catalog, table, known)

    def synced(self, catalog: OutsideCatalog, table: Table, known: Callable[[], gate.Knowledge]) -> StoredMetadata:
        """The table's present state, the same at the outside catalog and in the journal. `Forbidden` for a state that
        the gate does not adopt."""
        name = Name(table.namespace, table.short_name)
        for _ in range(ATTEMPTS_MAX):
            with self._noted(table), suppress(Conflict):
                base = self._contents.current(name, self._contents.pointer(name))
                found = self._found(catalog, table, base)
                return base if found.location == base.location else self.adopt(table, base, found.location, known())
        raise Conflict(f"{name} changes faster than its catalog can be followed: try again")

    def _found(self, catalog: OutsideCatalog, table: Table, base: StoredMetadata) -> OutsideTable:
        try:
            found = catalog.load(table.namespace, table.short_name)
        except NoSuchTable as error:
            raise Forbidden(
                f"catalog {catalog.name} has no table {table.name} any more: register {base.location} there again, or"
                " repeat the drop or rename that was begun"
            ) from error
        if found.doc["table-uuid"] != base.doc["table-uuid"]:
            raise Forbidden(
                f"catalog {catalog.name} has another table of the name {table.name} (uuid {found.uuid}): drop or rename"
                f" it there, and register {base.location}"
            )
        return found

    def adopt(self, table: Table, base: StoredMetadata, location: str, known: gate.Knowledge) -> StoredMetadata:
        """Journal the outside catalog's state at `location` on top of `base`; `Forbidden` with the gate's sentence."""
        if not locations.inside(location, base.doc["location"]):
            raise Forbidden(
                f"the metadata {location} of {table.name} lies outside of its folder {base.doc['location']}"
            )
        stored = self._store.load(location)
        timeline = stored.doc["properties"].get(our_tables.TIMELINE_PROPERTY)
        if timeline not in (None, self._timeline):
            raise Forbidden(
                f"the lake of {table.name} went on at catalog {table.lake.catalog} under another history of this"
                f" server: move its main back to snapshot {metadata.main_of(base.doc)} there, or restore a newer backup"
            )
        verdict = self._judged(table, base, stored, replace(known, is_settled=True))
        self._store.sync_warehouse()
        step = SetPointer(
            table.namespace,
            table.short_name,
            base.location,
            Pointer(location, table.uuid),
            tiers=verdict.tiers,
            forget=verdict.forget,
        )
        self._ledger.commit(CatalogChange((step,)))
        return stored

    def _judged(
        self, table: Table, base: StoredMetadata, stored: StoredMetadata, known: gate.Knowledge
    ) -> gate.Verdict:
        """The gate's verdict on the way from `base` to `stored`, at once or commit by commit. If snapshots in between
        have expired, only the metadata files in between, which the log of `stored` names, prove that rows were kept."""
        try:
            return gate.judge(table, base.doc, stored.doc, known)
        except Forbidden as refused:
            way = self._between(base, stored)
            if not way:
                raise
            verdict = _verdict_of_steps(table, base, (*way, stored), known)
            if verdict is None:
                raise refused from None
            return verdict

    def _between(self, base: StoredMetadata, stored: StoredMetadata) -> list[StoredMetadata]:
        """The states between two, oldest first, as far as their metadata files are there."""
        log_of = [str(entry["metadata-file"]) for entry in stored.doc["metadata-log"]]
        if base.location not in log_of:
            return []
        later = log_of[log_of.index(base.location) + 1 :]
        found = []
        for location in later:
            with suppress(NotFound):
                found.append(self._store.load(location))
        return found

    def send(
        self, catalog: OutsideCatalog, table: Table, base: StoredMetadata, doc: Json, known: gate.Knowledge
    ) -> StoredMetadata:
        """Commit the change from `base` to `doc`, then adopt what the outside catalog made of it. `Conflict` if the
        table has moved there."""
        if metadata.main_of(doc) != metadata.main_of(base.doc):
            self._store.sync_warehouse()
        self.catalogs.reach(READY)
        with self._noted(table):
            location = catalog.commit(
                table.namespace, table.short_name, requirements(base.doc, doc), updates_between(base.doc, doc)
            )
            self.catalogs.reach(COMMITTED)
            return self.adopt(table, base, location, known)

    @contextmanager
    def creating(self, table: Table, location: str) -> Iterator[None]:
        """Register a new table's metadata; the block journals the table. If the block is refused, so is the entry."""
        catalog = self.catalogs.named(table.lake.catalog)
        with self._lock:
            if table.name in self._creating:
                raise Conflict(f"table {table.name} is being created by another call")
            self._creating.add(table.name)
        try:
            self._register_new(catalog, table, location)
            self.catalogs.reach(COMMITTED)
            with undone(lambda: catalog.drop(table.namespace, table.short_name)):
                yield
        finally:
            with self._lock:
                self._creating.discard(table.name)

    def _register_new(self, catalog: OutsideCatalog, table: Table, location: str) -> None:
        try:
            catalog.register(table.namespace, table.short_name, location)
        except AlreadyExists:
            found = catalog.load(table.namespace, table.short_name)
            if not self._is_leftover(found):
                raise
            catalog.drop(table.namespace, table.short_name)
            catalog.register(table.namespace, table.short_name, location)

    def _is_leftover(self, found: OutsideTable) -> bool:
        """Whether an entry is from a creation of this server that was never journaled. A table that an adoption marked
        is no leftover: it has the uuid that another engine gave it."""
        ours = found.doc["properties"].get(our_tables.TIMELINE_PROPERTY) == self._timeline
        ours = ours and found.doc["table-uuid"] == found.uuid
        known = bool(self._ledger.versions(found.uuid)) or found.uuid in self._ledger.pointers(DROPPED)
        return ours and not found.doc["snapshots"] and not known

    @contextmanager
    def renaming(self, table: Table, new_name: str) -> Iterator[None]:
        """Rename a table there; the block journals the rename. If the block is refused, the old name comes back."""
        target = new_name.partition(".")[0], new_name.partition(".")[2]
        source = table.namespace, table.short_name
        with self.turn(table) as catalog:
            try:
                catalog.rename(source, target)
            except NoSuchTable:
                if catalog.load(*target).uuid != table.uuid:
                    raise
            with undone(lambda: catalog.rename(target, source)):
                yield

    @contextmanager
    def dropping(self, table: Table, location: str) -> Iterator[None]:
        """Drop a table there, with its files left; the block journals the drop. If the block is refused, the table
        comes back."""
        with self.turn(table) as catalog:
            try:
                if catalog.load(table.namespace, table.short_name).uuid == table.uuid:
                    catalog.drop(table.namespace, table.short_name)
            except NoSuchTable:
                log.info("catalog %s had no table %s when it was dropped here", catalog.name, table.name)
            with undone(lambda: catalog.register(table.namespace, table.short_name, location)):
                yield

    def keeps(self, table: Table) -> bool:
        """Whether the files of a dropped table stay: its catalog has it again, under its name, or is not in the
        settings any more, or an adoption gave it a folder in which that catalog may have made another table since."""
        if table.lake.adopted:
            log.warning("the files of dropped table %s stay, for its folder may have another table by now", table.name)
            return True
        try:
            found = self.catalogs.named(table.lake.catalog).load(table.namespace, table.short_name)
        except NoSuchTable:
            return False
        except Invalid as error:
            log.warning("the files of dropped table %s stay in the lake: %s", table.name, error.message)
            return True
        if found.uuid == table.uuid:
            log.warning("the files of dropped table %s stay, for its catalog has it again", table.name)
        return found.uuid == table.uuid

    @contextmanager
    def undropping(self, table: Table, location: str) -> Iterator[None]:
        """Register a dropped table again; the block journals its return. If the block is refused, the entry goes."""
        with self.turn(table) as catalog:
            try:
                catalog.register(table.namespace, table.short_name, location)
            except AlreadyExists:
                if catalog.load(table.namespace, table.short_name).uuid != table.uuid:
                    raise
            with undone(lambda: catalog.drop(table.namespace, table.short_name)):
                yield


def _verdict_of_steps(
    table: Table, base: StoredMetadata, steps: Sequence[StoredMetadata], known: gate.Knowledge
) -> gate.Verdict | None:
    """One verdict for several commits; None if the last one does not pass. A commit that does not pass was taken back
    if a later commit passes."""
    records, at, is_good = dict(known.records), base, False
    for step in steps:
        try:
            verdict = gate.judge(table, at.doc, step.doc, replace(known, records=records))
        except Forbidden:
            is_good = False
            continue
        records.update((record.snapshot_id, record) for record in verdict.tiers)
        for number in verdict.forget:
            records.pop(number)
        at, is_good = step, True
    if not is_good:
        return None
    return gate.Verdict(
        tiers=tuple(record for number, record in records.items() if known.records.get(number) != record),
        forget=tuple(sorted(known.records.keys() - records.keys())),
        moves_main=metadata.main_of(at.doc) != metadata.main_of(base.doc),
    )


@contextmanager
def undone(undo: Callable[[], Any]) -> Iterator[None]:
    """Call `undo` if the block is refused. After an unknown outcome nothing is undone."""
    try:
        yield
    except LakestoreError as error:
        if error.applied == "no":
            try:
                undo()
            except LakestoreError as failed:
                log.warning("a change of an outside catalog was not undone: %s", failed.message)
        raise


def requirements(old: Json, new: Json) -> list[Json]:
    """The requirements of a commit: this table, with main and every branch or tag of the change unmoved."""
    moved = {name for name in {*old["refs"], *new["refs"]} if _ref(old, name) != _ref(new, name)}
    # PyIceberg's catalogs take no requirement on another branch of a table without snapshots.
    names = {metadata.MAIN, *(moved if old["snapshots"] else ())}
    held = [
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": old["refs"].get(name, {}).get("snapshot-id")}
        for name in sorted(names)
    ]
    return [{"type": "assert-table-uuid", "uuid": old["table-uuid"]}, *held]


def _ref(doc: Json, name: str) -> Json | None:
    found: Json | None = doc["refs"].get(name)
    return found


def updates_between(old: Json, new: Json) -> list[Json]:
    """The updates that turn one document into another, in few words that every catalog understands, with all numbers
    chosen: PyIceberg's catalogs do not choose ids of schemas."""
    had = {schema["schema-id"] for schema in old["schemas"]}
    updates: list[Json] = [
        {"action": "add-schema", "schema": schema} for schema in new["schemas"] if schema["schema-id"] not in had
    ]
    if new["current-schema-id"] != old["current-schema-id"]:
        updates.append({"action": "set-current-schema", "schema-id": new["current-schema-id"]})
    before, after = old["properties"], new["properties"]
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    if changed:
        updates.append({"action": "set-properties", "updates": changed})
    if before.keys() - after.keys():
        updates.append({"action": "remove-properties", "removals": sorted(before.keys() - after.keys())})
    known = metadata.snapshot_ids(old)
    updates += [
        {"action": "add-snapshot", "snapshot": each} for each in new["snapshots"] if each["snapshot-id"] not in known
    ]
    for name in sorted({*old["refs"], *new["refs"]}):
        ref = _ref(new, name)
        if ref is None:
            updates.append({"action": "remove-snapshot-ref", "ref-name": name})
        elif ref != _ref(old, name):
            updates.append({"action": "set-snapshot-ref", "ref-name": name, **ref})
    gone = known - metadata.snapshot_ids(new)
    if gone:
        updates.append({"action": "remove-snapshots", "snapshot-ids": sorted(gone)})
    return [*updates, *_statistics_between(old, new, gone)]


def _statistics_between(old: Json, new: Json, gone: set[int]) -> list[Json]:
    updates: list[Json] = []
    for key, noun in (("statistics", "statistics"), ("partition-statistics", "partition-statistics")):
        before = {each["snapshot-id"]: each for each in old[key]}
        after = {each["snapshot-id"]: each for each in new[key]}
        for number, file in after.items():
            if before.get(number) != file:
                updates.append({"action": f"set-{noun}", "snapshot-id": number, noun: file})
        updates += [
            {"action": f"remove-{noun}", "snapshot-id": number}
            for number in sorted(before.keys() - after.keys() - gone)
        ]
    return updates
