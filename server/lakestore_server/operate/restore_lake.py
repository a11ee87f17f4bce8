"""The lake of a restored folder: its pointers moved with its files, set back, or begun anew; and what is gone, by name.

Every change is a commit of the catalog, journaled like any other. Nothing serves the folder meanwhile.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakestore.errors import Conflict, Unavailable
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import RealDisk
from lakestore_server.iceberg import foreign_history, locations, our_tables, rewind
from lakestore_server.iceberg.journal_ledger import JournalLedger
from lakestore_server.iceberg.metadata_store import MetadataStore, storage_for
from lakestore_server.iceberg.schemas import Json
from lakestore_server.read.leases import Leases
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.catalog_change import (
    DROPPED,
    CatalogChange,
    CatalogStep,
    DropPointer,
    Pointer,
    SetPointer,
    TierRecord,
)
from lakestore_server.state.chunk import Chunk, Ints, StoredBatch
from lakestore_server.state.commit_index import CommitIndex, Position
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class Ways:
    """The operator's word on the lake."""

    rewind: bool = False
    """Set tables back whose lake went on after the backup."""
    anew: bool = False
    """Begin the lake anew: of all tables, or, with `rewind`, of those that cannot be set back."""
    accept_loss: bool = False
    """Go without the rows that only the lake had."""

    @property
    def any(self) -> bool:
        """Whether anything is to be done."""
        return self.rewind or self.anew


@dataclass(slots=True)
class LakeOutcome:
    """The outcome for the lake; table names and sentences."""

    moved: list[str] = field(default_factory=list)
    """Tables whose files lie elsewhere now."""
    rewound: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Ranges of rows, and tables, that only the lake had."""
    problems: list[str] = field(default_factory=list)
    """Tables whose lake is gone or ahead, each with the way out."""


def finish(folder: Path, warehouse: str, moved: Mapping[str, str], ways: Ways) -> LakeOutcome:
    """Bring the catalog of a restored folder into agreement with the warehouse; `moved`: old to new metadata files.

    `Conflict`, with what would be lost, unless the loss is accepted.
    """
    engine = Engine(folder, RealDisk(), RealClock(), on_fatal=lambda _: None)
    try:
        return _Lake(engine, warehouse).run(moved, ways)
    finally:
        engine.loop.close()


class _Lake:
    def __init__(self, engine: Engine, warehouse: str) -> None:
        self._engine, self._warehouse = engine, warehouse.rstrip("/")
        self._store = MetadataStore(storage_for(warehouse))
        self._ledger = JournalLedger(engine, Leases(RealClock(), {}, 0.0))
        self._outcome = LakeOutcome()
        self._steps: list[CatalogStep] = []
        self._dropped: Callable[[State, CommitRecord], None] | None = None
        """The end of the dropped tables."""

    def run(self, moved: Mapping[str, str], ways: Ways) -> LakeOutcome:
        view, outcome = self._engine.view, self._outcome
        ours = {_key(state): state for state in view.tables.values()}
        self._move(view, moved)
        self._commit()
        lossy: list[TableState] = []
        if ways.rewind:
            left = [state for state in ours.values() if not self._rewound(state)]
            for state in left if ways.anew else ():
                lossy += self._begin_anew(state)
            outcome.problems += [] if ways.anew else [_not_rewound(state) for state in left]
        elif ways.anew:
            for state in ours.values():
                lossy += self._begin_anew(state)
            self._forget_others(view)
        if ways.rewind and outcome.problems:
            raise Conflict(" | ".join(outcome.problems))
        if outcome.lost and not ways.accept_loss:
            said = "; ".join(outcome.lost)
            raise Conflict(f"only the lake had this: {said}. Say --accept-loss to go without; nothing is restored")
        self._commit()
        if self._dropped is not None:
            self._engine.operate(self._dropped)
        if lossy:
            self._forget_lost(lossy)
        self._look()
        return outcome

    def _forget_others(self, view: View) -> None:
        """Let go of tables that are not ours, and of dropped ones."""
        ours = {_key(state) for state in view.tables.values()}
        self._forget_dropped()
        for namespace, name in view.pointers:
            if (namespace, name) not in ours and namespace != DROPPED:
                self._steps.append(DropPointer(namespace, name))
                self._outcome.lost.append(f"table {namespace}.{name}, which is not Lakestore's: all of it")

    def _forget_dropped(self) -> None:
        """Let go of the dropped tables, whose lakes are not there; nobody can have them back then."""
        gone = self._engine.view.dropped

        def plan(_: State, record: CommitRecord) -> None:
            record.drop += gone

        self._steps += [DropPointer(*key) for key in self._engine.view.pointers if key[0] == DROPPED]
        self._outcome.lost += [f"the dropped table {held.name}: all of it" for held in gone.values()]
        self._dropped = plan if gone else None

    def _look(self) -> None:
        """Note tables whose lake does not go with the log; a warehouse that does not answer is the server's to see."""
        view, problems = self._engine.view, self._outcome.problems
        try:
            problems += foreign_history.gone(view, self._store).values()
            problems += foreign_history.find(view, self._store, self._engine.timeline).values()
        except Unavailable as error:
            problems.append(f"the lake was not looked at: {error.message}")

    def _commit(self) -> None:
        if self._steps:
            self._store.sync_warehouse()
            self._ledger.commit(CatalogChange(tuple(self._steps)))
            self._steps = []

    def _move(self, view: View, moved: Mapping[str, str]) -> None:
        for (namespace, name), pointer in view.pointers.items():
            if moved.get(pointer.location, pointer.location) != pointer.location:
                there = Pointer(moved[pointer.location], pointer.uuid)
                self._steps.append(SetPointer(namespace, name, pointer.location, there))
                dropped = view.dropped[name].name if namespace == DROPPED else ""
                self._outcome.moved.append(f"{dropped} (dropped)" if dropped else f"{namespace}.{name}")

    def _rewound(self, state: TableState) -> bool:
        """Set a table's lake back, if it went on; whether it is then one that the log agrees with."""
        pointer = self._engine.view.pointers.get(_key(state))
        if pointer is None:
            return True
        newest = foreign_history.newest(self._store, pointer, self._engine.timeline)
        if newest is None:
            return not foreign_history.missing(self._store, pointer)
        location, doc = newest
        back = rewind.rewound(doc, location, state.tiers, lambda tier: self._covers(state, tier), _now_ms())
        if back is None:
            return False
        kept = {record.snapshot_id for record in back.records}
        records = tuple(
            self._counted(state, record) for record in back.records if record.snapshot_id not in state.tiers
        )
        forget = tuple(snapshot for snapshot in state.tiers if snapshot not in kept)
        number = locations.metadata_number(location.rsplit("/", 1)[-1]) or 0
        self._point(state, pointer, self._saved(back.doc, number + 1), records, forget)
        self._outcome.rewound.append(state.table.name)
        return True

    def _covers(self, state: TableState, tier: TierRecord) -> bool:
        """Whether the log agrees with a snapshot, and goes on from its tier point."""
        known = {version.schema_id for version in state.versions.tables}
        fits = len(tier.tier_point) == len(state.logs) and tier.schema_id in known
        return (
            fits
            and all(point >= start for point, start in zip(tier.tier_point, state.starts(), strict=True))
            and self._ledger.live_sums_at(state.table.uuid, tier.tier_point) == tier.live_sums
        )

    def _counted(self, state: TableState, record: TierRecord) -> TierRecord:
        """A record that the backup lacks, as this history has it: under the tierer's epoch that is current here."""
        live_rows = self._ledger.live_rows_at(state.table.uuid, record.tier_point)
        return replace(record, live_rows=live_rows, epoch=self._engine.view.tierer_epoch)

    def _begin_anew(self, state: TableState) -> list[TableState]:
        """An empty lake table in a folder of its own; the table itself if rows of it are lost by that."""
        pointer = self._engine.view.pointers.get(_key(state))
        if pointer is None:
            return []
        doc = our_tables.first_metadata(state.versions.tables[0], self._warehouse, _now_ms())
        doc = {**doc, "location": f"{doc['location']}-{self._engine.timeline}"}
        self._point(state, pointer, self._saved(doc, 0), (), tuple(state.tiers))
        self._outcome.anew.append(state.table.name)
        if state.has_all_rows:
            return []
        self._outcome.lost += [
            f"rows [0, {held.base.end}) of bucket {bucket} of table {state.table.name}"
            for bucket, held in enumerate(state.logs)
            if held.base.live_rows
        ]
        return [state]

    def _saved(self, doc: Json, number: int) -> str:
        doc = {**doc, "properties": our_tables.stored_properties(doc["properties"], self._engine.timeline)}
        location = f"{doc['location']}/metadata/{number:05d}-{uuid.uuid4()}.metadata.json"
        return self._store.save(location, doc).location

    def _point(
        self,
        state: TableState,
        pointer: Pointer,
        location: str,
        tiers: tuple[TierRecord, ...],
        forget: tuple[int, ...],
    ) -> None:
        namespace, name = _key(state)
        there = Pointer(location, pointer.uuid)
        self._steps.append(SetPointer(namespace, name, pointer.location, there, tiers, forget))

    def _forget_lost(self, lossy: Sequence[TableState]) -> None:
        """Take the lost rows out of sums and counts, so that lake, log and index agree on what is there; durably."""

        def change(state: State) -> View:
            tables = dict(state.view.tables)
            for each in lossy:
                held = tables[each.table.uuid]
                tables[each.table.uuid] = replace(held, logs=tuple(map(without_base, held.logs)))
            state.view = replace(state.view, tables=tables)
            return state.view

        self._engine.loop.exchange(change)
        upkeep = Upkeep(self._engine, RealClock())
        try:
            upkeep.checkpoint()
        finally:
            upkeep.close(checkpoint=False)


@dataclass(frozen=True, slots=True)
class _LessChunk:
    """A chunk without the rows below a log start, of which its commits count none.

    It is no segment, so the next checkpoint writes it as one.
    """

    chunk: Chunk
    index: CommitIndex
    base_end: int

    @property
    def start(self) -> int:
        return max(self.chunk.start, self.base_end)

    @property
    def end(self) -> int:
        return self.chunk.end

    @property
    def size(self) -> int:
        return self.chunk.size

    @property
    def rows(self) -> int:
        return self.end - self.start

    @property
    def schema_id(self) -> int:
        return self.chunk.schema_id

    def kills(self) -> Ints:
        return self.chunk.kills()

    @property
    def starts(self) -> Ints:
        return np.array([piece.start for piece in self.batches()], dtype=np.int64)

    def batches(self) -> Sequence[StoredBatch]:
        return [_above(piece, self.start) for piece in self.chunk.batches() if piece.end > self.start]


def _above(piece: StoredBatch, start: int) -> StoredBatch:
    """The rows of a log's batch from an offset on."""
    if piece.start >= start:
        return piece

    def load(names: Sequence[str] | None = None) -> pa.RecordBatch:
        return piece.load(names).slice(start - piece.start)

    return StoredBatch(start, piece.end, load, piece.schema_id)


def without_base(held: BucketLog) -> BucketLog:
    """A log table's bucket as if nothing had been below its log start; the offsets stay."""
    base = held.base

    def less(at: Position) -> Position:
        live_sum = (at.live_sum - base.live_sum) % (1 << 64)
        return replace(at, live_sum=live_sum, live_rows=at.live_rows - base.live_rows)

    chunks = tuple(_LessChunk(chunk, chunk.index.less(base), base.end) for chunk in held.chunks)
    return replace(held, chunks=chunks, sealed=len(chunks), at_head=less(held.at_head), base=less(base))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _key(state: TableState) -> tuple[str, str]:
    return state.table.namespace, state.table.short_name


def _not_rewound(state: TableState) -> str:
    return (
        f"the lake of table {state.table.name} has no snapshot any more that the backup covers: restore with "
        "--rewind-lake --without-lake, which begins it anew from the log"
    )
