"""The present contents of the catalog: names, pointers and current metadata.

Read-only. Every answer is as of the ledger's last durable commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lakestore.errors import Corrupt, NotFound
from lakestore.model import names
from lakestore.model.table import Table, refuse_system_database
from lakestore_server.catalog import locations, metadata, metadata_store, metadata_updates, our_tables
from lakestore_server.catalog.errors import AlreadyExists, Forbidden, NoSuchNamespace, NoSuchTable
from lakestore_server.catalog.gate import PIN_PREFIX
from lakestore_server.catalog.ledger import Ledger
from lakestore_server.catalog.metadata_store import MetadataStore, StoredMetadata
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import DROPPED, Pointer


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name in the catalog."""

    namespace: str
    table: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}"


class Contents:
    """Namespaces, tables and their current metadata. Thread-safe."""

    def __init__(self, ledger: Ledger, store: MetadataStore, warehouse: str, now_ms: Callable[[], int]) -> None:
        self._ledger, self._store, self._warehouse, self._now_ms = ledger, store, warehouse, now_ms

    def namespace(self, name: str) -> Mapping[str, str]:
        """A namespace's properties, or `NoSuchNamespace`."""
        found = self._ledger.namespaces().get(name)
        if found is None:
            raise NoSuchNamespace(f"Namespace does not exist: {name}")
        return found

    def pointer(self, name: Name) -> Pointer:
        """A table's pointer, or `NoSuchTable`."""
        found = self._ledger.pointers(name.namespace).get(name.table)
        if found is None:
            raise NoSuchTable(f"Table does not exist: {name}")
        return found

    def load(self, name: Name) -> StoredMetadata:
        """A table's current metadata. `orders$3` is our table `orders` with the schema of its version 3. Leased
        snapshots get tags that are not stored, so expiry by any engine skips them and is not refused."""
        base, version = self.resolved(name)
        pointer = self.pointer(base)
        return self.seen_as(self._pinned(self.current(base, pointer), pointer.uuid), version)

    def _pinned(self, stored: StoredMetadata, table_uuid: str) -> StoredMetadata:
        refs = stored.doc["refs"]
        free = metadata.snapshot_ids(stored.doc) - {ref["snapshot-id"] for ref in refs.values()}
        held = free & self._ledger.pinned_snapshots(table_uuid) if free else free
        if not held:
            return stored
        tags = {f"{PIN_PREFIX}{number}": {"snapshot-id": number, "type": "tag"} for number in sorted(held)}
        return StoredMetadata(stored.location, {**stored.doc, "refs": {**refs, **tags}}, b"")

    def current(self, name: Name, pointer: Pointer) -> StoredMetadata:
        """The pointer's metadata; if its file was removed since, the metadata of the present pointer."""
        try:
            stored = self._store.load(pointer.location)
        except NotFound:
            now = self.pointer(name)
            if now == pointer:
                raise _gone(name, pointer) from None
            stored = self._store.load(now.location)
        doc = metadata_store.lower_times(stored.doc, self._now_ms())
        return stored if doc is stored.doc else StoredMetadata(stored.location, doc, b"")

    def resolved(self, name: Name) -> tuple[Name, Table | None]:
        """The table of a name, and the version if the table is ours and the name has one."""
        parted = names.split_version(name.table)
        table = self._ledger.own_table(name.namespace, parted[0]) if parted else None
        if parted is None or table is None:
            return name, None
        found = [version for version in self._ledger.versions(table.uuid) if version.schema_id == parted[1]]
        if not found:
            raise NoSuchTable(f"Table does not exist: {name}")
        return Name(name.namespace, parted[0]), found[0]

    def seen_as(self, stored: StoredMetadata, version: Table | None) -> StoredMetadata:
        """Metadata as if main had this version of the schema and no foreign property was set; not stored. The tierer
        works under this name, so foreign properties do not change its work."""
        if version is None:
            return stored
        updates, now = our_tables.version_updates(version, stored.doc), stored.doc["last-updated-ms"]
        doc = metadata_updates.updated(stored.doc, updates, now_ms=now, base_location=None)
        properties = our_tables.seen_properties(version, doc)
        return StoredMetadata(stored.location, {**doc, "properties": properties}, b"")

    def check_absent(self, name: Name) -> None:
        """`AlreadyExists` if a table, a version of one of our tables, or a view has the name; `Denied` in the database
        of the system tables."""
        refuse_system_database(name.namespace)
        self.namespace(name.namespace)
        taken = name.table in self._ledger.pointers(name.namespace) or self.resolved(name)[1] is not None
        if taken or self._ledger.own_table(name.namespace, name.table) is not None:
            raise AlreadyExists(f"Table already exists: {name}")
        if name.table in self._ledger.views(name.namespace):
            raise AlreadyExists(f"View with same name already exists: {name}")

    def check_free(self, name: Name, old: Json | None, new: Json) -> None:
        """`Forbidden` for a foreign table's metadata with places or properties that it may not choose. A table may be
        anywhere in the warehouse outside other tables' places, but no place may contain a namespace's folder."""
        locations.check_table(new, self._warehouse)
        held = set(locations.folders(old)) if old else set()
        chosen = [place for place in locations.folders(new) if place not in held]
        if not chosen:
            return
        locations.check_not_presented(chosen, self._warehouse)
        locations.check_found(chosen, self._namespace_folders())
        locations.check_free(chosen, self._others(name))

    def check_view_places(self, doc: Json) -> None:
        """`Forbidden` for a view's metadata with places or properties that it may not choose."""
        places = locations.folders(doc)
        locations.check_table(doc, self._warehouse)
        locations.check_not_presented(places, self._warehouse)
        locations.check_found(places, self._namespace_folders())
        locations.check_free(places, self._every_table())

    def own_places(self, name: Name) -> list[str]:
        """The folders that only this table uses; `Forbidden` if its files must not be removed with it."""
        doc = self.load(name).doc
        if doc["properties"].get("gc.enabled", "true").lower() == "false":
            raise Forbidden(f"{name} says gc.enabled=false: its files are not its own; drop it without purge")
        places = locations.folders(doc)
        locations.check_table(doc, self._warehouse)
        locations.check_found(places, self._namespace_folders())
        locations.check_free(places, self._others(name))
        return places

    def places_of(self, pointer: Pointer) -> list[str]:
        """The folders that only a table without a name uses; or `Forbidden`."""
        doc = self._store.load(pointer.location).doc
        places = locations.folders(doc)
        locations.check_table(doc, self._warehouse)
        locations.check_found(places, self._namespace_folders())
        every = self._named_tables()
        dropped = (each.location for each in self._ledger.pointers(DROPPED).values() if each != pointer)
        locations.check_free(places, (*every, *dropped))
        return places

    def _namespace_folders(self) -> list[str]:
        return [f"{self._warehouse}/{name}" for name in self._ledger.namespaces()]

    def _named_tables(self) -> Iterator[str]:
        return (each.location for ns in self._ledger.namespaces() for each in self._ledger.pointers(ns).values())

    def _every_table(self) -> Iterator[str]:
        """The metadata files of all tables, dropped ones too."""
        yield from self._named_tables()
        yield from (pointer.location for pointer in self._ledger.pointers(DROPPED).values())

    def _others(self, name: Name) -> Iterator[str]:
        for namespace in self._ledger.namespaces():
            for table, pointer in self._ledger.pointers(namespace).items():
                if Name(namespace, table) != name:
                    yield pointer.location
        yield from (pointer.location for pointer in self._ledger.pointers(DROPPED).values())


def _gone(name: Name, pointer: Pointer) -> Corrupt:
    return Corrupt(
        f"the metadata file {pointer.location} of {name} is missing: bring it back from a copy of the warehouse, or"
        " restore server and warehouse from a backup"
    )
