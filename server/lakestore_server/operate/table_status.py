"""The status of tables: figures of one view, as values and as the JSON that clients are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from lakestore_server.duties.expiry import Figures
from lakestore_server.duties.retention import Decision
from lakestore_server.files.segment import Segment
from lakestore_server.iceberg.catalog import TierProblem
from lakestore_server.operate.lake_figures import LakeFigures
from lakestore_server.read.reach import Reach
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table in figures; times are microseconds since 1970, lists have one entry per bucket."""

    name: str
    uuid: str
    keyed: bool
    schema_id: int
    buckets: int
    rows: int
    """Live rows."""
    head: list[int]
    """The next offset."""
    log_start: list[int]
    log_start_lsn: int
    log_start_us: int
    """0 as long as the log has its beginning."""
    retention: str | None
    ttl: str | None
    tier_point: list[int]
    hot: int
    """Offsets that the lake does not have yet."""
    hot_since_us: int
    """Time of the oldest commit that the lake does not have; 0 if it has all."""
    freshness: str
    freshness_seconds: int
    """The promise: the age that `hot_since_us` may come to."""
    last_commit_us: int
    tiered_commit_us: int
    """Time of the newest commit that the lake has."""
    snapshot_id: int | None
    """The newest snapshot with a tier record."""
    stored_rows: int
    """Rows in segments and memory, dead ones included."""
    segments: int
    segment_bytes: int

    def hot_seconds(self, now_us: int) -> float:
        """The age of the oldest change that the lake does not have; 0 if it has all."""
        return max(now_us - self.hot_since_us, 0) / 1e6 if self.hot_since_us else 0.0


def table_status(state: TableState, marks: ClockMarks = NO_MARKS) -> TableStatus:
    """The figures of a table; `marks` tell the time of commits whose stamps are ahead."""
    tier = list(state.tiers.values())[-1] if state.tiers else None
    points = tier.tier_point if tier else (0,) * len(state.logs)
    heads = state.heads()
    segments = [chunk for log in state.logs for chunk in log.chunks if isinstance(chunk, Segment)]
    return TableStatus(
        name=state.table.name,
        uuid=state.table.uuid,
        keyed=state.table.keyed,
        schema_id=state.table.schema_id,
        buckets=len(heads),
        rows=sum(log.at_head.live_rows for log in state.logs),
        head=heads,
        log_start=list(state.starts()),
        log_start_lsn=state.log_start_lsn,
        log_start_us=max(log.base.time_us for log in state.logs) if state.log_start_lsn else 0,
        retention=str(state.table.retention) if state.table.retention else None,
        ttl=str(state.table.ttl) if state.table.ttl else None,
        tier_point=list(points),
        hot=sum(heads) - sum(points),
        hot_since_us=_hot_since_us(state, points, marks),
        freshness=state.table.lake.freshness,
        freshness_seconds=state.table.lake.freshness_seconds,
        last_commit_us=max(log.at_head.time_us for log in state.logs),
        tiered_commit_us=max(_time_at(log, point) for log, point in zip(state.logs, points, strict=True)),
        snapshot_id=tier.snapshot_id if tier else None,
        stored_rows=sum(chunk.rows for log in state.logs for chunk in log.chunks),
        segments=len(segments),
        segment_bytes=sum(segment.size for segment in segments),
    )


def _hot_since_us(state: TableState, points: Sequence[int], marks: ClockMarks) -> int:
    begins = ((log, max(point, log.base.end)) for log, point in zip(state.logs, points, strict=True))
    hot = ((log, begin) for log, begin in begins if log.head > begin)  # a log may have given up all that it had
    commits = {_first_commit(log, point) for log, point in hot}  # many buckets share one
    return min((marks.time_us(*commit) for commit in commits), default=0)


def _first_commit(log: BucketLog, point: int) -> tuple[int, int]:
    """LSN and stamp of the first commit behind a commit end."""
    index = next(chunk.index for chunk in log.chunks if chunk.end > point)
    at = 0 if point < index.end[0] else int(index.end.searchsorted(point, side="right"))
    return int(index.lsn[at]), int(index.time_us[at])


def _time_at(log: BucketLog, end: int) -> int:
    found = log.at_end(end)
    return found[1].time_us if found else 0


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table's figures with those of the server's duties."""

    table: TableStatus
    decision: Decision | None
    """None before the first look of retention at the table."""
    expiry: Figures | None
    """None of a table without a TTL."""
    lake_ahead: str
    """Reason why the lake's history is not this one; empty otherwise."""
    reach: Reach
    """The first position at which it can be read."""
    reach_token: str
    """The token of that position."""
    tier_problem: TierProblem | None
    """None of a table whose last round went well, or that no tierer has spoken of."""
    lake: LakeFigures | None = None
    """None before the first look at the lake, and of a table that has none."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; keys of a duty that says nothing are left out."""
        held = {"held_by": self.decision.holders(), "held_bytes": self.decision.held_bytes} if self.decision else {}
        expiring = {"expired": self.expiry.expired, "next_expiry_us": self.expiry.next_us} if self.expiry else {}
        tiering = {"tier_problem": "", "tier_failures": 0}
        if self.tier_problem:
            tiering = {"tier_problem": self.tier_problem.problem, "tier_failures": self.tier_problem.failures}
        reads = {
            "reads_from_lsn": self.reach.lsn,
            "reads_from_us": self.reach.time_us,
            "reads_from_token": self.reach_token,
            "reads_from_why": self.reach.why,
        }
        lake = {f"lake_{name}": figure for name, figure in asdict(self.lake).items()} if self.lake else {}
        table = {each.name: getattr(self.table, each.name) for each in fields(TableStatus)}  # flat: no copies
        return {**table, **held, **expiring, **reads, **lake, "lake_ahead": self.lake_ahead, **tiering}


class KnownTables:
    """The figures of tables, which are made anew only where a table has changed. Thread-safe."""

    def __init__(self) -> None:
        self._known: Mapping[str, tuple[TableState, ClockMarks, TableStatus]] = {}

    def of(self, view: View, uuids: Iterable[str]) -> list[TableStatus]:
        """The figures of these tables at a view."""
        known, marks = self._known, view.marks
        found = {}
        for uuid in uuids:
            state, held = view.tables[uuid], known.get(uuid)
            is_same = held is not None and held[0] is state and held[1] is marks
            found[uuid] = held if held and is_same else (state, marks, table_status(state, marks))
        kept = {uuid: held for uuid, held in known.items() if uuid in view.tables}
        self._known = {**kept, **found}
        return [status for _, _, status in found.values()]
