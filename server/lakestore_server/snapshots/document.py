"""The metadata document of a presented cut, derived from the document of its lake table. Pure.

The document is the answer to whoever loads the table. An `EmptyDocument` has the schema and the partition specs for
which the cut's files are written. With the files it becomes the document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lakestore.errors import Corrupt
from lakestore.iceberg import places, vector_records
from lakestore.iceberg.avro import Container, packed
from lakestore.iceberg.manifest_entries import Entries, path_hash
from lakestore.iceberg.manifest_lists import DELETES, Manifest, write_list
from lakestore.iceberg.manifests import ADDED, DATA, Entry, File, described, write_manifest
from lakestore.model.table import Table
from lakestore_server.catalog import metadata, metadata_updates, our_tables
from lakestore_server.host.yield_points import yield_point
from lakestore_server.snapshots.base_files import BaseFiles
from lakestore_server.snapshots.cut_key import CutKey
from lakestore_server.snapshots.deletes import DeleteLedger, vector_key
from lakestore_server.snapshots.messages import BuildRequest, BuiltFiles, Json
from lakestore_server.snapshots.steps import Ints


class SnapshotWriter:
    """Writes the snapshot of one cut: its manifests and manifest list. Used once."""

    def __init__(self, request: BuildRequest, specs: Mapping[int, Json], name: Callable[[str], str]) -> None:
        """`name` returns a new file's URI with the given ending."""
        self._request, self._specs, self._name = request, specs, name
        self._sequence = request.base.sequence + 1

    def write(
        self, base: BaseFiles, ledger: DeleteLedger, took: Mapping[str, float]
    ) -> tuple[BuiltFiles, dict[str, int]]:
        """(the answer, the size of every file of the cut except the base's data files)."""
        request = self._request
        hot = [file for window in ledger.windows for file in window.step.files]
        deletes = [delete for hidden in ledger.hidden.values() for delete in hidden.deletes]
        replaced = {hidden.file.path: hidden.replaced for hidden in ledger.hidden.values() if hidden.replaced}
        first = next_row = request.base.next_row_id
        data = []
        for manifest in self._of_files(hot, DATA):
            if request.format >= 3:
                manifest = replace(manifest, first_row_id=next_row)
                next_row += manifest.added_rows or 0
            data.append(manifest)
        manifests = [*data, *self._of_files(deletes, DELETES), *self._base(base, replaced)]
        listed = write_list(
            manifests,
            format_version=request.format,
            snapshot_id=request.cut_id,
            parent_id=request.base.snapshot_id or None,
            sequence=self._sequence,
            first_row_id=first if request.format >= 3 else None,
        )
        location = self._name("snapshot.avro")
        places.write(location, listed)
        sizes = {file.path: file.bytes for file in (*hot, *deletes)} | {each.path: each.length for each in manifests}
        sizes[location] = len(listed)
        of_base = {each.path for each in base.manifests}
        answer = BuiltFiles(
            manifest_list=location,
            rows=sum(file.rows for file in hot),
            data_files=len(hot),
            delete_files=len(deletes),
            deleted_rows=ledger.rows,
            file_bytes=sum(size for path, size in sizes.items() if path not in of_base),
            first_row_id=first,
            next_row_id=next_row,
            flat=any(file.spec_id == request.flat_spec_id for file in hot),
            took=took,
        )
        return answer, sizes

    def _of_files(self, files: Sequence[File], content: int) -> list[Manifest]:
        """New manifests of files, one for each partition spec."""
        by_spec: dict[int, list[Entry]] = defaultdict(list)
        for file in files:
            by_spec[file.spec_id].append(Entry(ADDED, self._request.cut_id, self._sequence, self._sequence, file))
        return [self._manifest(entries, content, spec_id) for spec_id, entries in sorted(by_spec.items())]

    def _manifest(self, entries: Sequence[Entry], content: int, spec_id: int) -> Manifest:
        schema, spec = self._request.schema, self._specs[spec_id]
        data = write_manifest(entries, content=content, schema=schema, spec=spec, format_version=self._request.format)
        location = self._name("manifest.avro")
        places.write(location, data)
        return described(
            location,
            len(data),
            entries,
            content=content,
            schema=schema,
            spec=spec,
            snapshot_id=self._request.cut_id,
            sequence=self._sequence,
        )

    def _base(self, base: BaseFiles, replaced: Mapping[str, Sequence[str]]) -> list[Manifest]:
        """The base's manifests. A manifest with replaced vectors is written again without these vectors."""
        gone: dict[str, tuple[Entries, Ints]] = {}
        for deletes in base.deletes if replaced else ():
            places_ = _places_of(deletes, replaced)
            if places_:
                kept = np.setdiff1d(np.arange(len(deletes)), np.fromiter(places_, np.int64), assume_unique=True)
                gone[deletes.manifest.path] = deletes, kept
        found = []
        for manifest in base.manifests:
            left = gone.get(manifest.path)
            if left is None:
                found.append(manifest)
            elif len(left[1]):
                found.append(self._without(manifest, *left))
        return found

    def _without(self, manifest: Manifest, deletes: Entries, kept: Ints) -> Manifest:
        """A copy of a base manifest with only the `kept` entries. Entries are copied as bytes, so they inherit the
        same values.

        Vectors get path bounds, which Iceberg's Java library omits: the Puffin file may also contain replaced vectors,
        and polars, which assigns vectors by path bounds, would find two vectors for one data file.
        """
        yield_point()
        meta = Container.opened(places.read(manifest.path), manifest.path).meta
        data = packed(meta, list(vector_records.bounded(deletes, kept)))
        location = self._name("manifest.avro")
        places.write(location, data)
        added, rows = deletes.added[kept], deletes.rows[kept]
        return replace(
            manifest,
            path=location,
            length=len(data),
            added_files=int(np.count_nonzero(added)),
            existing_files=int(np.count_nonzero(~added)),
            deleted_files=0,
            added_rows=int(rows[added].sum()),
            existing_rows=int(rows[~added].sum()),
            deleted_rows=0,
        )


def _places_of(deletes: Entries, replaced: Mapping[str, Sequence[str]]) -> set[int]:
    """The positions in a manifest of the replaced vectors. `replaced` is by data file."""
    hashes, named = deletes.named
    near = named[np.isin(hashes[named], [path_hash(path.encode()) for path in replaced])].tolist()
    keys = {key for each in replaced.values() for key in each}
    return {place for place in near if vector_key(deletes[place].file) in keys}


POSITION_PROPERTY = "lakestore.token"
"""The token of the cut. Every Lakestore client reads the same rows with it."""
LEASE_PROPERTY = "lakestore.lease-until"
"""The time until which the cut's files are kept."""
V3 = 3
_TOTALS = {"total-records": "added-records", "total-data-files": "added-data-files"}
"""Totals of a presented snapshot, and what it adds to its base's totals. It takes no data file away.

Spark estimates a table by `total-records`, and without it never broadcasts one.
"""


@dataclass(frozen=True, slots=True)
class BaseSnapshot:
    """The lake snapshot below a cut, or its absence."""

    snapshot_id: int = 0
    manifest_list: str = ""
    sequence: int = 0
    """The last sequence number in the table's document."""
    timestamp_ms: int = 0
    """The snapshot's time, or the table's creation."""
    next_row_id: int = 0
    format_version: int = 2
    summary: Mapping[str, str] = field(default_factory=dict)
    """The snapshot's summary. A cut's totals are based on it."""


@dataclass(frozen=True, slots=True)
class EmptyDocument:
    """A document without a snapshot: the schema version of the cut, and all partition specs with an unpartitioned
    one.
    """

    doc: Json
    base: BaseSnapshot
    flat_spec_id: int
    is_flat_added: bool
    """Whether the unpartitioned spec was added here and is in no document of the lake."""

    @property
    def specs(self) -> list[Json]:
        """All partition specs, including the unpartitioned one."""
        flat: Json = {"spec-id": self.flat_spec_id, "fields": []}
        return [*self.doc["partition-specs"], *([flat] if self.is_flat_added else [])]

    @property
    def schema(self) -> Json:
        """The current schema."""
        found = metadata.by_id(self.doc["schemas"], "schema-id", self.doc["current-schema-id"])
        assert found is not None
        return found


def base_of(doc: Json, snapshot_id: int, created_ms: int) -> BaseSnapshot:
    """The base with that snapshot id; 0 for none. Raises `Corrupt` if the document lacks it."""
    if snapshot_id:
        snapshot = metadata.snapshot_of(doc, snapshot_id)
        if snapshot is None:
            raise Corrupt(
                f"the metadata of table {doc['table-uuid']} lacks snapshot {snapshot_id}, which a record names"
            )
        manifest_list, timestamp_ms = snapshot["manifest-list"], snapshot["timestamp-ms"]
        summary = snapshot.get("summary") or {}
    else:
        manifest_list, timestamp_ms = "", created_ms
        summary = dict.fromkeys(_TOTALS, "0")
    return BaseSnapshot(
        snapshot_id=snapshot_id,
        manifest_list=manifest_list,
        sequence=doc["last-sequence-number"],
        timestamp_ms=timestamp_ms,
        next_row_id=int(doc.get("next-row-id") or 0),
        format_version=int(doc["format-version"]),
        summary=summary,
    )


def empty_document(doc: Json, base: BaseSnapshot, version: Table, format_version: int) -> EmptyDocument:
    """The empty document of a cut at a schema version, from the document of the lake table."""
    updates: list[Json] = [
        *our_tables.version_updates(version, doc),
        {"action": "upgrade-format-version", "format-version": format_version},
    ]
    made = metadata_updates.updated(doc, updates, now_ms=doc["last-updated-ms"], base_location=None)
    flat = next((spec["spec-id"] for spec in made["partition-specs"] if not spec["fields"]), None)
    is_added = flat is None
    if flat is None:
        flat = max(spec["spec-id"] for spec in made["partition-specs"]) + 1
    return EmptyDocument(made, base, flat, is_added)


def document(of: EmptyDocument, key: CutKey, files: BuiltFiles, said: Mapping[str, str], location: str) -> Json:
    """The document of a cut. `said` are additional properties.

    The document's location is outside of the lake table's folder, and garbage collection is off: otherwise an engine's
    clean-up of unlisted files would delete the lake's own metadata.
    """
    base, doc = of.base, of.doc
    number, time_ms, sequence = key.snapshot_id, base.timestamp_ms + 1, base.sequence + 1
    snapshot: Json = {
        "snapshot-id": number,
        "sequence-number": sequence,
        "timestamp-ms": time_ms,
        "manifest-list": files.manifest_list,
        "summary": _summary(files, base),
        "schema-id": doc["current-schema-id"],
    }
    made = {
        **doc,
        "partition-specs": of.specs if files.flat else doc["partition-specs"],
        "last-sequence-number": sequence,
        "last-updated-ms": time_ms,
        "current-snapshot-id": number,
        "snapshots": [snapshot],
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": time_ms}],
        "metadata-log": [],
        "refs": {metadata.MAIN: {"snapshot-id": number, "type": "branch"}},
        "statistics": [],
        "partition-statistics": [],
        "location": location,
        "properties": {**_shown(doc["properties"]), "gc.enabled": "false", **said},
    }
    if doc["format-version"] >= V3:
        snapshot |= {"first-row-id": files.first_row_id, "added-rows": files.next_row_id - files.first_row_id}
        made["next-row-id"] = files.next_row_id
    return made


def _summary(files: BuiltFiles, base: BaseSnapshot) -> dict[str, str]:
    """The snapshot's summary: counts of hot files and rows, and totals if the base has them."""
    added = {
        "operation": "overwrite",
        "added-data-files": str(files.data_files),
        "added-records": str(files.rows),
        "added-delete-files": str(files.delete_files),
        "added-position-deletes": str(files.deleted_rows),
    }
    totals = {
        total: str(int(base.summary[total]) + int(added[own]))
        for total, own in _TOTALS.items()
        if total in base.summary
    }
    return added | totals


def _shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The table's properties without the properties for writers, because nobody writes to a presented table."""
    return {
        key: value
        for key, value in properties.items()
        if not key.startswith("write.") and key != our_tables.TIMELINE_PROPERTY
    }
