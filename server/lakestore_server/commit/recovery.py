"""Opening a data folder: the newest valid checkpoint, the journal after it, the index or its rebuild.

Recovery trims a torn tail and otherwise refuses. Each step belongs to the format that it reads; this module is the
order that keeps a folder recoverable if the power fails between any two steps.

1. Recovery removes no file before the last journal frame was read.
2. The journal must reach the LSN of every checkpoint file, also of a damaged one, because those commits were
acknowledged.
3. An index is used only if the checkpoint says at which commit it stands and each live row can have an entry.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lakestore.errors import Corrupt, NewerFormat
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore_server.files import checkpoint, data_folder, journal_file
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.journal import decode, nbytes_of, raw_of
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host import versions as formats
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.collisions import Entries, replayed
from lakestore_server.index.entry import ServedTables, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import NumberKeys, encoded
from lakestore_server.index.run import Run
from lakestore_server.index.run_file import NamedRuns
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.commit_record import Entry, Journal, LocalJournal, RowsPart
from lakestore_server.state.state import State
from lakestore_server.state.view import View


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a keyed table in one commit of the journal."""

    lsn: int
    table: Table
    part: RowsPart

    def entries(self) -> Entries:
        part, table = self.part, self.table
        columns = [part.batch.column(name) for name in table.primary_key]
        offsets = np.arange(part.start, part.end, dtype=np.int64)
        deletes = part.batch.column(CHANGE).to_numpy() == DELETE
        keys = encoded(columns, table_prefix(table.number))
        remembers = table.merge.engine == "versioned"
        return replayed(keys, offsets, deletes, part.bucket, part.slots, remembers=remembers)


def load(index: Index, rows: Iterable[KeyedRows], live: Mapping[bytes, int], *, checkpoint_lsn: int, lsn: int) -> None:
    """Put the journal's rows over the runs, or have the index rebuilt beside serving. `lsn` is the newest commit;
    `live` has the live rows of each table at the index's commit. An existing entry of a byte key stays: a rebuild may
    have given the key another slot than the frame."""
    if index.ready and not checkpoint_lsn <= index.lsn <= index.entries_lsn <= lsn:
        index.found_problem(f"it stands at {index.lsn}, the checkpoint at {checkpoint_lsn}", damaged=False)
    index.compare(live)
    if not index.ready:
        return
    held_lsn = index.held_lsn
    for part in rows:
        entries = part.entries()
        if part.lsn > held_lsn or isinstance(entries.keys, NumberKeys):  # repeated entries do no harm
            with index.lock:
                index.put(entries.keys, entries.values)


@dataclass(slots=True)
class Opened:
    """A folder ready to serve."""

    state: State
    journal: LocalJournal
    index: Index
    journal_bytes: int
    """Bytes of the records after the checkpoint."""
    parts: Sequence[str] = ()
    """Parts of the commits after the checkpoint."""


JournalOf = Callable[[Disk, Path], LocalJournal]
"""Returns the journal of a folder."""
Beside = Callable[[View, Sequence[Run]], None]
"""Called with the content of a checkpoint before the journal after it is replayed."""


def open_folder(
    folder: Path,
    disk: Disk,
    limits: Limits = DEFAULT,
    journal_of: JournalOf = FileJournal,
    beside: Beside = lambda *_: None,
) -> Opened:
    """Recover a folder, or begin an empty one."""
    try:
        return _open(folder, disk, limits, journal_of(disk, folder), beside)
    except NewerFormat as error:
        raise formats.with_release(error, disk, folder) from error


def _open(folder: Path, disk: Disk, limits: Limits, journal: LocalJournal, beside: Beside) -> Opened:
    data_folder.make(disk, folder)
    held = checkpoint.newest(disk, folder) or _first_checkpoint(folder, disk)
    state = held.state(disk, folder, limits)
    index = Index(
        folder=folder / data_folder.INDEX,
        disk=disk,
        cache_keys_max=limits.index_cache_keys,
        runs=held.runs,
        checkpoint_lsn=held.lsn,
        index_lsn=held.index_lsn,
        disk_free_bytes=limits.disk_free_bytes,
    )
    beside(state.view, index.runs)
    keyed: list[KeyedRows] = []
    parts: list[str] = []
    journal_bytes = 0
    live = _live_rows(state.view)
    for entry in _entries(journal, held.lsn, folder, disk):
        keyed += _applied(entry, state, parts)
        journal_bytes += nbytes_of(entry.record)
        if entry.lsn == index.entries_lsn:
            live = _live_rows(state.view)
    formats.sign(disk, folder)
    disk.reach(CrashPoint.RECOVERY_REPLAYED)
    load(index, keyed, live, checkpoint_lsn=held.lsn, lsn=state.view.lsn)
    journal.roll(state.view.lsn + 1)
    data_folder.remove_unnamed(disk, folder, held.segment_names())
    index.replayed(held.runs, served_tables(state.view, state.next_number))
    return Opened(state, journal, index, journal_bytes, parts)


def _entries(journal: Journal, after: int, folder: Path, disk: Disk) -> Iterator[Entry]:
    """All records after an LSN; then the journal belongs to this server. Nothing changes before all of it was read."""
    last = after
    for entry in journal.read(journal.place_after(after)):
        last = entry.lsn
        yield entry
    _check_reached(disk, folder, last)
    data_folder.remove_temporary(disk, folder)
    yield from journal.lead("")


def _check_reached(disk: Disk, folder: Path, lsn: int) -> None:
    """`Corrupt` if the journal ends below a checkpoint's LSN: the commits in between were acknowledged."""
    for name in checkpoint.names(disk, folder):
        if name > checkpoint.name_of(lsn):
            ended = f"checkpoint file {name} is damaged, and the journal of the one before it ends at LSN {lsn}"
            raise Corrupt(f"{ended}: restore the file from a copy or a backup; nothing was changed")


def served_tables(view: View, next_number: int) -> ServedTables:
    """The tables of a view whose keys the index needs, and all later tables, from a number on."""
    keyed = (state.table for state in view.kept.values() if state.table.keyed)
    return ServedTables(frozenset(table_prefix(table.number) for table in keyed), table_prefix(next_number))


def _live_rows(view: View) -> dict[bytes, int]:
    keyed = (state for state in view.kept.values() if state.table.keyed)
    return {table_prefix(state.table.number): sum(log.at_head.live_rows for log in state.logs) for state in keyed}


def _first_checkpoint(folder: Path, disk: Disk) -> Checkpoint:
    """Begin a new folder with an empty checkpoint, which fixes the timeline."""
    if journal_file.names(disk, folder):
        raise Corrupt(f"{folder} has a journal but no checkpoint: restore it from a copy; nothing was changed")
    first = Checkpoint.of(State(uuid.uuid4().hex[:12]).frozen(), {}, NamedRuns(lsn=0))
    checkpoint.write(disk, folder, first)
    return first


def _applied(entry: Entry, state: State, parts: list[str]) -> Iterator[KeyedRows]:
    """Apply a record; yields the rows for the index and adds its parts to `parts`."""
    raw = raw_of(entry.lsn, entry.record)
    versions = {rows.table: state.view.tables[rows.table].versions for rows in raw.rows()}
    record = decode(raw, lambda uuid, schema_id: versions[uuid].stored(schema_id))
    state.apply(record)
    parts += record.parts
    for part in record.rows:
        table = versions[part.table].numbered(part.schema_id)
        if table.keyed:
            yield KeyedRows(raw.lsn, table, part)
