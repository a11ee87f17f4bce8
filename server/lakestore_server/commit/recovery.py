"""Opening a data folder: the newest valid checkpoint, the journal behind it, the index or its rebuild.

Recovery trims a torn tail and otherwise refuses; the frames of the last journal file are copied to a new file and
synced before anything is served, for what was read may have been in the page cache only.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lakestore.errors import Corrupt, NewerFormat
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore_server.files import checkpoint, journal, journal_file
from lakestore_server.files import versions as formats
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.data_folder import SEGMENTS, remove_unnamed
from lakestore_server.files.journal import RawFrame
from lakestore_server.files.journal_file import JournalWriter
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.collisions import Entries, replayed
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import encoded
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.commit_record import RowsPart
from lakestore_server.state.state import State

log = logging.getLogger("lakestore.recovery")


@dataclass(slots=True)
class Opened:
    """A folder ready to serve."""

    state: State
    journal: JournalWriter
    index: Index


def open_folder(folder: Path, disk: Disk, limits: Limits = DEFAULT) -> Opened:
    """Recover, or begin an empty folder."""
    try:
        return _open(folder, disk, limits)
    except NewerFormat as error:
        raise formats.with_release(error, disk, folder) from error


def _open(folder: Path, disk: Disk, limits: Limits) -> Opened:
    disk.make_folder(folder)
    disk.make_folder(folder / SEGMENTS)
    disk.make_folder(folder / "index")
    held = checkpoint.newest(disk, folder) or _first_checkpoint(folder, disk)
    state = held.state(disk, folder, limits)
    _remove_temporary(disk, folder)
    remove_unnamed(disk, folder, held.segment_names())
    stored, journal_bytes = _replay(folder, disk, state)
    formats.sign(disk, folder)
    disk.reach(CrashPoint.RECOVERY_REPLAYED)
    index = Index(folder / "index", disk, limits.index_cache_keys)
    try:
        _load_index(index, state, stored, held.lsn)
        writer = JournalWriter(disk, folder, state.view.lsn + 1)
    except BaseException:
        index.close()
        raise
    writer.since_checkpoint_bytes = journal_bytes
    return Opened(state, writer, index)


def _first_checkpoint(folder: Path, disk: Disk) -> Checkpoint:
    """A new folder begins with a checkpoint of nothing: it fixes the timeline."""
    if any(name.startswith(journal_file.PREFIX) for name in disk.list(folder)):
        raise Corrupt(f"{folder} has a journal but no checkpoint: restore it from a copy; nothing was changed")
    first = Checkpoint.of(State(uuid.uuid4().hex[:12]).frozen(), {})
    checkpoint.write(disk, folder, first)
    return first


def _remove_temporary(disk: Disk, folder: Path) -> None:
    for name in disk.list(folder):
        if name.endswith(".tmp"):
            disk.remove(folder / name)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Rows of a primary-key table that the journal brought."""

    lsn: int
    table: Table
    part: RowsPart


def _replay(folder: Path, disk: Disk, state: State) -> tuple[list[_Stored], int]:
    """Apply the journal behind the checkpoint: (the rows that the index must know, its bytes)."""
    names = [name for name in disk.list(folder) if name.startswith(journal_file.PREFIX)]
    stored: list[_Stored] = []
    total = 0
    for name in names:
        last = name == names[-1]
        data = disk.read(folder / name)
        end = 0
        for raw in journal.frames(data, name, last=last):
            if raw.lsn > state.view.lsn:
                if raw.lsn != state.view.lsn + 1:
                    raise Corrupt(
                        f"journal file {name} goes on at LSN {raw.lsn}, not {state.view.lsn + 1}: one is missing"
                    )
                _apply(raw, state, stored)
            end = raw.end
        total += end
        if last:
            _copy_synced(folder, disk, name, data[:end])
    return stored, total


def _copy_synced(folder: Path, disk: Disk, name: str, data: bytes) -> None:
    temporary = folder / f"{name}.tmp"
    file = disk.create(temporary)
    try:
        file.write([data])
        file.sync()
    finally:
        file.close()
    disk.reach(CrashPoint.RECOVERY_COPIED)
    if data:
        disk.rename(temporary, folder / name)
        disk.reach(CrashPoint.RECOVERY_RENAMED)
    else:
        disk.remove(temporary)
        disk.remove(folder / name)
    disk.sync_folder(folder)
    disk.reach(CrashPoint.RECOVERY_DURABLE)


def _apply(raw: RawFrame, state: State, stored: list[_Stored]) -> None:
    versions = {rows.table: state.view.tables[rows.table].versions for rows in raw.rows()}
    record = journal.decode(raw, lambda uuid, schema_id: versions[uuid].stored(schema_id))
    for part in record.rows:
        table = versions[part.table].numbered(part.schema_id)
        if table.keyed:
            stored.append(_Stored(raw.lsn, table, part))
    state.apply(record)


def _entries(rows: _Stored) -> Entries:
    """Index entries of a stored batch."""
    part = rows.part
    columns = [part.batch.column(name) for name in rows.table.primary_key]
    offsets = np.arange(part.start, part.end, dtype=np.int64)
    deletes = part.batch.column(CHANGE).to_numpy() == DELETE
    known = encoded(columns, table_prefix(rows.table.number))
    remembers = rows.table.merge.engine == "versioned"
    return replayed(known, offsets, deletes, part.bucket, part.slots, remembers=remembers)


def _load_index(index: Index, state: State, stored: list[_Stored], checkpoint_lsn: int) -> None:
    """Put what the journal says over LMDB, or have the index rebuilt beside serving.

    What LMDB holds stays as it is there: a rebuild may have given a key another slot than its frame says.
    """
    if index.ready and index.lsn < 0 and state.view.lsn == 0:
        index.finish_rebuild(0, {})
    elif index.ready and not checkpoint_lsn <= index.lsn <= state.view.lsn:
        what = "it is lost" if index.lsn < 0 else f"it stands at {index.lsn}, the checkpoint at {checkpoint_lsn}"
        index.found_problem(what, damaged=False)
    if not index.ready:
        return
    for rows in stored:
        if rows.lsn > index.lsn:
            entries = _entries(rows)
            with index.lock:
                index.put(entries.keys, entries.values)
