"""The journal as files of the data folder: records are framed, appended and synced, several with one sync.

- A failed write is cut off, and the cut is synced. A failed sync ends the journal.
- A new file is durable before its first frame. Before anything is served, the valid frames of the last file are copied
  to a new file.
- A torn tail differs from damage: no complete, later frame follows it. Damage refuses the start.
- The lock of the data folder is the claim to the journal. The server takes it before it reads anything, so the epoch is
  always 1.
- The place after an LSN is the name of the file that begins with the next LSN. A record is one frame, however long.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore.errors import Corrupt, Exhausted, Invalid
from lakestore.rows.ipc import crc32c
from lakestore_server.files import journal
from lakestore_server.files.data_folder import whole_files
from lakestore_server.files.journal import FileHead, RowsHead
from lakestore_server.files.segment import BLOCK, extended, joined
from lakestore_server.host import priority
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import AppendFile, Disk
from lakestore_server.state.commit_record import (
    BEGINNING,
    Buffer,
    Entry,
    JournalFile,
    Leader,
    NotWritten,
    PartPlace,
    Place,
    Plain,
    RowsMessage,
    Unknown,
    plain,
)


class SyncThread:
    """Syncs one file at a time in a thread of its own, which starts with the first sync. Users hold no lock while
    they wait.
    """

    def __init__(self, changed: threading.Condition) -> None:
        """`changed` is notified at the end of each sync."""
        self._changed = changed
        self._wanted = threading.Condition()
        """Separate from `changed`, so that appended records do not wake the thread."""
        self._file: AppendFile | None = None
        self._failure: BaseException | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """Whether no sync is running."""
        return self._file is None

    def begin(self, file: AppendFile) -> None:
        """Begin to sync what the file contains now."""
        with self._wanted:
            assert self._file is None, "one sync at a time"
            self._file, self._failure = file, None
            self._wanted.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-disk", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for the end of the sync. Raises the sync's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._file is None)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the thread after the running sync."""
        with self._wanted:
            self._is_closed = True
            self._wanted.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        priority.take_short_turns()
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._file is not None or self._is_closed)
                file = self._file
            if file is None:
                return
            failure: BaseException | None = None
            try:
                file.sync()
            except BaseException as error:  # the boundary of the thread: `finish` raises it
                failure = error
            with self._changed:
                self._file, self._failure = None, failure
                self._changed.notify_all()


UNSYNCED_MAX = (1 << 16) - 1


class Frame(NamedTuple):
    """A frame to write."""

    parts: list[Plain]
    """The frame's bytes, in order."""
    body_at: int
    """Position of the body in the frame."""
    crcs: dict[int, npt.NDArray[np.uint32]]
    """Checksums of the blocks of large batches, by the position of the batch in the body."""


def framed(lsn: int, record: Sequence[Buffer], salt: int, unsynced: int = 0) -> Frame:
    """The frame of a record. `salt` is the file's; `unsynced` frames before it are not durable yet."""
    meta, *parts = record
    sizes = len(meta), journal.nbytes_of(parts)
    header = journal.HEADER.pack(journal.MAGIC, journal.VERSION, min(unsynced, UNSYNCED_MAX), lsn, *sizes, salt)
    crc = crc32c(meta, crc32c(header))
    crcs: dict[int, npt.NDArray[np.uint32]] = {}
    body: list[Plain] = []
    at = 0
    for part in parts:
        data = plain(part)
        if isinstance(data, pa.Buffer) and data.size >= BLOCK:
            known = part.crcs if isinstance(part, RowsMessage) else None
            crc, crcs[at] = extended(data, crc) if known is None else (joined(crc, data, known), known)
        else:
            crc = crc32c(data, crc)
        body.append(data)
        at += journal.nbytes_of((data,))
    head = (header + journal.CRC.pack(crc)).ljust(journal.HEADER_BYTES, b"\0")
    padding = journal.PADDING[: -len(meta) % 64]
    return Frame([head, plain(meta), padding, *body], len(head) + len(meta) + len(padding), crcs)


@dataclass(frozen=True, slots=True)
class KnownFrame:
    """A frame with large batches that this process wrote."""

    body_at: int
    """Position of its body in the file."""
    end: int
    """Position of the next frame."""
    meta: bytes
    crcs: Mapping[int, npt.NDArray[np.uint32]]
    """The checksum of each block of large batches, by the position of the batch in the body."""

    def rows(self) -> list[RowsHead]:
        return journal.rows_of(orjson.loads(self.meta))


def file_of(path: Path, data: pa.Buffer, bytes_min: int, known: Mapping[int, KnownFrame]) -> JournalFile:
    """A journal file with the positions of its batches of at least `bytes_min` bytes."""
    return JournalFile(path, data, tuple(_places(path.name, data, bytes_min, known)))


def _places(name: str, data: pa.Buffer, bytes_min: int, known: Mapping[int, KnownFrame]) -> Iterator[PartPlace]:
    view = memoryview(data)
    head = journal.head_of(bytes(view[: journal.FILE_HEADER_BYTES]), name)
    at = journal.FILE_HEADER_BYTES if head is not None and head.version == journal.VERSION else len(view)
    while head is not None and at < len(view):
        frame = known.get(at) or _read(data, view, at, bytes_min, head)
        if frame is None:
            return
        for rows in frame.rows():
            if rows.nbytes >= bytes_min:
                about = rows.table, rows.bucket, rows.start, rows.count
                yield PartPlace(*about, frame.body_at + rows.at, rows.nbytes, frame.crcs.get(rows.at))
        at = frame.end


def _read(data: pa.Buffer, view: memoryview, at: int, bytes_min: int, file: FileHead) -> KnownFrame | None:
    """The frame at a position of a mapped file; None if it is not complete. Without meta if the frame is too small
    to have a batch of `bytes_min` bytes.
    """
    head = journal.frame_head(bytes(view[at : at + journal.HEADER_BYTES]), 0)
    if head is None or (head.salt, head.version) != (file.salt, file.version):
        return None
    body_at = at + journal.HEADER_BYTES + head.meta_bytes + head.padding
    if head.body_bytes < bytes_min:
        return KnownFrame(body_at, body_at + head.body_bytes, b"{}", {})
    whole = journal.frame_at(data, view, at)
    return None if whole is None else KnownFrame(body_at, whole.end, bytes(whole.head), {})


PREFIX = "journal-"
AHEAD_BYTES = 1 << 20
"""A sync of at least this many bytes runs in a thread, while further records are written."""
NEXT = "next-journal.tmp"
"""The temporary name of the file that is prepared."""


def name_of(first_lsn: int) -> str:
    """The file name. Names sort by LSN."""
    return f"{PREFIX}{first_lsn:020d}"


def names(disk: Disk, folder: Path) -> list[str]:
    """The names of the journal's files, oldest first."""
    return whole_files(disk, folder, PREFIX)


def _gap(name: str, lsn: int, wanted: int) -> Corrupt:
    said = f"journal file {name} goes on at LSN {lsn}, not {wanted}: one is missing"
    return Corrupt(f"{said}: restore it from a copy or a backup; nothing was changed")


@contextmanager
def _old_file_stays() -> Iterator[None]:
    """A step of beginning a new file. If it fails, the journal continues in the old file."""
    try:
        yield
    except OSError as error:
        raise Exhausted(f"a new journal file cannot be created ({error.strerror}): free space on the disk") from error


class FileJournal:
    """`LocalJournal` in one folder. Its server leads from the start."""

    settles_in_place, is_shared, lease_seconds = True, False, 0.0
    silence_seconds, void, gaps = 0.0, 0, 0
    kind, leader, replicas, heard, warehouse, leaders_warehouse = "file", Leader(), (), 0.0, "", ""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._file: AppendFile | None = None
        self._salt = 0
        self._next: tuple[AppendFile, int] | None = None
        """The prepared file and its salt."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Sequence[Buffer]]] = deque()
        """Appended records that are not durable. Changed under the lock."""
        self._wrote = self._size = 0
        """(number of waiting records that are written, end of the last of them in the file)."""
        self._sync = SyncThread(self._changed)
        self._syncing: tuple[int, int] | None = None
        """(records written, end of the last) when the running sync began; None if no sync runs."""
        self._last = self._durable = 0
        """LSNs of the last appended record and of the last durable one."""
        self._refusal: NotWritten | None = None
        """The error for records that could not be written. The next `durable` raises it."""
        self._lost: Unknown | None = None
        self.written = ("", 0)
        """(name of the open file, number of its bytes that are durable)."""
        self._known: dict[str, dict[int, KnownFrame]] = {}
        """Large frames written by this process, by file name and position."""
        self._tail: tuple[str, bytes] | None = None
        """(name, complete frames) of the last file found at the start, until they are durable again."""

    def timeline(self) -> str:
        """A new one at each call."""
        return uuid.uuid4().hex[:12]

    def read(self, lsn: int, place: Place = BEGINNING) -> Iterator[Entry]:
        """The records after an LSN. Raises `Corrupt` if one is missing or damaged. A torn tail ends the last file.

        A file's name contains the LSN of its first record, so a missing file is noticed even if no record follows it.
        Checkpoints of older releases have no place.
        """
        if place and not place.startswith(PREFIX):
            raise Invalid(f"this folder continues the journal {place}, not files: start with the `journal:` as before")
        after = name_of(lsn + 1)
        found = [name for name in names(self._disk, self._folder) if name >= after]
        if not found and lsn:  # in a new folder, the checkpoint of LSN 0 comes before the first journal file
            raise Corrupt(f"there is no journal file {after}: restore it from a copy or a backup; nothing was changed")
        for name in found:
            if name != name_of(lsn + 1):
                raise _gap(name, int(name.removeprefix(PREFIX)), lsn + 1)
            data, end = self._disk.read(self._folder / name), 0
            for frame in journal.frames(data, name, last=name == found[-1]):
                if frame.lsn != lsn + 1:
                    raise _gap(name, frame.lsn, lsn + 1)
                lsn, end = frame.lsn, frame.end
                yield Entry(lsn, (frame.head, frame.body), Place(name))
            self._tail = name, data[:end]

    def lead(self, address: str, http: str = "") -> Iterator[Entry]:
        """Make durable what `read` returned: it may have been in the page cache only. Returns no further records."""
        if self._tail is not None and self._tail[1]:
            self._copy_synced(*self._tail)
        self._tail = None  # a file without a record stays until `roll` writes a new file of the same name
        return iter(())

    def follow(self, seconds: float) -> Iterator[Entry]:
        """Nobody else appends."""
        return iter(())

    def follow_again(self) -> None:
        """A failed file is not read again."""

    def beat(self, address: str, http: str = "") -> None:
        """Nobody listens."""

    def confirm(self) -> None:
        """Nobody else ever leads."""

    def leave(self) -> None:
        """Nobody waits."""

    def _copy_synced(self, name: str, data: bytes) -> None:
        """Copy the complete frames of the last file to a new file of that name, without the torn tail."""
        temporary = self._folder / f"{name}.tmp"
        file = self._disk.create(temporary)
        try:
            file.write([data])
            file.sync()
        finally:
            file.close()
        self._disk.reach(CrashPoint.RECOVERY_COPIED)
        self._disk.rename(temporary, self._folder / name)
        self._disk.reach(CrashPoint.RECOVERY_RENAMED)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.RECOVERY_DURABLE)

    def roll(self, first_lsn: int) -> Place:
        """Begin a new file, unless the open file has no record yet."""
        if self._file is None or self.written[1] > journal.FILE_HEADER_BYTES:
            old = self._file
            self._open(first_lsn)
            if old is not None:
                old.close()
        self._last = self._durable = first_lsn - 1
        return Place(self.written[0])

    def prepare(self) -> None:
        """Write and sync the next file, so that `roll` only renames it. May run in parallel to `append`, in one
        thread.
        """
        if self._next is None and self.written[1] > journal.FILE_HEADER_BYTES:
            self._next = self._prepared()

    def _prepared(self) -> tuple[AppendFile, int]:
        """A file with a durable header, and its salt."""
        aside = self._folder / NEXT
        salt = secrets.randbits(64)
        with _old_file_stays():
            if aside.name in self._disk.list(self._folder):
                self._disk.remove(aside)
            file = self._disk.create(aside, is_cached=False)
            try:
                file.write([journal.file_header(salt)])
                self._disk.reach(CrashPoint.ROLL_WRITTEN)
                file.sync()
            except OSError:
                file.close()
                raise
        self._disk.reach(CrashPoint.ROLL_SYNCED)
        return file, salt

    def _open(self, first_lsn: int) -> None:
        """Begin a file. Its header is durable before it gets its name, and its name before its first frame."""
        path = self._folder / name_of(first_lsn)
        file, salt = self._next = self._next or self._prepared()
        with _old_file_stays():
            self._disk.rename(self._folder / NEXT, path)
        self._next = None
        self._disk.reach(CrashPoint.ROLL_RENAMED)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.ROLL_DURABLE)
        self._file, self._salt, self.written = file, salt, (path.name, journal.FILE_HEADER_BYTES)
        self._wrote, self._size = 0, journal.FILE_HEADER_BYTES

    def append(self, lsn: int, record: Sequence[Buffer]) -> None:
        """Queue a record. `settle` writes it."""
        with self._changed:
            if lsn != self._last + 1:
                raise NotWritten(self._last + 1, "an earlier record of the journal was not written: try again")
            self._last = lsn
            self._waiting.append((lsn, record))
            self._changed.notify_all()

    def durable(self) -> int:
        """The LSN of the last synced record."""
        if self._lost is not None:
            raise self._lost
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        return self._durable

    def settle(self, beyond: int) -> int:
        """Write and sync all queued records. Returns the LSN of the last durable one, which is above `beyond`."""
        if self._durable > beyond:
            return self._durable
        if self.durable() <= beyond:
            try:
                self._settle()
            except OSError as error:
                self._lost = Unknown(f"the journal cannot be synced: {error}")
                raise self._lost from error
        return self._durable if self._durable > beyond else self.durable()

    def _settle(self) -> None:
        """Sync more records: directly, or in the thread while further records are written, if there are many bytes
        to sync.
        """
        self._write()
        if self._syncing is None and self._refusal is None and self._size - self.written[1] >= AHEAD_BYTES:
            self._begin_sync()
        while self._syncing is not None and not self._sync.is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._sync.is_over or len(self._waiting) > self._wrote)
            if not self._sync.is_over:
                self._write()
        if self._syncing is None:
            assert self._file is not None, "the journal was rolled before it was appended to"
            self._file.sync()
            self._mark_durable(self._wrote, self._size)
        else:
            self._end_sync()
            if self._wrote:
                self._begin_sync()

    def _write(self) -> None:
        """Write all queued records. If one fails, it and all later ones are given back."""
        assert self._file is not None, "the journal was rolled before it was appended to"
        with self._changed:
            batch = tuple(islice(self._waiting, self._wrote, None))
        for lsn, record in batch:
            frame, at = framed(lsn, record, self._salt, self._wrote), self._size
            self._disk.reach(CrashPoint.JOURNAL_READY)
            try:
                self._size += self._file.write(frame.parts)
            except OSError as error:
                if self._syncing is not None:
                    self._end_sync()
                self._file.truncate(self._size)
                self._disk.reach(CrashPoint.JOURNAL_CUT)
                self._give_back(self._wrote, lsn, error)
                return
            self._disk.reach(CrashPoint.JOURNAL_WRITTEN)
            self._wrote += 1
            if frame.crcs:
                known = KnownFrame(at + frame.body_at, self._size, bytes(frame.parts[1]), frame.crcs)
                self._known.setdefault(self.written[0], {})[at] = known

    def _begin_sync(self) -> None:
        assert self._file is not None
        self._syncing = self._wrote, self._size
        self._sync.begin(self._file)

    def _end_sync(self) -> None:
        """Wait for the running sync. What was written before it began is durable then."""
        assert self._syncing is not None
        (written, size), self._syncing = self._syncing, None
        self._sync.finish()
        self._mark_durable(written, size)

    def _mark_durable(self, written: int, size: int) -> None:
        """Mark the first `written` queued records, and `size` bytes of the file, as durable."""
        if not written:
            return
        self._disk.reach(CrashPoint.JOURNAL_SYNCED)
        self.written = self.written[0], size
        self._wrote -= written
        with self._changed:
            for _ in range(written):
                self._durable, _ = self._waiting.popleft()

    def _give_back(self, written: int, lsn: int, error: OSError) -> None:
        """Drop the records from `lsn` on, which could not be written. `durable` reports this after the cut before
        them is synced.
        """
        said = f"the journal cannot be written ({error.strerror}): free space on the disk"
        with self._changed:
            while len(self._waiting) > written:
                self._waiting.pop()
            self._last = lsn - 1
        self._refusal = NotWritten(lsn, said)

    def files(self, below: Place, bytes_min: int) -> Iterator[JournalFile]:
        """The files below a place. May run in parallel to `append`, which writes to a later file."""
        for name in names(self._disk, self._folder):
            path = self._folder / name
            if name < below and self._disk.size(path):
                yield file_of(path, self._disk.map(path), bytes_min, self._known.get(name, {}))

    def trim(self, below: Place) -> None:
        """Remove the files below a place."""
        for name in names(self._disk, self._folder):
            if name < below:
                self._disk.remove(self._folder / name)
                self._known.pop(name, None)
                self._disk.reach(CrashPoint.TRIM_FILE_REMOVED)

    def close(self) -> None:
        """Close the files. A prepared file is removed now, or at the next start."""
        self._sync.close()
        if self._file is not None:
            self._file.close()
        if self._next is not None:
            self._next[0].close()
            with suppress(OSError):
                self._disk.remove(self._folder / NEXT)
