"""Adoption and release: an Iceberg table of the catalog becomes the lake of one of our tables, and back.

1. The client fills a table of ours with the rows and numbers them; docs/internals/adoption.md has the steps.
2. One journal record makes the Iceberg table the lake of ours, or our lake a plain Iceberg table.
3. No file of data is written or removed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakestore.errors import Conflict, Internal, Invalid, LakestoreError, NotFound
from lakestore.iceberg import data_files
from lakestore.model.columns import LAKE_COLUMNS, LAKE_FIELD_IDS, OWN_CATALOG, Column, LakeOptions, PartitionField
from lakestore.model.merge_engines import parse_merge
from lakestore.model.outside_values import shown_name
from lakestore.model.table import Table, refuse_system_database
from lakestore.model.types import iceberg_type, nested_count, type_name
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import (
    catalog,
    gate,
    locations,
    metadata,
    metadata_updates,
    our_tables,
    owners,
    schemas,
    tables,
)
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.metadata_store import StoredMetadata
from lakestore_server.catalog.outside_adoption import OutsideSource
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.catalog.owners import Decision
from lakestore_server.catalog.schemas import Json
from lakestore_server.commit.engine import Engine
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.state.catalog_change import (
    CatalogStep,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
    TierRecord,
)
from lakestore_server.state.commit_record import CommitRecord, Rename, Shelving
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View


def _name(text: str, what: str) -> Name:
    namespace, sign, table = text.partition(".")
    if not sign or not table or "." in table:
        raise Invalid(f"{what} is database.table, and not {shown_name(text)}")
    return Name(namespace, table)


def _source(text: str) -> tuple[str, Name]:
    """Catalog and name of the Iceberg table; the server's own catalog if none is named."""
    catalog, _, rest = text.partition(".") if text.count(".") == 2 else (OWN_CATALOG, "", text)
    return catalog, _name(rest, "an Iceberg table")


class Adoptions:
    """The verbs of adopt and release. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, wake_purge: Any) -> None:
        self._engine, self._catalog, self._wake_purge = engine, catalog, wake_purge

    def adopt_table(self, request: pb.AdoptTableRequest) -> pb.AdoptTableAnswer:
        """Plan an adoption, or end it with a table that has the rows."""
        catalog, source = _source(request.source)
        if catalog != OWN_CATALOG:
            return self._adopt_outside(request, OutsideSource(self._catalog, self._engine, catalog, source))
        if self._catalog.ledger.own_table(source.namespace, source.table) is not None:
            raise Invalid(f"{source} is a Lakestore table already")
        pointer = self._engine.view.pointers.get((source.namespace, source.table))
        if pointer is None:
            raise NotFound(f"the catalog has no table {source}")
        stored = self._catalog.load(source)
        if request.table_uuid:
            return self._ended(request, source, stored)
        table = definition(request, stored.doc)
        _check_name(self._engine.view, table, source, self._engine.limits)
        return _planned(table, stored)

    def _adopt_outside(self, request: pb.AdoptTableRequest, source: OutsideSource) -> pb.AdoptTableAnswer:
        """The same for a table of an outside catalog: that catalog gets our schema first, then the journal follows."""
        if not request.table_uuid:
            stored = source.planned(request)
            table = self._catalog.outside.catalogs.placed(definition(request, stored.doc, source.catalog.name))
            tables.check_free(self._engine.view, table, self._engine.limits)
            return _planned(table, stored)
        held = self._held(request)
        made = replace(held.table, name=request.table)
        tables.check_free(self._engine.view, made, self._engine.limits)
        _check_rows(held, request)
        planned = self._catalog.metadata(request.location)
        taken = adopted_metadata(planned.doc, made, self._engine.now_us() // 1_000, planned.location)
        with source.marked(request, made, planned, taken) as stored:

            def check(view: View) -> None:
                tables.check_free(view, made, self._engine.limits)

            return self._journaled(request, made, stored, check, [])

    def _ended(self, request: pb.AdoptTableRequest, source: Name, stored: StoredMetadata) -> pb.AdoptTableAnswer:
        if stored.location != request.location:
            raise Conflict(f"table {source} was changed while it was adopted: adopt it again")
        held = self._held(request)
        made = replace(held.table, name=request.table)
        taken = adopted_metadata(stored.doc, made, self._engine.now_us() // 1_000, stored.location)
        saved = self._catalog.write(taken, stored)
        self._engine.reach(CrashPoint.CATALOG_READY)

        def check(view: View) -> None:
            _check_name(view, made, source, self._engine.limits)
            before = view.pointers.get((source.namespace, source.table))
            if before is None or before.location != request.location:
                raise Conflict(f"table {source} was changed while it was adopted: adopt it again")

        try:
            return self._journaled(request, made, saved, check, [DropPointer(source.namespace, source.table)])
        except LakestoreError as error:
            if error.applied == "no":
                self._catalog.unwrite(saved)
            raise

    def _journaled(
        self,
        request: pb.AdoptTableRequest,
        made: Table,
        stored: StoredMetadata,
        check: Callable[[View], None],
        first_steps: Sequence[CatalogStep],
    ) -> pb.AdoptTableAnswer:
        """The journal record of the adoption: the table with the rows gets the metadata `stored` as its lake."""
        staging = self._held(request).table
        first = self._engine.view.pointers[staging.namespace, staging.short_name]

        def plan(state: State, record: CommitRecord) -> None:
            view, now = state.view, self._held(request)
            check(view)
            _check_rows(now, request)
            pointer = Pointer(stored.location, made.uuid)
            tiers = _tiers(stored.doc, now, state, record)
            steps: list[CatalogStep] = [
                *first_steps,
                DropPointer(staging.namespace, staging.short_name),
                SetPointer(made.namespace, made.short_name, None, pointer, tiers=tiers),
            ]
            if made.namespace not in view.namespaces:
                steps.insert(0, SetNamespace(made.namespace))
            record.rename.append(Rename(made.uuid, made.name))
            catalog.add_steps(view, record, *steps)

        done = self._engine.operate(plan)
        self._engine.reach(CrashPoint.CATALOG_COMMITTED)
        self._catalog.purge_folder(locations.table_folder(first.location))
        return pb.AdoptTableAnswer(
            definition=made.to_json(), location=stored.location, snapshot_id=0, token=done.view.token()
        )

    def _held(self, request: pb.AdoptTableRequest) -> TableState:
        held = self._engine.view.tables.get(request.table_uuid)
        if held is None or not held.table.is_adopting:
            raise NotFound(f"the table that takes the rows of {request.source} is gone: adopt it again")
        return held

    def release_table(self, request: pb.ReleaseTableRequest) -> pb.ReleaseTableAnswer:
        """End one of our tables; its lake becomes a plain Iceberg table."""
        held = self._engine.view.meant(request.table, request.table_uuid)
        held.table.refuse_change()
        by = Decision.of_caller("release", f"table {request.table}")
        target = _name(request.new_name or request.table, "the name of a plain table")
        locations.check_name(target.table)
        locations.check_namespace(target.namespace)
        refuse_system_database(target.namespace)
        if is_outside(held.table):
            raise Invalid(
                f"table {request.table} lives in the catalog {held.table.lake.catalog}: only tables of the server's own"
                " catalog can be released"
            )
        problem = self._catalog.ahead.get(held.table.uuid)
        if problem:
            raise Conflict(f"table {request.table} cannot be released until its lake is repaired: {problem}")
        source = Name(held.table.namespace, held.table.short_name)
        stored = self._catalog.load(source)
        plain, kept = plain_metadata(stored, held.table, self._engine.now_us() // 1_000, self._catalog.fresh_uuid())
        _check_tiered(held, metadata.main_of(stored.doc))
        if request.check_only:
            return pb.ReleaseTableAnswer(token=self._engine.view.token(), columns=kept)
        saved = self._catalog.write(plain, stored)
        self._engine.reach(CrashPoint.CATALOG_READY)

        def plan(state: State, record: CommitRecord) -> None:
            view = state.view
            now = view.meant(request.table, held.table.uuid)
            view.refuse_rescale(now.table)
            view.refuse_erasing(now.table)
            before = view.pointers.get((source.namespace, source.table))
            if before is None or before.location != stored.location:
                raise Conflict(f"the lake of table {source} was changed while it was released: release it again")
            _check_tiered(now, metadata.main_of(stored.doc))
            if target != source and (target.namespace, target.table) in view.pointers:
                raise Conflict(f"the catalog has a table {target} already: choose another name with --to")
            steps: list[CatalogStep] = [
                DropPointer(source.namespace, source.table),
                SetPointer(target.namespace, target.table, None, Pointer(saved.location, plain["table-uuid"])),
            ]
            if target.namespace not in view.namespaces:
                steps.insert(0, SetNamespace(target.namespace))
            by.make(view, record, now.table)
            record.shelve.append(Shelving(now.table.uuid, 0))
            catalog.add_steps(view, record, *steps)

        try:
            done = owners.decided(self._engine, plan)
        except LakestoreError as error:
            if error.applied == "no":
                self._catalog.unwrite(saved)
            raise
        self._engine.reach(CrashPoint.CATALOG_COMMITTED)
        self._wake_purge()
        return pb.ReleaseTableAnswer(token=done.view.token(), location=saved.location, columns=kept)


def _check_name(view: View, table: Table, source: Name, limits: Any) -> None:
    """Refuse a taken name, and the database of the system tables. The adopted table may keep its own name."""
    refuse_system_database(table.namespace)
    if Name(table.namespace, table.short_name) != source:
        tables.check_free(view, table, limits)
    elif table.name in view.names:
        raise Conflict(f"table {table.name} exists already")


def _check_rows(now: TableState, request: pb.AdoptTableRequest) -> None:
    rows = sum(log.at_head.live_rows for log in now.logs)
    if now.heads() != list(request.heads) or rows != sum(request.heads) or now.tiers:
        raise Conflict(
            f"table {now.table.name} has other rows than {request.source}, because somebody else wrote to it:"
            f" drop it (`lakestore drop {now.table.name} --now`) and adopt {request.source} again"
        )


def _tiers(taken: Json, now: TableState, state: State, record: CommitRecord) -> tuple[TierRecord, ...]:
    """The tier record of main's snapshot; none for a table without a snapshot."""
    main = metadata.main_of(taken)
    if main is None:
        return ()
    heads, sums = tuple(now.heads()), tuple(log.at_head.live_sum for log in now.logs)
    return (TierRecord(main, heads, sums, record.lsn, state.view.tierer_epoch, sum(heads), now.table.schema_id),)


def _check_tiered(held: TableState, main: int | None) -> None:
    tier = held.tiers.get(main) if main is not None else None
    point = tier.tier_point if tier is not None else (0,) * len(held.logs)
    hot = sum(head - end for head, end in zip(held.heads(), point, strict=True))
    if hot:
        raise Conflict(
            f"table {held.table.name} has {hot} changes that are not in the lake yet:"
            f" run `lakestore tier --once --table {held.table.name}` and release it again"
        )


def _planned(table: Table, stored: StoredMetadata) -> pb.AdoptTableAnswer:
    tables.check_new(table)
    main = metadata.main_of(stored.doc) or 0
    return pb.AdoptTableAnswer(definition=table.to_json(), location=stored.location, snapshot_id=main)


def definition(request: pb.AdoptTableRequest, doc: Json, catalog: str = OWN_CATALOG) -> Table:
    """The definition of the table that takes an Iceberg table's rows; `Invalid` if there can be none."""
    where = f"table {request.source}"
    if doc["format-version"] not in (2, 3):
        raise Invalid(f"{where} has format version {doc['format-version']}: upgrade it to 2 or 3 first")
    if str(doc["properties"].get("gc.enabled", "true")).lower() == "false":
        raise Invalid(
            f"{where} says gc.enabled=false: its files belong to another table too; copy its rows into a new table"
        )
    main = metadata.snapshot_of(doc, metadata.main_of(doc))
    equality = ((main or {}).get("summary") or {}).get("total-equality-deletes", "0")
    if str(equality) != "0":
        raise Invalid(
            f"{where} has equality deletes, which no row number can stand for: let its engine rewrite the data files"
            " first (`CALL …rewrite_data_files`)"
        )
    schema = _current(doc)
    keys = list(request.primary_key)
    own = LAKE_FIELD_IDS.values()  # columns that an adoption which was given up left
    columns = tuple(_column(part, keys, where) for part in schema["fields"] if part["id"] not in own)
    missing = [name for name in keys if name not in {column.name for column in columns}]
    if missing:
        raise Invalid(f"{where} has no column {missing[0]!r} for the key; it has {', '.join(c.name for c in columns)}")
    return Table(
        name=request.table,
        columns=columns,
        primary_key=tuple(keys),
        buckets=request.buckets or 4,
        bucket_key=tuple(keys),
        lake=LakeOptions(
            partition_by=_partitions(doc, schema, where),
            format_version=doc["format-version"],
            catalog=catalog,
            adopted=True,
        ),
        last_column_id=_last_id(doc, where),
        merge=parse_merge("upsert"),
    )


def _last_id(doc: Json, where: str) -> int:
    """The highest field id. A table that was released has had our ids, which count as none."""
    own = set(LAKE_FIELD_IDS.values())
    ids = {number for schema in doc["schemas"] for number in schemas.field_ids(schema)} - own
    last = max(ids) if own & {doc["last-column-id"]} else max(doc["last-column-id"], *ids)
    if last >= min(own):
        raise Invalid(f"{where} has field ids up to {last}, and those from {min(own)} on are for columns of Lakestore")
    return last


def _current(doc: Json) -> Json:
    found: Json = next(each for each in doc["schemas"] if each["schema-id"] == doc["current-schema-id"])
    return found


def _column(part: Json, keys: list[str], where: str) -> Column:
    name = part["name"]
    if part.get("initial-default") is not None or part.get("write-default") is not None:
        raise Invalid(f"{where}: column {name!r} has a default value, which an adoption cannot take over")
    try:
        kind = type_name(data_files.arrow_schema({"fields": [part]}).field(0).type, name)
        count = nested_count(kind)
        plain = iceberg_type(kind, tuple(range(count)))
        nested = tuple(number for _, number in sorted(_ids(plain, part["type"])))
        same = schemas.same_schema(_alone(iceberg_type(kind, nested)), _alone(part["type"]))
    except (Internal, Invalid, ValueError, TypeError, KeyError) as error:
        said = error.message if isinstance(error, LakestoreError) else str(error)
        raise Invalid(f"{where}: column {name!r} cannot be adopted: {said}") from error
    if not same:
        raise Invalid(f"{where}: column {name!r} has the type {part['type']}, which tables do not store exactly")
    return Column(part["id"], name, kind, required=bool(part["required"]) or name in keys, nested=nested)


def _alone(kind: Any) -> Json:
    return {"fields": [{"id": 1, "name": "a", "required": False, "type": kind}]}


def _ids(plain: Any, kind: Any) -> Iterator[tuple[int, int]]:
    """(number among the nested fields, field id) of each nested field."""
    if not isinstance(plain, Mapping):
        return
    if plain["type"] == "struct":
        for one, other in zip(plain["fields"], kind["fields"], strict=True):
            yield one["id"], other["id"]
            yield from _ids(one["type"], other["type"])
    for part in ("element", "key", "value"):
        if part in plain:
            yield plain[f"{part}-id"], kind[f"{part}-id"]
            yield from _ids(plain[part], kind[part])


def _partitions(doc: Json, schema: Json, where: str) -> tuple[str, ...]:
    """The present partition fields as texts of `partition_by`. Their names must be the names that our tables would give
    them. Data files of an earlier partitioning stay as they are."""
    names = {part["id"]: part["name"] for part in schema["fields"]}
    found: list[str] = []
    specs = doc["partition-specs"]
    fields = next(each["fields"] for each in specs if each["spec-id"] == doc["default-spec-id"])
    for part in fields:
        column, transform = names.get(part["source-id"]), part["transform"]
        kind, _, number = transform.partition("[")
        text = column if kind == "identity" else f"{kind}({number.rstrip(']')}, {column})" if number else None
        found.append(text or f"{kind}({column})")
        if column is None or our_tables.part_name(PartitionField(transform, column)) != part["name"]:
            raise Invalid(
                f"{where} is partitioned by {part['name']!r}, {transform} of {column or 'a nested field'}:"
                " a table of Lakestore cannot be"
            )
    return tuple(found)


def adopted_metadata(doc: Json, table: Table, now_ms: int, location: str) -> Json:
    """The metadata of an Iceberg table as the lake of one of ours: its schema, properties and uuid."""
    updates: list[Json] = [
        {"action": "add-schema", "schema": our_tables.schema_of(table)},
        {"action": "set-current-schema", "schema-id": metadata_updates.LAST_ADDED},
        {"action": "set-properties", "updates": our_tables.properties_of(table)},
    ]
    made = metadata_updates.updated(doc, updates, now_ms=now_ms, base_location=location)
    return {**made, "table-uuid": table.uuid}


def plain_metadata(stored: StoredMetadata, table: Table, now_ms: int, uuid: str) -> tuple[Json, list[str]]:
    """The metadata of one of our tables as a plain Iceberg table, and our columns that stay in its schema."""
    doc = stored.doc
    used = {number for spec in doc["partition-specs"] for part in spec["fields"] for number in schemas.sources(part)}
    used |= {number for order in doc["sort-orders"] for part in order["fields"] for number in schemas.sources(part)}
    kept = [name for name in LAKE_COLUMNS if LAKE_FIELD_IDS[name] in used]
    gone = {LAKE_FIELD_IDS[name] for name in LAKE_COLUMNS if name not in kept}
    current = _current(doc)
    schema = {**current, "fields": [part for part in current["fields"] if part["id"] not in gone]}
    ours = our_tables.properties_of(table)
    removals = [
        key
        for key, value in doc["properties"].items()
        if key.startswith("lakestore.") or (ours.get(key) == value and key != metadata.PREVIOUS_VERSIONS_MAX)
    ]
    refs = [name for name in doc["refs"] if name == gate.TIER_TAG or name.startswith(gate.PIN_PREFIX)]
    updates: list[Json] = [
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": metadata_updates.LAST_ADDED},
        *({"action": "remove-snapshot-ref", "ref-name": name} for name in refs),
        {"action": "remove-properties", "removals": removals},
    ]
    made = metadata_updates.updated(doc, updates, now_ms=now_ms, base_location=stored.location)
    return {**made, "table-uuid": uuid}, kept
