"""The lake side of a Lakestore table: its first Iceberg metadata, and its required schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lakestore.model import defaults, names
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET, Column, PartitionField
from lakestore.model.table import Table, lake_schema
from lakestore.model.types import iceberg_type
from lakestore_server.catalog import metadata, metadata_updates, schemas
from lakestore_server.catalog.schemas import Json

UUID_PROPERTY = names.UUID_PROPERTY
TIMELINE_PROPERTY = "lakestore.timeline"
"""The timeline that wrote the metadata."""
_TARGET_BYTES = "write.target-file-size-bytes"
_METRICS = "write.metadata.metrics.column."
PREVIOUS_VERSIONS = 20
"""Earlier metadata files in a table's log."""
MANIFEST_MERGE = "commit.manifest-merge.enabled"
MERGED_FILES_MAX = 10_000
"""Files of a table up to which Iceberg may merge manifests within a tierer's commit. The merge of 100 manifests with
100,000 files took 7 s, and the next round read them again for 4 s. The rewrite of manifests does it instead."""


def location_of(table: Table, warehouse: str) -> str:
    """The folder of the table's files; a new table of the same name gets another folder."""
    return f"{warehouse.rstrip('/')}/{table.namespace}/{table.short_name}-{table.uuid.replace('-', '')[:8]}"


def schema_of(table: Table) -> Json:
    """The Iceberg schema: the user's columns and our three; the primary key is the identifier."""
    schema: Json = {
        "type": "struct",
        "schema-id": 0,
        "fields": [_field(column, table.lake.format_version) for column in lake_schema(table)],
    }
    if table.keyed:
        schema["identifier-field-ids"] = [table.column(name).id for name in table.primary_key]
    return schema


def _field(column: Column, format_version: int) -> Json:
    plain: Json = {
        "id": column.id,
        "name": column.name,
        "required": column.required,
        "type": iceberg_type(column.type, column.nested),
    }
    values = {"initial-default": column.initial, "write-default": column.default} if format_version >= 3 else {}
    lake = {key: defaults.in_lake(value, column.type, column.name) for key, value in values.items()}
    return plain | {key: value for key, value in lake.items() if value is not None}


def properties_of(table: Table) -> dict[str, str]:
    """Properties for every writing engine: bounds to find offsets, deletes in the data files' folders."""
    return {
        UUID_PROPERTY: table.uuid,
        _METRICS + LAKE_OFFSET: "full",
        _METRICS + LAKE_BUCKET: "full",
        _TARGET_BYTES: str(table.lake.target_file_bytes),
        "write.parquet.compression-codec": "zstd",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "write.delete.granularity": "file",
        metadata.PREVIOUS_VERSIONS_MAX: str(PREVIOUS_VERSIONS),
    }


def seen_properties(table: Table, doc: Json) -> dict[str, str]:
    """The properties for the tierer: the table's own, without those that others have set. The tierer's commits merge no
    manifests of a table with very many files."""
    own = {key: value for key, value in doc["properties"].items() if key.startswith("lakestore.")}
    found = {**own, **properties_of(table)}
    files = metadata.total_of(doc, "total-data-files") + metadata.total_of(doc, "total-delete-files")
    return {**found, MANIFEST_MERGE: "false"} if files > MERGED_FILES_MAX else found


def stored_properties(properties: Mapping[str, str], timeline: str) -> dict[str, str]:
    """The properties with which a commit is stored. Only this server removes old metadata files: PyIceberg would remove
    them by property without knowing the leases."""
    kept = {key: value for key, value in properties.items() if key != metadata.DELETE_AFTER_COMMIT}
    return {**kept, TIMELINE_PROPERTY: timeline} if timeline else kept


def first_metadata(table: Table, warehouse: str, now_ms: int) -> Json:
    """The table's Iceberg metadata before its first snapshot; its uuid is the table's."""
    updates: list[Json] = [
        {"action": "add-schema", "schema": schema_of(table)},
        {"action": "set-current-schema", "schema-id": metadata_updates.LAST_ADDED},
        {"action": "add-spec", "spec": spec_of(table)},
        {"action": "set-default-spec", "spec-id": metadata_updates.LAST_ADDED},
        # The unsorted order exists too: Iceberg's rewrite in a user's order writes under it.
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "add-sort-order", "sort-order": _order(table)},
        {"action": "set-default-sort-order", "sort-order-id": metadata_updates.LAST_ADDED},
        {"action": "set-location", "location": location_of(table, warehouse)},
        {"action": "set-properties", "updates": properties_of(table)},
    ]
    base = metadata.empty(table.uuid, now_ms, table.lake.format_version)
    return metadata_updates.updated(base, updates, now_ms=now_ms, base_location=None)


def version_updates(version: Table, doc: Json) -> list[Json]:
    """Updates that give the lake table with this metadata a version's schema, layout and options."""
    return [
        {"action": "add-schema", "schema": schema_of(version)},
        {"action": "set-current-schema", "schema-id": metadata_updates.LAST_ADDED},
        *layout_updates(version, doc),
        option_updates(version),
    ]


def layout_updates(version: Table, doc: Json) -> list[Json]:
    """Updates that make a version's partition spec and sort order the default; empty if they are."""
    updates: list[Json] = []
    if not has_spec(version, default_spec(doc)):
        updates += [
            {"action": "add-spec", "spec": _later_spec(version, doc)},
            {"action": "set-default-spec", "spec-id": metadata_updates.LAST_ADDED},
        ]
    # An adopted table keeps the order that it had until it is given another one.
    is_given = bool(version.lake.sort_by) or not version.lake.adopted
    if is_given and not has_order(version, default_order(doc)):
        updates += [
            {"action": "add-sort-order", "sort-order": _order(version)},
            {"action": "set-default-sort-order", "sort-order-id": metadata_updates.LAST_ADDED},
        ]
    return updates


def default_spec(doc: Json) -> Json:
    """The default partition spec of a table's metadata."""
    return _numbered(doc["partition-specs"], "spec-id", doc["default-spec-id"])


def default_order(doc: Json) -> Json:
    """The default sort order of a table's metadata."""
    return _numbered(doc["sort-orders"], "order-id", doc["default-sort-order-id"])


def _numbered(items: list[Json], key: str, number: int) -> Json:
    found = metadata.by_id(items, key, number)
    assert found is not None
    return found


def has_spec(version: Table, spec: Json) -> bool:
    """Whether a partition spec partitions as a version says, under whatever names."""
    wanted = [(_field_id(version, part.column), part.transform) for part in version.lake.partition_fields()]
    return [(part.get("source-id"), part["transform"]) for part in spec["fields"]] == wanted


def has_order(version: Table, order: Json) -> bool:
    """Whether a sort order is a version's."""
    return schemas.same_order(_order(version), order)


def _later_spec(version: Table, doc: Json) -> Json:
    """A version's partition spec for a table that has had others. A field that was there before keeps its name. A new
    one that would get the name of another field has its number in the name, as in Iceberg Java: id_bucket_4."""
    fields = [part for spec in doc["partition-specs"] for part in spec["fields"]]
    names = {(part.get("source-id"), part["transform"]): part["name"] for part in fields}
    taken, parts = set(names.values()), list[Json]()
    for part in version.lake.partition_fields():
        source, plain = _field_id(version, part.column), part_name(part)
        name = names.get((source, part.transform)) or (numbered_name(part) if plain in taken else plain)
        parts.append({"source-id": source, "transform": part.transform, "name": name})
    return {"spec-id": 0, "fields": parts}


def numbered_name(part: PartitionField) -> str:
    """The name of a partition field with the number of its transform, such as id_bucket_4."""
    number = part.transform.partition("[")[2].rstrip("]")
    return part_name(part) + (f"_{number}" if number else "")


def option_updates(version: Table) -> Json:
    """The update of the lake table's changeable options."""
    return {"action": "set-properties", "updates": {_TARGET_BYTES: str(version.lake.target_file_bytes)}}


def _field_id(table: Table, name: str) -> int:
    return LAKE_FIELD_IDS[name] if name in LAKE_FIELD_IDS else table.column(name).id


def spec_of(table: Table) -> Json:
    """The Iceberg partition spec."""
    parts: list[Json] = []
    for number, part in enumerate(table.lake.partition_fields(), start=schemas.PARTITION_ID_FIRST):
        source = _field_id(table, part.column)
        parts.append({"source-id": source, "field-id": number, "transform": part.transform, "name": part_name(part)})
    return {"spec-id": 0, "fields": parts}


def part_name(part: PartitionField) -> str:
    """A partition field's name in Iceberg Java: day(ts) is ts_day, truncate(4, s) is s_trunc."""
    kind = part.transform.split("[")[0]
    suffix = {"identity": "", "truncate": "_trunc"}.get(kind, f"_{kind}")
    return part.column + suffix


def _order(table: Table) -> Json:
    parts: list[Json] = [
        {
            "transform": "identity",
            "source-id": _field_id(table, part.column),
            "direction": "desc" if part.descending else "asc",
            "null-order": "nulls-last" if part.descending else "nulls-first",
        }
        for part in table.lake.sort_fields()
    ]
    return {"order-id": 1 if parts else 0, "fields": parts}
