"""The data folder: whether a server may write there, how much room there is, and how fast a sync is."""

from __future__ import annotations

import os
import re
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lakestore.errors import Conflict
from lakestore.limits import Limits
from lakestore_server.doctor.finding import Finding
from lakestore_server.files import data_folder
from lakestore_server.host.disk import RealDisk

PROBES = 12
"""Small writes that are synced; the first one, which also makes the file, does not count."""
PROBE_BYTES = 4_096
SLOW_SYNC_SECONDS = 0.02
VOLATILE = frozenset({"tmpfs", "ramfs", "overlay"})
"""File systems that end with the machine or its container."""
SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
"""File systems whose locks and syncs depend on another machine."""
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space, tab, line end, backslash or # in a path, as the kernel writes it."""


def data(folder: Path, limits: Limits) -> Iterator[Finding]:
    """The data folder; one that a server uses is looked at from outside, one that is not there by the folder above."""
    if folder.exists():
        yield Finding("data folder", "ok", f"{folder}, {_use(folder)}")
    else:
        yield Finding("data folder", "ok", f"{folder}, which the first start makes")
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    yield from room(place, limits)
    yield from kind(place)
    yield from sync(place)


def _use(folder: Path) -> str:
    lock = folder / data_folder.LOCK
    was_there = lock.exists()
    try:
        with data_folder.lock_folder(folder):
            if not was_there:
                lock.unlink()  # while it is held: a server that starts meanwhile is refused, and not left without one
    except Conflict:
        return "in use by a running server"
    return "free to use"


def room(folder: Path, limits: Limits) -> Iterator[Finding]:
    """Free bytes, against the reserve below which no rows are taken."""
    free, reserve = RealDisk().free_bytes(folder), limits.disk_free_bytes
    found = f"{free >> 20:,} MB free; below {reserve >> 20:,} MB (limits.disk_free_bytes) no rows are taken"
    if free < reserve:
        yield Finding("disk", "failed", found, "make room, or name another folder by --data")
    elif free < reserve + 2 * limits.journal_bytes:
        yield Finding("disk", "warning", found, "make room: a full journal and its checkpoint take more than is there")
    else:
        yield Finding("disk", "ok", found)


def kind(folder: Path, mounts: Path = _MOUNTS) -> Iterator[Finding]:
    """The file system below the folder."""
    name = _file_system(folder.resolve(), mounts)
    if not name:
        return
    if name in VOLATILE:
        yield Finding("file system", "warning", name, "its files end with the machine or container: mount a disk there")
    elif name in SHARED:
        yield Finding("file system", "warning", name, "take a local disk: a sync here trusts another machine")
    else:
        yield Finding("file system", "ok", name)


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8))


def _file_system(folder: Path, mounts: Path) -> str:
    """The kind of the mount that is nearest above the folder; empty where nobody tells."""
    try:
        lines = [[_ESCAPED.sub(_character, word) for word in line.split()] for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    above = {str(folder), *map(str, folder.parents)}
    found = [(len(line[1]), line[2]) for line in lines if len(line) > 2 and line[1] in above]
    return max(found)[1] if found else ""


def sync(folder: Path) -> Iterator[Finding]:
    """Small synced writes, as each commit makes one."""
    took = _synced_writes(folder / f".doctor-{os.getpid()}-{secrets.token_hex(4)}")
    median, slowest = statistics.median(took), max(took)
    found = f"a synced write takes {median * 1e3:.2f} ms, at most {slowest * 1e3:.2f} ms of {len(took)}"
    if median > SLOW_SYNC_SECONDS:
        yield Finding("sync", "warning", found, "each commit waits for one: take a faster disk, or larger commits")
    else:
        yield Finding("sync", "ok", found)


def _synced_writes(path: Path) -> Sequence[float]:
    file = RealDisk().create(path)  # before the try: a file that was there stays
    took = []
    try:
        for _ in range(PROBES):
            began = time.monotonic()
            file.write([os.urandom(PROBE_BYTES)])
            file.sync()
            took.append(time.monotonic() - began)
    finally:
        file.close()
        path.unlink(missing_ok=True)
    return took[1:]
