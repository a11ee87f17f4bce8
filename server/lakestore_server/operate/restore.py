"""The restore of a backup into a new data folder: check every checksum, copy, begin a new timeline.

- The timeline changes because the history after the backup is lost: an old position may name something else now, so
  every old position is refused.
- Producers and subscriptions continue from the cut.
- A lake in the backup is restored with it. In another place its files are rewritten for this place.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakestore.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from lakestore.model import file_uri
from lakestore_server.catalog import foreign_history, locations, our_tables, rewind, views
from lakestore_server.catalog.journal_ledger import JournalLedger
from lakestore_server.catalog.metadata_store import MetadataStore, local_folder, storage_for
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.catalog.relocation import Relocation
from lakestore_server.catalog.schemas import Json
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.files import backup_manifest, checkpoint, data_folder, journal_file
from lakestore_server.files.backup_manifest import WAREHOUSE, BackupFile, BackupManifest, LakePlace
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import Disk, RealDisk
from lakestore_server.operate import backup
from lakestore_server.read.leases import Leases
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.catalog_change import (
    DROPPED,
    CatalogChange,
    CatalogStep,
    DropPointer,
    Pointer,
    SetPointer,
    SetView,
    TierRecord,
)
from lakestore_server.state.chunk import Chunk, CommitIndex, Ints, Position, StoredBatch
from lakestore_server.state.commit_record import BEGINNING, CommitRecord
from lakestore_server.state.state import Origin, State
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.restore")


@dataclass(frozen=True, slots=True)
class Ways:
    """The operator's decisions about the lake."""

    rewind: bool = False
    """Set back tables whose lake continued after the backup."""
    anew: bool = False
    """Start with an empty lake: for all tables or, with `rewind`, for those that cannot be set back."""
    accept_loss: bool = False
    """Accept the loss of rows that only the lake has."""

    @property
    def any(self) -> bool:
        """Whether anything must be done."""
        return self.rewind or self.anew


@dataclass(slots=True)
class LakeOutcome:
    """The outcome for the lake: table names and sentences."""

    moved: list[str] = field(default_factory=list)
    """Tables whose files have moved."""
    followed: list[str] = field(default_factory=list)
    """Tables whose lake went on after the backup, by rows of the backup alone: it is used as it is."""
    rewound: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Lost rows and tables that only the lake had."""
    problems: list[str] = field(default_factory=list)
    """Tables whose lake is gone or ahead, each with the remedy."""


def _check_inside(states: Iterable[TableState]) -> None:
    """Refuse to change the lake of a table that lives in an outside catalog."""
    names = [state.table.name for state in states if is_outside(state.table)]
    if names:
        raise Conflict(
            f"a restore does not change tables in an outside catalog ({', '.join(names)}): restore without"
            " --rewind-lake and --without-lake, then move main of these tables back there, to the snapshot that"
            " `lakestore status` names"
        )


def finish(folder: Path, old: str, warehouse: str, moved: Mapping[str, str], ways: Ways) -> LakeOutcome:
    """Reconcile the catalog of a restored folder with the warehouse; `old` is the warehouse of the backup, and `moved`
    maps old to new metadata files. `Conflict`, which names the loss, unless the loss is accepted."""
    engine = Engine(folder, RealDisk(), RealClock(), on_fatal=lambda _: None)
    try:
        return _Lake(engine, old, warehouse).run(moved, ways)
    finally:
        engine.loop.close()


class _Lake:
    def __init__(self, engine: Engine, old: str, warehouse: str) -> None:
        self._old = old
        self._engine, self._warehouse = engine, warehouse.rstrip("/")
        self._store = MetadataStore(storage_for(warehouse))
        self._ledger = JournalLedger(engine, Leases(RealClock(), 0.0))
        self._outcome = LakeOutcome()
        self._steps: list[CatalogStep] = []
        self._dropped: Callable[[State, CommitRecord], None] | None = None
        """The commit that ends the dropped tables."""

    def run(self, moved: Mapping[str, str], ways: Ways) -> LakeOutcome:
        view, outcome = self._engine.view, self._outcome
        ours = {_key(state): state for state in view.tables.values()}
        if ways.any:
            _check_inside(ours.values())
        self._move(view, moved)
        self._move_views(view)
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
        else:
            self._follow(state for state in ours.values() if not is_outside(state.table))
        if ways.rewind and outcome.problems:
            raise Conflict(" | ".join(outcome.problems))
        if outcome.lost and not ways.accept_loss:
            said = "; ".join(outcome.lost)
            raise Conflict(f"only the lake had this: {said}. Add --accept-loss to lose it; nothing is restored")
        self._commit()
        if self._dropped is not None:
            self._engine.operate(self._dropped)
        if lossy:
            self._forget_lost(lossy)
        self._look()
        return outcome

    def _forget_others(self, view: View) -> None:
        ours = {_key(state) for state in view.tables.values()}
        self._forget_dropped()
        for namespace, name in view.pointers:
            if (namespace, name) not in ours and namespace != DROPPED:
                self._steps.append(DropPointer(namespace, name))
                self._outcome.lost.append(f"table {namespace}.{name}, which is not Lakestore's: all of it")

    def _forget_dropped(self) -> None:
        gone = self._engine.view.dropped

        def plan(_: State, record: CommitRecord) -> None:
            record.drop += gone

        self._steps += [DropPointer(*key) for key in self._engine.view.pointers if key[0] == DROPPED]
        self._outcome.lost += [f"the dropped table {held.name}: all of it" for held in gone.values()]
        self._dropped = plan if gone else None

    def _look(self) -> None:
        """Note tables whose lake does not match the log. A warehouse that does not answer is left for the server's
        start."""
        view, problems = self._engine.view, self._outcome.problems
        try:
            problems += foreign_history.missing_tables(view, self._store).values()
            problems += foreign_history.find(view, self._store, self._engine.timeline).values()
        except (Unavailable, Invalid) as error:
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

    def _move_views(self, view: View) -> None:
        """Give the views places in the new warehouse. Their metadata is in the journal, so no file is needed for it."""
        if locations.plain(self._old) == locations.plain(self._warehouse):
            return
        for (namespace, name), held in view.sql_views.items():
            made = views.moved(held, self._old, self._warehouse, str(uuid.uuid4()))
            self._store.put(made.location, made.document.encode())
            self._steps.append(SetView(namespace, name, held.location, made))

    def _follow(self, states: Iterable[TableState]) -> None:
        """Take lakes that were tiered, compacted or rewritten after the backup and have no row beyond it."""
        for state in states:
            try:
                self._rewound(state, is_whole=True)
            except (Unavailable, Invalid, NotFound, Corrupt) as error:
                log.debug("the lake of %s is left for the look at the end: %s", state.table.name, error)

    def _rewound(self, state: TableState, *, is_whole: bool = False) -> bool:
        """Whether the table's lake fits its log, after it was set back if it must be. `is_whole`: only if that takes
        nothing away."""
        pointer = self._engine.view.pointers.get(_key(state))
        if pointer is None:
            return True
        newest = foreign_history.newest(self._store, pointer, self._engine.timeline)
        if newest is None:
            return not foreign_history.missing(self._store, pointer)
        location, doc = newest
        back = rewind.rewound(doc, location, state.tiers, lambda tier: self._covers(state, tier), _now_ms())
        if back is None or (is_whole and not back.is_whole):
            return False
        kept = {record.snapshot_id for record in back.records}
        records = tuple(
            self._counted(state, record) for record in back.records if record.snapshot_id not in state.tiers
        )
        forget = tuple(snapshot for snapshot in state.tiers if snapshot not in kept)
        number = locations.metadata_number(location.rsplit("/", 1)[-1]) or 0
        self._point(state, pointer, self._saved(back.doc, number + 1), records, forget)
        (self._outcome.followed if is_whole else self._outcome.rewound).append(state.table.name)
        return True

    def _covers(self, state: TableState, tier: TierRecord) -> bool:
        known = {version.schema_id for version in state.versions.tables}
        fits = len(tier.tier_point) == len(state.logs) and tier.schema_id in known
        return (
            fits
            and all(point >= start for point, start in zip(tier.tier_point, state.starts(), strict=True))
            and self._ledger.live_sums_at(state.table.uuid, tier.tier_point) == tier.live_sums
        )

    def _counted(self, state: TableState, record: TierRecord) -> TierRecord:
        live_rows = self._ledger.live_rows_at(state.table.uuid, record.tier_point)
        return replace(record, live_rows=live_rows, epoch=self._engine.view.tierer_epoch)

    def _begin_anew(self, state: TableState) -> list[TableState]:
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
    """A chunk without the rows below a log start, which its commits do not count. It is no segment, so the next
    checkpoint writes it as one."""

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
    if piece.start >= start:
        return piece

    def load(names: Sequence[str] | None = None) -> pa.RecordBatch:
        return piece.load(names).slice(start - piece.start)

    return StoredBatch(start, piece.end, load, piece.schema_id)


def without_base(held: BucketLog) -> BucketLog:
    """A log table's bucket without the rows below its log start; offsets stay."""
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
        "--rewind-lake --without-lake, which starts it again from the log"
    )


EPOCHS_SKIPPED = 1 << 24
"""A restore skips a random number of epochs, at most this many. An epoch of the lost history must not be given to
another process, because its client may not say which history it means."""
AS_IT_WAS = Ways()


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The outcome of a restore."""

    lsn: int
    time_us: int
    release: str
    timeline: str
    files: int
    bytes: int
    warehouse: str = ""
    """URI of the restored server's warehouse; empty if the backup does not know it."""
    lake: LakeOutcome = field(default_factory=LakeOutcome)


def restore(
    source: Path, target: Path, disk: Disk | None = None, *, warehouse: str = "", ways: Ways = AS_IT_WAS
) -> RestoreResult:
    """Check a whole backup, then copy it into an empty folder under a new timeline. `warehouse` is the place of the
    lake: by default the folder if the backup has the lake, else the former place. `Conflict`, and nothing is restored,
    if rows that only the lake had would be lost without acceptance."""
    disk = disk or RealDisk()
    source, target = _checked(disk, source, target)
    manifest = verified(source, disk)
    place = _warehouse(manifest, target, warehouse, ways)
    timeline = uuid.uuid4().hex[:12]
    with _unfinished(disk, target):
        _copy(disk, source, target, manifest)
        held = _checkpoint(disk, source, manifest)
        before = held.restored.epochs if held.restored else 0
        origin = Origin(manifest.timeline, manifest.lsn, before + 1 + secrets.randbelow(EPOCHS_SKIPPED))
        checkpoint.write(disk, target, replace(held, timeline=timeline, restored=origin, place=BEGINNING, parts=()))
        moved = _copy_lake(disk, source, manifest, place) if _brings_lake(manifest, ways) else {}
        lake = finish(target, manifest.warehouse, place, moved, ways) if place else LakeOutcome()
    return _result(manifest, timeline, manifest.files, place, lake)


def restore_replica(source: Path, target: Path, disk: Disk | None = None) -> RestoreResult:
    """Check a whole backup, then copy it into an empty folder of a server that continues its shared journal. Timeline
    and place stay, and the lake is not copied, because the servers share a warehouse. `Invalid` for a backup of a
    server whose journal is in files."""
    disk = disk or RealDisk()
    source, target = _checked(disk, source, target)
    manifest = verified(source, disk)
    held = _checkpoint(disk, source, manifest)
    if not held.place or held.place.startswith(journal_file.PREFIX):
        raise Invalid(f"{source} is the backup of a server whose journal is in files: no other server can follow it")
    files = [entry for entry in manifest.files if not _is_lake(entry) and not _is_journal(entry)]
    with _unfinished(disk, target):
        _copy(disk, source, target, replace(manifest, files=tuple(files)))
        checkpoint.write(disk, target, held)
    return _result(manifest, manifest.timeline, files, manifest.warehouse, LakeOutcome())


def _checked(disk: Disk, source: Path, target: Path) -> tuple[Path, Path]:
    """The resolved folders; `Invalid` unless the target is empty and apart from the source."""
    source, target = source.resolve(), target.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise Invalid(f"the data folder {target} and the backup {source} must not lie in one another")
    if disk.list(target) or (target.exists() and not target.is_dir()):
        raise Invalid(f"{target} is not an empty folder: restore into a new one")
    return source, target


def _result(
    manifest: BackupManifest, timeline: str, files: Sequence[BackupFile], place: str, lake: LakeOutcome
) -> RestoreResult:
    size = sum(entry.size for entry in files)
    return RestoreResult(manifest.lsn, manifest.time_us, manifest.release, timeline, len(files), size, place, lake)


@contextmanager
def _unfinished(disk: Disk, target: Path) -> Iterator[None]:
    """Mark the folder as unfinished while the block runs, so that no server starts in it. A refusal removes the
    folder."""
    disk.make_folder(target)
    disk.create(target / data_folder.RESTORING).close()
    disk.sync_folder(target)
    try:
        yield
    except Conflict:
        shutil.rmtree(target)
        raise
    disk.remove(target / data_folder.RESTORING)
    disk.sync_folder(target)


def _brings_lake(manifest: BackupManifest, ways: Ways) -> bool:
    return manifest.lake is LakePlace.INSIDE and (not ways.anew or ways.rewind)


def _warehouse(manifest: BackupManifest, target: Path, given: str, ways: Ways) -> str:
    inner = target / WAREHOUSE
    if given:
        place = file_uri.user_location(given)
    else:
        is_new = manifest.lake is not LakePlace.OUTSIDE and ways.anew and not ways.rewind
        place = file_uri.to_uri(inner) if is_new or _brings_lake(manifest, ways) else manifest.warehouse
    if not place and ways.any:
        raise Invalid("this backup does not say where its warehouse is: name it with --warehouse")
    if _brings_lake(manifest, ways):
        folder = local_folder(place)
        if folder is None:
            raise Invalid(f"the lake of this backup goes into a folder of this machine, and {place} is not one")
        if folder.exists() and any(folder.iterdir()):
            raise Invalid(f"the warehouse {folder} is not an empty folder: name a new one with --warehouse")
    return place


def verified(source: Path, disk: Disk) -> BackupManifest:
    """The manifest of a backup whose files all match their checksums, or an error that names the file."""
    if backup_manifest.NAME not in disk.list(source):
        raise NotFound(f"{source} has no {backup_manifest.NAME}: it is no backup, or an unfinished backup")
    manifest = BackupManifest.decode(disk.read(source / backup_manifest.NAME), str(source / backup_manifest.NAME))
    for entry in manifest.files:
        path = source / entry.path
        if path.resolve().parent != (source / entry.path).parent or source not in path.resolve().parents:
            raise Corrupt(f"the manifest of {source} names {entry.path}, which lies outside of it")
        if not path.is_file() or path.stat().st_size != entry.size or backup.crc_of(disk, path) != entry.crc32c:
            raise Corrupt(f"file {entry.path} of backup {source} is missing or damaged: nothing was restored")
    return manifest


def _is_lake(entry: BackupFile) -> bool:
    return entry.path.startswith(f"{WAREHOUSE}/")


def _is_journal(entry: BackupFile) -> bool:
    return entry.path.startswith(journal_file.PREFIX)


def _checkpoint(disk: Disk, source: Path, manifest: BackupManifest) -> Checkpoint:
    return checkpoint.decode(disk.read(source / manifest.checkpoint), manifest.checkpoint)


def _copy(disk: Disk, source: Path, target: Path, manifest: BackupManifest) -> None:
    """Copy the journal and the segments. The caller writes the checkpoint last, because a server refuses a folder with
    a journal and no checkpoint."""
    rest = [entry for entry in manifest.files if entry.path != manifest.checkpoint and not _is_lake(entry)]
    rest.sort(key=lambda entry: not _is_journal(entry))
    folders = {(target / entry.path).parent for entry in rest}
    for folder in sorted(folders):
        disk.make_folder(folder)
    for entry in rest:
        _copy_file(disk, source / entry.path, target / entry.path, entry)
    for folder in sorted(folders):
        disk.sync_folder(folder)


def _copy_lake(disk: Disk, source: Path, manifest: BackupManifest, place: str) -> Mapping[str, str]:
    """Copy the lake's files into the warehouse, rewritten for another place; old to new metadata files."""
    old, folder = manifest.warehouse, Path(locations.plain(place))
    for entry in filter(_is_lake, manifest.files):
        path = folder / entry.path.removeprefix(f"{WAREHOUSE}/")
        disk.make_folder(path.parent)
        _copy_file(disk, source / entry.path, path, entry)
    moved: Mapping[str, str] = {}
    if locations.plain(old) != locations.plain(place):

        def read(location: str) -> bytes:
            return (source / WAREHOUSE / locations.plain(location)[len(locations.plain(old)) + 1 :]).read_bytes()

        relocation = Relocation(old, place, read, _save)
        moved = {location: relocation.move(location) for location in manifest.pointers.values()}
    for found, _, _ in os.walk(folder):
        disk.sync_folder(Path(found))
    return moved


def _save(location: str, data: bytes) -> None:
    with Path(locations.plain(location)).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy_file(disk: Disk, source: Path, target: Path, entry: BackupFile) -> None:
    if backup.write_file(disk, target, disk.pieces(source)) != (entry.size, entry.crc32c):
        raise Corrupt(f"file {entry.path} changed while it was read: nothing usable was restored")
