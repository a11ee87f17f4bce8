"""Turns files that Python wrote into Java objects, or into a table of their own, by a manifest that Iceberg reads.

A Java builder would need a call into the JVM for each fact of each file. A manifest needs a few calls for all files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson

from lakestore.iceberg.manifest_lists import DELETES, write_list
from lakestore.iceberg.manifests import ADDED, DATA, Entry, File, described, write_manifest
from lakestore.iceberg.values import Json
from lakestore_tiering.iceberg_java import Iceberg, Lazy

_SNAPSHOT, _FORMAT = 1, 2
"""Numbers of a snapshot that is never committed."""
MANIFEST, MANIFESTS = "files.avro", "list.avro"
PLAIN_SPEC = 0
"""Number of the spec without fields in `uncatalogued`."""


def schema_of(lake: Iceberg) -> Json:
    """The schema of a lake table as Iceberg's JSON."""
    found: Json = orjson.loads(str(lake.api.SchemaParser.toJson(lake.table.schema())))
    return found


def spec_of(lake: Iceberg, spec_id: int | None = None) -> Json:
    """A partition spec of a lake table as Iceberg's JSON; the default one if none is named."""
    spec = lake.table.spec() if spec_id is None else lake.table.specs().get(spec_id)
    found: Json = orjson.loads(str(lake.api.PartitionSpecParser.toJson(spec)))
    return found


def java(lake: Iceberg, content: int, files: Sequence[File], spec_id: int | None = None) -> list[Lazy]:
    """Java files of one partition spec, by default the table's, in order. `content` is `DATA` or `DELETES`."""
    if not files:
        return []
    # All InMemoryFileIO instances of a JVM share one map, so a concurrent round needs other names.
    folder = f"memory:{uuid.uuid4().hex}"
    manifest, manifests = f"{folder}/{MANIFEST}", f"{folder}/{MANIFESTS}"
    data, listed = _documents(manifest, files, content, schema_of(lake), spec_of(lake, spec_id), sequence=0)
    memory = lake.api.inmemory.InMemoryFileIO()
    memory.addFile(manifest, data)
    memory.addFile(manifests, listed)
    try:
        return _read(lake, content, memory, manifests)
    finally:
        memory.deleteFile(manifest)
        memory.deleteFile(manifests)


def uncatalogued(
    lake: Iceberg, folder: str, files: Sequence[File], *, put: Callable[[str, bytes], str], task_bytes: int
) -> str:
    """The metadata document of a table of its own: these unpartitioned files in the schema of a lake table.

    `put` stores its two manifest files under their names in the folder.
    """
    schema, spec = schema_of(lake), {"spec-id": PLAIN_SPEC, "fields": []}
    data, listed = _documents(f"{folder}/{MANIFEST}", files, DATA, schema, spec, sequence=1)
    put(MANIFEST, data)
    number = schema.get("schema-id", 0)
    snapshot = {
        "snapshot-id": _SNAPSHOT,
        "sequence-number": 1,
        "timestamp-ms": 0,
        "schema-id": number,
        "manifest-list": put(MANIFESTS, listed),
        "summary": {"operation": "append"},
    }
    document = {
        "format-version": _FORMAT,
        "table-uuid": str(uuid.uuid4()),
        "location": folder,
        "last-sequence-number": 1,
        "last-updated-ms": 0,
        "last-column-id": int(lake.table.schema().highestFieldId()),
        "schemas": [schema],
        "current-schema-id": number,
        "partition-specs": [spec],
        "default-spec-id": PLAIN_SPEC,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {
            "read.split.target-size": str(task_bytes),
            "read.split.open-file-cost": "1",
            "read.split.adaptive-size.enabled": "false",
        },
        "snapshots": [snapshot],
        "current-snapshot-id": _SNAPSHOT,
        "refs": {"main": {"snapshot-id": _SNAPSHOT, "type": "branch"}},
    }
    return orjson.dumps(document).decode()


def _documents(
    manifest: str, files: Sequence[File], content: int, schema: Json, spec: Json, *, sequence: int
) -> tuple[bytes, bytes]:
    """A manifest of added files for this location, and the manifest list of a snapshot with nothing else."""
    said: dict[str, Any] = {"content": content, "schema": schema, "spec": spec}
    entries = [Entry(ADDED, _SNAPSHOT, sequence, sequence, file) for file in files]
    data = write_manifest(entries, **said, format_version=_FORMAT)
    row = described(manifest, len(data), entries, **said, snapshot_id=_SNAPSHOT, sequence=sequence)
    listed = write_list([row], format_version=_FORMAT, snapshot_id=_SNAPSHOT, parent_id=None, sequence=sequence)
    return data, listed


def _read(lake: Iceberg, content: int, memory: Any, manifests: str) -> list[Lazy]:
    snapshot = {"snapshot-id": _SNAPSHOT, "timestamp-ms": 0, "manifest-list": manifests, "sequence-number": 0}
    operation = "delete" if content == DELETES else "append"
    made = lake.api.SnapshotParser.fromJson(orjson.dumps({**snapshot, "summary": {"operation": operation}}).decode())
    found = made.deleteManifests(memory) if content == DELETES else made.dataManifests(memory)
    read = lake.api.ManifestFiles.readDeleteManifest if content == DELETES else lake.api.ManifestFiles.read
    reader = read(found[0], memory, lake.table.specs())
    try:
        found = lake.java_list_of(reader)
        return [Lazy(partial(found.get, place)) for place in range(int(found.size()))]
    finally:
        reader.close()
