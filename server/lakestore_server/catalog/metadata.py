"""Iceberg table metadata as plain JSON: the document, its snapshots and its main. Pure.

Documents never change: `metadata_updates.updated` makes new ones. Unknown fields are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lakestore.errors import Invalid
from lakestore_server.catalog import schemas
from lakestore_server.catalog.schemas import Json

MAIN = "main"
NO_SNAPSHOT = -1
PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_FORMAT_VERSIONS = (1, 2, 3)
"""Versions of tables of other engines. Our tables have 2 or 3."""


def empty(uuid: str, now_ms: int, format_version: int = 2) -> Json:
    """Metadata before its first update: no schema, no location."""
    check_format(format_version)
    doc: Json = {
        "format-version": format_version,
        "table-uuid": uuid,
        "location": "",
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": 0,
        "current-schema-id": -1,
        "schemas": [],
        "default-spec-id": -1,
        "partition-specs": [],
        "last-partition-id": schemas.PARTITION_ID_FIRST - 1,
        "default-sort-order-id": -1,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": NO_SNAPSHOT if format_version < 3 else None,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    return doc if format_version < 3 else {**doc, "next-row-id": 0}


def snapshot_of(doc: Json, snapshot_id: int | None) -> Json | None:
    """The snapshot of this id."""
    if snapshot_id is None:
        return None
    return next((snapshot for snapshot in reversed(doc["snapshots"]) if snapshot["snapshot-id"] == snapshot_id), None)


def snapshot_ids(doc: Json) -> set[int]:
    """The ids of all snapshots."""
    return {snapshot["snapshot-id"] for snapshot in doc.get("snapshots") or ()}


def main_of(doc: Json) -> int | None:
    """The snapshot of main."""
    current = doc.get("current-snapshot-id")
    return None if current is None or current == NO_SNAPSHOT else int(current)


def total_of(doc: Json, name: str) -> int:
    """A total in the summary of main's snapshot, such as `total-data-files`; 0 if its writer did not count."""
    found = snapshot_of(doc, main_of(doc)) or {}
    text = str(found.get("summary", {}).get(name, ""))
    return int(text) if text.isdecimal() else 0


def ancestry(doc: Json, number: int | None) -> Iterator[Json]:
    """A snapshot and its ancestors, newest first, as far as they are kept; a cycle ends where it closes."""
    kept = {snapshot["snapshot-id"]: snapshot for snapshot in doc["snapshots"]}
    while number is not None and (snapshot := kept.pop(number, None)) is not None:
        yield snapshot
        number = snapshot.get("parent-snapshot-id")


def normal(doc: Any) -> Json:
    """Foreign metadata with every list and map present, or `Invalid`."""
    if not isinstance(doc, dict) or doc.get("format-version") not in _FORMAT_VERSIONS:
        raise Invalid("this is not Iceberg table metadata of format version 1, 2 or 3")
    if doc["format-version"] == 1:
        _number_lists(doc)
    if not doc.get("table-uuid") or not doc.get("schemas") or not doc.get("partition-specs"):
        raise Invalid("this Iceberg table metadata has no uuid, schema or partition spec")
    for key, blank in empty("", 0, doc["format-version"]).items():
        if doc.get(key) is None:
            doc[key] = blank
    current = main_of(doc)
    if current is not None and MAIN not in doc["refs"]:
        doc["refs"] = {**doc["refs"], MAIN: {"snapshot-id": current, "type": "branch"}}
    return doc


def _number_lists(doc: Json) -> None:
    """Give a document of version 1 the lists that old writers left out: they wrote one schema and one spec."""
    if not doc.get("schemas") and isinstance(doc.get("schema"), dict):
        doc["schemas"], doc["current-schema-id"] = [{**doc["schema"], "schema-id": 0}], 0
    if not doc.get("partition-specs") and isinstance(doc.get("partition-spec"), list):
        spec, last = schemas.numbered_spec({"fields": doc["partition-spec"]}, [], schemas.PARTITION_ID_FIRST - 1)
        doc["partition-specs"], doc["default-spec-id"] = [{**spec, "spec-id": 0}], 0
        doc["last-partition-id"] = last
    if not doc.get("sort-orders"):
        doc["sort-orders"], doc["default-sort-order-id"] = [{"order-id": 0, "fields": []}], 0


def with_single(doc: Json) -> Json:
    """A document of version 1 with the fields `schema` and `partition-spec`, which its readers need; others have
    neither."""
    plain = {key: value for key, value in doc.items() if key not in ("schema", "partition-spec")}
    if doc["format-version"] != 1:
        return plain
    schema = by_id(doc["schemas"], "schema-id", doc["current-schema-id"])
    spec = by_id(doc["partition-specs"], "spec-id", doc["default-spec-id"])
    return {**plain, "schema": schema, "partition-spec": spec["fields"] if spec else []}


def check_format(version: Any) -> None:
    """`Invalid` unless this release writes the format version."""
    if version not in _FORMAT_VERSIONS:
        raise Invalid(f"format version {version} is not supported; use 1, 2 or 3")


def by_id(items: Iterable[Json], key: str, number: int) -> Json | None:
    """The item whose `key` is the number."""
    return next((item for item in items if item[key] == number), None)
