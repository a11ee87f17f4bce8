"""Turns files that Python wrote into Java objects by a manifest in memory that Iceberg reads.

A Java builder would need a call into the JVM for each fact of each file. A manifest needs a few calls for all files.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from lakestore.iceberg.manifest_lists import DELETES, write_list
from lakestore.iceberg.manifests import ADDED, Entry, File, described, write_manifest
from lakestore.iceberg.values import Json
from lakestore_tiering.iceberg_java import Iceberg, Lazy

_SNAPSHOT, _FORMAT = 1, 2
"""Numbers of a snapshot that is never committed."""


def schema_of(lake: Iceberg) -> Json:
    """The schema of a lake table as Iceberg's JSON."""
    found: Json = orjson.loads(str(lake.api.SchemaParser.toJson(lake.table.schema())))
    return found


def spec_of(lake: Iceberg) -> Json:
    """The partition spec of a lake table as Iceberg's JSON."""
    found: Json = orjson.loads(str(lake.api.PartitionSpecParser.toJson(lake.table.spec())))
    return found


def java(lake: Iceberg, content: int, files: Sequence[File]) -> list[Lazy]:
    """Java files under the table's partitioning, in order. `content` is `DATA` or `DELETES`."""
    if not files:
        return []
    said: dict[str, Any] = {"content": content, "schema": schema_of(lake), "spec": spec_of(lake)}
    entries = [Entry(ADDED, _SNAPSHOT, 0, 0, file) for file in files]
    # All InMemoryFileIO instances of a JVM share one map, so a concurrent round needs other names.
    folder = f"memory:{uuid.uuid4().hex}"
    manifest, manifests = f"{folder}/files.avro", f"{folder}/list.avro"
    data = write_manifest(entries, **said, format_version=_FORMAT)
    row = described(manifest, len(data), entries, **said, snapshot_id=_SNAPSHOT, sequence=0)
    listed = write_list([row], format_version=_FORMAT, snapshot_id=_SNAPSHOT, parent_id=None, sequence=0)
    memory = lake.api.inmemory.InMemoryFileIO()
    memory.addFile(manifest, data)
    memory.addFile(manifests, listed)
    try:
        return _read(lake, content, memory, manifests)
    finally:
        memory.deleteFile(manifest)
        memory.deleteFile(manifests)


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
