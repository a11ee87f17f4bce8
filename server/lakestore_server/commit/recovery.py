"""Opening a data folder: the newest valid checkpoint, the journal after it, the index or its rebuild.

Recovery trims a torn tail and otherwise refuses. Each step belongs to the format that it reads; this module is the
order that keeps a folder recoverable if the power fails between any two steps.

1. Recovery removes no file before the last journal frame was read.
2. The journal must reach the LSN of every checkpoint file, also of a damaged one, because those commits were
acknowledged.
3. An index is used only if the checkpoint says at which commit it stands and each live row can have an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from lakestore.errors import Corrupt, NewerFormat
from lakestore.limits import DEFAULT, Limits
from lakestore_server.commit.replay import KeyedRows, own_entries, record_of
from lakestore_server.files import checkpoint, data_folder, journal_file
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.journal import nbytes_of
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host import versions as formats
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.entry import ServedTables, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import NumberKeys
from lakestore_server.index.run import Run
from lakestore_server.index.run_file import NamedRuns
from lakestore_server.state.commit_record import Entry, Journal, LocalJournal
from lakestore_server.state.state import State
from lakestore_server.state.view import View


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
class OpenFolder:
    """A folder ready to serve."""

    state: State
    journal: LocalJournal
    index: Index
    journal_bytes: int
    """Bytes of the records after the checkpoint."""
    parts: Sequence[str] = ()
    """Parts of durable commits whose files may still be there."""


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
) -> OpenFolder:
    """Recover a folder, or begin an empty one."""
    try:
        return _open(folder, disk, limits, journal_of(disk, folder), beside)
    except NewerFormat as error:
        raise formats.with_release(error, disk, folder) from error


def _open(folder: Path, disk: Disk, limits: Limits, journal: LocalJournal, beside: Beside) -> OpenFolder:
    data_folder.make(disk, folder)
    held = checkpoint.newest(disk, folder) or _first_checkpoint(folder, disk, journal.timeline())
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
    parts = list(held.parts)
    journal_bytes = 0
    live = _live_rows(state.view)
    for entry in _entries(journal, held, folder, disk):
        record, rows = record_of(entry, state.view)
        state.apply(record)
        keyed += rows
        parts += record.parts
        journal_bytes += nbytes_of(entry.record)
        if entry.lsn == index.entries_lsn:
            live = _live_rows(state.view)
    formats.sign(disk, folder)
    disk.reach(CrashPoint.RECOVERY_REPLAYED)
    if journal.is_shared:
        load(index, [], live, checkpoint_lsn=held.lsn, lsn=state.view.lsn)
        _put_own(index, keyed, state.view)
    else:
        load(index, keyed, live, checkpoint_lsn=held.lsn, lsn=state.view.lsn)
    journal.roll(state.view.lsn + 1)
    data_folder.remove_unlisted_files(disk, folder, held.segment_names())
    index.replayed(held.runs, served_tables(state.view, state.next_number))
    return OpenFolder(state, journal, index, journal_bytes, parts)


def _entries(journal: Journal, held: Checkpoint, folder: Path, disk: Disk) -> Iterator[Entry]:
    """All records after a checkpoint; then a journal that is not shared belongs to this server. Nothing changes before
    all of it was read."""
    last = held.lsn
    for entry in journal.read(held.lsn, held.place):
        last = entry.lsn
        yield entry
    _check_reached(disk, folder, last)
    data_folder.remove_temporary(disk, folder)
    if not journal.is_shared:
        yield from journal.lead("")


def _put_own(index: Index, rows: Iterable[KeyedRows], view: View) -> None:
    """Put the rows of a shared journal over the runs, commit by commit."""
    for _, commit in groupby(rows, key=lambda each: each.lsn) if index.ready else ():
        for keys, values in own_entries(list(commit), view, index):
            with index.lock:
                index.put(keys, values)


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


def _first_checkpoint(folder: Path, disk: Disk, timeline: str) -> Checkpoint:
    """Begin a new folder with an empty checkpoint, which fixes the timeline."""
    if journal_file.names(disk, folder):
        raise Corrupt(f"{folder} has a journal but no checkpoint: restore it from a copy; nothing was changed")
    first = Checkpoint.of(State(timeline).frozen(), {}, NamedRuns(lsn=0))
    checkpoint.write(disk, folder, first)
    return first
