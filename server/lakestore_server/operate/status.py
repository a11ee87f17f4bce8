"""The status of a server with its tables: one value of one view, from `StatusReader` alone.

RPC and command line show its JSON form; metrics and console are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from lakestore.errors import Invalid, Unavailable
from lakestore.model.times import text_of
from lakestore.model.token import SHARD
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.expiry import Expiry
from lakestore_server.duties.retention import Retention
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.clock import AHEAD_US_MIN, Clock, Reading, Timekeeper
from lakestore_server.host.supervisor import DutyState
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.operate.figures import disk_free_bytes, index_bytes
from lakestore_server.operate.lake_figures import Lakes
from lakestore_server.operate.memory import MemoryStatus
from lakestore_server.operate.reports import Report, Reports
from lakestore_server.operate.table_status import KnownTables, ServedTable, TableStatus
from lakestore_server.present.figures import PresentStatus
from lakestore_server.present.presented import PresentedTables
from lakestore_server.read.leases import Leases
from lakestore_server.read.plan import AGAIN_SECONDS
from lakestore_server.read.reach import Reach
from lakestore_server.state.view import View

_CLOCK_HOLDS = ("row TTL", "retention by age", "idle subscriptions", "tombstones")


@dataclass(frozen=True, slots=True)
class IndexSize:
    """The key index as of the last checkpoint or rebuild; LMDB's file has free pages besides."""

    entries: int
    """At least as many as there are keys: a key has one in each run that knows of it, and deleted ones have some until
    they are merged with the oldest run. The live rows of tables tell the number of keys."""
    bytes: int
    bytes_per_entry: float
    grown_entries: int
    """Entries more than at the start of the server; `grown_bytes` likewise."""
    grown_bytes: int
    file_bytes: int
    runs: int
    """Sorted files of entries."""
    merge_entries: int
    """Entries of the runs that are due to be merged."""


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The clock as it is judged."""

    state: str
    """confirmed; or started, ahead, behind: nothing is deleted because of its age."""
    seconds: float
    """For how long that has been so."""
    time_us: int
    """The time that commits get."""
    offset_seconds: float
    """The machine's clock less that time."""
    stamps_ahead_seconds: float
    """For how much longer stamps stay ahead of the time; they cannot fall, so they grow by a microsecond a commit."""
    holds: list[str]
    """Duties that wait for the clock."""
    note: str
    """The doubt and the way out of it, as a sentence; empty if all is well."""

    @staticmethod
    def of(time: Timekeeper, now: Reading, stamp_us: int) -> ClockStatus:
        """The status at a reading and the stamp of the newest commit."""
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
    """A sentence for every damaged place that is known."""
    token: str
    """The position of the view."""
    release: str
    health: str
    """`serving`, `degraded` while a duty fails, or `going down`."""
    duties: Mapping[str, DutyState]
    """The threads that work by themselves, by name."""
    uptime_seconds: float
    checkpoint_age_seconds: float
    checkpoints_failed: int
    journal_bytes: int
    disk_free_bytes: int
    registers: int
    leases: int
    """Reads that hold a cut."""
    memory: MemoryStatus
    clock: ClockStatus
    presented: PresentStatus
    """Cuts that are shown to other engines."""
    reports: tuple[tuple[float, Report], ...]
    """The words of processes beside the server, with their ages in seconds."""
    tables: tuple[ServedTable, ...]

    def to_json(self) -> str:
        """The JSON form, as `lakestore status --json` shows it."""
        return orjson.dumps(self.as_dict()).decode()

    def as_dict(self) -> dict[str, Any]:
        """The JSON form as values."""
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
            "disk_free_bytes": self.disk_free_bytes,
            "registers": self.registers,
            "leases": self.leases,
            "memory": asdict(self.memory),
            "clock": asdict(self.clock),
            "presented": asdict(self.presented),
            "reports": [report.as_dict(age) for age, report in self.reports],
        }


class StatusReader:
    """The one way to the status of a server. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        upkeep: Upkeep,
        about: Mapping[str, str],
        retention: Retention,
        expiry: Expiry,
        clock: Clock,
        catalog: Catalog,
        reports: Reports,
        presented: PresentedTables,
        leases: Leases,
    ) -> None:
        self._reports, self._presented, self._leases = reports, presented, leases
        self._engine, self._upkeep, self._about, self._clock = engine, upkeep, about, clock
        self._retention, self._expiry, self._catalog = retention, expiry, catalog
        self._began = clock.monotonic()
        self._known = KnownTables()
        self.lakes = Lakes(catalog)
        """The figures of the lake, as far as somebody has them looked at."""

    def now(self, tables: Sequence[str] = ()) -> ServerStatus:
        """The server and the named tables, or all of them; `NotFound` for a name of none."""
        return self.at(self._engine.view, tables)

    def at(self, view: View, tables: Sequence[str] = ()) -> ServerStatus:
        """The same at a view."""
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
            journal_bytes=engine.loop.published.size.untrimmed,
            disk_free_bytes=disk_free_bytes(engine),
            registers=len(engine.loop.state.registers.known),
            leases=self._leases.count,
            memory=MemoryStatus.of(engine.limits, view),
            clock=ClockStatus.of(engine.time, engine.time.read(), view.time_us),
            presented=self._presented.status(),
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
        return tuple(self._table(view, *each) for each in zip(uuids, self._known.of(view, uuids), strict=True))

    def _table(self, view: View, uuid: str, status: TableStatus) -> ServedTable:
        state = view.tables[uuid]
        reach = Reach.of(view, state, self._leases)
        return ServedTable(
            reach=reach,
            reach_token=view.token(reach.lsn),
            table=status,
            decision=self._retention.decision(uuid),
            expiry=self._expiry.figures(state),
            lake_ahead=self._engine.lake_ahead.get(uuid, ""),
            tier_problem=self._catalog.tier_problems.get(uuid),
            lake=self.lakes.of(uuid),
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
        return pb.HelloAnswer(
            release=RELEASE,
            protocol_min=rpc.PROTOCOL_MIN,
            protocol=rpc.PROTOCOL,
            timeline=self._engine.timeline,
            lsn=self._engine.view.lsn,
            message_bytes=self._engine.limits.message_bytes,
        )

    def head(self, request: pb.HeadRequest) -> pb.HeadAnswer:
        """The newest commit, whatever the number of tables, leased as a cut if that is asked for.

        `Invalid` for a shard that this server does not have.
        """
        if request.shard != SHARD:
            raise Invalid(f"this server has no shard {request.shard}: ask for shard {SHARD}")
        view, lease = self._engine.view, ""
        while request.lease_seconds and not lease:
            try:
                lease = self._leases.grant_cut(view.lsn, request.lease_seconds, owner=request.owner)
            except Unavailable:
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
        """The server and the named tables, or all of them, as JSON."""
        return pb.StatusAnswer(status=self._reader.now(request.tables).to_json())

    def accept_clock(self, _: pb.AcceptClockRequest) -> pb.AcceptClockAnswer:
        """Believe the machine's clock from now on."""
        engine = self._engine
        clock = ClockStatus.of(engine.time, engine.time.accept(), engine.view.time_us)
        return pb.AcceptClockAnswer(clock=orjson.dumps(asdict(clock)).decode())
