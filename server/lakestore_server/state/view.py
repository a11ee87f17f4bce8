"""The values that readers get: a table, and everything together, as of one LSN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from lakestore.errors import NotFound
from lakestore.model.table import Table
from lakestore.model.token import LogPosition
from lakestore.model.typed import shown_name
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.catalog_change import Pointer, TierRecord
from lakestore_server.state.chunk import Chunk
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.commit_index import Position
from lakestore_server.state.subscription import Subscription
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
    truncated_lsn: int = 0
    """The commit that took all rows away last; 0: none has."""

    @staticmethod
    def new(table: Table, lsn: int, time_us: int) -> TableState:
        """A table without rows."""
        log = BucketLog(stored_schema(table))
        return TableState(Versions.first(table, lsn), (log,) * table.buckets, created_lsn=lsn, created_us=time_us)

    @property
    def table(self) -> Table:
        """The newest definition."""
        return self.versions.current

    def meant(self, uuid: str) -> TableState:
        """The table, or `NotFound` if a request means another one, which had its name; an empty uuid means any."""
        if uuid and self.table.uuid != uuid:
            raise NotFound(f"table {self.table.name!r} was dropped, and this is another one of that name: open it anew")
        return self

    def altered(self, table: Table, lsn: int) -> TableState:
        """The table with another definition; rows stay as they were stored."""
        return replace(self, versions=self.versions.altered(table, lsn))

    def renamed(self, name: str) -> TableState:
        """The table under another name."""
        return replace(self, versions=self.versions.known_as(name=name))

    def truncated(self, number: int, lsn: int, time_us: int) -> TableState:
        """The table without any row, under another number; no snapshot of the lake is a state of it any more."""
        versions, logs = self.versions.known_as(number=number), tuple(log.emptied(lsn, time_us) for log in self.logs)
        return replace(self, versions=versions, logs=logs, tiers={}, truncated_lsn=lsn)

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
        return self.table.keyed or not any(log.base.live_rows for log in self.logs)

    def from_lsn(self, lsn: int) -> TableState:
        """The table without the commits up to `lsn`."""
        return replace(self, logs=tuple(log.from_lsn(lsn) for log in self.logs))


@dataclass(frozen=True, slots=True)
class Dropped:
    """A table that was dropped and is kept for a time."""

    state: TableState
    lsn: int
    """The commit that dropped it."""
    time_us: int
    """When that was."""
    until_us: int
    """Up to when it can be undropped; 0: its files are being removed."""

    @property
    def name(self) -> str:
        """The name that it had."""
        return self.state.table.name


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
    timeline: str = ""
    """The history that the LSNs belong to; a restored server begins another one."""
    marks: ClockMarks = NO_MARKS
    """Times of commits whose stamps are ahead of them."""
    dropped: Mapping[str, Dropped] = field(default_factory=dict)
    """By uuid: tables that nobody reads or writes, and whose files stay."""

    @property
    def kept(self) -> Mapping[str, TableState]:
        """By uuid, all tables whose rows are kept, dropped ones as well."""
        if not self.dropped:
            return self.tables
        return {**self.tables, **{uuid: each.state for uuid, each in self.dropped.items()}}

    @property
    def clock_us(self) -> int:
        """The time of the newest commit: its stamp, unless that is known to be ahead."""
        return self.marks.time_us(self.lsn, self.time_us)

    def token(self, lsn: int | None = None) -> str:
        """The text of the position behind a commit of this history, by default behind the newest one."""
        return _token_text(self.timeline, self.lsn if lsn is None else lsn)

    def named(self, name: str) -> TableState:
        """The table of that name, or `NotFound`."""
        uuid = self.names.get(name)
        if uuid is None:
            error = NotFound(f"there is no table {shown_name(name)}")
            if any(each.name == name and each.until_us for each in self.dropped.values()):
                error.dropped_as = name
            raise error
        return self.tables[uuid]

    def meant(self, name: str, uuid: str) -> TableState:
        """The table of that name, or `NotFound`, also if it is not the one of that uuid; an empty uuid means any."""
        held = self.tables.get(uuid) if uuid else None
        if held is not None and held.table.name != name:
            error = NotFound(f"table {name!r} was renamed: open it by its present name, as `lakestore tables` lists it")
            error.renamed_to = held.table.name
            raise error
        return self.named(name).meant(uuid)

    def by_uuid(self, uuid: str) -> TableState:
        """The table with that uuid, or `NotFound`."""
        state = self.tables.get(uuid)
        if state is None:
            raise NotFound("the table was dropped")
        return state


@lru_cache(maxsize=256)
def _token_text(timeline: str, lsn: int) -> str:
    """The same few positions are asked for again and again."""
    return str(LogPosition(timeline, lsn))


def log_of(table: Table, chunks: Sequence[Chunk], base: Position) -> BucketLog:
    """A log made of segments above a log start."""
    head = chunks[-1].index.position(-1) if chunks and chunks[-1].end > base.end else base
    return BucketLog(stored_schema(table), tuple(chunks), len(chunks), head, base)
