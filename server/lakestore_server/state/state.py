"""Everything a checkpoint holds, and how a journal record changes it.

`State` is owned by the commit loop. `View` is what readers get: an immutable value as of one LSN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakestore.errors import NotFound
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore_server.files.json_forms import result_list, result_of, subscription_list, subscription_of
from lakestore_server.state import catalog_change
from lakestore_server.state.bucket_log import BucketLog, Chunk, MemoryChunk
from lakestore_server.state.catalog_change import CatalogChange, Pointer, TierRecord
from lakestore_server.state.commit_index import CommitIndex, Position
from lakestore_server.state.commit_record import Answer, CommitRecord, ProducerCommit, RowsPart, SubscriptionChange
from lakestore_server.state.subscription import Subscription, SubscriptionDrop, SubscriptionMove
from lakestore_server.state.table_versions import Versions, stored_schema


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as of one LSN."""

    versions: Versions
    logs: tuple[BucketLog, ...]
    tiers: Mapping[int, TierRecord] = field(default_factory=dict)
    created_lsn: int = 0
    created_us: int = 0
    """0: in data of a release that did not keep it."""

    @staticmethod
    def new(table: Table, lsn: int, time_us: int) -> TableState:
        """A table without rows."""
        log = BucketLog(stored_schema(table))
        return TableState(Versions.first(table, lsn), (log,) * table.buckets, created_lsn=lsn, created_us=time_us)

    @property
    def table(self) -> Table:
        """The newest definition."""
        return self.versions.current

    def altered(self, table: Table, lsn: int) -> TableState:
        """The table with another definition; rows stay as they were stored."""
        return replace(self, versions=self.versions.altered(table, lsn))

    def with_log(self, bucket: int, log: BucketLog) -> TableState:
        """The table with one bucket's log replaced."""
        return replace(self, logs=(*self.logs[:bucket], log, *self.logs[bucket + 1 :]))

    def heads(self) -> list[int]:
        """Each bucket's head."""
        return [log.head for log in self.logs]

    @property
    def log_start_lsn(self) -> int:
        """The log start `L` as a commit: what came after it is complete, in every bucket. 0: nothing was dropped."""
        return self.logs[0].base.lsn

    def starts(self) -> tuple[int, ...]:
        """Each bucket's log start."""
        return tuple(log.base.end for log in self.logs)

    @property
    def has_all_rows(self) -> bool:
        """Whether the log and what lives below its start are the whole table, so that reads can do without the lake."""
        return self.table.keyed or not any(self.starts())

    def from_lsn(self, lsn: int) -> TableState:
        """The table without the commits up to `lsn`."""
        return replace(self, logs=tuple(log.from_lsn(lsn) for log in self.logs))


@dataclass(frozen=True, slots=True)
class View:
    """A cut: everything a reader may ask, as of one LSN."""

    lsn: int = 0
    time_us: int = 0
    tables: Mapping[str, TableState] = field(default_factory=dict)
    """By uuid."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Table name to uuid."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pointers: Mapping[tuple[str, str], Pointer] = field(default_factory=dict)
    tierer_epoch: int = 0
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)

    def named(self, name: str) -> TableState:
        """The table of that name, or `NotFound`."""
        uuid = self.names.get(name)
        if uuid is None:
            raise NotFound(f"there is no table {name!r}")
        return self.tables[uuid]

    def by_uuid(self, uuid: str) -> TableState:
        """The table with that uuid, or `NotFound`."""
        state = self.tables.get(uuid)
        if state is None:
            raise NotFound("the table was dropped")
        return state


@dataclass(slots=True)
class ProducerState:
    """What is known of a producer; the newest answers are kept for retries."""

    epoch: int = 0
    last_sequence: int = 0
    progress: str = ""
    answers: dict[int, Answer] = field(default_factory=dict)
    """By sequence."""


class State:
    """The commit loop's own state."""

    def __init__(self, timeline: str, limits: Limits = DEFAULT) -> None:
        self.timeline, self._limits = timeline, limits
        self.restored: dict[str, Any] | None = None
        """Timeline and LSN of the backup that this history began with."""
        self.view = View()
        self.next_number = 1
        self.producers: dict[str, ProducerState] = {}
        """Least recently used first."""
        self.tierer_holder = ""
        self.idempotency: dict[str, None] = {}

    def apply(self, record: CommitRecord) -> View:
        """The view after a record. The same code runs at commit and at recovery."""
        view = self.view
        tables, names = view.tables, view.names
        namespaces, pointers, epoch = view.namespaces, view.pointers, view.tierer_epoch
        if record.create or record.alter or record.drop:
            tables, names = self._tables(record)
        if record.rows:
            tables = dict(tables)
            for part in record.rows:
                _add_rows(tables, part, record)
        if record.catalog:
            tables, namespaces, pointers = self._catalog(record, tables)
        for commit in record.producers:
            self._producer(record.lsn, commit)
        if record.tierer is not None:
            epoch, self.tierer_holder = record.tierer.epoch, record.tierer.holder
        if record.starts:
            tables = dict(tables)
            for start in record.starts:
                tables[start.table] = tables[start.table].from_lsn(start.lsn)
        subscriptions = _subscribed(view.subscriptions, record.subscriptions) if record.subscriptions else None
        self.view = View(
            record.lsn,
            record.time_us,
            tables,
            names,
            namespaces,
            pointers,
            epoch,
            view.subscriptions if subscriptions is None else subscriptions,
        )
        return self.view

    def _tables(self, record: CommitRecord) -> tuple[dict[str, TableState], dict[str, str]]:
        tables, names = dict(self.view.tables), dict(self.view.names)
        for table in record.create:
            tables[table.uuid] = TableState.new(table, record.lsn, record.time_us)
            names[table.name] = table.uuid
            self.next_number = max(self.next_number, table.number + 1)
        for table in record.alter:
            tables[table.uuid] = tables[table.uuid].altered(table, record.lsn)
        for uuid in record.drop:
            del names[tables.pop(uuid).table.name]
        return tables, names

    def _catalog(
        self, record: CommitRecord, tables: Mapping[str, TableState]
    ) -> tuple[dict[str, TableState], dict[str, Mapping[str, str]], dict[tuple[str, str], Pointer]]:
        changed = dict(tables)
        namespaces, pointers = dict(self.view.namespaces), dict(self.view.pointers)
        for change in record.catalog:
            catalog_change.apply(change, namespaces, pointers)
            self._tiers(change, changed)
            if change.idempotency_key:
                self.idempotency[change.idempotency_key] = None
        while len(self.idempotency) > self._limits.idempotency_keys:
            del self.idempotency[next(iter(self.idempotency))]
        return changed, namespaces, pointers

    @staticmethod
    def _tiers(change: CatalogChange, tables: dict[str, TableState]) -> None:
        for uuid, added, forgotten in catalog_change.tier_changes(change):
            if uuid in tables:
                tiers = {i: t for i, t in tables[uuid].tiers.items() if i not in forgotten}
                tiers.update((record.snapshot_id, record) for record in added)
                tables[uuid] = replace(tables[uuid], tiers=tiers)

    def _producer(self, lsn: int, commit: ProducerCommit) -> None:
        state = self.producers.pop(commit.producer, None)
        if state is None or commit.epoch > state.epoch:
            state = ProducerState(commit.epoch, progress=state.progress if state else "")
        self.producers[commit.producer] = state
        if commit.sequence:
            state.last_sequence = commit.sequence
            state.answers[commit.sequence] = Answer(lsn, commit.results)
            state.answers.pop(commit.sequence - self._limits.producer_answers, None)
        if commit.progress:
            state.progress = commit.progress
        if len(self.producers) > self._limits.producers:
            del self.producers[next(iter(self.producers))]

    def install(self, segments: Mapping[tuple[str, int], list[Chunk]]) -> View:
        """The view with checkpointed rows read from segments."""
        tables = dict(self.view.tables)
        for (uuid, bucket), chunks in segments.items():
            if uuid in tables:
                tables[uuid] = tables[uuid].with_log(bucket, tables[uuid].logs[bucket].install(chunks))
        self.view = replace(self.view, tables=tables)
        return self.view

    def freeze(self) -> View:
        """Seal every log; the view that a checkpoint is to hold."""
        tables = {
            uuid: replace(state, logs=tuple(log.freeze() if log.chunks else log for log in state.logs))
            for uuid, state in self.view.tables.items()
        }
        self.view = replace(self.view, tables=tables)
        return self.view

    def small(self) -> dict[str, Any]:
        """All but rows, as a checkpoint writes it."""
        view = self.view
        return {
            "timeline": self.timeline,
            "restored": self.restored,
            "lsn": view.lsn,
            "time_us": view.time_us,
            "next_number": self.next_number,
            "producers": [
                [
                    name,
                    p.epoch,
                    p.last_sequence,
                    p.progress,
                    [[s, [a.lsn, [result_list(result) for result in a.results]]] for s, a in p.answers.items()],
                ]
                for name, p in self.producers.items()
            ],
            "tierer": [view.tierer_epoch, self.tierer_holder],
            "idempotency": list(self.idempotency),
            "namespaces": {name: dict(properties) for name, properties in view.namespaces.items()},
            "pointers": [[ns, name, p.location, p.uuid] for (ns, name), p in view.pointers.items()],
            "subscriptions": [subscription_list(held) for held in view.subscriptions.values()],
        }

    @staticmethod
    def from_small(data: dict[str, Any], tables: dict[str, TableState], limits: Limits = DEFAULT) -> State:
        """The state that `small` wrote, with tables read back."""
        state = State(data["timeline"], limits)
        state.restored = data.get("restored")
        state.next_number = data["next_number"]
        for name, epoch, last, progress, answers in data["producers"]:
            known = {s: Answer(lsn, tuple(map(result_of, results))) for s, (lsn, results) in answers}
            state.producers[name] = ProducerState(epoch, last, progress, known)
        state.idempotency = dict.fromkeys(data["idempotency"])
        epoch, state.tierer_holder = data["tierer"]
        state.view = View(
            data["lsn"],
            data["time_us"],
            tables,
            {table.table.name: uuid for uuid, table in tables.items()},
            data["namespaces"],
            {(ns, name): Pointer(location, uuid) for ns, name, location, uuid in data["pointers"]},
            epoch,
            {s.name: s for s in map(subscription_of, data.get("subscriptions", []))},
        )
        return state


def _add_rows(tables: dict[str, TableState], part: RowsPart, record: CommitRecord) -> None:
    state = tables[part.table]
    log = state.logs[part.bucket]
    index = CommitIndex.one(record.lsn, record.time_us, part.end, part.live_sum, part.live_rows)
    chunk = MemoryChunk(part.start, part.batch, index, part.schema_id)
    tables[part.table] = state.with_log(part.bucket, log.append(chunk))


def _subscribed(before: Mapping[str, Subscription], changes: Sequence[SubscriptionChange]) -> dict[str, Subscription]:
    """The subscriptions after a record's changes."""
    after = dict(before)
    for change in changes:
        if isinstance(change, SubscriptionDrop):
            after.pop(change.name, None)
        elif isinstance(change, SubscriptionMove):
            after[change.name] = after[change.name].moved(change)
        else:
            after[change.name] = change
    return after


def log_of(table: Table, chunks: Sequence[Chunk], base: Position) -> BucketLog:
    """A log made of segments above a log start."""
    head = chunks[-1].index.position(-1) if chunks and chunks[-1].end > base.end else base
    return BucketLog(stored_schema(table), tuple(chunks), len(chunks), head, base)
