"""The status of a server with its tables: one value of one view. `StatusReader` alone makes it.

RPC and command line show its JSON form; metrics and console derive from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson

from lakestore.errors import Invalid
from lakestore.model.times import text_of
from lakestore.model.token import SHARD
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.catalog.catalog import Catalog, RunningRound, TableUpkeep, TierProblem
from lakestore_server.commit.engine import CommitLoop, Engine
from lakestore_server.duties.checkpoint_upload import CheckpointUpload
from lakestore_server.duties.erasure import ErasureDuty, ErasureFigures
from lakestore_server.duties.expiry import Expiry, Figures
from lakestore_server.duties.rescales import RescaleDuty, RescaleFigures
from lakestore_server.duties.retention import Decision, Retention
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.files.segment import Segment
from lakestore_server.host.clock import AHEAD_US_MIN, Clock, Reading, Timekeeper
from lakestore_server.host.supervisor import DutyState
from lakestore_server.operate.contract_status import ContractStatus, RuleViolations, budget_figures
from lakestore_server.operate.lake_figures import LakeFigures, Lakes
from lakestore_server.operate.memory import MemoryStatus
from lakestore_server.operate.promises import PromiseDuty
from lakestore_server.operate.query_figures import QueryFigures
from lakestore_server.operate.reports import Report, Reports
from lakestore_server.read.freshness import hot_since_us, tier_point
from lakestore_server.read.leases import LeaseConflict, Leases
from lakestore_server.read.plan import AGAIN_SECONDS
from lakestore_server.read.positions import parse_token, reached
from lakestore_server.read.readable_from import ReadableFrom
from lakestore_server.snapshots.figures import PresentStatus
from lakestore_server.snapshots.presented_tables import SnapshotTables
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.commit_record import COPIES
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The figures of a table; times are microseconds since 1970, lists have one entry per bucket."""

    name: str
    uuid: str
    keyed: bool
    schema_id: int
    buckets: int
    rows: int
    head: list[int]
    """The next offset."""
    log_start: list[int]
    log_start_lsn: int
    log_start_us: int
    """0 while the log has its beginning."""
    retention: str | None
    ttl: str | None
    tier_point: list[int]
    hot: int
    """Offsets that the lake lacks."""
    hot_since_us: int
    """Time of the oldest commit that the lake lacks; 0 if it has all."""
    freshness: str
    freshness_seconds: int
    """The promised bound of the age of `hot_since_us`."""
    last_commit_us: int
    tiered_commit_us: int
    """Time of the newest commit in the lake."""
    snapshot_id: int | None
    """The newest snapshot with a tier record."""
    stored_rows: int
    """Rows in segments and memory, including dead rows."""
    segments: int
    segment_bytes: int

    def hot_seconds(self, now_us: int) -> float:
        """The age of the oldest change that the lake lacks; 0 if it has all."""
        return max(now_us - self.hot_since_us, 0) / 1e6 if self.hot_since_us else 0.0


def table_status(state: TableState, marks: ClockMarks = NO_MARKS) -> TableStatus:
    """The figures of a table; `marks` give the time of commits whose stamps are ahead."""
    tier = list(state.tiers.values())[-1] if state.tiers else None
    points = tier_point(state)
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
        hot_since_us=hot_since_us(state, points, marks),
        freshness=state.table.lake.freshness,
        freshness_seconds=state.table.lake.freshness_seconds,
        last_commit_us=max(log.at_head.time_us for log in state.logs),
        tiered_commit_us=max(_time_at(log, point) for log, point in zip(state.logs, points, strict=True)),
        snapshot_id=tier.snapshot_id if tier else None,
        stored_rows=sum(chunk.rows for log in state.logs for chunk in log.chunks),
        segments=len(segments),
        segment_bytes=sum(segment.size for segment in segments),
    )


def _time_at(log: BucketLog, end: int) -> int:
    found = log.at_end(end)
    return found[1].time_us if found else 0


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A running round of the tierer."""

    step: str
    seconds: float
    """Since it began."""
    changes: int
    """Offsets that it takes; 0 before its plan."""
    tasks: int
    """Tasks of its Spark job; 0 without one."""
    tasks_done: int

    @staticmethod
    def of(running: RunningRound | None, now: float) -> RoundStatus | None:
        """None without a round, and if its tierer is silent for longer than its epoch."""
        if running is None or now > running.until:
            return None
        seconds = round(now - running.began, 1)
        return RoundStatus(running.step, seconds, running.changes, running.tasks, running.tasks_done)


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table's figures, with the duties' figures for it."""

    table: TableStatus
    decision: Decision | None
    """None before retention has looked at the table."""
    expiry: Figures | None
    """None for a table without a TTL."""
    lake_ahead: str
    """Why the lake is on another timeline; empty if it is not."""
    readable_from: ReadableFrom
    """The first position at which the table can be read."""
    readable_token: str
    tier_problem: TierProblem | None
    """None if the last round succeeded or no tierer has reported the table."""
    rescale: RescaleFigures | None = None
    """None for a table that is not being rescaled."""
    erasure: ErasureFigures | None = None
    """None for a table without an unfinished erasure."""
    lake: LakeFigures | None = None
    """None before the first look at the lake, and for a table without one."""
    upkeep: TableUpkeep | None = None
    """None before a tierer has reported the table's upkeep."""
    round: RoundStatus | None = None
    """None while no round of the table runs, or a short one."""
    contract: ContractStatus | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, without keys of duties that have nothing to say."""
        held = {"held_by": self.decision.holders(), "held_bytes": self.decision.held_bytes} if self.decision else {}
        expiring = {"expired": self.expiry.expired, "next_expiry_us": self.expiry.next_us} if self.expiry else {}
        tiering = {"tier_problem": "", "tier_failures": 0}
        if self.tier_problem:
            tiering = {"tier_problem": self.tier_problem.problem, "tier_failures": self.tier_problem.failures}
        reads = {
            "reads_from_lsn": self.readable_from.lsn,
            "reads_from_us": self.readable_from.time_us,
            "reads_from_token": self.readable_token,
            "reads_from_why": self.readable_from.why,
        }
        lake = {f"lake_{name}": figure for name, figure in asdict(self.lake).items()} if self.lake else {}
        rescale = {"rescale": asdict(self.rescale)} if self.rescale else {}
        erasure = {"erasure": asdict(self.erasure)} if self.erasure else {}
        table = {each.name: getattr(self.table, each.name) for each in fields(TableStatus)}  # flat: no copies
        running = {"round": asdict(self.round)} if self.round else {}
        upkeep = {} if self.upkeep is None else asdict(self.upkeep)
        upkeep = {"upkeep": upkeep["debts"], "upkeep_slowed": upkeep["slowed"]} if upkeep else {}
        contract = {"contract": asdict(self.contract)} if self.contract else {}
        return {
            **table,
            **contract,
            **held,
            **expiring,
            **reads,
            **lake,
            "lake_ahead": self.lake_ahead,
            **tiering,
            **upkeep,
            **running,
            **rescale,
            **erasure,
        }


class KnownTables:
    """The figures of tables, computed again only for changed tables. Thread-safe."""

    def __init__(self) -> None:
        self._known: Mapping[str, tuple[TableState, ClockMarks, TableStatus]] = {}

    def statuses(self, view: View, uuids: Iterable[str]) -> list[TableStatus]:
        known, marks = self._known, view.marks
        found = {}
        for uuid in uuids:
            state, held = view.tables[uuid], known.get(uuid)
            is_same = held is not None and held[0] is state and held[1] is marks
            found[uuid] = held if held and is_same else (state, marks, table_status(state, marks))
        kept = {uuid: held for uuid, held in known.items() if uuid in view.tables}
        self._known = {**kept, **found}
        return [status for _, _, status in found.values()]


def index_bytes(engine: Engine) -> int:
    """Bytes of the index's files: the runs that look-ups search."""
    return sum(run.size for run in engine.index.runs)


def disk_free_bytes(engine: Engine) -> int:
    """Free bytes of the data folder's disk."""
    return engine.disk.free_bytes(engine.folder)


def kept_bytes(view: View) -> int:
    """Bytes of whole journal files that are kept for rows of a view."""
    chunks = (chunk for state in view.tables.values() for log in state.logs for chunk in log.chunks)
    files = (file for chunk in chunks if isinstance(chunk, Segment) for file in chunk.files)
    return sum({file.path: int(file.data.size) for file in files}.values())


_CLOCK_HOLDS = ("row TTL", "retention by age", "idle subscriptions", "tombstones")


@dataclass(frozen=True, slots=True)
class IndexSize:
    """The key index at the last checkpoint or rebuild."""

    entries: int
    """At least the number of keys: a key has an entry in each run that knows it. A deleted key has entries until they
    are merged into the oldest run. The tables' live rows give the number of keys."""
    bytes: int
    bytes_per_entry: float
    grown_entries: int
    """Entries added since the server's start; `grown_bytes` likewise."""
    grown_bytes: int
    file_bytes: int
    runs: int
    """Sorted files of entries."""
    merge_entries: int


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The clock and its judgement."""

    state: str
    """confirmed; or started, ahead, behind: nothing is removed by age."""
    seconds: float
    time_us: int
    """The time of new commits."""
    offset_seconds: float
    """The machine's clock minus this time."""
    stamps_ahead_seconds: float
    """Seconds for which stamps stay ahead of the time. Stamps cannot go back, so they grow by a microsecond a
    commit."""
    holds: list[str]
    """Duties that wait for the clock."""
    note: str
    """The doubt and its remedy as a sentence; empty if the clock is confirmed."""

    @staticmethod
    def from_reading(time: Timekeeper, now: Reading, stamp_us: int) -> ClockStatus:
        """The status at a reading, with the stamp of the newest commit."""
        ahead = max(stamp_us - now.time_us, 0) / 1e6
        stale = (
            f"commits are stamped {ahead / 86_400:.1f} days ahead, by a clock that was wrong: their ages count from "
            f"when the time was known, and stamps are right again from {text_of(stamp_us)} on"
        )
        is_stale = now.may_delete and stamp_us - now.time_us > AHEAD_US_MIN
        return ClockStatus(
            state=now.doubt.value or "confirmed",
            seconds=round(now.seconds, 1),
            time_us=now.time_us,
            offset_seconds=round(now.offset_us / 1e6, 3),
            stamps_ahead_seconds=round(ahead, 3) if is_stale else 0.0,
            holds=[] if now.may_delete else list(_CLOCK_HOLDS),
            note=time.sentence(now) or (stale if is_stale else ""),
        )


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A server of a shared journal."""

    address: str
    role: str
    lsn: int
    """The newest commit that it has applied, by its last report."""
    heard_seconds: float
    """Seconds since its last report."""
    lag_ms: int | None = None
    """Milliseconds by which the server that answers is behind; None for another server."""


def _replicas(loop: CommitLoop, role: str, lag_ms: int, now: float) -> Iterator[ReplicaStatus]:
    yield ReplicaStatus(loop.address, role, loop.view.lsn, 0.0, lag_ms)
    leader = loop.journal.leader
    for each in loop.journal.replicas:
        if each.address != loop.address:
            theirs = "leader" if each.address == leader.address and not leader.has_left else "follower"
            theirs = "copying" if each.lsn == COPIES else theirs
            yield ReplicaStatus(each.address, theirs, each.lsn, round(now - each.heard, 1))


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The journal, and this server's part in it."""

    kind: str
    """file, kafka or object."""
    role: str
    """`leader` or `follower`; a server with a journal of its own leads."""
    epoch: int
    """The number of claims so far; 0 for a journal in files. A server claims when it begins to lead, and at each
    checkpoint as leader."""
    leader: str
    """The address of the leader; empty if none is known."""
    lag_ms: int
    """The age of the newest commit that this server has applied, if more of the journal is to be read; the time since
    the journal's last message, if that is longer than a lease; else 0."""
    replicas: tuple[ReplicaStatus, ...]
    """The servers that share the journal, this one included; empty for a journal in files."""

    @staticmethod
    def of(loop: CommitLoop, now: float) -> JournalStatus:
        leader = loop.journal.leader
        role = "leader" if loop.is_leading else "follower"
        lag_ms = round(loop.lag_seconds() * 1000)
        replicas = tuple(_replicas(loop, role, lag_ms, now)) if loop.journal.is_shared else ()
        return JournalStatus(loop.journal.kind, role, leader.epoch, leader.address, lag_ms, replicas)


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The store of checkpoints, as this server knows it. Only the leader puts checkpoints there."""

    url: str
    """Empty if checkpoints stay on this disk."""
    lsn: int
    """The newest commit in a checkpoint of the store; -1 before one is known."""
    behind_seconds: float
    """Time for which the store lacks a checkpoint that is on disk; 0 if it lacks none."""
    problem: str
    """Why the last upload failed; empty if it did not."""

    @staticmethod
    def of(upload: CheckpointUpload | None, now: float) -> StoreStatus:
        if upload is None:
            return StoreStatus("", -1, 0.0, "")
        figures = upload.figures
        return StoreStatus(figures.url, figures.lsn, round(figures.behind_seconds(now), 1), figures.problem)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server in figures, at one view."""

    about: Mapping[str, str]
    """Warehouse, ports and scheme."""
    timeline: str
    lsn: int
    index: str
    """State of the key index, in a word or a sentence."""
    index_size: IndexSize
    damage: Sequence[str]
    """A sentence for every known damaged place."""
    token: str
    """The position of the view."""
    release: str
    health: str
    """`serving`, `degraded` while a duty fails, or `going down`."""
    duties: Mapping[str, DutyState]
    """Thread name to state of the background threads."""
    uptime_seconds: float
    checkpoint_age_seconds: float
    checkpoints_failed: int
    journal_bytes: int
    journal: JournalStatus
    store: StoreStatus
    disk_free_bytes: int
    registers: int
    leases: int
    """Reads that hold a cut."""
    follower_holds: int
    """Snapshots, metadata files and cuts that a leader holds for reads at followers."""
    memory: MemoryStatus
    clock: ClockStatus
    presented: PresentStatus
    """Cuts presented to other engines."""
    queries: Mapping[str, Any]
    """SQL queries since the start: `QueryFigures.status`."""
    reports: tuple[tuple[float, Report], ...]
    """The reports of other processes, with their ages in seconds."""
    tables: tuple[ServedTable, ...]

    def to_json(self) -> str:
        """The JSON form, as `lakestore status --json` shows it."""
        return orjson.dumps(self.as_dict()).decode()

    def as_dict(self) -> dict[str, Any]:
        return {**self.server(), "tables": [table.as_dict() for table in self.tables]}

    def server(self) -> dict[str, Any]:
        """The JSON form without the tables."""
        return {
            **self.about,
            "timeline": self.timeline,
            "lsn": self.lsn,
            "index": self.index,
            "index_size": asdict(self.index_size),
            "damage": list(self.damage) or "none known",
            "token": self.token,
            "release": self.release,
            "health": self.health,
            "duties": {name: state.as_dict() for name, state in self.duties.items()},
            "uptime_seconds": self.uptime_seconds,
            "checkpoint_age_seconds": self.checkpoint_age_seconds,
            "checkpoints_failed": self.checkpoints_failed,
            "journal_bytes": self.journal_bytes,
            "journal": asdict(self.journal),
            "store": asdict(self.store),
            "disk_free_bytes": self.disk_free_bytes,
            "registers": self.registers,
            "leases": self.leases,
            "follower_holds": self.follower_holds,
            "memory": asdict(self.memory),
            "clock": asdict(self.clock),
            "presented": asdict(self.presented),
            "queries": self.queries,
            "reports": [report.as_dict(age) for age, report in self.reports],
        }


@dataclass(frozen=True, slots=True)
class Duties:
    """The duties with figures of tables."""

    retention: Retention
    expiry: Expiry
    rescales: RescaleDuty
    erasure: ErasureDuty


class StatusReader:
    """The only source of a server's status. Thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        upkeep: Upkeep,
        about: Mapping[str, str],
        duties: Duties,
        clock: Clock,
        catalog: Catalog,
        reports: Reports,
        presented: SnapshotTables,
        leases: Leases,
        queries: QueryFigures,
    ) -> None:
        self._reports, self._presented, self._leases, self._queries = reports, presented, leases, queries
        self._engine, self._upkeep, self._about, self._clock = engine, upkeep, about, clock
        self._duties, self._catalog = duties, catalog
        self._began = clock.monotonic()
        self._known = KnownTables()
        self.promises = PromiseDuty(engine)
        """The duty that measures promises."""
        self.lakes = Lakes(catalog)
        """The figures of the lake; a caller of `look` renews them."""

    def now(self, tables: Sequence[str] = ()) -> ServerStatus:
        """The server and the named tables, or all tables; `NotFound` for an unknown name."""
        return self.at(self._engine.view, tables)

    def at(self, view: View, tables: Sequence[str] = ()) -> ServerStatus:
        engine, now = self._engine, self._clock.monotonic()
        checkpoints = self._upkeep.checkpointer.figures
        return ServerStatus(
            about=dict(self._about),
            timeline=engine.timeline,
            lsn=view.lsn,
            index=engine.index.state,
            index_size=self._index_size(),
            damage=self._upkeep.scrubber.damage,
            token=view.token(),
            release=RELEASE,
            health=self._health(),
            duties=engine.supervisor.states(),
            uptime_seconds=round(now - self._began, 1),
            checkpoint_age_seconds=round(now - checkpoints.at, 1),
            checkpoints_failed=checkpoints.failed,
            journal_bytes=engine.loop.durable_state.size.untrimmed,
            journal=JournalStatus.of(engine.loop, now),
            store=StoreStatus.of(self._upkeep.upload, now),
            disk_free_bytes=disk_free_bytes(engine),
            registers=len(engine.loop.state.registers.known),
            leases=self._leases.count,
            follower_holds=self._leases.registered,
            memory=MemoryStatus.from_limits(engine.limits, view),
            clock=ClockStatus.from_reading(engine.time, engine.time.read(), view.time_us),
            presented=self._presented.status(),
            queries=self._queries.status(),
            reports=tuple(self._reports.now()),
            tables=self._tables(view, list(tables) or sorted(view.names)),
        )

    def _health(self) -> str:
        if self._engine.is_draining:
            return "going down"
        return "degraded" if self._engine.supervisor.is_failing() else "serving"

    def _index_size(self) -> IndexSize:
        index = self._engine.index
        return IndexSize(
            entries=index.size.entries,
            bytes=index.size.nbytes,
            bytes_per_entry=round(index.size.entry_bytes, 1),
            grown_entries=index.size.entries - index.size_at_start.entries,
            grown_bytes=index.size.nbytes - index.size_at_start.nbytes,
            file_bytes=index_bytes(self._engine),
            runs=len(index.runs),
            merge_entries=index.merge_backlog,
        )

    def _tables(self, view: View, names: Sequence[str]) -> tuple[ServedTable, ...]:
        uuids = [view.named(name).table.uuid for name in names]
        return tuple(self._table(view, *each) for each in zip(uuids, self._known.statuses(view, uuids), strict=True))

    def _table(self, view: View, uuid: str, status: TableStatus) -> ServedTable:
        state = view.tables[uuid]
        readable = ReadableFrom.first(view, state, self._leases)
        return ServedTable(
            readable_from=readable,
            readable_token=view.token(readable.lsn),
            table=status,
            decision=self._duties.retention.decision(uuid),
            expiry=self._duties.expiry.figures(state),
            rescale=self._duties.rescales.figures(view, uuid),
            erasure=self._duties.erasure.figures(view, uuid),
            lake_ahead=self._engine.lake_ahead.get(uuid, ""),
            tier_problem=self._catalog.tier_problem(uuid),
            lake=self.lakes.figures_of(uuid),
            upkeep=self._catalog.table_upkeep.get(uuid),
            contract=self._contract(state),
            round=RoundStatus.of(self._catalog.running_rounds.get(uuid), self._clock.monotonic()),
        )

    def _contract(self, state: TableState) -> ContractStatus | None:
        """None for a table without a contract."""
        table = state.table
        if table.contract is None:
            return None
        upkeep, lake = self._catalog.table_upkeep.get(table.uuid), self.lakes.figures_of(table.uuid)
        return ContractStatus(
            version=table.contract.version,
            by=table.contract.by,
            at_us=table.contract.at_us,
            why=table.contract.why,
            promises=self.promises.figures(state),
            violations=[RuleViolations(*each) for each in self._engine.totals.violations.of_table(table.name)],
            budget=budget_figures(table.contract.budget, lake, upkeep, self._engine.now_us()),
        )


class StatusVerbs:
    """The verbs `hello`, `head`, `status` and `accept_clock`. Thread-safe."""

    def __init__(self, engine: Engine, leases: Leases, reader: StatusReader) -> None:
        self._engine, self._leases, self._reader = engine, leases, reader

    def hello(self, request: pb.HelloRequest) -> pb.HelloAnswer:
        """Release, protocol and timeline; `Invalid` for a client that is too old for this server."""
        if request.protocol < rpc.PROTOCOL_MIN:
            raise Invalid(
                f"the client ({request.release}) speaks protocol {request.protocol}, this server ({RELEASE})"
                f" {rpc.PROTOCOL_MIN} to {rpc.PROTOCOL}: install a newer lakestore at the client"
            )
        leader = self._engine.loop.journal.leader
        return pb.HelloAnswer(
            release=RELEASE,
            protocol_min=rpc.PROTOCOL_MIN,
            protocol=rpc.PROTOCOL,
            timeline=self._engine.timeline,
            lsn=self._engine.view.lsn,
            message_bytes=self._engine.limits.message_bytes,
            role=self._engine.role,
            leader=leader.address,
            epoch=leader.epoch,
        )

    def head(self, request: pb.HeadRequest) -> pb.HeadAnswer:
        """The newest commit, leased as a cut on request. `Invalid` for a shard that this server does not have."""
        if request.shard != SHARD:
            raise Invalid(f"this server has no shard {request.shard}: ask for shard {SHARD}")
        if request.at_least:
            reached(self._engine, parse_token(request.at_least, self._engine).lsn)
        view, lease = self._engine.view, ""
        while request.lease_seconds and not lease:
            try:
                lease = self._leases.grant_cut(view.lsn, request.lease_seconds, owner=request.owner)
            except LeaseConflict:
                view = self._engine.wait_beyond(view.lsn, AGAIN_SECONDS)
        return pb.HeadAnswer(
            token=view.token(),
            timeline=self._engine.timeline,
            lsn=view.lsn,
            time_us=view.time_us,
            lease=lease,
            now_us=self._engine.now_us(),
        )

    def status(self, request: pb.StatusRequest) -> pb.StatusAnswer:
        return pb.StatusAnswer(status=self._reader.now(request.tables).to_json())

    def accept_clock(self, _: pb.AcceptClockRequest) -> pb.AcceptClockAnswer:
        """Accept the machine's clock from now on."""
        engine = self._engine
        clock = ClockStatus.from_reading(engine.time, engine.time.accept(), engine.view.time_us)
        return pb.AcceptClockAnswer(clock=orjson.dumps(asdict(clock)).decode())
