"""Opening a data folder: the newest valid checkpoint, the journal behind it, the index or its rebuild.

Recovery trims a torn tail and otherwise refuses. Each step is the work of the format that it reads; here is their
order, which keeps a folder recoverable when the power is lost between any two of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lakestore.errors import Corrupt, NewerFormat
from lakestore.limits import DEFAULT, Limits
from lakestore_server.files import checkpoint, data_folder, journal, journal_file
from lakestore_server.files import versions as formats
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.journal import RawFrame
from lakestore_server.files.journal_file import JournalReader, JournalWriter
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index import replay
from lakestore_server.index.key_index import Index
from lakestore_server.index.replay import KeyedRows
from lakestore_server.state.state import State


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
    data_folder.make(disk, folder)
    held = checkpoint.newest(disk, folder) or _first_checkpoint(folder, disk)
    state = held.state(disk, folder, limits)
    data_folder.remove_temporary(disk, folder)
    data_folder.remove_unnamed(disk, folder, held.segment_names())
    reader = JournalReader(disk, folder)
    keyed = [rows for raw in reader.frames(held.lsn) for rows in _applied(raw, state)]
    formats.sign(disk, folder)
    disk.reach(CrashPoint.RECOVERY_REPLAYED)
    index = Index(folder / data_folder.INDEX, disk, limits.index_cache_keys)
    try:
        replay.load(index, keyed, checkpoint_lsn=held.lsn, lsn=state.view.lsn)
        writer = JournalWriter(disk, folder, state.view.lsn + 1)
    except BaseException:
        index.close()
        raise
    writer.since_checkpoint_bytes = reader.nbytes
    return Opened(state, writer, index)


def _first_checkpoint(folder: Path, disk: Disk) -> Checkpoint:
    """A new folder begins with a checkpoint of nothing: it fixes the timeline."""
    if journal_file.names(disk, folder):
        raise Corrupt(f"{folder} has a journal but no checkpoint: restore it from a copy; nothing was changed")
    first = Checkpoint.of(State(uuid.uuid4().hex[:12]).frozen(), {})
    checkpoint.write(disk, folder, first)
    return first


def _applied(raw: RawFrame, state: State) -> Iterator[KeyedRows]:
    """Apply a frame's record; the rows that the index must know."""
    versions = {rows.table: state.view.tables[rows.table].versions for rows in raw.rows()}
    record = journal.decode(raw, lambda uuid, schema_id: versions[uuid].stored(schema_id))
    state.apply(record)
    for part in record.rows:
        table = versions[part.table].numbered(part.schema_id)
        if table.keyed:
            yield KeyedRows(raw.lsn, table, part)
