"""Sources of metrics: the parts of a server at one view, and the samples that are read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lakestore_server.changes.subscriptions import behind
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.loop import CommitLoop
from lakestore_server.duties.expiry import Expiry, Figures
from lakestore_server.duties.retention import Retention
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.clock import Clock
from lakestore_server.host.histogram import Histogram
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.reports import Report, Reports
from lakestore_server.operate.status import TableStatus
from lakestore_server.present.presented import PresentedTables
from lakestore_server.read.leases import Leases
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.clock_marks import ClockMarks
from lakestore_server.state.view import TableState, View

Sample = tuple[tuple[str, ...], float | Histogram]
"""(label values, value)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a server that figures are read from."""

    engine: Engine
    upkeep: Upkeep
    calls: Calls
    leases: Leases
    catalog: Catalog
    retention: Retention
    expiry: Expiry
    clock: Clock
    reports: Reports
    presented: PresentedTables


@dataclass(frozen=True, slots=True)
class Moment:
    """The sources at one view, with figures that are expensive to compute."""

    sources: Sources
    view: View
    status: Mapping[str, TableStatus]
    """Table name to its status."""

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.sources.engine

    @property
    def loop(self) -> CommitLoop:
        """The commit loop."""
        return self.sources.engine.loop

    @property
    def upkeep(self) -> Upkeep:
        """The duties over the commit loop."""
        return self.sources.upkeep


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name without `_total`, its text, and the reader of its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    read: Callable[[Moment], Iterable[Sample] | float | Histogram]
    labels: tuple[str, ...] = ()


def of_tables(figure: Callable[[TableStatus], float]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each table, labelled by its name."""
    return lambda moment: (((name,), figure(status)) for name, status in moment.status.items())


def reported(figure: Callable[[Report], float]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each process that reports, labelled by its name."""
    return lambda moment: (((report.name,), figure(report)) for _, report in moment.sources.reports.now())


def lag(moment: Moment) -> Iterator[Sample]:
    """Seconds since the oldest change of each table that the lake does not have."""
    now = moment.engine.now_us()
    for state in moment.view.tables.values():
        tier_point = moment.status[state.table.name].tier_point
        yield (state.table.name,), _oldest_hot_age(state, tier_point, now, moment.view.marks)


def tier_failures(moment: Moment) -> Iterator[Sample]:
    """Rounds in a row that failed, of each table."""
    problems = moment.sources.catalog.tier_problems
    for uuid, state in moment.view.tables.items():
        yield (state.table.name,), problems[uuid].failures if uuid in problems else 0


def _oldest_hot_age(state: TableState, tier_point: list[int], now_us: int, marks: ClockMarks) -> float:
    hot = ((log, point) for log, point in zip(state.logs, tier_point, strict=True) if log.head > point)
    commits = {_first_commit(log, point) for log, point in hot}  # many buckets share one
    times = [marks.time_us(*commit) for commit in commits]
    return max(now_us - min(times), 0) / 1e6 if times else 0.0


def _first_commit(log: BucketLog, point: int) -> tuple[int, int]:
    """LSN and stamp of the first commit behind a commit end."""
    point = max(point, log.base.end)
    index = next(chunk.index for chunk in log.chunks if chunk.end > point)
    at = 0 if point < index.end[0] else int(index.end.searchsorted(point, side="right"))
    return int(index.lsn[at]), int(index.time_us[at])


def calls(moment: Moment) -> Iterator[Sample]:
    """Durations of calls, by method and outcome."""
    yield from sorted(moment.sources.calls.seconds().items(), key=lambda found: found[0])


def running(moment: Moment) -> Iterator[Sample]:
    """Calls that run now, by method."""
    for method, count in sorted(moment.sources.calls.running().items()):
        yield (method,), count


def refusals(moment: Moment) -> Iterator[Sample]:
    """Refused commits to the catalog, by kind of error."""
    for kind, count in sorted(moment.sources.catalog.refusals.items()):
        yield (kind,), count


def reclaimed(moment: Moment) -> Iterator[Sample]:
    """Bytes that compaction made each table smaller by."""
    for uuid, size in dict(moment.upkeep.checkpointer.compactions.reclaimed_bytes).items():
        if uuid in moment.view.tables:
            yield (moment.view.tables[uuid].table.name,), size


def held(moment: Moment) -> Iterator[Sample]:
    """Bytes of each log beyond its retention, by the name of each holder."""
    for uuid, state in moment.view.tables.items():
        decision = moment.sources.retention.decision(uuid)
        for by in decision.holders() if decision else []:
            yield (state.table.name, by), decision.held_bytes if decision else 0


def expiring(moment: Moment) -> Iterator[tuple[tuple[str], Figures]]:
    """Tables with a TTL, and the figures of their expiry."""
    for state in moment.view.tables.values():
        figures = moment.sources.expiry.figures(state)
        if figures:
            yield (state.table.name,), figures


def overdue(moment: Moment) -> Iterator[Sample]:
    """Seconds for which rows of each table may have been due to expire."""
    now = moment.engine.now_us()
    for labels, figures in expiring(moment):
        yield labels, max(now - figures.next_us, 0) / 1e6 if figures.next_us is not None else 0.0


def subscriptions_behind(moment: Moment) -> Iterator[Sample]:
    """Changes in front of each subscription."""
    for name, subscription in moment.view.subscriptions.items():
        yield (name,), behind(moment.view, subscription)


def checkpoint_age(moment: Moment) -> float:
    """Seconds since the newest checkpoint."""
    return moment.sources.clock.monotonic() - moment.upkeep.checkpointer.figures.at
