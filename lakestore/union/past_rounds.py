"""A table's rounds and compactions, as the summaries of the lake's snapshots tell them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakestore.errors import Corrupt
from lakestore.model.freshness_price import PastRewrite, PastRound
from lakestore.union import lake_snapshot

_POINT, _FROM, _SECONDS = "lakestore.tier-point", "lakestore.tier-from", "lakestore.seconds"


def remembered(metadata_location: str) -> tuple[list[PastRound], list[PastRewrite]]:
    """The rounds and compactions whose snapshots main still has, oldest first. Other engines' commits are left out."""
    rounds: list[PastRound] = []
    rewrites: list[PastRewrite] = []
    for snapshot in lake_snapshot.history(metadata_location):
        summary = snapshot["summary"]
        if _FROM not in summary:
            continue
        seconds, nbytes = float(summary.get(_SECONDS, 0)), _count(summary, "added-files-size")
        if summary["operation"] == "replace":
            rewrites.append(PastRewrite(seconds, nbytes))
            continue
        files, deletes = _count(summary, "added-data-files"), _count(summary, "added-delete-files")
        at = snapshot["timestamp-ms"] / 1_000
        rounds.append(PastRound(at, seconds, _changes(summary), files, deletes, nbytes))
    return rounds, rewrites


def _changes(summary: Mapping[str, Any]) -> int:
    try:
        before, after = json.loads(summary[_FROM]), json.loads(summary[_POINT])
        return sum(end - start for start, end in zip(before, after, strict=True))
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt("a lake snapshot's summary has a damaged lakestore record") from error


def _count(summary: Mapping[str, Any], name: str) -> int:
    return int(summary.get(name, 0))
