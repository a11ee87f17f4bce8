"""The data folder: its subfolders, file modes and lock, and the removal of files that nothing refers to."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import struct
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import IO

from lakestore.errors import Conflict, Invalid
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import FILE_MODE, FOLDER_MODE, Disk

log = logging.getLogger("lakestore.folder")

SEGMENTS = "segments"
SHARED = "shared"
"""The folder of files with segments of several tables. It lies beside the tables' folders."""
EXTENTS = "extents"
"""The folder of journal files that are kept because segments refer to their rows. It lies beside the tables'
folders.
"""
SUFFIX = ".seg"
INDEX = "index"
"""The folder of the key index."""
DERIVED = "cache/derived"
"""The folder of the derived cache. All of it can be rebuilt from the lake."""
OFFSETS = "cache/offsets"
"""The folder of offset indexes of releases before 0.4. The server removes it."""
LOCK = "lock"
_PORTS = " ports "
"""Separates the process id in the lock file from the addresses of the ports."""
LAKE_HELD = "lake-held"
"""The folder of links to the lake's files while a backup copies them."""
RESTORING = "restoring"
"""A file that exists until a restore or a copy is complete."""
MOVED = "moved-journal"
"""A file of a folder whose journal was moved into a log, until its server has seen or written the warehouse's mark."""
COPY_MARK = b"copy\n"
"""The content of this file while a server copies the checkpoint of another one, which it continues after a restart."""
_MARK = "description-lock"
"""Written to the lock file since release 0.3: the last server here took a lock of an open file description."""
_LOCK_MODE, _LOCK_CHARS_MAX = 0o600, 256
_NO_SUCH_LOCK = (errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def make(disk: Disk, folder: Path) -> None:
    """Create the folder and its subfolders as far as they are missing."""
    disk.make_folder(folder)
    disk.make_folder(folder / SEGMENTS)
    disk.make_folder(folder / INDEX)


def check_whole(folder: Path) -> None:
    """Raises `Invalid` if a restore into this folder was begun and not finished."""
    if (folder / RESTORING).exists() and not is_half_copied(folder):
        raise Invalid(f"{folder} holds an unfinished restore: remove the folder, and restore again")


def is_half_copied(folder: Path) -> bool:
    """Whether a server began to copy the checkpoint of another one into this folder and has not finished."""
    mark = folder / RESTORING
    return mark.exists() and mark.read_bytes() == COPY_MARK


def whole_files(disk: Disk, folder: Path, prefix: str) -> list[str]:
    """Files whose name begins with `prefix`, sorted by name, without temporary files."""
    return [name for name in disk.list(folder) if name.startswith(prefix) and not name.endswith(".tmp")]


def remove_temporary(disk: Disk, folder: Path) -> None:
    """Remove temporary files of writes that were not finished."""
    for name in disk.list(folder):
        if name.endswith(".tmp"):
            disk.remove(folder / name)


def remove_unlisted_files(disk: Disk, folder: Path, named: Mapping[str, Container[str]]) -> None:
    """Remove segment files that the checkpoint does not list. `named` has the listed names by folder."""
    for uuid in disk.list(folder / SEGMENTS):
        if uuid not in named:
            disk.remove_folder(folder / SEGMENTS / uuid)
            continue
        for name in disk.list(folder / SEGMENTS / uuid):
            if name not in named[uuid]:
                disk.remove(folder / SEGMENTS / uuid / name)
                disk.reach(CrashPoint.TRIM_SEGMENT_REMOVED)


def remove_files(disk: Disk, folder: Path, gone: Mapping[str, Collection[str]], kept: Container[str]) -> None:
    """Remove segment files, and the folders that are empty then. `gone` has file names by folder, `kept` folder
    names.
    """
    for name, files in gone.items():
        for file in sorted(files):
            path = folder / SEGMENTS / name / file
            if disk.size(path) is not None:
                disk.remove(path)
                disk.reach(CrashPoint.TRIM_SEGMENT_REMOVED)
    empty = [name for name in gone if name not in kept]
    there = disk.list(folder / SEGMENTS) if empty else []
    for name in empty:
        if name in there:
            disk.remove_folder(folder / SEGMENTS / name)


def lock_folder(folder: Path) -> IO[str]:
    """Prevent a second server on this folder, until this process ends.

    Two locks are taken. The first is a lock of the open file description: it needs write access, which only the owner
    of the file has. The second is the `flock` that releases up to 0.2 used; anybody who can read the file can take it.
    A `flock` of somebody else therefore counts only if an old release may be running. An old release overwrites the
    mark in the file with its process id.
    """
    try:
        _make_private(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise Invalid(f"the data folder {folder} is, or lies in, a file: name a folder") from error
    file = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _LOCK_MODE), "r+")
    try:
        _lock(file, folder)
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: IO[str], folder: Path) -> None:
    text = file.read(_LOCK_CHARS_MAX)
    is_marked = _MARK in text
    in_use = Conflict(f"{folder} is in use by another server{_owner(text)}")
    is_held = _take_description_lock(file, in_use)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not (is_held and is_marked):
            raise in_use from error
        log.warning("%s: another program holds a flock on it; it locks nobody out", folder / LOCK)
    _write_owner(file, f"{os.getpid()} {_MARK if is_held else ''}")


def name_ports(file: IO[str], grpc: str, http: str) -> None:
    """Write the addresses of both ports into the lock file. The error of a second server on this folder shows them."""
    file.seek(0)
    owner = file.read(_LOCK_CHARS_MAX).partition(_PORTS)[0].rstrip()
    _write_owner(file, f"{owner}{_PORTS}{grpc} {http}")


def _write_owner(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(f"{text}\n")
    file.flush()


def _owner(text: str) -> str:
    """The process and the ports in a lock file, as the end of an error."""
    process, _, ports = text.partition(_PORTS)
    number = process.split()[:1]
    if not number or not number[0].isdecimal():
        return ""
    said = f": process {number[0]}"
    if len(addresses := ports.split()) == 2:
        said += f", gRPC on {addresses[0]}, HTTP on {addresses[1]}"
    return said


def _take_description_lock(file: IO[str], in_use: Conflict) -> bool:
    """Take the lock of the open file description. False if the system does not support it."""
    number = getattr(fcntl, "F_OFD_SETLK", None)
    if number is None:
        return False
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(file, number, whole)
    except (BlockingIOError, PermissionError) as error:
        raise in_use from error
    except OSError as error:
        if error.errno in _NO_SUCH_LOCK:
            return False
        raise
    return True


def _make_private(folder: Path) -> None:
    """Create the folder if it is missing."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    folder.chmod(FOLDER_MODE)


def tighten(folder: Path, warehouse: Path | None) -> None:
    """Remove the modes for group and others that an earlier release or another umask left. The warehouse is left
    alone.

    Modes are only taken away. For a file of another owner, the log has a warning.
    """
    kept = warehouse.resolve() if warehouse else None
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if (here / name).resolve() != kept]
        modes = {here: FOLDER_MODE, **{here / name: _LOCK_MODE if name == LOCK else FILE_MODE for name in files}}
        for path, mode in modes.items():
            _take_away(path, mode)


def _take_away(path: Path, allowed: int) -> None:
    try:
        found = path.lstat() if path.is_symlink() else path.stat()
        if stat.S_ISLNK(found.st_mode) or not stat.S_IMODE(found.st_mode) & ~allowed:
            return
        path.chmod(stat.S_IMODE(found.st_mode) & allowed)
    except FileNotFoundError:
        return  # another process removed its temporary file
    except PermissionError:
        log.warning("%s belongs to another user and is open to users of this machine: change its mode", path)
