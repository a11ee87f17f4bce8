"""The commit loop's state, and the effect of a commit record on it.

The published part is a `View`; producers, registers, idempotency keys and numbers belong to the loop alone. A
`FrozenState` is all of it at one LSN, for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakestore.limits import DEFAULT, Limits
from lakestore_server.state import catalog_change
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.catalog_change import CatalogChange
from lakestore_server.state.chunk import Chunk
from lakestore_server.state.commit_record import BEGINNING, CommitRecord, Place, RowsPart, SubscriptionChange
from lakestore_server.state.erasure import erased_lsn, noted
from lakestore_server.state.producers import FrozenProducers, Producers
from lakestore_server.state.registers import Register, Registers
from lakestore_server.state.rescale import FormerTable, Rescale, RescaleChange, RescaleEnd
from lakestore_server.state.subscription import Subscription, SubscriptionDrop, SubscriptionMove
from lakestore_server.state.view import DroppedTable, TableState, View


@dataclass(frozen=True, slots=True)
class Origin:
    """The backup from which a timeline began."""

    timeline: str
    lsn: int
    """The newest commit in the backup."""
    epochs: int = 0
    """Added to an LSN to make an epoch. Drawn at the restore, because epochs of commits after the backup were granted
    to processes that may still run."""


@dataclass(frozen=True, slots=True)
class FrozenState:
    """The whole state at one LSN; later commits do not change it."""

    view: View
    restored: Origin | None
    next_number: int
    producers: FrozenProducers
    tierer_holder: str
    idempotency: tuple[str, ...]
    """Keys of catalog changes, oldest first."""
    registers: Mapping[str, Register] = field(default_factory=dict)
    """By name."""
    place: Place = BEGINNING
    """The place in the journal after this LSN, in a state that was frozen for a checkpoint."""


class State:
    """The commit loop's own state."""

    def __init__(self, timeline: str, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self.restored: Origin | None = None
        """None for a timeline that began with an empty folder."""
        self.view = View(timeline=timeline)
        self.next_number = 1
        self.producers = Producers(limits)
        self.registers = Registers()
        self.tierer_holder = ""
        self.idempotency: dict[str, None] = {}

    @property
    def timeline(self) -> str:
        return self.view.timeline

    def epoch(self, lsn: int) -> int:
        """The epoch that a takeover in a commit gets: higher than all granted before."""
        return lsn + (self.restored.epochs if self.restored else 0)

    def apply(self, record: CommitRecord) -> View:
        """The view after a record. The same code runs at commit and at recovery."""
        self.follow(record, self.view_after(record))
        return self.view

    def follow(self, record: CommitRecord, view: View) -> None:
        """Apply a record whose view `view_after` has made, here or in another copy of this state."""
        self.view = view
        self._note(record)

    def copy(self) -> State:
        return State.of(self.frozen(), self._limits)

    def _note(self, record: CommitRecord) -> None:
        """Apply the part of a record that is not in the view."""
        for number in (*(table.number for table in record.create), *(each.number for each in record.truncate)):
            self.next_number = max(self.next_number, number + 1)
        for change in record.producers:
            self.producers.apply(record.lsn, record.clock_us, change)
        for moves in record.registers:
            self.registers.apply(record.lsn, moves)
        if not record.in_doubt:
            self.producers.grow_old(record.clock_us)
        if record.tierer is not None:
            self.tierer_holder = record.tierer.holder
        for step in record.catalog:
            if step.idempotency_key:
                self.idempotency[step.idempotency_key] = None
        while len(self.idempotency) > self._limits.idempotency_keys:
            del self.idempotency[next(iter(self.idempotency))]

    def view_after(self, record: CommitRecord) -> View:
        """The view that a record makes of this one; changes nothing."""
        view = self.view
        tables, names = view.tables, view.names
        namespaces, pointers, epoch = view.namespaces, view.pointers, view.tierer_epoch
        dropped, sql_views = view.dropped, view.sql_views
        if record.create or record.alter or record.drop or record.rename or record.shelve or record.undrop:
            tables, names, dropped = self._tables(record)
        if record.rows:
            tables = _with_rows(tables, record)
        if record.truncate:
            tables = dict(tables)
            for each in record.truncate:
                tables[each.table] = tables[each.table].truncated(each.number, record.lsn, record.time_us)
        if record.catalog:
            tables, namespaces, pointers, sql_views = self._catalog(record, tables)
        if record.tierer is not None:
            epoch = record.tierer.epoch
        if record.starts or record.erase:
            tables = _with_less(view, tables, record)
        subscriptions = _subscribed(view.subscriptions, record.subscriptions) if record.subscriptions else None
        if record.truncate:
            subscriptions = _expired(subscriptions or view.subscriptions, record, tables)
        return _after_swaps(
            record,
            View(
                record.lsn,
                record.time_us,
                tables,
                names,
                namespaces,
                pointers,
                epoch,
                view.subscriptions if subscriptions is None else subscriptions,
                view.timeline,
                view.marks.noted(record.lsn, record.beside_us) if record.beside_us else view.marks,
                dropped,
                sql_views,
                _rescaled(view.rescales, record.rescale) if record.rescale else view.rescales,
                noted(view.erasures, record.erase) if record.erase else view.erasures,
            ),
        )

    def _tables(self, record: CommitRecord) -> tuple[dict[str, TableState], dict[str, str], dict[str, DroppedTable]]:
        tables, names, dropped = dict(self.view.tables), dict(self.view.names), dict(self.view.dropped)
        for table in record.create:
            tables[table.uuid] = TableState.new(table, record.lsn, record.time_us)
            names[table.name] = table.uuid
        for table in record.alter:
            tables[table.uuid] = tables[table.uuid].altered(table, record.lsn)
        for rename in record.rename:
            del names[tables[rename.table].table.name]
        for rename in record.rename:
            before = tables[rename.table]
            is_end = before.table.is_adopting  # no other verb renames such a table
            after = before.adopted(rename.name, record.lsn, record.time_us) if is_end else before.renamed(rename.name)
            tables[rename.table] = after
            names[rename.name] = rename.table
        for uuid in record.drop:
            if dropped.pop(uuid, None) is None:
                del names[tables.pop(uuid).table.name]
        for shelving in record.shelve:
            uuid, until_us = shelving.table, shelving.until_us
            if uuid in dropped:
                dropped[uuid] = replace(dropped[uuid], until_us=until_us)
            else:
                state = tables.pop(uuid)
                del names[state.table.name]
                dropped[uuid] = DroppedTable(state, record.lsn, record.clock_us, until_us)
        for undrop in record.undrop:
            state = dropped.pop(undrop.table).state
            tables[undrop.table] = state if state.table.name == undrop.name else state.renamed(undrop.name)
            names[undrop.name] = undrop.table
            tables.update(_parted(tables, undrop.table))
        return tables, names, dropped

    def _catalog(
        self, record: CommitRecord, tables: Mapping[str, TableState]
    ) -> tuple[dict[str, TableState], catalog_change.Namespaces, catalog_change.Pointers, catalog_change.SqlViews]:
        changed = dict(tables)
        namespaces, pointers, sql_views = (
            dict(self.view.namespaces),
            dict(self.view.pointers),
            dict(self.view.sql_views),
        )
        for change in record.catalog:
            catalog_change.apply(change, namespaces, pointers, sql_views)
            self._tiers(change, changed)
        return changed, namespaces, pointers, sql_views

    @staticmethod
    def _tiers(change: CatalogChange, tables: dict[str, TableState]) -> None:
        for uuid, added, forgotten in catalog_change.tier_changes(change):
            if uuid in tables:
                tiers = {i: t for i, t in tables[uuid].tiers.items() if i not in forgotten}
                tiers.update((record.snapshot_id, record) for record in added)
                tables[uuid] = replace(tables[uuid], tiers=tiers)

    def install(self, segments: Mapping[tuple[str, int], Sequence[Chunk]]) -> View:
        """The view with checkpointed rows read from segments."""
        kept = self.view.kept
        logs: dict[str, list[BucketLog]] = {}
        for (uuid, bucket), chunks in segments.items():
            if uuid in kept:
                mine = logs.setdefault(uuid, list(kept[uuid].logs))
                mine[bucket] = mine[bucket].install(chunks)
        self.view = _with_logs(self.view, {uuid: tuple(mine) for uuid, mine in logs.items()})
        return self.view

    def freeze(self) -> FrozenState:
        """Seal every log; returns the present state for a checkpoint."""
        open_logs = {
            uuid: tuple(log.freeze() for log in state.logs)
            for uuid, state in self.view.kept.items()
            if any(log.sealed < len(log.chunks) for log in state.logs)
        }
        self.view = _with_logs(self.view, open_logs)
        return self.frozen()

    def frozen(self) -> FrozenState:
        producers, keys = self.producers.frozen(), tuple(self.idempotency)
        beside = self.tierer_holder, keys, self.registers.frozen()
        return FrozenState(self.view, self.restored, self.next_number, producers, *beside)

    @staticmethod
    def of(frozen: FrozenState, limits: Limits = DEFAULT) -> State:
        """The state that continues from a frozen one."""
        state = State(frozen.view.timeline, limits)
        state.view, state.restored, state.next_number = frozen.view, frozen.restored, frozen.next_number
        state.producers, state.registers = Producers(limits, frozen.producers), Registers(frozen.registers)
        state.tierer_holder, state.idempotency = frozen.tierer_holder, dict.fromkeys(frozen.idempotency)
        return state


def _with_logs(view: View, logs: Mapping[str, tuple[BucketLog, ...]]) -> View:
    """The view with other logs of some tables, including dropped ones."""
    tables, dropped = dict(view.tables), dict(view.dropped)
    for uuid, mine in logs.items():
        if uuid in tables:
            tables[uuid] = replace(tables[uuid], logs=mine)
        else:
            dropped[uuid] = replace(dropped[uuid], state=replace(dropped[uuid].state, logs=mine))
    return replace(view, tables=tables, dropped=dropped)


def _with_rows(tables: Mapping[str, TableState], record: CommitRecord) -> dict[str, TableState]:
    parts: dict[str, list[RowsPart]] = {}
    for part in record.rows:
        parts.setdefault(part.table, []).append(part)
    changed = dict(tables)
    for uuid, mine in parts.items():
        logs = list(changed[uuid].logs)
        for part in mine:
            logs[part.bucket] = logs[part.bucket].append(part.chunk(record.lsn, record.time_us))
        changed[uuid] = replace(changed[uuid], logs=tuple(logs))
    return changed


def _with_less(view: View, tables: Mapping[str, TableState], record: CommitRecord) -> dict[str, TableState]:
    """The tables with other log starts, and without the rows of log tables that die in this commit."""
    changed = dict(tables)
    for start in record.starts:
        after = changed[start.table].from_lsn(start.lsn)
        is_erased = start.lsn == erased_lsn(view.erasures, start.table, start.lsn)
        changed[start.table] = replace(after, erased_lsn=start.lsn) if is_erased else after
    for part in (part for each in record.erase for part in each.tables if part.dead_lsn == record.lsn):
        changed[part.uuid] = changed[part.uuid].without(part.lost(record.lsn))
    return changed


Tables = Mapping[str, TableState]


def _parted(tables: Tables, uuid: str) -> dict[str, TableState]:
    """The tables that replaced a table, changed by its undrop: its positions are its own again."""
    return {
        held.table.uuid: held.following(
            tuple(replace(each, uuid="") if each.uuid == uuid else each for each in held.former)
        )
        for held in tables.values()
        if any(each.uuid == uuid for each in held.former)
    }


def _after_swaps(record: CommitRecord, view: View) -> View:
    """The view after copies have taken the places of their sources."""
    if not record.swap:
        return view
    tables, names, dropped = dict(view.tables), dict(view.names), dict(view.dropped)
    subscriptions = view.subscriptions
    for swap in record.swap:
        source, copy = tables.pop(swap.source), tables[swap.copy]
        dropped[swap.source] = DroppedTable(source, record.lsn, record.clock_us, swap.until_us)
        del names[copy.table.name]
        names[source.table.name] = swap.copy
        placed = replace(copy.renamed(source.table.name), created_lsn=source.created_lsn, created_us=source.created_us)
        former = FormerTable(swap.source, record.lsn, record.time_us, swap.apart)
        tables[swap.copy] = placed.following((*source.former, former))
        subscriptions = {name: held.following(swap.source, swap.copy) for name, held in subscriptions.items()}
    return replace(view, tables=tables, names=names, dropped=dropped, subscriptions=subscriptions)


def _rescaled(before: Mapping[str, Rescale], changes: Sequence[RescaleChange]) -> dict[str, Rescale]:
    after = dict(before)
    for change in changes:
        if isinstance(change, RescaleEnd):
            after.pop(change.source, None)
        else:
            after[change.source] = change
    return after


def _subscribed(before: Mapping[str, Subscription], changes: Sequence[SubscriptionChange]) -> dict[str, Subscription]:
    after = dict(before)
    for change in changes:
        if isinstance(change, SubscriptionDrop):
            after.pop(change.name, None)
        elif isinstance(change, SubscriptionMove):
            after[change.name] = after[change.name].moved(change)
        else:
            after[change.name] = change
    return after


def _expired(
    before: Mapping[str, Subscription], record: CommitRecord, tables: Mapping[str, TableState]
) -> dict[str, Subscription]:
    """The subscriptions after a truncate of some tables: their readers must be told, also at the head."""
    after = dict(before)
    for each in record.truncate:
        starts = tables[each.table].starts()
        for held in before.values():
            if held.is_shared and each.table in held.tables:
                after[held.name] = after[held.name].expired(each.table, starts)
    return after
