"""Files that Python wrote, as Java has them: a manifest in memory that Iceberg reads.

A builder of Java's would need a call into the JVM for each fact of each file; a manifest needs a few for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from lakestore.lake.manifest_lists import DELETES, write_list
from lakestore.lake.manifests import ADDED, Entry, File, described, write_manifest
from lakestore.lake.values import Json
from lakestore_tiering.iceberg_java import Iceberg

_MANIFEST, _LIST, _SNAPSHOT, _FORMAT = "memory:files.avro", "memory:list.avro", 1, 2
"""Names and numbers that no file outside of this process's memory has."""


def schema_of(lake: Iceberg) -> Json:
    """The schema of a lake table as Iceberg's JSON."""
    found: Json = orjson.loads(str(lake.api.SchemaParser.toJson(lake.table.schema())))
    return found


def spec_of(lake: Iceberg) -> Json:
    """The partition spec of a lake table as Iceberg's JSON."""
    found: Json = orjson.loads(str(lake.api.PartitionSpecParser.toJson(lake.table.spec())))
    return found


def java(lake: Iceberg, content: int, files: Sequence[File]) -> list[Any]:
    """Files under the table's own partitioning as Java has them, in their order. `content`: `DATA` or `DELETES`."""
    if not files:
        return []
    said: dict[str, Any] = {"content": content, "schema": schema_of(lake), "spec": spec_of(lake)}
    entries = [Entry(ADDED, _SNAPSHOT, 0, 0, file) for file in files]
    data = write_manifest(entries, **said, format_version=_FORMAT)
    row = described(_MANIFEST, len(data), entries, **said, snapshot_id=_SNAPSHOT, sequence=0)
    listed = write_list([row], format_version=_FORMAT, snapshot_id=_SNAPSHOT, parent_id=None, sequence=0)
    memory = lake.api.inmemory.InMemoryFileIO()
    memory.addFile(_MANIFEST, data)
    memory.addFile(_LIST, listed)
    snapshot = {"snapshot-id": _SNAPSHOT, "timestamp-ms": 0, "manifest-list": _LIST, "sequence-number": 0}
    operation = "delete" if content == DELETES else "append"
    made = lake.api.SnapshotParser.fromJson(orjson.dumps({**snapshot, "summary": {"operation": operation}}).decode())
    manifests = made.deleteManifests(memory) if content == DELETES else made.dataManifests(memory)
    read = lake.api.ManifestFiles.readDeleteManifest if content == DELETES else lake.api.ManifestFiles.read
    reader = read(manifests[0], memory, lake.table.specs())
    try:
        return list(lake.java_listed(reader))
    finally:
        reader.close()
