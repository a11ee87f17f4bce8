"""The values that readers get: a table with its definitions, and everything together, at one LSN.

A row is stored in the version at its commit and never rewritten into another: readers project it by column ids. New
options alone (freshness, retention, `deletes`, `skip_unchanged`, `ttl`, `tombstone_ttl`) make no new version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from lakestore.errors import Conflict, Invalid, NotFound
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import other_table
from lakestore.model.outside_values import shown_name
from lakestore.model.table import Table
from lakestore.model.token import LogPosition
from lakestore.rows.projection import Projection
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.catalog_change import Pointer, SqlView, TierRecord
from lakestore_server.state.chunk import CHANGE, PREV, Chunk, Position
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.erasure import ErasedTable, Erasure, ErasureStep
from lakestore_server.state.rescale import FormerTable, Rescale
from lakestore_server.state.subscription import Subscription


def stored_schema(table: Table) -> pa.Schema:
    """The schema of a table's batches in journal and segments."""
    if not table.keyed:
        return table.storage_schema
    return pa.schema([pa.field(CHANGE, pa.int8()), pa.field(PREV, pa.int64()), *table.storage_schema])


@dataclass(frozen=True, slots=True)
class Versions:
    """The definitions of one table, oldest first."""

    lsns: tuple[int, ...]
    """The first commit of each definition."""
    tables: tuple[Table, ...]

    @staticmethod
    def first(table: Table, lsn: int) -> Versions:
        return Versions((lsn,), (table,))

    @property
    def current(self) -> Table:
        return self.tables[-1]

    def altered(self, table: Table, lsn: int) -> Versions:
        """With one more version; a definition that differs in options only replaces the newest one."""
        if table.schema_id == self.current.schema_id:
            return Versions(self.lsns, (*self.tables[:-1], table))
        return Versions((*self.lsns, lsn), (*self.tables, table))

    def known_as(
        self, *, name: str | None = None, number: int | None = None, former: tuple[str, ...] | None = None
    ) -> Versions:
        """The same definitions under another name or number, or with other former tables."""
        current = self.current
        named, numbered = current.name if name is None else name, current.number if number is None else number
        replaced = current.former if former is None else former
        tables = (replace(table, name=named, number=numbered, former=replaced) for table in self.tables)
        return Versions(self.lsns, tuple(tables))

    def at(self, lsn: int) -> Table:
        found = [table for since, table in zip(self.lsns, self.tables, strict=True) if since <= lsn]
        return found[-1] if found else self.tables[0]

    def until(self, lsn: int, limit: int) -> int:
        """The last LSN up to `limit` with the definition of the commit after `lsn`."""
        return min((since - 1 for since in self.lsns if lsn + 1 < since <= limit), default=limit)

    def since(self, schema_id: int) -> int:
        """The first LSN of the version with this number."""
        return next(lsn for lsn, table in zip(self.lsns, self.tables, strict=True) if table.schema_id == schema_id)

    def numbered(self, schema_id: int) -> Table:
        """The version of this number, or `Invalid`."""
        for table in reversed(self.tables):
            if table.schema_id == schema_id:
                return table
        raise Invalid(f"table {self.current.name} has no schema version {schema_id}: load the table again")

    def column_id(self, name: str) -> int:
        """The id of the column that has the name now or had it last, so that readers follow a renamed column."""
        named = (column.id for table in reversed(self.tables) for column in table.columns if column.name == name)
        found = next(named, None)
        return self.current.column(name).id if found is None else found

    def stored(self, schema_id: int) -> pa.Schema:
        return stored_schema(self.numbered(schema_id))

    def projection(self, schema_id: int, target: Table) -> Projection:
        return Projection(self.numbered(schema_id), target)

    def shown_as(self, target: Table) -> Callable[[pa.RecordBatch, int], pa.RecordBatch]:
        """A function that converts stored batches to this version."""
        return lambda batch, schema_id: self.projection(schema_id, target).batch(batch)

    def stored_names(self, target: Table, columns: Sequence[str]) -> Callable[[int], list[str]]:
        """A function from a stored version to its names of these columns of `target` (by default all)."""
        names = [name for name in columns if name not in SYSTEM_TYPES] if columns else target.selected(None)
        ids = {target.column(name).id for name in names}

        def of(schema_id: int) -> list[str]:
            return [column.name for column in self.numbered(schema_id).columns if column.id in ids]

        return of


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one LSN."""

    versions: Versions
    logs: tuple[BucketLog, ...]
    tiers: Mapping[int, TierRecord] = field(default_factory=dict)
    created_lsn: int = 0
    created_us: int = 0
    """0 in data of a release that did not store it."""
    truncated_lsn: int = 0
    """The commit of the last truncate; 0 for none."""
    former: tuple[FormerTable, ...] = ()
    """The tables that it replaced, oldest first."""
    erased_lsn: int = 0
    """The log start that the last erasure has set; 0 for none."""

    @staticmethod
    def new(table: Table, lsn: int, time_us: int) -> TableState:
        log = BucketLog(stored_schema(table))
        return TableState(Versions.first(table, lsn), (log,) * table.buckets, created_lsn=lsn, created_us=time_us)

    @property
    def table(self) -> Table:
        return self.versions.current

    def meant(self, uuid: str) -> TableState:
        """The table, or `NotFound` if the request means an earlier table of this name, which was not rescaled into this
        one; an empty uuid means any."""
        if uuid and uuid not in (self.table.uuid, *self.table.former):
            raise NotFound(other_table(self.table.name))
        return self

    def altered(self, table: Table, lsn: int) -> TableState:
        """The table with another definition; rows stay as stored."""
        return replace(self, versions=self.versions.altered(table, lsn))

    def renamed(self, name: str) -> TableState:
        return replace(self, versions=self.versions.known_as(name=name))

    def adopted(self, name: str, lsn: int, time_us: int) -> TableState:
        """The table with all rows of the Iceberg table that it adopts. It begins now: at earlier positions it had some
        of the rows, under another name."""
        return replace(self.renamed(name), created_lsn=lsn, created_us=time_us)

    def following(self, former: tuple[FormerTable, ...]) -> TableState:
        """The table as the one in the place of others."""
        uuids = tuple(each.uuid for each in former if each.uuid)
        return replace(self, versions=self.versions.known_as(former=uuids), former=former)

    def truncated(self, number: int, lsn: int, time_us: int) -> TableState:
        """The table without rows, under another number; no lake snapshot is a state of it any more."""
        versions, logs = self.versions.known_as(number=number), tuple(log.truncated(lsn, time_us) for log in self.logs)
        return replace(self, versions=versions, logs=logs, tiers={}, truncated_lsn=lsn)

    def without(self, lost: Sequence[Position]) -> TableState:
        """The log table without erased rows. Of the snapshots of the lake only the newest one has lost them."""
        logs = tuple(log.without(part) for log, part in zip(self.logs, lost, strict=True))
        newest = list(self.tiers)[-1:]
        return replace(self, logs=logs, tiers={number: self.tiers[number] for number in newest})

    def with_log(self, bucket: int, log: BucketLog) -> TableState:
        return replace(self, logs=(*self.logs[:bucket], log, *self.logs[bucket + 1 :]))

    def heads(self) -> list[int]:
        return [log.head for log in self.logs]

    @property
    def log_start_lsn(self) -> int:
        """The log start `L` as a commit: later changes are complete in every bucket. 0: nothing was dropped."""
        return self.logs[0].base.lsn

    def starts(self) -> tuple[int, ...]:
        return tuple(log.base.end for log in self.logs)

    @property
    def swapped_lsn(self) -> int:
        """The commit from which this table has its name; 0 if it replaced no other one."""
        return self.former[-1].lsn if self.former else 0

    @property
    def has_all_rows(self) -> bool:
        """Whether the log and the live rows below its start are the whole table, so that reads can do without the
        lake."""
        return self.table.keyed or not any(log.base.live_rows for log in self.logs)

    def from_lsn(self, lsn: int) -> TableState:
        """The table without the commits up to `lsn`."""
        return replace(self, logs=tuple(log.from_lsn(lsn) for log in self.logs))


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A dropped table in its grace."""

    state: TableState
    lsn: int
    """The commit that dropped it."""
    time_us: int
    """Microseconds of the drop."""
    until_us: int
    """Microseconds until which it can be undropped; 0: its files are being removed."""

    @property
    def name(self) -> str:
        return self.state.table.name


@dataclass(frozen=True, slots=True)
class View:
    """A cut: everything a reader may ask, at one LSN."""

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
    timeline: str = ""
    """The timeline of the LSNs; a restored server begins another."""
    marks: ClockMarks = NO_MARKS
    """Times of commits whose stamps are ahead."""
    dropped: Mapping[str, DroppedTable] = field(default_factory=dict)
    """By uuid: dropped tables, whose files stay and which nobody reads or writes."""
    sql_views: Mapping[tuple[str, str], SqlView] = field(default_factory=dict)
    """The catalog's SQL views by namespace and name."""
    rescales: Mapping[str, Rescale] = field(default_factory=dict)
    """By the uuid of the source."""
    erasures: Mapping[str, Erasure] = field(default_factory=dict)
    """By id, oldest first."""

    def erasing(self, uuid: str) -> Erasure | None:
        """The oldest unfinished erasure of a table."""
        for each in self.erasures.values():
            if not each.is_done and any(table.uuid == uuid for table in each.tables):
                return each
        return None

    def dying(self, uuid: str) -> ErasedTable | None:
        """The erased rows that the lake of a log table must lose now: its log has lost them."""
        held, state = self.erasing(uuid), self.tables.get(uuid)
        if held is None or state is None or state.table.keyed or held.step is not ErasureStep.LAKE:
            return None
        part = held.part(uuid)
        is_due = part.rows and not part.dead_lsn and state.log_start_lsn >= part.lsn
        return part if is_due else None

    def floors(self, uuid: str) -> tuple[int, ...]:
        """The offsets per bucket below which dead rows of a table leave the disk; empty if nothing is being erased."""
        held = self.erasing(uuid)
        return next((table.floors for table in held.tables if table.uuid == uuid), ()) if held else ()

    @property
    def kept(self) -> Mapping[str, TableState]:
        """By uuid, all tables with kept rows, dropped ones too."""
        if not self.dropped:
            return self.tables
        return {**self.tables, **{uuid: each.state for uuid, each in self.dropped.items()}}

    @property
    def clock_us(self) -> int:
        """The time of the newest commit: its stamp, unless the stamp is known to be ahead."""
        return self.marks.time_us(self.lsn, self.time_us)

    def token(self, lsn: int | None = None) -> str:
        """The token of the position after a commit of this timeline, by default the newest."""
        return _token_text(self.timeline, self.lsn if lsn is None else lsn)

    def named(self, name: str) -> TableState:
        """The table of this name, or `NotFound`."""
        uuid = self.names.get(name)
        if uuid is None:
            error = NotFound(f"there is no table {shown_name(name)}")
            if any(each.name == name and each.until_us for each in self.dropped.values()):
                error.dropped_as = name
            raise error
        return self.tables[uuid]

    def meant(self, name: str, uuid: str) -> TableState:
        """The table of this name, or `NotFound`, also if it does not have this uuid; an empty uuid means any."""
        held = self.tables.get(uuid) if uuid else None
        if held is not None and held.table.name != name:
            error = NotFound(f"table {name!r} was renamed: open it by its present name, as `lakestore tables` lists it")
            error.renamed_to = held.table.name
            raise error
        return self.named(name).meant(uuid)

    def writable(self, name: str, uuid: str) -> TableState:
        """The table of `meant`, for rows of a user; `Denied` for a system table."""
        state = self.meant(name, uuid)
        if state.table.is_system:
            state.table.refuse_change()
        return state

    def present(self, uuid: str) -> TableState:
        """The table of this uuid, or the one that has replaced it; `NotFound` if there is none."""
        state = self.tables.get(uuid)
        if state is None:
            # Only readers and writers of a table that was replaced come here.
            replaced = (each for each in self.tables.values() if any(one.uuid == uuid for one in each.former))
            state = next(replaced, None) or self.by_uuid(uuid)
        return state

    def copied(self, uuid: str) -> Rescale | None:
        """The rescale or replay whose copy this table is; None if it is none."""
        return next((each for each in self.rescales.values() if each.copy == uuid), None)

    def is_copy(self, uuid: str) -> bool:
        """Whether a table is the copy of a running rescale or replay."""
        return self.copied(uuid) is not None

    def refuse_rescale(self, table: Table) -> None:
        """`Conflict` if a table is being rescaled, has a branch, or is the copy of a rescale or replay, or a system
        table."""
        self.refuse_change(table)
        held = self.rescales.get(table.uuid)
        if held is None:
            return
        copy = self.tables[held.copy].table
        if held.is_replay:
            raise Conflict(
                f"table {table.name} has the branch {copy.name}: swap it with `lakestore replay {table.name} --swap`,"
                f" or remove it with `lakestore replay {table.name} --drop`"
            )
        raise Conflict(
            f"table {table.name} is being rescaled to {copy.buckets} buckets: wait for its end, or stop it with"
            f" `lakestore rescale {table.name} --abort`"
        )

    def refuse_change(self, table: Table) -> None:
        """Refuse a change of a table's definition, name or life: it is a copy, or a system table."""
        table.refuse_change()
        self.refuse_copy(table)

    def refuse_erasing(self, table: Table) -> None:
        """`Conflict` while rows of a table are being erased: a copy, or a released lake, would keep their bytes."""
        held = self.erasing(table.uuid)
        if held is not None:
            raise Conflict(
                f"rows of table {table.name} are being erased (erasure {held.id}): wait for its end, which"
                f" `lakestore erase {table.name} --list` shows"
            )

    def refuse_searching(self, table: Table) -> None:
        """`Conflict` while the rows of an erasure are still looked for: its condition names columns as they are."""
        for held in self.erasures.values():
            if held.step is ErasureStep.ROWS and any(each.uuid == table.uuid for each in held.tables):
                raise Conflict(
                    f"columns of table {table.name} keep their names until erasure {held.id} has found its rows:"
                    f" `lakestore erase {table.name} --list` shows how far it is"
                )

    def refuse_copy(self, table: Table) -> None:
        """`Conflict` if a table is the copy of a running rescale or replay: its definition, name and changes are the
        source's."""
        held = self.copied(table.uuid)
        if held is not None:
            raise self._copy_refusal(held, table)

    def refuse_write(self, table: Table) -> None:
        """`Conflict` if nobody may write rows to a table: it is the copy of a rescale, or a branch that is not filled
        yet."""
        held = self.copied(table.uuid)
        if held is None or (held.is_replay and held.is_filled):
            return
        raise self._copy_refusal(held, table)

    def _copy_refusal(self, held: Rescale, table: Table) -> Conflict:
        source = self.tables[held.source].table.name
        if not held.is_replay:
            return Conflict(
                f"table {table.name} is the copy of a rescale, which fills it and gives it its name: wait for its end,"
                f" or stop it with `lakestore rescale {source} --abort`"
            )
        return Conflict(
            f"table {table.name} is the branch of table {source}, which takes rows once it is filled, and nothing else:"
            f" swap it with `lakestore replay {source} --swap`, or remove it with `lakestore replay {source} --drop`"
        )

    def by_uuid(self, uuid: str) -> TableState:
        """The table of this uuid, or `NotFound`."""
        state = self.tables.get(uuid)
        if state is None:
            raise NotFound("the table was dropped")
        return state


@lru_cache(maxsize=256)
def _token_text(timeline: str, lsn: int) -> str:
    """Cached, because the same few positions are requested again and again."""
    return str(LogPosition(timeline, lsn))


def log_of(table: Table, chunks: Sequence[Chunk], base: Position, erased: Position) -> BucketLog:
    """A log of segments above a log start."""
    made = BucketLog(stored_schema(table), tuple(chunks), len(chunks), base, base, erased=erased)
    is_above = bool(chunks) and chunks[-1].end > base.end
    return replace(made, at_head=made.counted(chunks[-1].index.position(-1))) if is_above else made
