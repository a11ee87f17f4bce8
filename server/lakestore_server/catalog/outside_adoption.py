"""The outside half of an adoption: a table of an outside catalog gets our schema, properties and name there.

1. Outside first, journal second. A mark, two properties of the table, lets a run that was killed continue.
2. The mark is one commit that requires the state whose rows were read.
3. The Iceberg table keeps its own uuid. `lakestore.table-uuid` names ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakestore.errors import Conflict, Invalid, NotFound, Unavailable
from lakestore.model.names import ADOPTING
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import locations, metadata, our_tables, outside_tables, schemas
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import AlreadyExists, NoSuchTable
from lakestore_server.catalog.metadata_store import StoredMetadata
from lakestore_server.catalog.outside_catalog import OutsideTable
from lakestore_server.catalog.schemas import Json
from lakestore_server.commit.engine import Engine

FROM_PROPERTY = "lakestore.adopted-from"
"""The metadata file whose rows the adoption read."""


class OutsideSource:
    """A table of an outside catalog that is to become one of ours."""

    def __init__(self, catalog: Catalog, engine: Engine, catalog_name: str, name: Name) -> None:
        """`Invalid` if the server has no catalog of this name."""
        self.catalog = catalog.outside.catalogs.named(catalog_name)
        self._own, self._engine, self._name = catalog, engine, name

    def planned(self, request: pb.AdoptTableRequest) -> StoredMetadata:
        """The state to adopt: the present one, or the one of a killed run that marked the table."""
        name, found = self._found(request.table)
        where = f"table {self.catalog.name}.{name}"
        owner = found.doc["properties"].get(our_tables.UUID_PROPERTY)
        view = self._engine.view
        held = view.tables.get(owner)
        if held is not None and not held.table.is_adopting:
            raise Invalid(f"{where} is the lake of the Lakestore table {held.table.name} already")
        dropped = view.dropped.get(owner)
        if dropped is not None and not dropped.until_us:
            raise Unavailable(f"{where} is the lake of a dropped table whose files are being removed: try it again")
        if dropped is not None:
            raise Invalid(f"{where} is the lake of a dropped table: bring it back with `lakestore undrop`")
        if owner and held is None and found.doc["properties"].get(our_tables.TIMELINE_PROPERTY) != self._own.timeline:
            raise Invalid(
                f"{where} is the lake of a table of another Lakestore server: release it there, or if that server is"
                f" gone remove the table's properties that begin with lakestore."
            )
        if held is not None and held.table.name == request.table + ADOPTING:
            begun = self._begun(found.doc, held.table)
            if begun is not None:
                return begun
        if name != self._name:
            raise NotFound(
                f"{self.catalog.name}.{self._name} was renamed by an adoption that did not end: adopt {where} instead"
            )
        if not locations.inside(found.location, found.doc["location"]):
            raise Invalid(
                f"{where} has its metadata {found.location} outside of its folder {found.doc['location']}: remove its"
                " property write.metadata.path, and commit to it once"
            )
        return self._own.metadata(found.location)

    @contextmanager
    def marked(
        self, request: pb.AdoptTableRequest, made: Table, planned: StoredMetadata, taken: Json
    ) -> Iterator[StoredMetadata]:
        """The table as the lake of `made` and under its name; the block journals it. `taken` is the planned metadata
        as our lake. If the block is refused, the old name comes back; the mark stays until the next adoption."""
        name, found = self._found(request.table)
        target = Name(made.namespace, made.short_name)
        location = found.location
        if found.uuid != made.uuid:
            if location != request.location:
                raise Conflict(f"table {self.catalog.name}.{name} was changed while it was adopted: adopt it again")
            self._check_target(target)
            location = self._mark(planned, taken)
        stored = self._own.metadata(location)
        begun = self._begun(stored.doc, made)
        if begun is None or begun.location != request.location:
            raise Conflict(f"table {self.catalog.name}.{name} was changed while it was adopted: adopt it again")
        if name != target:
            self.catalog.rename((name.namespace, name.table), (target.namespace, target.table))
        with outside_tables.undone(lambda: self._rename_back(target)):
            yield stored

    def _rename_back(self, target: Name) -> None:
        if target != self._name:
            self.catalog.rename((target.namespace, target.table), (self._name.namespace, self._name.table))

    def _found(self, new_name: str) -> tuple[Name, OutsideTable]:
        """The table under its name, or under the new one if an adoption that was killed renamed it."""
        try:
            return self._name, self.catalog.load(self._name.namespace, self._name.table)
        except NoSuchTable:
            target = Name(*new_name.split(".", 1))
            try:
                found = self.catalog.load(target.namespace, target.table)
            except NoSuchTable:
                found = None
            held = self._engine.view.tables.get(found.uuid) if found else None
            if found is None or held is None or held.table.name != new_name + ADOPTING:
                raise
            return target, found

    def _begun(self, doc: Json, table: Table) -> StoredMetadata | None:
        """The state whose rows the run read that marked `doc`; None if it has changed since the mark."""
        origin = doc["properties"].get(FROM_PROPERTY)
        if origin is None:
            return None
        try:
            begun = self._own.metadata(origin)
        except (NotFound, Invalid):
            return None
        current = next(each for each in doc["schemas"] if each["schema-id"] == doc["current-schema-id"])
        same = all(doc[key] == begun.doc[key] for key in ("default-spec-id", "partition-specs", "format-version"))
        stands = metadata.main_of(doc) == metadata.main_of(begun.doc)
        return begun if same and stands and schemas.same_schema(current, our_tables.schema_of(table)) else None

    def _check_target(self, target: Name) -> None:
        if target == self._name:
            return
        try:
            self.catalog.load(target.namespace, target.table)
        except NoSuchTable:
            return
        raise AlreadyExists(f"catalog {self.catalog.name} has a table {target} already: choose another name with --as")

    def _mark(self, planned: StoredMetadata, taken: Json) -> str:
        """Commit our schema and properties; the location of the new metadata."""
        marks = {FROM_PROPERTY: planned.location}
        properties = our_tables.stored_properties({**taken["properties"], **marks}, self._own.timeline)
        old, new = planned.doc, {**taken, "properties": properties}
        unchanged = [
            {"type": f"assert-{key}", key: old[key]}
            for key in ("current-schema-id", "default-spec-id", "default-sort-order-id")
        ]
        unchanged.append({"type": "assert-last-assigned-field-id", "last-assigned-field-id": old["last-column-id"]})
        self._own.outside.catalogs.reach(outside_tables.READY)
        location = self.catalog.commit(
            self._name.namespace,
            self._name.table,
            [*outside_tables.requirements(old, new), *unchanged],
            outside_tables.updates_between(old, new),
        )
        self._own.outside.catalogs.reach(outside_tables.COMMITTED)
        return location
