"""The data folder: its parts, its lock, and the removal of files that nothing names."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import IO

from lakestore.errors import Conflict, Invalid
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk

SEGMENTS = "segments"
SUFFIX = ".seg"
INDEX = "index"
"""The key index's folder."""


def make(disk: Disk, folder: Path) -> None:
    """Make the folder with its parts, where they are missing."""
    disk.make_folder(folder)
    disk.make_folder(folder / SEGMENTS)
    disk.make_folder(folder / INDEX)


def remove_temporary(disk: Disk, folder: Path) -> None:
    """Remove files that were written aside and never renamed."""
    for name in disk.list(folder):
        if name.endswith(".tmp"):
            disk.remove(folder / name)


def remove_unnamed(disk: Disk, folder: Path, named: Mapping[str, Container[str]]) -> None:
    """Remove segment files that the checkpoint does not name; `named` has the names by the table's uuid."""
    for uuid in disk.list(folder / SEGMENTS):
        if uuid not in named:
            disk.remove_folder(folder / SEGMENTS / uuid)
            continue
        for name in disk.list(folder / SEGMENTS / uuid):
            if name not in named[uuid]:
                disk.remove(folder / SEGMENTS / uuid / name)
                disk.reach(CrashPoint.TRIM_SEGMENT_REMOVED)


def lock_folder(folder: Path) -> IO[str]:
    """Keep a second server out; the lock ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise Invalid(f"the data folder {folder} is, or lies in, a file: name a folder") from error
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise Conflict(f"{folder} is in use by another server") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
