"""A lake that continued after a backup, set back to the newest state that the backup covers. Pure.

The newest metadata is kept except main, the snapshots above it and their records, so files, sequence numbers and row
ids of the lost history are not used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lakestore_server.catalog import gate, metadata
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import TierRecord


@dataclass(frozen=True, slots=True)
class Rewound:
    """A table's metadata after it was set back."""

    doc: Json
    records: tuple[TierRecord, ...]
    """The tier records of the remaining snapshots, oldest first."""
    is_whole: bool = False
    """True if main stays: the lake has no row that the log lacks."""


def rewound(
    doc: Json, location: str, known: Mapping[int, TierRecord], covers: Callable[[TierRecord], bool], now_ms: int
) -> Rewound | None:
    """The metadata at `location` set back to the newest snapshot of main that the log covers; None if there is none.
    `known` are the backup's records; `covers` says whether lake and log agree at a record's tier point."""
    path = list(metadata.ancestry(doc, metadata.main_of(doc)))
    records = _records(path, known)
    at = next((i for i, each in enumerate(path) if (held := records.get(_id(each))) and covers(held)), None)
    if at is None:
        return None
    kept = path[at:]
    stay = tuple(records[_id(each)] for each in reversed(kept) if _id(each) in records)
    return Rewound(_set_back(doc, location, kept, now_ms), stay, is_whole=at == 0)


def _id(snapshot: Json) -> int:
    return int(snapshot["snapshot-id"])


def _records(path: list[Json], known: Mapping[int, TierRecord]) -> dict[int, TierRecord]:
    """The tier records of main's snapshots; a rewrite has the record of the snapshot below."""
    found: dict[int, TierRecord] = {}
    below: TierRecord | None = None
    for snapshot in reversed(path):
        summary, number = snapshot.get("summary") or {}, _id(snapshot)
        own = known.get(number) or _said(snapshot, below)
        inherited = replace(below, snapshot_id=number) if below and summary.get("operation") == "replace" else None
        below = own or inherited
        if below is not None:
            found[number] = below
    return found


def _said(snapshot: Json, below: TierRecord | None) -> TierRecord | None:
    """The record in a snapshot's own summary, not yet compared with the log."""
    summary = snapshot.get("summary") or {}
    try:
        point, sums = (
            tuple(int(text) for text in json.loads(summary[key])) for key in (gate.TIER_POINT, gate.LIVE_SUM)
        )
        lsn, epoch, schema_id = (int(summary[key]) for key in (gate.LSN, gate.EPOCH, gate.SCHEMA_ID))
    except (KeyError, TypeError, ValueError):
        return None
    return TierRecord(_id(snapshot), point, sums, lsn, epoch, None, schema_id, gate.is_numbered(snapshot, below))


def _set_back(doc: Json, location: str, kept: list[Json], now_ms: int) -> Json:
    main, ids = kept[0], {_id(snapshot) for snapshot in kept}
    now_ms = max(now_ms, doc["last-updated-ms"])
    refs = {name: ref for name, ref in doc["refs"].items() if ref["snapshot-id"] in ids}
    refs[metadata.MAIN] = {**doc["refs"].get(metadata.MAIN, {"type": "branch"}), "snapshot-id": _id(main)}
    refs[gate.TIER_TAG] = {"type": "tag", "snapshot-id": _id(main)}
    schema_id = main.get("schema-id", doc["current-schema-id"])
    used = {schema_id, *(snapshot.get("schema-id", schema_id) for snapshot in kept)}
    return {
        **doc,
        "current-snapshot-id": _id(main),
        "snapshots": [each for each in doc["snapshots"] if _id(each) in ids],
        "refs": refs,
        "schemas": [schema for schema in doc["schemas"] if schema["schema-id"] in used],
        "current-schema-id": schema_id,
        "snapshot-log": [
            *(entry for entry in doc["snapshot-log"] if entry["snapshot-id"] in ids),
            {"timestamp-ms": now_ms, "snapshot-id": _id(main)},
        ],
        "metadata-log": [
            *doc["metadata-log"],
            {"metadata-file": location, "timestamp-ms": doc["last-updated-ms"]},
        ],
        "statistics": [part for part in doc["statistics"] if part["snapshot-id"] in ids],
        "partition-statistics": [part for part in doc["partition-statistics"] if part["snapshot-id"] in ids],
        "last-updated-ms": now_ms,
    }
