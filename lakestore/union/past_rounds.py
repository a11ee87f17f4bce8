"""A table's rounds and compactions, as the summaries of the lake's snapshots tell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakestore.model.freshness_price import PastRewrite, PastRound
from lakestore.union import lake_snapshot
from lakestore.union.tier_record import SECONDS, Record


def remembered(metadata_location: str) -> tuple[list[PastRound], list[PastRewrite]]:
    """The rounds and compactions whose snapshots main still has, oldest first. Other engines' commits are left out."""
    rounds: list[PastRound] = []
    rewrites: list[PastRewrite] = []
    for snapshot in lake_snapshot.history(metadata_location):
        summary = snapshot["summary"]
        record = Record.parse(summary)
        if record is None:
            continue
        seconds, nbytes = float(summary.get(SECONDS, 0)), _count(summary, "added-files-size")
        if summary["operation"] == "replace":
            rewrites.append(PastRewrite(seconds, nbytes))
            continue
        files, deletes = _count(summary, "added-data-files"), _count(summary, "added-delete-files")
        rounds.append(PastRound(snapshot["timestamp-ms"] / 1_000, seconds, record.changes, files, deletes, nbytes))
    return rounds, rewrites


def _count(summary: Mapping[str, Any], name: str) -> int:
    return int(summary.get(name, 0))
