"""The journal's files: read behind a checkpoint, then one that is open, to which frames are appended and synced.

A failed write is cut off again; a failed sync ends the server.
A new file is durable before its first frame. A torn tail is told from damage by looking for frames behind it: damage
refuses the start. At a start the valid frames of the last file are copied to a new one before anything is served.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakestore.errors import Corrupt, Exhausted
from lakestore_server.files import journal
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.state.commit_record import CommitRecord

PREFIX = "journal-"


def name_of(first_lsn: int) -> str:
    """File name; sorts by LSN."""
    return f"{PREFIX}{first_lsn:020d}"


def names(disk: Disk, folder: Path) -> list[str]:
    """The journal's files, the oldest first."""
    return [name for name in disk.list(folder) if name.startswith(PREFIX)]


class JournalReader:
    """The journal of a folder, read once before anything is written to it."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self.nbytes = 0
        """Bytes of whole frames in the files read so far."""

    def frames(self, after: int) -> Iterator[journal.RawFrame]:
        """The frames behind an LSN; `Corrupt` if one is missing.

        At the end the last file is a copy of its whole frames: those may have been in the page cache only, and nothing
        is served before they are durable.
        """
        found = names(self._disk, self._folder)
        for name in found:
            last = name == found[-1]
            data = self._disk.read(self._folder / name)
            end = 0
            for raw in journal.frames(data, name, last=last):
                if raw.lsn > after:
                    if raw.lsn != after + 1:
                        raise Corrupt(f"journal file {name} goes on at LSN {raw.lsn}, not {after + 1}: one is missing")
                    yield raw
                    after = raw.lsn
                end = raw.end
            self.nbytes += end
            if last:
                self._copy_synced(name, data[:end])

    def _copy_synced(self, name: str, data: bytes) -> None:
        temporary = self._folder / f"{name}.tmp"
        file = self._disk.create(temporary)
        try:
            file.write([data])
            file.sync()
        finally:
            file.close()
        self._disk.reach(CrashPoint.RECOVERY_COPIED)
        if data:
            self._disk.rename(temporary, self._folder / name)
            self._disk.reach(CrashPoint.RECOVERY_RENAMED)
        else:
            self._disk.remove(temporary)
            self._disk.remove(self._folder / name)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.RECOVERY_DURABLE)


@contextmanager
def _full() -> Iterator[None]:
    """A step without which no new file begins, and the old one goes on."""
    try:
        yield
    except OSError as error:
        raise Exhausted(f"no journal file can be begun ({error.strerror}): free space on the disk") from error


class JournalWriter:
    """Owned by the commit loop."""

    def __init__(self, disk: Disk, folder: Path, first_lsn: int) -> None:
        self._disk, self._folder = disk, folder
        self.since_checkpoint_bytes = 0
        self._frozen_bytes = 0
        self._open(first_lsn)

    def _open(self, first_lsn: int) -> None:
        """Begin a file: its header is durable before it has its name, and its name before it has a frame."""
        path = self._folder / name_of(first_lsn)
        aside = path.with_name(f"{path.name}.tmp")
        salt = secrets.randbits(64)
        with _full():
            if aside.name in self._disk.list(self._folder):
                self._disk.remove(aside)
            file = self._disk.create(aside)
            try:
                size = file.write([journal.file_header(salt)])
            except OSError:
                file.close()
                raise
        self._disk.reach(CrashPoint.ROLL_WRITTEN)
        file.sync()
        self._disk.reach(CrashPoint.ROLL_SYNCED)
        with _full():
            self._disk.rename(aside, path)
        self._disk.reach(CrashPoint.ROLL_RENAMED)
        self._disk.sync_folder(self._folder)
        self._disk.reach(CrashPoint.ROLL_DURABLE)
        self._file, self._size, self.salt, self._name = file, size, salt, path.name

    def append(self, record: CommitRecord) -> int:
        """Write and sync one record; its bytes. `Exhausted` if it cannot be written: the file is as before."""
        parts = journal.encode(record, self.salt)
        self._disk.reach(CrashPoint.JOURNAL_READY)
        try:
            written = self._file.write(parts)
        except OSError as error:
            self._file.truncate(self._size)
            self._disk.reach(CrashPoint.JOURNAL_CUT)
            self._file.sync()
            raise Exhausted(f"the journal cannot be written ({error.strerror}): free space on the disk") from error
        self._disk.reach(CrashPoint.JOURNAL_WRITTEN)
        self._file.sync()
        self._disk.reach(CrashPoint.JOURNAL_SYNCED)
        self._size += written
        self.since_checkpoint_bytes += written
        return written

    @property
    def written(self) -> tuple[str, int]:
        """The file that is open, and how much of it is durable."""
        return self._name, self._size

    @property
    def untrimmed_bytes(self) -> int:
        """What a recovery would have to read."""
        return self._frozen_bytes + self.since_checkpoint_bytes

    def trimmed(self) -> None:
        """The checkpoint for which the journal was rolled is durable."""
        self._frozen_bytes = 0

    def roll(self, first_lsn: int) -> None:
        """Go on in a new file: a checkpoint begins here."""
        if self._size > journal.FILE_HEADER_BYTES:
            old = self._file
            self._open(first_lsn)
            old.close()
        self._frozen_bytes += self.since_checkpoint_bytes
        self.since_checkpoint_bytes = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
