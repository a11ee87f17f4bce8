"""The open journal file: frames are appended and synced.

A failed write is cut off again; a failed sync ends the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lakestore.errors import Exhausted
from lakestore.server.disk import Disk

PREFIX = "journal-"


def name_of(first_lsn: int) -> str:
    """File name; sorts by LSN."""
    return f"{PREFIX}{first_lsn:020d}"


class JournalWriter:
    """Owned by the commit loop."""

    def __init__(self, disk: Disk, folder: Path, first_lsn: int) -> None:
        self._disk, self._folder = disk, folder
        self.since_checkpoint_bytes = 0
        self._frozen_bytes = 0
        self._open(first_lsn)

    def _open(self, first_lsn: int) -> None:
        self._file = self._disk.create(self._folder / name_of(first_lsn))
        self._disk.sync_folder(self._folder)
        self._size = 0

    def append(self, parts: Sequence[Any]) -> int:
        """Write and sync one frame; its bytes. `Exhausted` if it cannot be written: the file is as before."""
        try:
            written = self._file.write(parts)
        except OSError as error:
            self._file.truncate(self._size)
            self._file.sync()
            raise Exhausted(f"the journal cannot be written ({error.strerror}): free space on the disk") from error
        self._file.sync()
        self._size += written
        self.since_checkpoint_bytes += written
        return written

    @property
    def untrimmed_bytes(self) -> int:
        """What a recovery would have to read."""
        return self._frozen_bytes + self.since_checkpoint_bytes

    def trimmed(self) -> None:
        """The checkpoint for which the journal was rolled is durable."""
        self._frozen_bytes = 0

    def roll(self, first_lsn: int) -> None:
        """Go on in a new file: a checkpoint begins here."""
        self._frozen_bytes += self.since_checkpoint_bytes
        if self._size:
            old = self._file
            self._open(first_lsn)
            old.close()
        self.since_checkpoint_bytes = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
