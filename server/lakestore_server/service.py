"""A server's verbs: one explicit row from each RPC of the proto file to the bound method that answers it.

gRPC and the in-process transport call verbs from here and from nowhere else. `Verbs` is the table's type, so mypy
holds every verb to the messages of its RPC; a test holds `Verbs` to the proto file's descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypedDict, cast

from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.commit_message import Sent
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.ranges import change_ranges
from lakestore_server.changes.stream import Feed, Listener
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.named_producers import NamedProducers
from lakestore_server.commit.producers import Writes
from lakestore_server.commit.registers import RegisterVerbs
from lakestore_server.commit.wakeups import Pause
from lakestore_server.commit.write_stream import WriteStream
from lakestore_server.duties.expiry import Expiry
from lakestore_server.duties.retention import Retention
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.clock import Clock
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.iceberg.tables import TableVerbs
from lakestore_server.iceberg.tierer_epoch import TiererVerbs
from lakestore_server.operate.backup import BackupVerbs
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.reports import Reports
from lakestore_server.operate.status import StatusReader, StatusVerbs
from lakestore_server.operate.verify import AuditVerbs
from lakestore_server.present.presented import PresentedTables
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.inserted import Inserts
from lakestore_server.read.leases import Leases
from lakestore_server.read.lookup import Lookups


class Verbs(TypedDict):
    """The verb of each RPC, by its name and in the order of the proto file."""

    Hello: Callable[[pb.HelloRequest], pb.HelloAnswer]
    Head: Callable[[pb.HeadRequest], pb.HeadAnswer]
    CreateTable: Callable[[pb.CreateTableRequest], pb.TableInfo]
    DropTable: Callable[[pb.TableRequest], pb.DropTableAnswer]
    AlterTable: Callable[[pb.AlterTableRequest], pb.TableInfo]
    GetTable: Callable[[pb.TableRequest], pb.TableInfo]
    ListTables: Callable[[pb.ListTablesRequest], pb.ListTablesAnswer]
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
    """The one verb that is told who listens; its answers are `pb.ChangeBatch`es, encoded once for all streams."""
    ChangeRanges: Callable[[pb.ChangeRangesRequest], pb.ChangeRangesAnswer]
    Ack: Callable[[pb.AckRequest], pb.AckAnswer]
    ListSubscriptions: Callable[[pb.ListSubscriptionsRequest], pb.ListSubscriptionsAnswer]
    DropSubscription: Callable[[pb.DropSubscriptionRequest], pb.DropSubscriptionAnswer]
    Plan: Callable[[pb.PlanRequest], pb.PlanAnswer]
    Fetch: Callable[[pb.FetchRequest], Iterator[pb.RowBatch]]
    RenewLease: Callable[[pb.LeaseRequest], pb.LeaseAnswer]
    ReleaseLease: Callable[[pb.LeaseRequest], pb.LeaseAnswer]
    AcquireTierer: Callable[[pb.TiererRequest], pb.TiererAnswer]
    ReleaseTierer: Callable[[pb.TiererRequest], pb.TiererAnswer]
    Status: Callable[[pb.StatusRequest], pb.StatusAnswer]
    Audit: Callable[[pb.AuditRequest], pb.AuditAnswer]
    Backup: Callable[[pb.BackupRequest], pb.BackupAnswer]
    AcceptClock: Callable[[pb.AcceptClockRequest], pb.AcceptClockAnswer]
    Report: Callable[[pb.ReportRequest], pb.ReportAnswer]


class Service:
    """One server's verbs. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        upkeep: Upkeep,
        catalog: Catalog,
        leases: Leases,
        clock: Clock,
        about: Mapping[str, str],
        subscriptions: Subscriptions,
        producers: NamedProducers,
        retention: Retention,
        expiry: Expiry,
        calls: Calls,
        presented: PresentedTables,
    ) -> None:
        self.reports = Reports(clock)
        """The words of processes beside the server."""
        tables, writes, plans = TableVerbs(engine, catalog), Writes(engine), presented.plans
        lookups = Lookups(engine, Completeness(engine, clock))
        feed, tierer = Feed(engine, subscriptions, leases, clock), TiererVerbs(engine, clock, catalog)
        self.status = StatusReader(
            engine, upkeep, about, retention, expiry, clock, catalog, self.reports, presented, leases
        )
        """The way to the status as a value."""
        status, audits = StatusVerbs(engine, leases, self.status), AuditVerbs(engine, upkeep.integrity)
        backups, registers = BackupVerbs(engine, upkeep.checkpointer, about["warehouse"]), RegisterVerbs(engine)
        self.calls = calls
        self.write_stream = writes.stream
        """Begins a stream of pipelined commits, which the port's form of `Write` answers."""
        self._waiting: dict[str, Callable[..., Any]] = {"Changes": feed.messages, "Write": _answers}
        """The port's form of the verbs that wait: they pause, and hold no thread."""
        self.verbs: Verbs = {
            "Hello": status.hello,
            "Head": status.head,
            "CreateTable": tables.create_table,
            "DropTable": tables.drop_table,
            "AlterTable": tables.alter_table,
            "GetTable": tables.get_table,
            "ListTables": tables.list_tables,
            "OpenProducer": producers.open_producer,
            "ListProducers": producers.list_producers,
            "DropProducer": producers.drop_producer,
            "OpenRegisters": registers.open_registers,
            "ListRegisters": registers.list_registers,
            "DropRegisters": registers.drop_registers,
            "UploadPart": writes.upload_part,
            "DropParts": writes.drop_parts,
            "Commit": Inserts(writes, lookups, engine.limits).commit,
            "Write": writes.write,
            "Lookup": lookups.lookup,
            "Changes": feed.changes,
            "ChangeRanges": partial(change_ranges, engine),
            "Ack": subscriptions.ack,
            "ListSubscriptions": subscriptions.list_subscriptions,
            "DropSubscription": subscriptions.drop_subscription,
            "Plan": plans.plan,
            "Fetch": plans.fetch,
            "RenewLease": plans.renew_lease,
            "ReleaseLease": plans.release_lease,
            "AcquireTierer": tierer.acquire_tierer,
            "ReleaseTierer": tierer.release_tierer,
            "Status": status.status,
            "Audit": audits.audit,
            "Backup": backups.backup,
            "AcceptClock": status.accept_clock,
            "Report": self.reports.report,
        }

    def verb(self, name: str) -> Callable[..., Any]:
        """The verb of an RPC, by its name in the proto file; for callers that walk the descriptor."""
        return cast("Mapping[str, Callable[..., Any]]", self.verbs)[name]

    def watched(self, method: rpc.Method) -> Callable[..., Any]:
        """The verb of an RPC as a port calls it: counted, and refused while the server drains.

        `Changes` and `Write` take a listener as well and give `Pause`s among their answers; `Write` takes a
        `write_stream` for the iterator of its requests.
        """
        return self.calls.watched(method, self._waiting.get(method.name) or self.verb(method.name))


def _answers(stream: WriteStream, listener: Listener) -> Iterator[pb.CommitAnswer | Pause]:
    """The answers of a stream of commits, which looks at its end when its client or the server goes."""
    listener.add_callback(stream.bell.set)
    yield from stream.answers()
