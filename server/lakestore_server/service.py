"""A server's verbs: one row from each RPC of the proto file to the bound method that answers it.

gRPC and the in-process transport call verbs only from here. `Verbs` is the table's type, so mypy checks every verb
against its RPC's messages; a test compares `Verbs` with the proto file's descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, cast

from lakestore.errors import LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.commit_message import Sent
from lakestore.wire.row_messages import RowMessage
from lakestore_server.catalog.adoption import Adoptions
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.dropping import Droppings, Truncations
from lakestore_server.catalog.engine_keys import EngineKeys, StoreKeys
from lakestore_server.catalog.proposals import Proposals
from lakestore_server.catalog.rescaling import Rescales
from lakestore_server.catalog.tables import Databases, TableVerbs
from lakestore_server.catalog.tierer_epoch import TiererVerbs
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.ranges import change_ranges
from lakestore_server.changes.reset import reset
from lakestore_server.changes.stream import Feed, Listener
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.commit.commit_verbs import CommitVerbs, WriteStream
from lakestore_server.commit.durable import Pause
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.producer_verbs import ProducerVerbs
from lakestore_server.commit.register_verbs import RegisterVerbs
from lakestore_server.duties.dropped_tables import DroppedTables
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.clock import Clock
from lakestore_server.operate.backup import BackupVerbs
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.copy_verbs import CopyVerbs
from lakestore_server.operate.erasure_verbs import ErasureVerbs
from lakestore_server.operate.hold_verbs import HoldVerbs
from lakestore_server.operate.query_figures import QueryFigures
from lakestore_server.operate.reports import Reports
from lakestore_server.operate.status import Duties, StatusReader, StatusVerbs
from lakestore_server.operate.verify import AuditVerbs
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.delete_where import ConditionalDeletes
from lakestore_server.read.insert_answer import InsertedRows
from lakestore_server.read.leases import Leases
from lakestore_server.read.lookup import KeyRow, Lookups
from lakestore_server.read.plan import Plans
from lakestore_server.snapshots.presented_tables import SnapshotTables
from lakestore_server.state.view import View


class Verbs(TypedDict):
    """The verb of each RPC by name, in the order of the proto file."""

    Hello: Callable[[pb.HelloRequest], pb.HelloAnswer]
    Head: Callable[[pb.HeadRequest], pb.HeadAnswer]
    CreateTable: Callable[[pb.CreateTableRequest], pb.TableInfo]
    DropTable: Callable[[pb.TableRequest], pb.DropTableAnswer]
    AlterTable: Callable[[pb.AlterTableRequest], pb.TableInfo]
    ListProposals: Callable[[pb.ListProposalsRequest], pb.ListProposalsAnswer]
    DecideProposal: Callable[[pb.DecideProposalRequest], pb.ProposalEntry]
    GetTable: Callable[[pb.TableRequest], pb.TableInfo]
    ListTables: Callable[[pb.ListTablesRequest], pb.ListTablesAnswer]
    RenameTable: Callable[[pb.RenameTableRequest], pb.TableInfo]
    TruncateTable: Callable[[pb.TruncateTableRequest], pb.TruncateTableAnswer]
    RescaleTable: Callable[[pb.RescaleTableRequest], pb.RescaleTableAnswer]
    ReplayTable: Callable[[pb.ReplayTableRequest], pb.ReplayTableAnswer]
    AdoptTable: Callable[[pb.AdoptTableRequest], pb.AdoptTableAnswer]
    ReleaseTable: Callable[[pb.ReleaseTableRequest], pb.ReleaseTableAnswer]
    UndropTable: Callable[[pb.UndropTableRequest], pb.TableInfo]
    ListDroppedTables: Callable[[pb.ListDroppedTablesRequest], pb.ListDroppedTablesAnswer]
    DeleteWhere: Callable[[pb.DeleteWhereRequest], pb.DeleteWhereAnswer]
    EraseRows: Callable[[pb.EraseRowsRequest], pb.EraseRowsAnswer]
    ListErasures: Callable[[pb.ListErasuresRequest], pb.ListErasuresAnswer]
    VerifyErased: Callable[[pb.VerifyErasedRequest], pb.VerifyErasedAnswer]
    ListDatabases: Callable[[pb.ListDatabasesRequest], pb.ListDatabasesAnswer]
    CreateDatabase: Callable[[pb.DatabaseRequest], pb.DatabaseAnswer]
    DropDatabase: Callable[[pb.DatabaseRequest], pb.DatabaseAnswer]
    OpenProducer: Callable[[pb.OpenProducerRequest], pb.ProducerInfo]
    ListProducers: Callable[[pb.ListProducersRequest], pb.ListProducersAnswer]
    DropProducer: Callable[[pb.DropProducerRequest], pb.DropProducerAnswer]
    OpenRegisters: Callable[[pb.OpenRegistersRequest], pb.OpenRegistersAnswer]
    ListRegisters: Callable[[pb.ListRegistersRequest], pb.ListRegistersAnswer]
    DropRegisters: Callable[[pb.DropRegistersRequest], pb.DropRegistersAnswer]
    UploadPart: Callable[[pb.UploadPartRequest], pb.PartInfo]
    DropParts: Callable[[pb.DropPartsRequest], pb.DropPartsAnswer]
    Commit: Callable[[pb.CommitRequest], pb.CommitAnswer]
    Write: Callable[[Iterator[Sent]], Iterator[pb.CommitAnswer]]
    Lookup: Callable[[pb.LookupRequest], pb.RowBatch]
    Changes: Callable[[pb.ChangesRequest, Listener], Iterator[EncodedBatch]]
    """The one verb that gets its listener; its answers are `pb.ChangeBatch`es, encoded once for all streams."""
    ChangeRanges: Callable[[pb.ChangeRangesRequest], pb.ChangeRangesAnswer]
    Ack: Callable[[pb.AckRequest], pb.AckAnswer]
    ListSubscriptions: Callable[[pb.ListSubscriptionsRequest], pb.ListSubscriptionsAnswer]
    DropSubscription: Callable[[pb.DropSubscriptionRequest], pb.DropSubscriptionAnswer]
    ResetSubscription: Callable[[pb.ResetSubscriptionRequest], pb.ResetSubscriptionAnswer]
    Plan: Callable[[pb.PlanRequest], pb.PlanAnswer]
    Fetch: Callable[[pb.FetchRequest], Iterator[RowMessage]]
    RenewLease: Callable[[pb.LeaseRequest], pb.LeaseAnswer]
    ReleaseLease: Callable[[pb.LeaseRequest], pb.LeaseAnswer]
    StoreKey: Callable[[pb.StoreKeyRequest], pb.StoreKeyAnswer]
    AcquireTierer: Callable[[pb.TiererRequest], pb.TiererAnswer]
    ReleaseTierer: Callable[[pb.TiererRequest], pb.TiererAnswer]
    Status: Callable[[pb.StatusRequest], pb.StatusAnswer]
    Audit: Callable[[pb.AuditRequest], pb.AuditAnswer]
    Backup: Callable[[pb.BackupRequest], pb.BackupAnswer]
    CopyCheckpoint: Callable[[pb.CopyCheckpointRequest], Iterator[pb.CopyPiece]]
    HoldSnapshots: Callable[[pb.HoldSnapshotsRequest], pb.HoldSnapshotsAnswer]
    AcceptClock: Callable[[pb.AcceptClockRequest], pb.AcceptClockAnswer]
    Report: Callable[[pb.ReportRequest], pb.ReportAnswer]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The objects whose methods answer."""

    engine: Engine
    status: StatusVerbs
    tables: TableVerbs
    proposals: Proposals
    droppings: Droppings
    truncations: Truncations
    adoptions: Adoptions
    rescales: Rescales
    deletes: ConditionalDeletes
    erasures: ErasureVerbs
    databases: Databases
    producers: ProducerVerbs
    registers: RegisterVerbs
    writes: CommitVerbs
    lookups: Lookups
    feed: Feed
    subscriptions: Subscriptions
    plans: Plans
    store_keys: StoreKeys
    tierer: TiererVerbs
    audits: AuditVerbs
    backups: BackupVerbs
    copies: CopyVerbs
    holds: HoldVerbs
    reports: Reports


def _verbs(parts: _Parts) -> Verbs:
    return {
        "Hello": parts.status.hello,
        "Head": parts.status.head,
        "CreateTable": parts.tables.create_table,
        "DropTable": parts.droppings.drop_table,
        "AlterTable": parts.tables.alter_table,
        "ListProposals": parts.proposals.list_proposals,
        "DecideProposal": parts.proposals.decide,
        "GetTable": parts.tables.get_table,
        "ListTables": parts.tables.list_tables,
        "RenameTable": parts.tables.rename_table,
        "TruncateTable": parts.truncations.truncate,
        "RescaleTable": parts.rescales.rescale,
        "ReplayTable": parts.rescales.replay,
        "AdoptTable": parts.adoptions.adopt_table,
        "ReleaseTable": parts.adoptions.release_table,
        "UndropTable": parts.droppings.undrop_table,
        "ListDroppedTables": parts.droppings.list_dropped_tables,
        "DeleteWhere": parts.deletes.delete_where,
        "EraseRows": parts.erasures.erase_rows,
        "ListErasures": parts.erasures.list_erasures,
        "VerifyErased": parts.erasures.verify_erased,
        "ListDatabases": parts.databases.list_databases,
        "CreateDatabase": parts.databases.create_database,
        "DropDatabase": parts.databases.drop_database,
        "OpenProducer": parts.producers.open_producer,
        "ListProducers": parts.producers.list_producers,
        "DropProducer": parts.producers.drop_producer,
        "OpenRegisters": parts.registers.open_registers,
        "ListRegisters": parts.registers.list_registers,
        "DropRegisters": parts.registers.drop_registers,
        "UploadPart": parts.writes.upload_part,
        "DropParts": parts.writes.drop_parts,
        "Commit": parts.writes.commit,
        "Write": parts.writes.write,
        "Lookup": parts.lookups.lookup,
        "Changes": parts.feed.changes,
        "ChangeRanges": partial(change_ranges, parts.engine),
        "Ack": parts.subscriptions.ack,
        "ListSubscriptions": parts.subscriptions.list_subscriptions,
        "DropSubscription": parts.subscriptions.drop_subscription,
        "ResetSubscription": partial(reset, parts.engine, parts.subscriptions),
        "Plan": parts.plans.plan,
        "Fetch": parts.plans.fetch,
        "RenewLease": parts.plans.renew_lease,
        "ReleaseLease": parts.plans.release_lease,
        "StoreKey": parts.store_keys.store_key,
        "AcquireTierer": parts.tierer.acquire_tierer,
        "ReleaseTierer": parts.tierer.release_tierer,
        "Status": parts.status.status,
        "Audit": parts.audits.audit,
        "Backup": parts.backups.backup,
        "CopyCheckpoint": parts.copies.copy_checkpoint,
        "HoldSnapshots": parts.holds.hold_snapshots,
        "AcceptClock": parts.status.accept_clock,
        "Report": parts.reports.report,
    }


def _table_verbs(engine: Engine, catalog: Catalog, *, owner_required: bool) -> tuple[TableVerbs, Proposals]:
    proposals = Proposals(engine, catalog)
    tables = TableVerbs(engine, catalog, proposals.propose, owner_required=owner_required)
    catalog.alter_table = tables.alter_table
    return tables, proposals


AnyVerbs = dict[str, Callable[..., Any]]
_UNCONFIRMED = ("Hello", "Status", "Audit")
"""Reads that say what this server knows, also while nobody leads."""


class Service:
    """One server's verbs. Thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        upkeep: Upkeep,
        catalog: Catalog,
        leases: Leases,
        clock: Clock,
        about: Mapping[str, str],
        subscriptions: Subscriptions,
        producers: ProducerVerbs,
        duties: Duties,
        dropped: DroppedTables,
        calls: Calls,
        presented: SnapshotTables,
        holds: HoldVerbs,
        engine_keys: EngineKeys,
        owner_required: bool,
        queries: QueryFigures,
    ) -> None:
        self.reports = Reports(clock, engine.limits)
        self.status = StatusReader(
            engine=engine,
            upkeep=upkeep,
            about=about,
            duties=duties,
            clock=clock,
            catalog=catalog,
            reports=self.reports,
            presented=presented,
            leases=leases,
            queries=queries,
        )
        lookups = Lookups(engine, Completeness(engine, clock))
        of_tables = _table_verbs(engine, catalog, owner_required=owner_required)
        parts = _Parts(
            engine,
            StatusVerbs(engine, leases, self.status),
            *of_tables,
            Droppings(engine, catalog, dropped.wake),
            Truncations(engine, catalog, leases, upkeep.checkpointer.wake),
            Adoptions(engine, catalog, dropped.wake),
            Rescales(engine, catalog, duties.rescales, dropped.wake),
            ConditionalDeletes(engine, clock),
            ErasureVerbs(engine, catalog, duties.erasure),
            Databases(engine),
            producers,
            RegisterVerbs(engine),
            CommitVerbs(engine, InsertedRows(lookups, engine.limits).add, of_tables[0].dead_letters),
            lookups,
            Feed(engine, subscriptions, leases, clock),
            subscriptions,
            presented.plans,
            StoreKeys(engine, engine_keys),
            TiererVerbs(engine, clock, catalog),
            AuditVerbs(engine, upkeep.integrity),
            BackupVerbs(engine, upkeep.checkpointer, about["warehouse"]),
            CopyVerbs(engine, upkeep.checkpointer),
            holds,
            self.reports,
        )
        self.calls, self._engine = calls, engine
        self.write_stream = parts.writes.stream
        """Begins a stream of pipelined commits, which the port's form of `Write` answers."""
        self._waiting: AnyVerbs = {"Changes": partial(self._certain_changes, parts.feed.messages), "Write": _answers}
        """The port's form of waiting verbs: they yield pauses and hold no thread."""
        self.verbs: Verbs = _verbs(parts)
        self._is_shared = bool(engine.role)
        """Whether other servers may lead; looked up once, because each call asks."""
        self.key_row, self.key_row_waits = self._watched_row(lookups), self._is_shared

    def _watched_row(self, lookups: Lookups) -> Callable[[pb.LookupRequest], KeyRow | None]:
        """`Lookup` of one whole key for callers in this process: the row is not encoded. None if only the RPC answers
        the request. Calls are counted and drained like the RPC."""
        row = partial(self._confirmed, lookups.row) if self._is_shared else lookups.row
        return self.calls.watched(rpc.METHODS["Lookup"], row)

    def view(self) -> View:
        """The newest published state."""
        return self._engine.view

    def verb(self, name: str) -> Callable[..., Any]:
        """The verb of an RPC by its name in the proto file. A leader of several servers makes certain that it still
        leads: before it reads, and before it refuses a change, since the refusal tells what it has read."""
        verb = cast("Mapping[str, Callable[..., Any]]", self.verbs)[name]
        method = rpc.METHODS[name]
        if name in _UNCONFIRMED or not self._is_shared:
            return verb
        if name == "Write" or (method.streams_out and method.reads):  # a stream of commits is certain of each answer
            return verb
        return partial(self._confirmed, verb) if method.reads else partial(self._certain, method, verb)

    def _confirmed(self, verb: Callable[[Any], Any], request: Any) -> Any:
        self._engine.confirm()
        return verb(request)

    def _certain(self, method: rpc.Method, verb: Callable[[Any], Any], request: Any) -> Any:
        with self._certain_refusals(method, request):
            return verb(request)

    def _certain_changes(self, verb: Callable[..., Iterator[Any]], request: Any, listener: Any) -> Iterator[Any]:
        with self._certain_refusals(rpc.METHODS["Changes"], request):
            yield from verb(request, listener)

    @contextmanager
    def _certain_refusals(self, method: rpc.Method, request: Any) -> Iterator[None]:
        try:
            yield
        except LakestoreError as error:
            certain = self._engine.certain(error, for_leader=method.needs_leader(request))
            if certain is error:
                raise
            raise certain from error

    def watched(self, method: rpc.Method, *, is_part: bool = False) -> Callable[..., Any]:
        """The verb of an RPC for a port: counted, and refused during a drain unless it `is_part` of a running query.

        `Changes` and `Write` also take a listener and yield `Pause`s; `Write` takes a `write_stream` instead of the
        iterator of requests."""
        verb = self._waiting.get(method.name) or self.verb(method.name)
        return self.calls.watched(method, verb, is_part=is_part)


def _answers(stream: WriteStream, listener: Listener) -> Iterator[pb.CommitAnswer | Pause]:
    """The answers of a stream of commits; the stream checks for its end when client or server go."""
    listener.add_callback(stream.bell.set)
    yield from stream.answers()


def _shared(batch: EncodedBatch) -> bytes:
    return batch.data


_ENCODERS: Mapping[str, Callable[[Any], bytes]] = {"Changes": _shared, "Fetch": RowMessage.encoded}


def encoder_of(method: rpc.Method) -> Callable[[Any], bytes]:
    """The function that encodes an answer of a streaming verb."""
    return _ENCODERS.get(method.name, method.answer.SerializeToString)
