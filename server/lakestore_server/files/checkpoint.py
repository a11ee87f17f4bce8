"""The checkpoint file `checkpoint-<lsn>`: the whole state at one LSN without rows, and the list of segment files.

Magic u32 · version u16 · check u16 · bytes u64 · crc32c u32, then JSON. The crc32c is of the JSON, the check of the
header: without it a flipped bit would make another version.

The file is written under a temporary name, synced and renamed, and the folder synced: it is complete or absent. A
`Checkpoint` is the file's content as a value. It is made from a frozen state and the segments cut from it, and it
becomes the state of a server that starts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import orjson

from lakestore.errors import Corrupt, Invalid, NewerFormat
from lakestore.limits import DEFAULT, Limits
from lakestore.model.columns import Column, LakeOptions
from lakestore.model.retention import Retention
from lakestore.model.table import Table
from lakestore.model.token import Place
from lakestore.model.ttl import Ttl
from lakestore.rows.ipc import crc32c
from lakestore_server.files.data_folder import EXTENTS, SEGMENTS, SHARED, whole_files
from lakestore_server.files.erasure_entry import erasure_list, erasure_of
from lakestore_server.files.extent import missing
from lakestore_server.files.segment import Segment
from lakestore_server.files.segment_files import LONE_MAPS_MAX, SegmentFile, SegmentFiles
from lakestore_server.host import versions
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.run_file import EMPTY_LSN, NO_RUNS, NamedRuns, RunFile
from lakestore_server.state.catalog_change import (
    CatalogChange,
    CatalogStep,
    DropNamespace,
    DropPointer,
    DropView,
    Pointer,
    SetNamespace,
    SetPointer,
    SetView,
    SqlView,
    TierRecord,
)
from lakestore_server.state.chunk import Chunk, Position
from lakestore_server.state.clock_marks import NO_MARKS, ClockMarks
from lakestore_server.state.commit_record import (
    BEGINNING,
    Answer,
    ChangeResult,
    ProducerChange,
    ProducerCommit,
    ProducerDrop,
    RegisterChange,
    RegistersDrop,
    RegistersMove,
    RegistersOpen,
    TiererClaim,
)
from lakestore_server.state.commit_record import Place as JournalPlace
from lakestore_server.state.erasure import Erasure, erased_lsn
from lakestore_server.state.producers import FrozenProducers, ProducerState, is_drawn
from lakestore_server.state.registers import Register
from lakestore_server.state.rescale import CopyKind, FormerTable, Rescale, RescaleChange, RescaleEnd
from lakestore_server.state.state import FrozenState, Origin, State
from lakestore_server.state.subscription import Mark, Refusal, Subscription
from lakestore_server.state.view import DroppedTable, TableState, Versions, View, log_of

_FIELDS = len(fields(ChangeResult))
_TABLE_KEYS, _COLUMN_KEYS = ({part.name for part in fields(each)} for each in (Table, Column))
_OPTION_KEYS = {
    name: {part.name for part in fields(each)}
    for name, each in (("lake", LakeOptions), ("retention", Retention), ("ttl", Ttl))
}
"""The keys of a definition's options, which are dataclasses of their own."""


def result_list(result: ChangeResult) -> list[Any]:
    """The stored form of a change's result. The last counts are stored only if one of them is not zero."""
    counts = [result.table, result.inserted, result.updated, result.deleted, result.not_found, result.schema_id]
    merged = [result.ignored, result.unchanged, result.folded]
    if result.dead_letters:
        return [*counts, *merged, result.dead_letters]
    return [*counts, *merged] if any(merged) else counts


def result_of(data: Sequence[Any]) -> ChangeResult:
    """Decodes `result_list`. Counts that a later release added are left out: only the answer to a retry has them."""
    return ChangeResult(*data[:_FIELDS])


def mark_list(mark: Mark) -> list[int]:
    """The stored form of a mark."""
    return [mark.offset, mark.cut, mark.by, mark.since]


def mark_of(data: Sequence[int]) -> Mark:
    """Decodes `mark_list`."""
    return Mark(*versions.checked_entry(data, 4, "the mark of a subscription"))


def subscription_list(held: Subscription) -> list[Any]:
    """The stored form of a subscription. Only a shared one has marks."""
    place = [held.place.table, held.place.bucket, held.place.offset] if held.place else None
    alone = [held.name, list(held.tables), held.lsn, place, held.epoch, held.acked_us]
    marks = [[mark_list(mark) for mark in table] for table in held.marks]
    if held.refusals:
        return [*alone, marks, refusals_list(held.refusals)]
    return [*alone, marks] if marks else alone


def refusals_list(refusals: Sequence[Refusal]) -> list[list[int]]:
    """The stored form of refusals."""
    return [[each.table, each.bucket, each.session, each.run] for each in refusals]


def refusals_of(data: Sequence[Sequence[int]]) -> tuple[Refusal, ...]:
    """Decodes `refusals_list`."""
    return tuple(Refusal(*each) for each in versions.checked_entries(data, 4, "a refusal"))


def subscription_of(data: Sequence[Any]) -> Subscription:
    """Decodes `subscription_list`."""
    versions.checked_entry(data, 8, f"subscription {data[0]}")
    name, tables, lsn, place, epoch, acked_us = data[:6]
    marks = tuple(tuple(map(mark_of, table)) for table in data[6]) if len(data) > 6 else ()
    refusals = refusals_of(data[7]) if len(data) > 7 else ()
    at = Place(*place) if place else None
    return Subscription(name, tuple(tables), lsn, at, epoch, acked_us, marks, refusals)


def registers_list(change: RegisterChange) -> list[Any]:
    """The stored form of a register change. The length tells the three forms apart: dropped names; an opening; names
    with new values.
    """
    if isinstance(change, RegistersDrop):
        return [change.names]
    if isinstance(change, RegistersMove):
        return [change.names, change.values, change.mark]
    return [change.names, [change.epoch, change.owner]]


def registers_of(data: Sequence[Any]) -> RegisterChange:
    """Decodes `registers_list`."""
    what = "a change of registers"
    names = tuple(versions.checked_entry(data, 3, what)[0])
    if len(data) == 1:
        return RegistersDrop(names)
    if len(data) == 2:
        return RegistersOpen(names, *versions.checked_entry(data[1], 2, what))
    return RegistersMove(names, tuple(data[1]), data[2])


def rescale_list(change: RescaleChange) -> list[Any]:
    """The stored form of a rescale, or of the end of one. The length tells the two apart."""
    if isinstance(change, RescaleEnd):
        return [change.source]
    return [change.source, change.copy, list(change.ends), list(change.done), change.kind]


def rescale_of(data: Sequence[Any]) -> RescaleChange:
    """Decodes `rescale_list`."""
    return RescaleEnd(data[0]) if len(data) == 1 else _rescale_of(data)


def _rescale_of(data: Sequence[Any]) -> Rescale:
    source, copy, ends, done, kind = versions.checked_entry(data, 5, "a rescale")
    if kind not in set(CopyKind):
        raise versions.newer(f"a copy of the kind {kind!r}")
    return Rescale(source, copy, tuple(ends), tuple(done), CopyKind(kind))


def producer_change_list(change: ProducerChange) -> list[Any]:
    """The stored form of a producer's commit, or of a dropped name alone. The length tells the two apart."""
    if isinstance(change, ProducerDrop):
        return [change.producer]
    results = [result_list(result) for result in change.results]
    said = [change.producer, change.epoch, change.sequence, results, change.progress]
    if (change.owner, change.is_named) == _default_owner(change.producer, change.epoch):
        return said
    return [*said, change.owner, int(change.is_named)]


def _default_owner(producer: str, epoch: int) -> tuple[str, bool]:
    """Owner, and whether it is named, for a producer's commit that stores neither."""
    return "", not is_drawn(producer, epoch)


def producer_change_of(data: Sequence[Any]) -> ProducerChange:
    """Decodes `producer_change_list`. Releases up to 0.2 did not store who owns a producer and whether it is named."""
    if len(data) == 1:
        return ProducerDrop(data[0])
    producer, epoch, sequence, results, progress = versions.checked_entry(data, 7, f"a commit of producer {data[0]}")[
        :5
    ]
    owner, is_named = data[5:7] if len(data) > 5 else _default_owner(producer, epoch)
    made = tuple(map(result_of, results))
    return ProducerCommit(producer, epoch, sequence, made, progress, owner, bool(is_named))


def tier_list(record: TierRecord) -> list[Any]:
    """The stored form of a tier record. Sums are texts, because JSON numbers are exact only up to 2^53."""
    sums = [str(value) for value in record.live_sums]
    known = [record.live_rows, record.schema_id, *([True] if record.is_numbered else [])]
    return [record.snapshot_id, list(record.tier_point), sums, record.lsn, record.epoch, *known]


def tier_of(data: list[Any]) -> TierRecord:
    """Decodes `tier_list`."""
    versions.checked_entry(data, 8, "a tier record")
    return TierRecord(data[0], tuple(data[1]), tuple(int(value) for value in data[2]), *data[3:])


def encode_catalog_change(change: CatalogChange) -> dict[str, Any]:
    """The stored form of a catalog change."""
    return {"key": change.idempotency_key, "steps": [_encode_step(step) for step in change.steps]}


def _encode_step(step: CatalogStep) -> list[Any]:
    if isinstance(step, SetPointer):
        pointer = [step.pointer.location, step.pointer.uuid]
        tiers = [tier_list(record) for record in step.tiers]
        return ["set", step.namespace, step.name, step.expected, pointer, tiers, list(step.forget)]
    if isinstance(step, DropPointer):
        return ["drop", step.namespace, step.name]
    if isinstance(step, SetNamespace):
        return ["namespace", step.namespace, dict(step.properties)]
    if isinstance(step, SetView):
        return ["view", step.namespace, step.name, step.expected, _view_list(step.view)]
    if isinstance(step, DropView):
        return ["drop-view", step.namespace, step.name]
    return ["drop-namespace", step.namespace]


def decode_catalog_change(data: dict[str, Any]) -> CatalogChange:
    """Decodes `encode_catalog_change`."""
    versions.check_keys(data, ("key", "steps"), "a change of the catalog")
    return CatalogChange(tuple(_decode_step(step) for step in data["steps"]), data["key"])


_STEPS = {"set": 7, "drop": 3, "namespace": 3, "drop-namespace": 2, "view": 5, "drop-view": 3}
"""The kinds of steps, each with its number of entries. Releases up to 0.3 do not know views."""


def _decode_step(data: list[Any]) -> CatalogStep:
    kind, *rest = data
    if kind not in _STEPS:
        raise versions.newer(f"the step {kind!r} of the catalog")
    versions.checked_entry(data, _STEPS[kind], f"the step {kind!r} of the catalog")
    if kind == "set":
        namespace, name, expected, pointer, tiers, forget = rest
        records = tuple(tier_of(record) for record in tiers)
        return SetPointer(namespace, name, expected, _pointer_of(pointer), records, tuple(forget))
    if kind == "drop":
        return DropPointer(*rest)
    if kind == "view":
        namespace, name, expected, view = rest
        return SetView(namespace, name, expected, _view_of(view))
    if kind == "drop-view":
        return DropView(*rest)
    return SetNamespace(*rest) if kind == "namespace" else DropNamespace(*rest)


def _pointer_of(data: Sequence[str]) -> Pointer:
    return Pointer(*versions.checked_entry(data, 2, "the pointer of a table"))


def _view_list(view: SqlView) -> list[str]:
    return [view.location, view.uuid, view.document]


def _view_of(data: Sequence[str]) -> SqlView:
    return SqlView(*versions.checked_entry(data, 3, "a SQL view"))


def table_of(data: dict[str, Any]) -> Table:
    """The definition of a table in a record or a checkpoint. `NewerFormat` if it has options that this release does not
    know: the table would be another one."""
    what = f"the definition of table {data['name']}"
    versions.check_keys(data, _TABLE_KEYS, what)
    for name, known in _OPTION_KEYS.items():
        versions.check_keys(data.get(name) or {}, known, f"{name} in {what}")
    for column in data["columns"]:
        versions.check_keys(column, _COLUMN_KEYS, f"column {column['name']} in {what}")
    try:
        return Table.from_dict(data)
    except Invalid as error:  # a merge engine is a text or a dict
        raise versions.newer(f"{what} ({error.message})") from error


MAGIC = 0x4C534350
VERSION, READ = 4, (1, 4)
"""The version that is written, and the versions that are read. Release 0.2 wrote 1."""
PREFIX = "checkpoint-"
_HEADER = struct.Struct("<IHHQI")


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table in a checkpoint."""

    versions: Versions
    created_lsn: int
    created_us: int
    """0 for a table that release 0.1 created."""
    tiers: tuple[TierRecord, ...]
    buckets: tuple[tuple[SegmentFile, ...], ...]
    """The segments of each bucket, in the order of offsets."""
    bases: tuple[Position, ...]
    """The position of each bucket's log start."""
    truncated_lsn: int = 0
    former: tuple[FormerTable, ...] = ()
    erased: tuple[Position, ...] = ()
    """The rows that the last erasure took from each bucket of a log table; empty if there was none."""

    @property
    def table(self) -> Table:
        """The newest definition."""
        return self.versions.current


@dataclass(frozen=True, slots=True)
class DroppedEntry:
    """A dropped table in a checkpoint."""

    entry: TableEntry
    lsn: int
    time_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint file."""

    timeline: str
    restored: Origin | None
    """The backup from which this server was restored."""
    lsn: int
    time_us: int
    next_number: int
    producers: FrozenProducers
    tierer: TiererClaim
    idempotency: tuple[str, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    pointers: Mapping[tuple[str, str], Pointer]
    subscriptions: tuple[Subscription, ...]
    tables: tuple[TableEntry, ...]
    marks: ClockMarks = NO_MARKS
    registers: Mapping[str, Register] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    """Journal file name to the number of its bytes that segments refer to."""
    runs: tuple[RunFile, ...] = ()
    """The runs of the key index, newest first."""
    index_lsn: int = EMPTY_LSN
    """The LSN up to which the key index is complete. With `EMPTY_LSN`, the next start rebuilds it."""
    dropped: tuple[DroppedEntry, ...] = ()
    """Dropped tables that are still kept for their drop grace."""
    place: JournalPlace = BEGINNING
    """The place in the journal at which the records after this checkpoint begin."""
    parts: tuple[str, ...] = ()
    """Committed parts whose files in the warehouse may still be there."""
    sql_views: Mapping[tuple[str, str], SqlView] = field(default_factory=dict)
    rescales: tuple[Rescale, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    @property
    def entries(self) -> tuple[TableEntry, ...]:
        """All tables whose rows are kept, dropped ones included."""
        return (*self.tables, *(each.entry for each in self.dropped))

    @staticmethod
    def of(
        frozen: FrozenState,
        cut: Mapping[tuple[str, int], Sequence[Chunk]],
        index: NamedRuns = NO_RUNS,
        parts: Sequence[str] = (),
    ) -> Checkpoint:
        """The checkpoint of a frozen state. `cut` has the chunks of the buckets that got new segments."""
        view = frozen.view
        return Checkpoint(
            view.timeline,
            frozen.restored,
            view.lsn,
            view.time_us,
            frozen.next_number,
            frozen.producers,
            TiererClaim(view.tierer_epoch, frozen.tierer_holder),
            frozen.idempotency,
            view.namespaces,
            view.pointers,
            tuple(view.subscriptions.values()),
            tuple(_entry(state, cut) for state in view.tables.values()),
            view.marks,
            frozen.registers,
            _extents(view, cut),
            index.files,
            index.lsn,
            tuple(DroppedEntry(_entry(d.state, cut), d.lsn, d.time_us, d.until_us) for d in view.dropped.values()),
            frozen.place,
            tuple(parts),
            view.sql_views,
            tuple(view.rescales.values()),
            tuple(view.erasures.values()),
        )

    def segment_names(self) -> dict[str, set[str]]:
        """The names of the segment files by folder: a table's uuid, the folder of shared files or of kept journal
        files.
        """
        named: dict[str, set[str]] = {SHARED: set(), EXTENTS: set(self.extents)}
        for entry in self.entries:
            own = named.setdefault(entry.table.uuid, set())
            for file in (file for files in entry.buckets for file in files):
                (named[SHARED] if file.is_shared else own).add(file.name)
        return named

    def state(self, disk: Disk, folder: Path, limits: Limits = DEFAULT) -> State:
        """The state with which a server starts. Its segments are mapped. Raises `Corrupt` if a segment is missing."""
        lone = sum(not file.is_shared for entry in self.entries for files in entry.buckets for file in files)
        opener = SegmentFiles(disk, folder, is_crowded=lone > LONE_MAPS_MAX)
        for name, size in self.extents.items():
            if disk.size(folder / SEGMENTS / EXTENTS / name) != size:
                raise missing(name)
        erasures = {each.id: each for each in self.erasures}
        tables = {entry.table.uuid: _table_state(entry, opener) for entry in self.tables}
        for uuid, state in tables.items():
            tables[uuid] = replace(state, erased_lsn=erased_lsn(erasures, uuid, state.log_start_lsn))
        dropped = {
            each.entry.table.uuid: DroppedTable(_table_state(each.entry, opener), each.lsn, each.time_us, each.until_us)
            for each in self.dropped
        }
        view = View(
            self.lsn,
            self.time_us,
            tables,
            {state.table.name: uuid for uuid, state in tables.items()},
            self.namespaces,
            self.pointers,
            self.tierer.epoch,
            {held.name: held for held in self.subscriptions},
            self.timeline,
            self.marks,
            dropped,
            self.sql_views,
            {each.source: each for each in self.rescales},
            erasures,
        )
        beside = self.tierer.holder, self.idempotency, self.registers
        return State.of(FrozenState(view, self.restored, self.next_number, self.producers, *beside), limits)


def _entry(state: TableState, cut: Mapping[tuple[str, int], Sequence[Chunk]]) -> TableEntry:
    uuid = state.table.uuid
    buckets = []
    for bucket, held in enumerate(state.logs):
        chunks = cut.get((uuid, bucket), held.chunks)
        named = (chunk for chunk in chunks if isinstance(chunk, Segment))
        buckets.append(tuple(SegmentFile(each.path.name, each.own_size, each.part.at) for each in named))
    tiers, bases = tuple(state.tiers.values()), tuple(held.base for held in state.logs)
    about = state.versions, state.created_lsn, state.created_us
    erased = tuple(held.erased for held in state.logs)
    is_erased = any(each.lsn for each in erased)
    return TableEntry(
        *about, tiers, tuple(buckets), bases, state.truncated_lsn, state.former, erased if is_erased else ()
    )


def _extents(view: View, cut: Mapping[tuple[str, int], Sequence[Chunk]]) -> dict[str, int]:
    every = (
        chunk
        for uuid, state in view.kept.items()
        for bucket, log in enumerate(state.logs)
        for chunk in cut.get((uuid, bucket), log.chunks)
    )
    return {file.name: file.data.size for chunk in every if isinstance(chunk, Segment) for file in chunk.files}


def _table_state(entry: TableEntry, opener: SegmentFiles) -> TableState:
    stored = entry.versions.stored
    opened = ([opener.segment(entry.table, stored, file) for file in files] for files in entry.buckets)
    erased = entry.erased or (Position(),) * len(entry.bases)
    logs = (log_of(entry.table, *about) for about in zip(opened, entry.bases, erased, strict=True))
    tiers = {record.snapshot_id: record for record in entry.tiers}
    about = entry.created_lsn, entry.created_us, entry.truncated_lsn, entry.former
    return TableState(entry.versions, tuple(logs), tiers, *about)


def name_of(lsn: int) -> str:
    """The file name. Names sort by LSN."""
    return f"{PREFIX}{lsn:020d}"


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's bytes."""
    body = orjson.dumps(_data(checkpoint))
    size, crc = len(body), crc32c(body)
    return _HEADER.pack(MAGIC, VERSION, _check_of(VERSION, size, crc), size, crc) + body


def _check_of(version: int, size: int, crc: int) -> int:
    """16 bits of the checksum of a header. Never 0: releases up to 0.3 wrote that, and read any."""
    return crc32c(_HEADER.pack(MAGIC, version, 0, size, crc)) & 0xFFFF or 1


def _data(checkpoint: Checkpoint) -> dict[str, Any]:
    restored, views = checkpoint.restored, checkpoint.sql_views
    return {
        "timeline": checkpoint.timeline,
        "restored": {"timeline": restored.timeline, "lsn": restored.lsn, "epochs": restored.epochs}
        if restored
        else None,
        "lsn": checkpoint.lsn,
        "time_us": checkpoint.time_us,
        "next_number": checkpoint.next_number,
        "producers": [_producer_list(name, producer) for name, producer in checkpoint.producers.known.items()],
        "forgotten": dict(checkpoint.producers.horizons),
        "tierer": [checkpoint.tierer.epoch, checkpoint.tierer.holder],
        "idempotency": list(checkpoint.idempotency),
        "namespaces": {name: dict(properties) for name, properties in checkpoint.namespaces.items()},
        "pointers": [[ns, name, p.location, p.uuid] for (ns, name), p in checkpoint.pointers.items()],
        "subscriptions": [subscription_list(held) for held in checkpoint.subscriptions],
        "tables": [_table_data(entry) for entry in checkpoint.tables],
        **({"clock_marks": [list(mark) for mark in checkpoint.marks]} if checkpoint.marks else {}),
        **({"registers": _registers_data(checkpoint.registers)} if checkpoint.registers else {}),
        **({"extents": dict(checkpoint.extents)} if checkpoint.extents else {}),
        "runs_lsn": checkpoint.index_lsn,
        **({"runs": [[r.name, r.size, r.entries, r.crc] for r in checkpoint.runs]} if checkpoint.runs else {}),
        **({"dropped": [_dropped_data(each) for each in checkpoint.dropped]} if checkpoint.dropped else {}),
        **({"place": checkpoint.place} if checkpoint.place else {}),
        **({"parts": list(checkpoint.parts)} if checkpoint.parts else {}),
        **({"sql_views": [[*key, *_view_list(view)] for key, view in views.items()]} if views else {}),
        **({"rescales": [rescale_list(each) for each in checkpoint.rescales]} if checkpoint.rescales else {}),
        **({"erasures": [erasure_list(each) for each in checkpoint.erasures]} if checkpoint.erasures else {}),
    }


def _producer_list(name: str, producer: ProducerState) -> list[Any]:
    answers = [
        [sequence, [answer.lsn, [result_list(result) for result in answer.results]]]
        for sequence, answer in producer.answers.items()
    ]
    about = [producer.owner, int(producer.is_named), producer.used_us, producer.lsn]
    return [name, producer.epoch, producer.last_sequence, producer.progress, answers, *about]


def _producer_of(data: Sequence[Any]) -> ProducerState:
    """Decodes `_producer_list`. Releases up to 0.2 stored nothing after the answers."""
    name, epoch, last, progress, answers = versions.checked_entry(data, 9, f"producer {data[0]}")[:5]
    known = {sequence: Answer(lsn, tuple(map(result_of, made))) for sequence, (lsn, made) in answers}
    owner, is_named, used_us, lsn = data[5:9] if len(data) > 5 else ("", not is_drawn(name, epoch), 0, 0)
    return ProducerState(epoch, last, progress, known, owner, bool(is_named), used_us, lsn)


def _registers_data(registers: Mapping[str, Register]) -> dict[str, list[list[Any]]]:
    """Registers grouped by owner, without the owner in each register."""
    owned: dict[str, list[list[Any]]] = {}
    for name, held in registers.items():
        owned.setdefault(held.owner, []).append([name, held.epoch, held.value, held.moved, held.mark])
    return owned


def _registers_of(data: Mapping[str, list[list[Any]]]) -> dict[str, Register]:
    """Decodes `_registers_data`. Releases up to 0.2 had no registers."""
    return {
        name: Register(epoch, value, owner, moved, mark)
        for owner, held in data.items()
        for name, epoch, value, moved, mark in versions.checked_entries(held, 5, "a register")
    }


def _table_data(entry: TableEntry) -> dict[str, Any]:
    definitions = zip(entry.versions.lsns, entry.versions.tables, strict=True)
    return {
        "table": entry.table.as_dict(),
        "versions": [[lsn, table.as_dict()] for lsn, table in definitions],
        "created_lsn": entry.created_lsn,
        "created_us": entry.created_us,
        "tiers": [tier_list(record) for record in entry.tiers],
        "buckets": [[_file_list(file) for file in files] for files in entry.buckets],
        "bases": list(map(_position_list, entry.bases)),
        **({"erased": list(map(_position_list, entry.erased))} if entry.erased else {}),
        **({"truncated_lsn": entry.truncated_lsn} if entry.truncated_lsn else {}),
        **(
            {"former": [[each.uuid, each.lsn, each.time_us, each.apart] for each in entry.former]}
            if entry.former
            else {}
        ),
    }


def _position_list(at: Position) -> list[int]:
    return [at.end, at.live_sum, at.live_rows, at.time_us, at.lsn]


def _dropped_data(each: DroppedEntry) -> list[Any]:
    return [_table_data(each.entry), each.lsn, each.time_us, each.until_us]


def _file_list(file: SegmentFile) -> list[Any]:
    return [file.name, file.size] if file.at is None else [file.name, file.size, file.at]


_ENTRY_KEYS = (
    *("table", "versions", "created_lsn", "created_us", "tiers", "buckets", "bases", "truncated_lsn", "former"),
    "erased",
)
_KEYS = (
    *("timeline", "restored", "lsn", "time_us", "next_number", "producers", "forgotten", "tierer", "idempotency"),
    *("namespaces", "pointers", "subscriptions", "tables", "clock_marks", "registers", "extents", "runs_lsn", "runs"),
    *("dropped", "place", "parts", "sql_views", "rescales", "erasures", "index"),  # release 0.3.0 wrote `index`
)


def _entry_of(data: dict[str, Any]) -> TableEntry:
    """Decodes `_table_data`."""
    versions.check_keys(data, _ENTRY_KEYS, "a table of a checkpoint")
    definitions = data["versions"]
    buckets = tuple(
        tuple(SegmentFile(*file) for file in versions.checked_entries(files, 3, "a segment of a checkpoint"))
        for files in data["buckets"]
    )
    return TableEntry(
        Versions(tuple(lsn for lsn, _ in definitions), tuple(table_of(table) for _, table in definitions)),
        data["created_lsn"],
        data["created_us"],
        tuple(map(tier_of, data["tiers"])),
        buckets,
        tuple(Position(*base) for base in versions.checked_entries(data["bases"], 5, "the log start of a bucket")),
        data.get("truncated_lsn", 0),
        tuple(FormerTable(*each) for each in versions.checked_entries(data.get("former", ()), 4, "a former table")),
        tuple(Position(*each) for each in versions.checked_entries(data.get("erased", ()), 5, "the erased rows")),
    )


def decode(raw: bytes, name: str) -> Checkpoint:
    """The checkpoint in a file's bytes. Raises `Corrupt` if they are damaged."""
    damaged = Corrupt(f"checkpoint file {name} is damaged: restore it from a copy or a backup; nothing was changed")
    if len(raw) < _HEADER.size:
        raise damaged
    magic, version, check, size, crc = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    if magic != MAGIC or len(body) != size or crc32c(body) != crc:
        raise damaged
    if check != _check_of(version, size, crc) and (check or version not in READ):
        raise damaged
    versions.check(version, READ, f"checkpoint file {name}")
    data = orjson.loads(body)
    if "subscriptions" not in data or any("versions" not in table for table in data["tables"]):
        raise versions.of_first_release(f"checkpoint file {name}")
    return _checkpoint_of(data)


def _checkpoint_of(data: dict[str, Any]) -> Checkpoint:
    versions.check_keys(data, _KEYS, "a checkpoint")
    restored = data.get("restored") or {}
    versions.check_keys(restored, ("timeline", "lsn", "epochs"), "the origin of a checkpoint")
    dropped = versions.checked_entries(data.get("dropped", ()), 4, "a dropped table of a checkpoint")
    return Checkpoint(
        data["timeline"],
        Origin(restored["timeline"], restored["lsn"], restored.get("epochs", 0)) if restored else None,
        data["lsn"],
        data["time_us"],
        data["next_number"],
        _producers_of(data),
        TiererClaim(*versions.checked_entry(data["tierer"], 2, "the tierer of a checkpoint")),
        tuple(data["idempotency"]),
        data["namespaces"],
        {(ns, name): _pointer_of(pointer) for ns, name, *pointer in data["pointers"]},
        tuple(map(subscription_of, data["subscriptions"])),
        tuple(map(_entry_of, data["tables"])),
        ClockMarks.from_pairs(list(versions.checked_entries(data.get("clock_marks", ()), 2, "a mark of the clock"))),
        _registers_of(data.get("registers", {})),
        data.get("extents", {}),
        tuple(RunFile(*run) for run in versions.checked_entries(data.get("runs", ()), 4, "a run of a checkpoint")),
        data.get("runs_lsn", EMPTY_LSN),  # release 0.3.0 wrote `index`, for runs and LMDB together
        tuple(DroppedEntry(_entry_of(entry), *about) for entry, *about in dropped),
        data.get("place", BEGINNING),
        tuple(data.get("parts", ())),
        {(ns, name): _view_of(view) for ns, name, *view in data.get("sql_views", ())},
        tuple(map(_rescale_of, data.get("rescales", ()))),
        tuple(map(erasure_of, data.get("erasures", ()))),
    )


def _producers_of(data: dict[str, Any]) -> FrozenProducers:
    known = {each[0]: _producer_of(each) for each in data["producers"]}
    return FrozenProducers(known, data.get("forgotten", {})).dated(data["lsn"], data["time_us"])


def write(disk: Disk, folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint durably."""
    path = folder / name_of(checkpoint.lsn)
    temporary = folder / f"{path.name}.tmp"
    if temporary.name in disk.list(folder):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write([encode(checkpoint)])
        disk.reach(CrashPoint.CHECKPOINT_WRITTEN)
        file.sync()
        disk.reach(CrashPoint.CHECKPOINT_SYNCED)
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.reach(CrashPoint.CHECKPOINT_RENAMED)
    disk.sync_folder(folder)
    disk.reach(CrashPoint.CHECKPOINT_DURABLE)


def names(disk: Disk, folder: Path) -> list[str]:
    """The names of the checkpoints in a folder, oldest first."""
    return whole_files(disk, folder, PREFIX)


def newest(disk: Disk, folder: Path) -> Checkpoint | None:
    """The newest valid checkpoint; None for an empty folder. Raises `Corrupt` if all checkpoints are damaged."""
    damage: Corrupt | None = None
    for name in reversed(names(disk, folder)):
        try:
            return decode(disk.read(folder / name), name)
        except NewerFormat:
            raise  # an older checkpoint would lose what the newer release wrote
        except Corrupt as error:
            damage = error
    if damage:
        raise damage
    return None
