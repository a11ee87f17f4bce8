"""The lake table of a truncated table: its metadata with one more snapshot on main, which has no file. Pure.

A table that was never tiered gets one too: without it, its tier point would be 0 and not its head.

The snapshot says nothing of a tier point, as the heads at which it counts are those of the commit that names it: the
journal's tier record is what counts, here as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakestore.lake.manifest_lists import write_list
from lakestore_server.iceberg import gate, metadata, metadata_updates
from lakestore_server.iceberg.schemas import Json

_COUNTS = {
    "total-records": "deleted-records",
    "total-data-files": "deleted-data-files",
    "total-delete-files": "removed-delete-files",
    "total-position-deletes": "removed-position-deletes",
    "total-equality-deletes": "removed-equality-deletes",
    "total-files-size": "removed-files-size",
}
"""The summary's totals, and the names under which a snapshot says what it took away."""


@dataclass(frozen=True, slots=True)
class EmptySnapshot:
    """A snapshot of no rows upon a document's main."""

    number: int
    doc: Json
    """The metadata with it."""
    manifest_list: str
    """The place of its list of manifests."""
    data: bytes
    """That list, which is empty."""


def emptied(doc: Json, location: str, number: int, now_ms: int, name: str) -> EmptySnapshot:
    """The metadata at `location` with an empty snapshot of this number; `name` is one that no other file has."""
    main = metadata.snapshot_of(doc, metadata.main_of(doc)) or {}
    sequence, time_ms = doc["last-sequence-number"] + 1, max(now_ms, doc["last-updated-ms"] + 1)
    place = f"{doc['location']}/metadata/snap-{number}-1-{name}.avro"
    had = main.get("summary") or {}
    snapshot: Json = {
        "snapshot-id": number,
        **({"parent-snapshot-id": main["snapshot-id"]} if main else {}),
        "sequence-number": sequence,
        "timestamp-ms": time_ms,
        "manifest-list": place,
        "summary": {
            "operation": "delete",
            "lakestore.truncate": "true",
            **{gone: str(had[total]) for total, gone in _COUNTS.items() if str(had.get(total, "0")) != "0"},
            **dict.fromkeys(_COUNTS, "0"),
        },
        "schema-id": doc["current-schema-id"],
    }
    first_row_id = None
    if doc["format-version"] >= 3:
        first_row_id = doc["next-row-id"]
        snapshot |= {"first-row-id": first_row_id, "added-rows": 0}
    data = write_list(
        (),
        format_version=doc["format-version"],
        snapshot_id=number,
        parent_id=main.get("snapshot-id"),
        sequence=sequence,
        first_row_id=first_row_id,
    )
    updates: list[Json] = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": metadata.MAIN, "type": "branch", "snapshot-id": number},
        {"action": "set-snapshot-ref", "ref-name": gate.TIER_TAG, "type": "tag", "snapshot-id": number},
    ]
    made = metadata_updates.updated(doc, updates, now_ms=time_ms, base_location=location)
    return EmptySnapshot(number, made, place, data)
