"""A server: engine, catalog and service together, with or without the two ports."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakestore.errors import Invalid, Unavailable
from lakestore.model.columns import CATALOG_NAME, OWN_CATALOG
from lakestore.release import RELEASE, needs_extra
from lakestore_server.access.admission import Admission
from lakestore_server.access.callers import Access
from lakestore_server.access.finders import Kind
from lakestore_server.catalog import foreign_history, store_probe
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.engine_keys import EngineKeys
from lakestore_server.catalog.journal_ledger import JournalLedger
from lakestore_server.catalog.metadata_store import MetadataStore, local_folder, storage_for
from lakestore_server.catalog.outside_catalog import OutsideSettings, resolved
from lakestore_server.catalog.outside_tables import OutsideCatalogs
from lakestore_server.catalog.shared_parts import shared_parts
from lakestore_server.catalog.warehouse_mark import WarehouseMark
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.producer_verbs import ProducerVerbs
from lakestore_server.commit.recovery import JournalOf
from lakestore_server.duties.dropped_tables import DroppedTables
from lakestore_server.duties.erasure import ErasureDuty
from lakestore_server.duties.expiry import Expiry
from lakestore_server.duties.hold_renewal import HoldRenewal
from lakestore_server.duties.journal_check import JournalCheck
from lakestore_server.duties.outside_check import OutsideCheck
from lakestore_server.duties.progress import Progress
from lakestore_server.duties.rescales import RescaleDuty
from lakestore_server.duties.retention import Retention
from lakestore_server.duties.scrub import VerifyAhead
from lakestore_server.duties.tier_process import TierProcess, tier_command
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.duties.warehouse_check import WarehouseCheck
from lakestore_server.edge import exposure_check, first_start
from lakestore_server.edge.addresses import joined
from lakestore_server.edge.console.routes import Console
from lakestore_server.edge.flight.port import FlightPort
from lakestore_server.edge.flight.verbs import Verbs
from lakestore_server.edge.grpc import GrpcServer
from lakestore_server.edge.http import HttpServer, app
from lakestore_server.edge.leader_calls import LeaderCalls
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.edge.postgres.port import PostgresPort
from lakestore_server.edge.tls import is_loopback
from lakestore_server.files import checkpoint, data_folder, journal, segment, shared_file
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host import allocator, event_log, sandbox
from lakestore_server.host.clock import Clock, RealClock
from lakestore_server.host.disk import Disk, RealDisk
from lakestore_server.host.worker import Worker
from lakestore_server.journals import object_log, object_store
from lakestore_server.journals.checkpoint_store import CheckpointStore
from lakestore_server.journals.log import Log
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate import backup
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.hold_verbs import HoldVerbs
from lakestore_server.operate.memory import MemoryStatus
from lakestore_server.operate.metric_sources import Sources
from lakestore_server.operate.query_figures import QueryFigures
from lakestore_server.operate.status import Duties
from lakestore_server.queries.rpcs import Rpcs
from lakestore_server.queries.service import QueryService
from lakestore_server.read.leader_holds import LeaderHolds, hold_seconds
from lakestore_server.read.leases import Leases
from lakestore_server.service import Service
from lakestore_server.settings import Catalog as CatalogSettings
from lakestore_server.settings import Journal as JournalSettings
from lakestore_server.settings import Settings
from lakestore_server.snapshots.messages import Room
from lakestore_server.snapshots.presented_tables import SnapshotTables
from lakestore_server.snapshots.upkeep import BuilderProcess
from lakestore_server.snapshots.worker_client import SnapshotBuilderProcess
from lakestore_server.state import swaps

PAUSE_SECONDS = 0.03
"""A full collection that takes more processor time is long."""
FROZEN_MIN = 100_000
"""Frozen objects from which on a new freeze waits until their number has doubled."""


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause collections in the block, which makes objects that stay: the start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Collector:
    """Keeps full collections short, from `begin` to `end`."""

    def __init__(self, pause_seconds: float = PAUSE_SECONDS, frozen_min: int = FROZEN_MIN) -> None:
        self._pause_seconds, self._frozen_min = pause_seconds, frozen_min
        self._looked_at = 0
        """Frozen objects after the last look at all objects."""
        self._looks_at_all = False
        """Whether the next full collection looks at all objects."""
        self._began = 0.0

    def begin(self) -> None:
        """Freeze the present objects, and from now on survivors of long collections."""
        gc.collect()
        gc.freeze()
        self._looked_at = gc.get_freeze_count()
        gc.callbacks.append(self._told)

    def end(self) -> None:
        """Restore the collector's settings; idempotent."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)
            gc.unfreeze()

    def _told(self, phase: str, about: dict[str, int]) -> None:
        if about["generation"] < 2:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > self._pause_seconds:
            self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        frozen = gc.get_freeze_count()
        if self._looks_at_all:
            self._looked_at, self._looks_at_all = frozen, False
        elif frozen > 2 * max(self._looked_at, self._frozen_min):
            self._looks_at_all = True
            gc.unfreeze()  # the next full collection, a long one, looks at everything and freezes the survivors


def _journal_of(settings: Settings, clock: Clock) -> JournalOf:
    """The journal that the settings name."""
    journal = settings.journal
    if journal.kind == "file":
        return FileJournal
    if not settings.advertise and settings.host in ("0.0.0.0", "::", "[::]"):  # noqa: S104 (it is compared, not bound)
        raise Invalid("advertise is not set: give --advertise host:port, at which clients reach this server")
    log, by_lease = log_of(journal), journal.reads == "lease"
    return lambda disk, folder: SharedJournal(log, clock, journal.lease_seconds, reads_by_lease=by_lease)


def _outside_catalogs(settings: CatalogSettings, clock: Clock) -> OutsideCatalogs:
    """The outside catalogs that the settings name."""
    if settings.kind == "own":
        return OutsideCatalogs((), clock)
    if not CATALOG_NAME.fullmatch(settings.name) or settings.name == OWN_CATALOG:
        raise Invalid(f"catalog.name must be letters, digits, - and _, and not {OWN_CATALOG}: {settings.name!r} is not")
    pairs = [option.partition("=") for option in settings.options]
    if any(not equals for _, equals, _ in pairs):
        raise Invalid("catalog.options are a list of name=value")
    options = {name.strip(): value for name, _, value in pairs}
    about = OutsideSettings(settings.name, settings.kind, settings.uri, options)
    resolved(about)  # a variable or file that is missing is said at the start
    return OutsideCatalogs([about], clock, default=settings.name)


def _checkpoint_store(settings: Settings) -> CheckpointStore | None:
    """The store to which checkpoints go; None without one."""
    if not settings.checkpoints:
        return None
    names = {"setting": "checkpoints", "options_setting": "checkpoints_options"}
    store = object_store.store_of(settings.checkpoints, settings.checkpoints_options, **names)
    return CheckpointStore(store, settings.checkpoints)


def log_of(journal: JournalSettings) -> Log:
    """The log of a shared journal."""
    if journal.kind == "object":
        store = object_store.store_of(journal.url, journal.options)
        return object_log.ObjectLog(store, journal.url, group_seconds=journal.group_seconds, keeps_all=journal.keep_all)
    with needs_extra("kafka", "a journal in Kafka"):
        from lakestore_server.journals import kafka_log

    return kafka_log.KafkaLog(kafka_log.topic_of(journal.bootstrap, journal.topic, journal.options))


ENDS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """The signals of a process; made once, by the main thread."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._numbers, numbers = os.pipe()
        os.set_blocking(numbers, False)
        signal.set_wakeup_fd(numbers, warn_on_full_buffer=False)
        handled = _Ends(self._told)
        for number in ENDS:
            signal.signal(number, lambda number, _: handled.came(number))
        signal.signal(signal.SIGHUP, lambda *_: None)  # the signal goes through the pipe
        threading.Thread(target=self._read, name="signals", daemon=True).start()

    def _read(self) -> None:
        read = _Ends(self._told)
        while True:
            numbers = os.read(self._numbers, 4096)
            if signal.SIGHUP in numbers:
                self._told.put(signal.SIGHUP)
            for number in filter(ENDS.__contains__, numbers):
                read.came(number)

    def wait(self, hung_up: Callable[[], object]) -> None:
        """Wait until the server must end; `hung_up` is called for each hang-up before."""
        while self._told.get() not in ENDS:
            hung_up()


class _Ends:
    """Counts the signals to end of one kind. Takes no lock, because handlers interrupt one another."""

    def __init__(self, told: queue.SimpleQueue[int]) -> None:
        self._told, self._is_ending = told, False

    def came(self, number: int) -> None:
        """Report the first signal; end the process at the second."""
        if self._is_ending:
            os._exit(128 + number)
        self._is_ending = True
        self._told.put(number)


log = logging.getLogger("lakestore.server")
STOP_SECONDS = 2.0
SWITCH_SECONDS = 0.001
"""The longest time that a thread computes in Python while others wait. Python's default of 5 ms is a small commit's
whole time."""


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The tables of an engine for access checks: the policy's `TableFacts`."""

    engine: Engine

    def table_of(self, uuid: str) -> str | None:
        view = self.engine.view
        uuid = swaps.present_tables(view, (uuid,))[0]
        state = swaps.kept_table(view, uuid)
        return state.table.name if state else None

    def uuid_of(self, table: str) -> str | None:
        return self.engine.view.names.get(table)

    def subscribed(self, subscription: str) -> Sequence[str]:
        """The present names of a subscription's tables; for a dropped table its last name."""
        held = self.engine.view.subscriptions.get(subscription)
        return [name for uuid in held.tables if (name := self.table_of(uuid)) is not None] if held else ()

    def kind_of(self, table: str) -> Kind:
        view = self.engine.view
        if table in view.names:
            return "own"
        namespace, _, name = table.partition(".")
        return "other" if (namespace.replace(chr(31), "."), name) in view.pointers else "absent"


class Server:
    """Everything behind the ports. `close` is idempotent."""

    _closed = False
    _grpc: GrpcServer | None = None
    _tier_process: TierProcess | None = None
    _http: HttpServer | None = None
    _console: Console | None = None
    _flight: FlightPort | None = None
    _postgres: PostgresPort | None = None
    queries: QueryService | None = None
    """Answers SQL for all ports; None before `start`."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        journal_of: JournalOf | None = None,
        presenter: BuilderProcess | None = None,
    ) -> None:
        self.settings = settings
        exposure_check.check_exposure(settings)
        exposure_check.check_shared(settings)
        self._keys, self._engine_keys = exposure_check.keys(settings.tls), _engine_keys(settings)
        self._clock = clock = clock or RealClock()
        checkpoints, outside = _checkpoint_store(settings), _outside_catalogs(settings.catalog, clock)
        self._lock = data_folder.lock_folder(settings.data)
        self.about = {"warehouse": settings.warehouse_uri, "http": "", "grpc": ""}
        self.about |= {"scheme": "https" if self._keys else "http", "sandbox": str(sandbox.support())}
        self.about |= self._engine_keys.status()
        self._on_fatal = on_fatal or _no_op
        store = self._opened(disk or RealDisk(), journal_of or _journal_of(settings, clock), checkpoints)
        self.upkeep = Upkeep(self.engine, clock, checkpoints, settings.checkpoints_keep_seconds)
        leases = Leases(clock, settings.lease_grace_seconds, settings.limits, self._may_read)
        ledger = JournalLedger(self.engine, leases, store)
        self._hold_renewal = self._secured(leases, clock)
        self._warehouse_check = self._checked_warehouse(ledger)
        self.catalog = Catalog(ledger, store, settings.warehouse_uri, timeline=self.engine.timeline, outside=outside)
        self._look_at_lake(store)
        idle_seconds, rebalance_seconds = settings.subscription_idle_seconds, settings.rebalance_seconds
        self._subscriptions = subscriptions = Subscriptions(self.engine, leases, clock, idle_seconds, rebalance_seconds)
        producers = ProducerVerbs(self.engine, settings.producer_idle_seconds)
        check_seconds, wake_checkpoint = settings.retention_check_seconds, self.upkeep.checkpointer.wake
        self.presented = SnapshotTables(self.engine, leases, self.catalog, clock, presenter or self._builder())
        duties, calls = self._begun_duties(leases, producers), Calls(clock, settings.slow_seconds)
        self.dropped = DroppedTables(self.engine, leases, self.catalog, check_seconds, wake_checkpoint)
        self._outside_check = OutsideCheck(self.engine, self.catalog, settings.catalog.check_seconds)
        self.progress = Progress(self.engine, settings.progress_check_seconds)
        self._journal_check = JournalCheck.of(self.engine, self.upkeep.checkpoint)
        queries = QueryFigures(settings.slow_seconds)
        self.service = Service(
            engine=self.engine,
            upkeep=self.upkeep,
            catalog=self.catalog,
            leases=leases,
            clock=clock,
            about=self.about,
            subscriptions=subscriptions,
            producers=producers,
            duties=duties,
            dropped=self.dropped,
            calls=calls,
            presented=self.presented,
            holds=HoldVerbs(self.engine, leases, ledger.holds_from_before, settings.lease_grace_seconds),
            engine_keys=self._engine_keys,
            owner_required=settings.owner_required,
            queries=queries,
        )
        self.sources = Sources(
            self.engine,
            self.upkeep,
            calls,
            leases,
            self.catalog,
            self.presented,
            self.service.status,
            queries,
        )

    def _begun_duties(self, leases: Leases, producers: ProducerVerbs) -> Duties:
        """The duties whose figures status shows."""
        settings, check_seconds = self.settings, self.settings.retention_check_seconds
        self.retention = Retention(
            engine=self.engine,
            leases=leases,
            subscriptions=self._subscriptions,
            producers=producers,
            check_seconds=check_seconds,
            wake_checkpoint=self.upkeep.checkpointer.wake,
        )
        self.expiry = Expiry(self.engine, settings.expiry_check_seconds)
        self.rescales = RescaleDuty(self.engine, self._clock, settings.rescale_check_seconds)
        self.erasure = ErasureDuty(
            engine=self.engine,
            upkeep=self.upkeep,
            leases=leases,
            catalog=self.catalog,
            presented=self.presented,
            check_seconds=check_seconds,
        )
        return Duties(self.retention, self.expiry, self.rescales, self.erasure)

    def _builder(self) -> BuilderProcess:
        """The process that builds snapshots of cuts."""
        return SnapshotBuilderProcess(Room.of(self.settings.data / data_folder.DERIVED, self.settings.limits))

    def _opened(self, disk: Disk, journal_of: JournalOf, checkpoints: CheckpointStore | None) -> MetadataStore:
        """The lake's metadata store, once rights are read and the engine has recovered. On an error the folder is
        released."""
        settings, clock = self.settings, self._clock
        ahead = VerifyAhead()
        with contextlib.ExitStack() as let_go:
            let_go.callback(self._lock.close)
            let_go.callback(ahead.cancel)
            data_folder.check_whole(settings.data)
            backup.release(settings.data)
            data_folder.tighten(settings.data, local_folder(settings.warehouse_uri))
            store = MetadataStore(storage_for(settings.warehouse_uri))
            lack = _store_lack(settings.warehouse_uri)
            key = exposure_check.token_key(settings) if settings.auth else b""
            file = Path(settings.auth) if settings.auth else None
            self.access = Access(file, clock, key, settings.limits.access_token_seconds)
            journal = journal_of(disk, settings.data)
            if checkpoints is not None and isinstance(journal, SharedJournal):
                journal.await_store()
            about = settings, journal, disk, clock, self.access, self._keys
            self.settings = first_start.copied(*about, checkpoints)
            self.engine = Engine(
                settings.data,
                disk,
                clock,
                on_fatal=self._on_fatal,
                limits=settings.limits,
                journal_of=lambda *_: journal,
                beside=ahead.begin,
                parts_of=partial(shared_parts, settings.warehouse_uri),
            )
            let_go.callback(self.engine.loop.close)
            let_go.callback(ahead.cancel)  # before the engine's files are released, which it reads
            ahead.end()
            if lack is not None and not self.engine.view.pointers:
                raise lack  # a lake without tables: the address is wrong, or nothing is lost by waiting
            shutil.rmtree(settings.data / data_folder.OFFSETS, ignore_errors=True)
            let_go.pop_all()
        return store

    def _checked_warehouse(self, ledger: JournalLedger) -> WarehouseCheck | None:
        """The check of a warehouse that servers share; raises if this is not the one of the others. The first leader
        writes the warehouse's mark before `ledger` begins."""
        self.engine.loop.on_lead(lambda: self._begin_to_lead(ledger))
        if not self.engine.loop.journal.is_shared:
            return None
        uri = self.settings.warehouse_uri
        mark = WarehouseMark(storage_for(uri), uri, self.engine.timeline)
        check = WarehouseCheck(self.engine, mark, self._clock, self._on_fatal)
        try:
            check.check_start()
        except BaseException:
            self._close_engine(checkpoint=False)
            raise
        return check

    def _secured(self, leases: Leases, clock: Clock) -> HoldRenewal | None:
        """While this server follows, the leader holds what its leases need of the lake; None for a server alone."""
        engine = self.engine
        if not engine.loop.journal.is_shared:
            return None
        peers = PeerChannel(self.access.server_token, self._keys)
        holds = LeaderHolds(
            clock=clock,
            seconds=hold_seconds(self.settings.lease_grace_seconds),
            ask=LeaderCalls(engine.loop, peers).hold,
            is_leading=lambda: engine.is_leading,
            has_lake=lambda: any(state.tiers for state in engine.view.kept.values()),
        )
        leases.secure_by(holds.secure)
        return HoldRenewal(engine, leases, holds, peers.close)

    def _begin_to_lead(self, ledger: JournalLedger) -> None:
        if self._warehouse_check is not None:
            self._warehouse_check.begin_to_lead()
        ledger.begin()
        self._subscriptions.shared.begin_to_lead()

    def _may_read(self, principal: str, table_uuid: str) -> bool:
        """Whether a principal (empty without principals) may read a table by its present name."""
        name = KnownTables(self.engine).table_of(table_uuid)
        return name is None or self.access.may_read(principal, name)

    def _look_at_lake(self, store: MetadataStore) -> None:
        """Stop tiering and retention of tables whose lake is gone or continued under another timeline."""
        view = self.engine.view
        try:
            gone = foreign_history.missing_tables(view, store)
            ahead = foreign_history.find(view, store, self.engine.timeline) if self.engine.is_restored else {}
        except BaseException:
            self._close_engine(checkpoint=False)
            raise
        ours = {view.pointers[key].uuid: sentence for key, sentence in gone.items()}
        self.engine.lake_ahead = self.catalog.ahead = {**ours, **ahead}
        for sentence in {*gone.values(), *ahead.values()}:
            log.error("%s", sentence)

    def start(self) -> None:
        for lack in sandbox.support().missing if self.settings.limits.query_processes else ():
            log.warning("queries run without a part of their sandbox: no %s", lack)
        host, limits = self.settings.host, self.settings.limits
        admission = Admission(
            self.access,
            KnownTables(self.engine),
            self._clock,
            metrics_open=self.settings.metrics_open,
            check_leads=self.engine.loop.refuse_when_following,
        )
        rpcs = Rpcs(self.service, admission)
        self.queries = QueryService(rpcs, limits, self.sources.queries, self.engine.supervisor)
        self._console = console = Console(self.queries, self.sources, admission, self._clock)
        hosts = (*self.settings.http.allowed_hosts, *([self._reached_host()] if self.engine.role else []))
        gate = app(self.sources, admission, console, hosts, self._keys, engine_keys=self._engine_keys)
        self._http = HttpServer(
            application=gate,
            host=host,
            port=self.settings.http_port,
            keys=self._keys,
            limits=limits,
            on_end=self._on_fatal,
        )
        self._http.start()
        self.presented.start()
        try:
            self._grpc = GrpcServer(
                service=self.service,
                address=joined(host, self.settings.port),
                admission=admission,
                clock=self._clock,
                keys=self._keys,
                limits=limits,
                clients=console.clients,
            )
        except RuntimeError as error:
            raise Unavailable(
                f"the gRPC port {self.settings.port} cannot be opened: is it in use? --port 0 picks a free one"
            ) from error
        self.about.update(http=joined(host, self._http.port), grpc=joined(host, self._grpc.port))
        data_folder.name_ports(self._lock, self.about["grpc"], self.about["http"])
        if self.settings.tier:
            here = self.settings.advertise or self.about["grpc"]
            self._tier_process = TierProcess(self.engine, self._clock, tier_command(here, self.settings.tier_master))
        if self.settings.flight.port >= 0:
            self._flight = self._flight_port(self.queries, admission, console)
            self.about["flight"] = joined(host, self._flight.port)
        if self.settings.postgres.port >= 0:
            self._postgres = self._postgres_port(self.queries, console)
            self.about["postgres"] = joined(host, self._postgres.port)
        if self._flight is not None or self._postgres is not None:
            self.queries.keep_warm()
        self._grpc.start()
        if self._flight is not None:
            self._flight.start()
        console.start()
        self.access.address = self.settings.advertise or self.about["grpc"]
        http = self.settings.http.advertise or joined(self._reached_host(), self._http.port)
        self.engine.loop.reachable_at(self.access.address, http)
        if self._hold_renewal is not None:
            self._hold_renewal.start()
        if self._tier_process is not None:
            self._tier_process.start()

    def _flight_port(self, queries: QueryService, admission: Admission, console: Console) -> FlightPort:
        port = self.settings.flight.port
        try:
            return FlightPort(
                verbs=Verbs(queries, self._clock),
                address=joined(self.settings.host, port),
                admission=admission,
                clock=self._clock,
                calls=self.service.calls,
                clients=console.clients,
                figures=self.sources.flight,
                keys=self._keys,
                limits=self.settings.limits,
            )
        except RuntimeError as error:
            raise Unavailable(f"the Flight port {port} cannot be opened: is it in use? 0 picks a free one") from error

    def _postgres_port(self, queries: QueryService, console: Console) -> PostgresPort:
        """The port of the Postgres protocol, which serves."""
        port = PostgresPort(
            host=self.settings.host,
            port=self.settings.postgres.port,
            access=self.access,
            questions=partial(queries.session, door="postgres"),
            limits=self.settings.limits,
            keys=self._keys,
            figures=self.sources.postgres,
            clients=console.clients,
            on_end=self._on_fatal,
        )
        port.start()
        return port

    def _reached_host(self) -> str:
        """The host name at which other servers reach this server's HTTP port."""
        said = self.settings.http.advertise or self.settings.advertise
        return said.rpartition(":")[0] if said else self.settings.host

    def drain(self, seconds: float) -> bool:
        """End the tierer, refuse new calls and wait for running ones; True if all have ended."""
        if self._tier_process is not None:
            self._tier_process.close()
        if self._grpc:
            self._grpc.turn_away()
        if self._postgres:
            self._postgres.turn_away()
        self.engine.drain()
        began = time.monotonic()
        has_ended = self.service.calls.drain(seconds)
        left = max(began + seconds - time.monotonic(), 0.0)
        return has_ended & (self._postgres.drain(left) if self._postgres else True)

    def stop_duties(self) -> None:
        """Stop the background work outside of the engine."""
        if self._journal_check is not None:
            self._journal_check.close()
        if self._warehouse_check is not None:
            self._warehouse_check.close()
        if self._hold_renewal is not None:
            self._hold_renewal.close()
        self.service.status.promises.close()
        self._outside_check.close()
        self.catalog.outside.catalogs.close()
        self.rescales.close()
        self.progress.close()
        self.erasure.close()
        self.dropped.close()
        self.expiry.close()
        self.retention.close()

    def close(self, *, checkpoint: bool = True) -> None:
        """Close the ports, write a last checkpoint by default, release the folder."""
        if self._closed:
            return
        self._closed = True
        if self._grpc:
            self._grpc.stop(STOP_SECONDS)
        if self._flight:
            self._flight.stop(STOP_SECONDS)
        if self._postgres:
            self._postgres.stop()
        self.presented.close()
        if self.queries:
            self.queries.close()
        if self._console:
            self._console.close()
        if self._http:
            self._http.stop()
        if self._tier_process is not None:
            self._tier_process.close()
        self.stop_duties()
        self._close_engine(checkpoint=checkpoint)

    def _close_engine(self, *, checkpoint: bool) -> None:
        self.upkeep.close(checkpoint=checkpoint)
        self.engine.loop.close()
        self._lock.close()


def _engine_keys(settings: Settings) -> EngineKeys:
    """The keys that engines get. Without `auth` everybody who reaches the port gets them."""
    is_local = bool(settings.auth) or is_loopback(settings.host)
    return EngineKeys(settings.engine_keys, settings.warehouse_uri, is_local=is_local)


def _store_lack(warehouse: str) -> Unavailable | None:
    """Why the store of the warehouse does not answer; None if it does. `Invalid` if a server cannot use the store."""
    try:
        store_probe.check_store(warehouse)
    except Unavailable as error:
        log.error("%s: rows are taken, nothing is tiered, and reads of the lake fail until it answers", error)
        return error
    return None


def _no_op(_: BaseException) -> None: ...


def _end_process(_: BaseException) -> None:
    """A server that cannot write its journal must not continue."""
    logging.shutdown()
    os._exit(70)


def serve(settings: Settings, announce: Callable[[Mapping[str, str]], None]) -> None:
    """Serve until a signal; `announce` gets the ports in the form of `Server.about`."""
    event_log.configure(settings)
    allocator.keep_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the start does what the signal asks for anyway
    with paused():
        server = Server(settings, on_fatal=_end_process)
    Collector().begin()
    signals = Signals()
    try:
        server.start()
        _log_start(server)
        announce(server.about)
        rights = Worker(
            supervisor=server.engine.supervisor, name="auth-refresh", work=server.access.refresh, failed=_not_refreshed
        )
        rights.start()
        signals.wait(rights.wake)
    finally:
        _end(server, settings.drain_seconds)


def _not_refreshed(error: Exception) -> None:
    log.error("the rights stay unchanged: %s", error)


def _log_start(server: Server) -> None:
    engine, settings = server.engine, server.settings
    event_log.event(
        log,
        logging.INFO,
        "started",
        release=RELEASE,
        formats={
            "journal": journal.VERSION,
            "checkpoint": checkpoint.VERSION,
            "segment": max(segment.READ),
            "shared segments": shared_file.VERSION,
        },
        data=str(settings.data.absolute()),
        recovery_seconds=round(engine.recovery_seconds, 3),
        lsn=engine.view.lsn,
        tables=len(engine.view.tables),
        timeline=engine.timeline,
        **server.about,
    )
    memory = MemoryStatus.from_limits(settings.limits, engine.view)
    level = logging.WARNING if memory.is_too_much else logging.INFO
    event_log.event(log, level, "memory at most", **memory.logged())


def _end(server: Server, seconds: float) -> None:
    """Drain and close within `seconds`. Acknowledged commits are durable in any case."""
    event_log.event(log, logging.INFO, "draining", seconds=seconds, running=server.service.calls.running())
    limit = threading.Timer(seconds, _give_up)
    limit.daemon = True
    limit.start()
    if not server.drain(seconds / 2):
        event_log.event(log, logging.WARNING, "calls are cut off", running=server.service.calls.running())
    server.close()
    limit.cancel()
    event_log.event(log, logging.INFO, "stopped", lsn=server.engine.view.lsn)


def _give_up() -> None:
    event_log.event(log, logging.WARNING, "stopped without a last checkpoint: the next start reads the journal")
    logging.shutdown()
    os._exit(0)
