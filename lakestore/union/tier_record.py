"""The record in the summary of each of our snapshots.

Keys: `lakestore.epoch`, `tier-from` and `tier-point` (JSON lists of offsets, one per bucket), `live-sum` (a JSON list
of decimal texts), `lsn` and `schema-id`; Iceberg adds `source-snapshot-id`. `seconds` is how long the round or the
rewrite took, for `lakestore freshness price`. `numbered-on` is in commits to a table that was adopted: the id of the
snapshot below, if no data file without columns for row numbers is left. The catalog accepts a commit only if
`tier-from` is main's tier point, the epoch is current, and the sums equal the log's at that point. `erasure` is in the
commit that deletes rows of a log table for an erasure: its id. The sums are then the log's without these rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from lakestore.errors import Corrupt
from lakestore.union.plan import TierState

_PREFIX = "lakestore."
KEYS = tuple(_PREFIX + name for name in ("epoch", "tier-from", "tier-point", "live-sum", "lsn", "schema-id"))
SECONDS = _PREFIX + "seconds"
NUMBERED_ON, ERASURE = _PREFIX + "numbered-on", _PREFIX + "erasure"
OPTIONAL = (NUMBERED_ON, ERASURE)


@dataclass(frozen=True, slots=True)
class Record:
    """The table's state in the lake as of a tier point."""

    epoch: int
    tier_from: tuple[int, ...]
    tier_point: tuple[int, ...]
    """By bucket: the offset below which everything is in the lake."""
    live_sum: tuple[int, ...]
    """By bucket: the live sum of the lake's rows."""
    lsn: int
    schema_id: int
    numbered_on: int | None = None
    """The snapshot on which the commit is made, if no adopted file is left behind it."""
    erasure: str = ""
    """The id of the erasure whose rows the commit deletes from a log table."""

    @property
    def changes(self) -> int:
        """Offsets by which the commit moved the tier point."""
        return sum(self.tier_point) - sum(self.tier_from)

    def summary(self) -> dict[str, str]:
        values = (
            str(self.epoch),
            json.dumps(self.tier_from),
            json.dumps(self.tier_point),
            json.dumps([str(total) for total in self.live_sum]),
            str(self.lsn),
            str(self.schema_id),
        )
        numbered = {} if self.numbered_on is None else {NUMBERED_ON: str(self.numbered_on)}
        erases = {ERASURE: self.erasure} if self.erasure else {}
        return dict(zip(KEYS, values, strict=True)) | numbered | erases

    @staticmethod
    def parse(summary: Mapping[str, str]) -> Record | None:
        """Parse a summary; None if it has no record."""
        if KEYS[2] not in summary:
            return None
        try:
            epoch, tier_from, tier_point, live_sum, lsn, schema_id = (json.loads(summary[key]) for key in KEYS)
            before, after, sums = (tuple(map(int, each)) for each in (tier_from, tier_point, live_sum))
            if len(before) != len(after):
                raise ValueError("the tier points are of different buckets")
            numbered_on = int(summary[NUMBERED_ON]) if NUMBERED_ON in summary else None
            return Record(epoch, before, after, sums, lsn, schema_id, numbered_on, summary.get(ERASURE, ""))
        except (KeyError, ValueError, TypeError) as error:
            raise Corrupt("a lake snapshot's summary has a damaged lakestore record") from error

    @staticmethod
    def of(tier: TierState) -> Record:
        return Record(tier.epoch, tier.tier_point, tier.tier_point, tier.live_sum, tier.lsn, tier.schema_id)

    @staticmethod
    def empty(buckets: int) -> Record:
        zeros = (0,) * buckets
        return Record(0, zeros, zeros, zeros, 0, 0)
