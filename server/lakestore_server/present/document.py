"""The metadata document of a presented cut, made from the document of its lake table. Pure.

Nothing of it is stored: it is the answer to whoever loads the table. A `Frame` is what the cut's files are written by,
schema and partition specs; with the files it becomes the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakestore.errors import Corrupt
from lakestore.model.table import Table
from lakestore_server.iceberg import metadata, metadata_updates, our_tables
from lakestore_server.iceberg.schemas import Json
from lakestore_server.present.cut_key import CutKey
from lakestore_server.present.messages import Presented

POSITION_PROPERTY = "lakestore.token"
"""The position of the cut, by which any client of ours reads the same rows."""
LEASE_PROPERTY = "lakestore.lease-until"
"""The time up to which the cut's files stay."""
V3 = 3
_TOTALS = {"total-records": "added-records", "total-data-files": "added-data-files"}
"""Totals that a presented snapshot has, and what it adds to those of its base. It takes no data file away.

Spark estimates a table by `total-records`, and without it never broadcasts one.
"""


@dataclass(frozen=True, slots=True)
class Base:
    """The lake snapshot below a cut, or the lack of one."""

    snapshot_id: int = 0
    manifest_list: str = ""
    sequence: int = 0
    """The last sequence number of the table's document."""
    timestamp_ms: int = 0
    """The snapshot's, or the table's creation."""
    next_row_id: int = 0
    format_version: int = 2
    summary: Mapping[str, str] = field(default_factory=dict)
    """The snapshot's summary, whose totals a cut's go on from."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A document without a snapshot: the schema of the cut's version, and all specs with one without partitions."""

    doc: Json
    base: Base
    flat_spec_id: int
    is_flat_added: bool
    """Whether the flat spec is in no document of the lake."""

    @property
    def specs(self) -> list[Json]:
        """All partition specs, the flat one among them."""
        flat: Json = {"spec-id": self.flat_spec_id, "fields": []}
        return [*self.doc["partition-specs"], *([flat] if self.is_flat_added else [])]

    @property
    def schema(self) -> Json:
        """The current schema."""
        found = metadata.by_id(self.doc["schemas"], "schema-id", self.doc["current-schema-id"])
        assert found is not None
        return found


def base_of(doc: Json, snapshot_id: int, created_ms: int) -> Base:
    """The base of that snapshot, 0 for none; `Corrupt` if the document does not have it."""
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
    return Base(
        snapshot_id=snapshot_id,
        manifest_list=manifest_list,
        sequence=doc["last-sequence-number"],
        timestamp_ms=timestamp_ms,
        next_row_id=int(doc.get("next-row-id") or 0),
        format_version=int(doc["format-version"]),
        summary=summary,
    )


def frame(doc: Json, base: Base, version: Table, format_version: int) -> Frame:
    """The frame of a cut in a version of the table's definition, from the document of its lake table."""
    updates: list[Json] = [
        *our_tables.version_updates(version),
        {"action": "upgrade-format-version", "format-version": format_version},
    ]
    made = metadata_updates.updated(doc, updates, now_ms=doc["last-updated-ms"], base_location=None)
    flat = next((spec["spec-id"] for spec in made["partition-specs"] if not spec["fields"]), None)
    is_added = flat is None
    if flat is None:
        flat = max(spec["spec-id"] for spec in made["partition-specs"]) + 1
    return Frame(made, base, flat, is_added)


def document(of: Frame, key: CutKey, files: Presented, said: Mapping[str, str], location: str) -> Json:
    """The document of a cut; `said` are its own properties.

    Its location is none of the lake's: there would be the lake's own metadata, which an engine's clean-up of files that
    a document does not name would take away. GC is off for that reason as well.
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


def _summary(files: Presented, base: Base) -> dict[str, str]:
    """Counts of what is hot, as any engine's commit says them, and totals where the base has them."""
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
    """The table's properties without those of writers: nothing is written by them."""
    return {
        key: value
        for key, value in properties.items()
        if not key.startswith("write.") and key != our_tables.TIMELINE_PROPERTY
    }
