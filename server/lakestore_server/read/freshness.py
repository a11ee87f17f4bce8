"""The age of a table's lake: the oldest commit that the newest snapshot lacks."""

from __future__ import annotations

from collections.abc import Sequence

from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.clock_marks import ClockMarks
from lakestore_server.state.view import TableState


def tier_point(state: TableState) -> tuple[int, ...]:
    """The offsets below which the newest snapshot has all rows; 0 without a snapshot."""
    return list(state.tiers.values())[-1].tier_point if state.tiers else (0,) * len(state.logs)


def hot_since_us(state: TableState, points: Sequence[int], marks: ClockMarks) -> int:
    """The time of the oldest commit above the offsets `points`, one per bucket; 0 if there is none."""
    begins = ((log, max(point, log.base.end)) for log, point in zip(state.logs, points, strict=True))
    hot = ((log, begin) for log, begin in begins if log.head > begin)  # a log may have removed all its rows
    commits = {_first_commit(log, point) for log, point in hot}  # many buckets share one commit
    return min((marks.time_us(*commit) for commit in commits), default=0)


def _first_commit(log: BucketLog, point: int) -> tuple[int, int]:
    index = next(chunk.index for chunk in log.chunks if chunk.end > point)
    at = 0 if point < index.end[0] else int(index.end.searchsorted(point, side="right"))
    return int(index.lsn[at]), int(index.time_us[at])
