"""Sources of metrics: the parts of a server at one view, and functions that read samples from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lakestore.iceberg import store_counts
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.changes.subscriptions import behind
from lakestore_server.commit.engine import CommitLoop, Engine
from lakestore_server.duties.expiry import Figures
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.histogram import Histogram
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.contract_status import BudgetFigure
from lakestore_server.operate.lake_figures import LakeFigures
from lakestore_server.operate.promises import PromiseFigure
from lakestore_server.operate.query_figures import QueryFigures
from lakestore_server.operate.reports import Report
from lakestore_server.operate.status import RoundStatus, ServerStatus, StatusReader, TableStatus
from lakestore_server.read.leases import Leases
from lakestore_server.snapshots.presented_tables import SnapshotTables
from lakestore_server.state.view import View

Sample = tuple[tuple[str, ...], float | Histogram]
"""(label values, value)."""


class PostgresConnections:
    """The connections of the Postgres port. The port's own thread changes the numbers."""

    def __init__(self) -> None:
        self.known = self.unknown = 0
        """Connections whose client has proved who it is, and the others."""
        self.refused = 0
        """Connections that were refused or closed for a limit, since the start."""


class FlightFigures:
    """Open streams and kept handles of the Flight port, which sets the two readers. Thread-safe."""

    def __init__(self) -> None:
        self.streams: Callable[[], int] = lambda: 0
        self.handles: Callable[[], Mapping[str, int]] = dict
        """Kind of handle to the number of its entries."""
        self.refused = 0
        """Calls that were refused for a limit of number, bytes or time, since the start."""
        self._lock = threading.Lock()

    def count_refusal(self) -> None:
        """Count a call that is refused for a limit."""
        with self._lock:
            self.refused += 1


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a server that metrics read."""

    engine: Engine
    upkeep: Upkeep
    calls: Calls
    leases: Leases
    catalog: Catalog
    presented: SnapshotTables
    status: StatusReader
    queries: QueryFigures
    postgres: PostgresConnections = field(default_factory=PostgresConnections)
    flight: FlightFigures = field(default_factory=FlightFigures)


@dataclass(frozen=True, slots=True)
class Moment:
    """The sources at one view, with its status."""

    sources: Sources
    view: View
    status: ServerStatus

    @property
    def engine(self) -> Engine:
        return self.sources.engine

    @property
    def loop(self) -> CommitLoop:
        return self.sources.engine.loop

    @property
    def upkeep(self) -> Upkeep:
        return self.sources.upkeep


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: name without `_total`, text, and reader of its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    read: Callable[[Moment], Iterable[Sample] | float | Histogram]
    labels: tuple[str, ...] = ()


def of_tables(figure: Callable[[TableStatus], float]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each table, labelled by its name."""
    return lambda moment: (((served.table.name,), figure(served.table)) for served in moment.status.tables)


def in_lake(figure: Callable[[LakeFigures], float]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each table's newest snapshot, labelled by the table's name."""
    return lambda moment: (
        ((served.table.name,), figure(served.lake)) for served in moment.status.tables if served.lake is not None
    )


def reported(figure: Callable[[Report], float]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each process that reports, labelled by its name."""
    return lambda moment: (((report.name,), figure(report)) for _, report in moment.status.reports)


def lag(moment: Moment) -> Iterator[Sample]:
    """Seconds since each table's oldest change that the lake lacks."""
    now = moment.engine.now_us()
    for served in moment.status.tables:
        yield (served.table.name,), served.table.hot_seconds(now)


def tier_failures(moment: Moment) -> Iterator[Sample]:
    """Failed rounds in a row of each table."""
    for served in moment.status.tables:
        yield (served.table.name,), served.tier_problem.failures if served.tier_problem else 0


def rounds(figure: Callable[[RoundStatus], float]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each table's running round, labelled by the table's name."""
    return lambda moment: (
        ((served.table.name,), figure(served.round)) for served in moment.status.tables if served.round is not None
    )


def upkeep_debts(moment: Moment) -> Iterator[Sample]:
    """The debt of each duty of a table's upkeep."""
    for served in moment.status.tables:
        for debt in served.upkeep.debts if served.upkeep else ():
            yield (served.table.name, debt.duty), debt.count


def upkeep_delays(moment: Moment) -> Iterator[Sample]:
    """1 for each table whose rounds are slowed down."""
    for served in moment.status.tables:
        if served.upkeep is not None:
            yield (served.table.name,), 1 if served.upkeep.slowed else 0


def promises(figure: Callable[[PromiseFigure], float | None]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each promise that has one, labelled by table and promise."""

    def samples(moment: Moment) -> Iterator[Sample]:
        for served in moment.status.tables:
            for promise in served.contract.promises if served.contract else ():
                if (value := figure(promise)) is not None:
                    yield (served.table.name, promise.promise), value

    return samples


def budgets(figure: Callable[[BudgetFigure], float | None]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each bound of a budget that has one, labelled by table and part."""

    def samples(moment: Moment) -> Iterator[Sample]:
        for served in moment.status.tables:
            for bound in served.contract.budget if served.contract else ():
                if (value := figure(bound)) is not None:
                    yield (served.table.name, bound.part), value

    return samples


def calls(moment: Moment) -> Iterator[Sample]:
    """Durations of calls, by method and outcome."""
    yield from sorted(moment.sources.calls.seconds().items(), key=lambda found: found[0])


def running(moment: Moment) -> Iterator[Sample]:
    """Running calls, by method."""
    for method, count in sorted(moment.sources.calls.running().items()):
        yield (method,), count


def refusals(moment: Moment) -> Iterator[Sample]:
    """Refused catalog commits, by kind of error."""
    for kind, count in sorted(moment.sources.catalog.refusals.items()):
        yield (kind,), count


def violations(moment: Moment) -> Iterator[Sample]:
    """Rows that broke a rule of their table's contract, by table, rule and action."""
    yield from moment.engine.totals.violations.by_rule()


def query_deaths(moment: Moment) -> Iterator[Sample]:
    """Query processes that a signal ended, by signal."""
    for name, count in sorted(moment.sources.queries.deaths.items()):
        yield (name,), count


def query_seconds(moment: Moment) -> Iterator[Sample]:
    """Durations of queries, by door and outcome."""
    yield from sorted(dict(moment.sources.queries.seconds).items(), key=lambda found: found[0])


def query_processes(moment: Moment) -> Iterator[Sample]:
    """Query processes, by state."""
    for state, count in moment.sources.queries.processes().items():
        yield (state,), count


def of_doors(figure: Callable[[QueryFigures], Mapping[str, int]]) -> Callable[[Moment], Iterator[Sample]]:
    """A figure of each door."""
    return lambda moment: (((door,), count) for door, count in sorted(dict(figure(moment.sources.queries)).items()))


def reclaimed(moment: Moment) -> Iterator[Sample]:
    """Bytes by which compaction made each table smaller."""
    for uuid, size in dict(moment.upkeep.checkpointer.compactions.reclaimed_bytes).items():
        if uuid in moment.view.tables:
            yield (moment.view.tables[uuid].table.name,), size


def bytes_beyond_retention(moment: Moment) -> Iterator[Sample]:
    """Bytes of each log beyond its retention, by holder."""
    for served in moment.status.tables:
        for by in served.decision.holders() if served.decision else []:
            yield (served.table.name, by), served.decision.held_bytes if served.decision else 0


def expiring(moment: Moment) -> Iterator[tuple[tuple[str], Figures]]:
    """Tables with a TTL, and their expiry."""
    for served in moment.status.tables:
        if served.expiry:
            yield (served.table.name,), served.expiry


def overdue(moment: Moment) -> Iterator[Sample]:
    """Seconds for which rows of each table may have been due to expire."""
    now = moment.engine.now_us()
    for labels, figures in expiring(moment):
        yield labels, max(now - figures.next_us, 0) / 1e6 if figures.next_us is not None else 0.0


def subscriptions_behind(moment: Moment) -> Iterator[Sample]:
    """Unread changes of each subscription."""
    for name, subscription in moment.view.subscriptions.items():
        yield (name,), behind(moment.view, subscription)


def store_requests(moment: Moment) -> Iterator[Sample]:
    """Requests to object stores of the server and of the snapshot builder, by kind."""
    parts = {"server": store_counts.of_process().by_kind(), "snapshots": moment.sources.presented.figures.requests}
    for process, counts in parts.items():
        for kind, count in sorted(dict(counts).items()):
            yield (process, kind), float(count)
