"""The verbs of the wire, on protobuf messages: what gRPC and the in-process transport both call."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa

from lakestore import keys, limits, rows, schema
from lakestore.errors import Conflict, Fenced, Internal, Invalid, LakestoreError, Unavailable
from lakestore.schema import Table
from lakestore.server import audit, catalog_log, feed, reads
from lakestore.server.bucket import PREV
from lakestore.server.catalog.catalog import Catalog
from lakestore.server.catalog.ledger import CatalogChange, CatalogStep, DropPointer, SetNamespace, TierRecord
from lakestore.server.clock import Clock
from lakestore.server.engine import Engine
from lakestore.server.index import table_prefix
from lakestore.server.journal import Frame
from lakestore.server.leases import Leases
from lakestore.server.prepare import Answer, Request, change_of
from lakestore.server.state import State, TableState, View
from lakestore.token import Token
from lakestore.v1 import lakestore_pb2 as pb

ANSWER_SECONDS = 60.0
AT_WAIT_SECONDS = 30.0
_DEAD_CACHE = 64


class Service:
    """One server's verbs. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, leases: Leases, clock: Clock, about: dict[str, str]) -> None:
        self.engine = engine
        self._catalog, self._leases, self._clock = catalog, leases, clock
        self._about = about
        self._dead = reads.DeadCache(_DEAD_CACHE)
        self._tierer_until = 0.0

    # Tables

    def create_table(self, request: pb.CreateTableRequest) -> pb.TableInfo:
        """Create a table and its lake table."""
        try:
            table = Table.from_json(request.definition)
        except (ValueError, KeyError, TypeError) as error:
            raise Invalid(f"the table definition is not readable: {error}") from error
        table = replace(table, uuid=str(uuid.uuid4()))
        try:
            schema.check(table)
        except (TypeError, AttributeError) as error:
            raise Invalid(f"the table definition has a value of a wrong type: {error}") from error
        if table.name in self.engine.view.names:
            raise Conflict(f"table {table.name} exists already")
        step = self._catalog.create_own(table)
        made: list[Table] = []

        def plan(state: State, frame: Frame) -> None:
            if table.name in state.view.names:
                raise Conflict(f"table {table.name} exists already")
            if len(state.view.tables) >= limits.TABLES_MAX:
                raise Invalid(f"the server has {limits.TABLES_MAX} tables, its limit")
            made.append(replace(table, number=state.next_number))
            frame.create.append(made[0].as_dict())
            steps: list[CatalogStep] = [step]
            if table.namespace not in state.view.namespaces:
                steps.insert(0, SetNamespace(table.namespace))
            _catalog_step(state, frame, *steps)

        self.engine.operate(plan)
        return pb.TableInfo(definition=made[0].to_json())

    def drop_table(self, request: pb.TableRequest) -> pb.DropTableAnswer:
        """Drop a table with its lake table."""

        def plan(state: State, frame: Frame) -> None:
            table = state.view.named(request.table).table
            frame.drop.append(table.uuid)
            if (table.namespace, table.short_name) in state.view.pointers:
                _catalog_step(state, frame, DropPointer(table.namespace, table.short_name))

        view = self.engine.operate(plan)
        return pb.DropTableAnswer(token=self._token(view.lsn))

    def get_table(self, request: pb.TableRequest) -> pb.TableInfo:
        """A table's definition."""
        return pb.TableInfo(definition=self.engine.view.named(request.table).table.to_json())

    def list_tables(self, _: pb.ListTablesRequest) -> pb.ListTablesAnswer:
        """All tables by name."""
        view = self.engine.view
        infos = [pb.TableInfo(definition=view.named(name).table.to_json()) for name in sorted(view.names)]
        return pb.ListTablesAnswer(tables=infos)

    # Writing

    def open_producer(self, request: pb.OpenProducerRequest) -> pb.ProducerInfo:
        """Take a producer over: a new epoch fences whoever wrote under that name before."""
        if not request.producer:
            raise Invalid("a producer needs a name")
        opened: list[tuple[int, int, str]] = []

        def plan(state: State, frame: Frame) -> None:
            known = state.producers.get(request.producer)
            epoch = known.epoch + 1 if known else 1
            if epoch > limits.EPOCH_MAX:
                raise Invalid(f"producer {request.producer!r} has used up its epochs: take another name")
            opened.append((epoch, 0, known.progress if known else ""))
            frame.producers.append([request.producer, epoch, 0, [], ""])

        self.engine.operate(plan)
        epoch, sequence, progress = opened[0]
        return pb.ProducerInfo(epoch=epoch, last_sequence=sequence, progress=progress)

    def commit(self, request: pb.CommitRequest) -> pb.CommitAnswer:
        """One commit, durable when answered."""
        return self._answered(self._submit(request), request.sequence)

    def write(self, requests: Iterator[pb.CommitRequest]) -> Iterator[pb.CommitAnswer]:
        """Pipelined commits: requests are taken while earlier ones are being written. An error ends the stream."""
        waiting: queue.Queue[tuple[Request | LakestoreError, int] | None] = queue.Queue(limits.PRODUCER_ANSWERS_KEPT)
        stopped = threading.Event()

        def take() -> None:
            try:
                for request in requests:
                    if stopped.is_set():
                        return
                    waiting.put((self._submit(request), request.sequence))
            except LakestoreError as error:
                waiting.put((error, 0))
            except (pa.ArrowException, ValueError, TypeError, LookupError, MemoryError) as error:
                waiting.put((Internal(f"a defect of the server: {error}", applied="unknown"), 0))
            finally:
                waiting.put(None)

        threading.Thread(target=take, name="write-stream", daemon=True).start()
        try:
            while (item := waiting.get()) is not None:
                yield self._streamed(*item)
        finally:
            stopped.set()
            with suppress(queue.Empty):  # let a thread that waits for room see that it is over
                while True:
                    waiting.get_nowait()

    def _streamed(self, request: Request | LakestoreError, sequence: int) -> pb.CommitAnswer:
        try:
            if isinstance(request, LakestoreError):
                raise request
            return self._answered(request, sequence)
        except LakestoreError as error:
            told = pb.Error(kind=error.kind, message=error.message, applied=error.applied)
            return pb.CommitAnswer(sequence=sequence, error=told)

    def _submit(self, request: pb.CommitRequest) -> Request:
        if not request.changes:
            raise Invalid("a commit needs at least one change")
        view = self.engine.view
        changes = tuple(
            change_of(view.named(change.table).table, change, request.producer) for change in request.changes
        )
        prepared = Request(changes, request.producer, request.epoch, request.sequence, request.progress)
        self.engine.submit(prepared)
        return prepared

    def _answered(self, request: Request, sequence: int) -> pb.CommitAnswer:
        try:
            answer: Answer = request.answer.result(ANSWER_SECONDS)
        except TimeoutError as error:
            raise Unavailable("the commit was not answered in time: try again", applied="unknown") from error
        results = [
            pb.ChangeResult(table=name, inserted=ins, updated=upd, deleted=dele, not_found=missing)
            for name, ins, upd, dele, missing in answer.results
        ]
        return pb.CommitAnswer(sequence=sequence, token=self._token(answer.lsn), results=results)

    # Reading

    def lookup(self, request: pb.LookupRequest) -> pb.RowBatch:
        """The rows of many keys, in the order of the keys; absent keys give no row."""
        if request.at_least:
            self._reached(feed.parse_token(request.at_least, self.engine).lsn)
        batch = rows.decode(request.keys)

        wanted: list[pa.RecordBatch] = []

        def encode(table: Table) -> list[bytes]:
            if not table.keyed:
                raise Invalid(f"table {table.name} has no primary key to look up")
            wanted.append(rows.conform(batch, table, keys_only=True))
            return keys.encode(wanted[-1].columns, table_prefix(table.number))

        view, offsets = self.engine.lookup(request.table, encode)
        state = view.named(request.table)
        found = _rows_at(state, wanted[-1], offsets, state.table.selected(list(request.columns)))
        return _row_batch(found)

    def changes(self, request: pb.ChangesRequest, active: Callable[[], bool]) -> Iterator[pb.ChangeBatch]:
        """The change stream."""
        return feed.changes(self.engine, request, active)

    def plan(self, request: pb.PlanRequest) -> pb.PlanAnswer:
        """A cut over tables, with a lease."""
        lsn = feed.parse_token(request.at, self.engine).lsn if request.at else self.engine.view.lsn
        view = self._reached(lsn)
        states = [view.named(name) for name in request.tables]
        for state in states:
            if state.created_lsn > lsn:
                raise Invalid(f"table {state.table.name} did not exist at this position")
        tiers, lease = self._held_tiers(states, lsn, request.lease_seconds)
        answer = pb.PlanAnswer(token=self._token(lsn), lsn=lsn, lease=lease)
        for state, tier in zip(states, tiers, strict=True):
            answer.tables.append(self._table_plan(view, state, tier, lsn, dead=not request.no_dead))
        return answer

    def _held_tiers(self, states: list[TableState], lsn: int, seconds: int) -> tuple[list[TierRecord | None], str]:
        """(newest usable snapshot of each table, a lease on them); an expiry that gets in between is gone around."""
        while True:
            tiers = [_newest_tier(state, lsn, self._leases) for state in states]
            named = zip(states, tiers, strict=True)
            snapshots = {state.table.uuid: tier.snapshot_id for state, tier in named if tier is not None}
            if not seconds:
                return tiers, ""
            try:
                return tiers, self._leases.grant(snapshots, seconds)
            except Unavailable:
                continue

    def _table_plan(
        self, view: View, state: TableState, tier: TierRecord | None, lsn: int, *, dead: bool
    ) -> pb.TablePlan:
        table = state.table
        pointer = view.pointers.get((table.namespace, table.short_name))
        plan = pb.TablePlan(
            definition=table.to_json(),
            metadata_location=pointer.location if pointer else "",
            snapshot_id=tier.snapshot_id if tier else 0,
        )
        for bucket, log in enumerate(state.logs):
            start = tier.tier_point[bucket] if tier else 0
            here = log.at_lsn(lsn)
            entry = plan.buckets.add(
                bucket=bucket, tier_point=start, head=here.end, live_sum=here.live_sum, live_rows=here.live_rows
            )
            if dead and log.keyed and here.end > start:
                for high, data in self._dead.of(table.uuid, bucket, log, start, here.end).encode():
                    entry.dead.add(high=high, roaring=data)
        return plan

    def fetch(self, request: pb.FetchRequest) -> Iterator[pb.RowBatch]:
        """The rows of one split."""
        self._leases.check(request.lease)
        state = self.engine.view.by_uuid(request.table_uuid)
        if request.bucket >= len(state.logs):
            raise Invalid(f"table {state.table.name} has no bucket {request.bucket}")
        log = state.logs[request.bucket]
        if request.end > log.head or request.start > request.end:
            raise Invalid(f"bucket {request.bucket} has no rows [{request.start}, {request.end})")
        names = [name for name in request.columns if name != PREV]
        columns = list(request.columns) if request.columns else state.table.selected(None)
        state.table.selected(names)
        if request.live_only:
            dead = self._dead.of(state.table.uuid, request.bucket, log, request.live_start, request.live_end)
            parts = reads.live(log, request.start, request.end, dead)
        else:
            parts = reads.read(log, request.start, request.end)
        for part in parts:
            for piece in reads.bounded(reads.project(state.table, part, columns, request.bucket)):
                yield _row_batch(piece)

    def renew_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        """Prolong a lease."""
        self._leases.renew(request.lease, request.seconds)
        return pb.LeaseAnswer(seconds=request.seconds)

    def release_lease(self, request: pb.LeaseRequest) -> pb.LeaseAnswer:
        """End a lease."""
        self._leases.release(request.lease)
        return pb.LeaseAnswer()

    # Tiering

    def acquire_tierer(self, request: pb.TiererRequest) -> pb.TiererAnswer:
        """Become the tierer, or renew with the epoch held."""
        now = self._clock.monotonic()
        seconds = request.seconds or limits.TIERER_SECONDS_DEFAULT
        epoch = [request.epoch]

        def plan(state: State, frame: Frame) -> None:
            held = state.view.tierer_epoch
            if request.epoch and request.epoch != held:
                raise Fenced(f"tierer epoch {request.epoch} was taken over by {held}")
            if not request.epoch:
                if now < self._tierer_until and state.tierer_holder != request.holder:
                    raise Unavailable(f"{state.tierer_holder} is the tierer for {self._tierer_until - now:.0f} s more")
                epoch[0] = held + 1
            frame.tierer = [epoch[0], request.holder]

        if request.epoch:
            self._renew_tierer(request.epoch)
        else:
            self.engine.operate(plan)
        self._tierer_until = now + seconds
        return pb.TiererAnswer(epoch=epoch[0], seconds=seconds)

    def _renew_tierer(self, epoch: int) -> None:
        held = self.engine.view.tierer_epoch
        if epoch != held:
            raise Fenced(f"tierer epoch {epoch} was taken over by {held}")

    def release_tierer(self, request: pb.TiererRequest) -> pb.TiererAnswer:
        """Let the next tierer in at once."""
        if request.epoch == self.engine.view.tierer_epoch:
            self._tierer_until = 0.0
        return pb.TiererAnswer(epoch=request.epoch)

    # Looking in

    def status(self, request: pb.StatusRequest) -> pb.StatusAnswer:
        """The server and its tables, as JSON."""
        view = self.engine.view
        names = list(request.tables) or sorted(view.names)
        tables = [audit.table_status(view.named(name)) for name in names]
        about = {**self._about, "timeline": self.engine.timeline, "lsn": view.lsn, "token": self._token(view.lsn)}
        return pb.StatusAnswer(status=orjson.dumps({**about, "tables": tables}).decode())

    def audit(self, request: pb.TableRequest) -> pb.AuditAnswer:
        """Fold the log and compare it with the index, at one cut."""
        view = self.engine.view
        answer = pb.AuditAnswer(token=self._token(view.lsn))
        answer.buckets.extend(audit.bucket_audits(self.engine, view, request.table))
        return answer

    def _token(self, lsn: int) -> str:
        return str(Token(self.engine.timeline, lsn))

    def _reached(self, lsn: int) -> View:
        """A view at or beyond `lsn`, waited for if it lies ahead."""
        view = self.engine.view
        if view.lsn < lsn:
            view = self.engine.wait_beyond(lsn - 1, AT_WAIT_SECONDS)
        if view.lsn < lsn:
            raise Unavailable("the server has not reached this position yet: try again")
        return view


def _catalog_step(state: State, frame: Frame, *steps: CatalogStep) -> None:
    change = CatalogChange(steps)
    catalog_log.check(change, state.view.namespaces, state.view.pointers)
    frame.catalog.append(catalog_log.encode(change))


def _newest_tier(state: TableState, lsn: int, leases: Leases) -> TierRecord | None:
    heads = [log.at_lsn(lsn).end for log in state.logs]
    usable = [
        tier
        for tier in state.tiers.values()
        if not leases.is_retired(state.table.uuid, tier.snapshot_id)
        and all(point <= head for point, head in zip(tier.tier_point, heads, strict=True))
    ]
    return usable[-1] if usable else None


def _row_batch(batch: pa.RecordBatch) -> pb.RowBatch:
    data = rows.encode(batch.schema, [batch])
    return pb.RowBatch(rows=data, crc32c=rows.crc32c(data))


def _rows_at(
    state: TableState, wanted: pa.RecordBatch, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], columns: list[str]
) -> pa.RecordBatch:
    """Rows at the live offsets of keys, in the keys' order."""
    table = state.table
    found = np.flatnonzero(offsets >= 0)
    at = {name: i for i, name in enumerate(table.primary_key)}
    buckets = keys.buckets([wanted.column(at[name]) for name in table.bucket_key], table.buckets)[found]
    parts, places = [], []
    for bucket in np.unique(buckets):
        here = np.flatnonzero(buckets == bucket)
        log = state.logs[int(bucket)]
        row_offsets = offsets[found[here]]
        taken = log.take(row_offsets)
        times = log.times_at(row_offsets) if "__timestamp" in columns else np.zeros(len(here), dtype=np.int64)
        change = taken.column(0).to_numpy()
        parts.append(reads.project(table, reads.Rows(taken, row_offsets, times, change), columns, int(bucket)))
        places.append(here)
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=table.read_schema(columns))
    joined = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    order = np.argsort(np.concatenate(places), kind="stable")
    return joined.take(pa.array(order)) if len(parts) > 1 else joined
