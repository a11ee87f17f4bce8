"""The restore of a backup into a new data folder: every checksum first, then the copy, under a new timeline.

The timeline changes because the history after the backup is gone: a position that was handed out then may name
something else now, so every old position is refused. Producers and subscriptions stand where they stood at the cut.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt, Invalid, NotFound
from lakestore.rows.ipc import crc32c
from lakestore_server.files import backup_manifest, checkpoint, journal_file
from lakestore_server.files.backup_manifest import Entry, Manifest
from lakestore_server.host.disk import Disk, RealDisk
from lakestore_server.state.state import Origin

PART_BYTES = 8 << 20
EPOCHS_SKIPPED = 1 << 24
"""At most so many epochs are passed over by a restore, a random number of them: an epoch of the history that was lost
is not given again to another process, whose client may not say which history it means."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restore."""

    lsn: int
    time_us: int
    release: str
    timeline: str
    files: int
    bytes: int


def restore(source: Path, target: Path, disk: Disk | None = None) -> Restored:
    """Check a backup whole, then copy it into an empty folder under a new timeline."""
    disk = disk or RealDisk()
    source, target = source.resolve(), target.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise Invalid(f"the data folder {target} and the backup {source} must not lie in one another")
    if disk.list(target) or (target.exists() and not target.is_dir()):
        raise Invalid(f"{target} is not an empty folder: restore into a new one")
    manifest = verified(source, disk)
    timeline = uuid.uuid4().hex[:12]
    _copy(disk, source, target, manifest, timeline)
    size = sum(entry.size for entry in manifest.files)
    return Restored(manifest.lsn, manifest.time_us, manifest.release, timeline, len(manifest.files), size)


def verified(source: Path, disk: Disk) -> Manifest:
    """The manifest of a backup whose every byte is as it was written, or an error that names the file."""
    if backup_manifest.NAME not in disk.list(source):
        raise NotFound(f"{source} has no {backup_manifest.NAME}: it is no backup, or one that was not finished")
    manifest = Manifest.decode(disk.read(source / backup_manifest.NAME), str(source / backup_manifest.NAME))
    for entry in manifest.files:
        path = source / entry.path
        if path.resolve().parent != (source / entry.path).parent or source not in path.resolve().parents:
            raise Corrupt(f"the manifest of {source} names {entry.path}, which lies outside of it")
        if not path.is_file() or path.stat().st_size != entry.size or _crc(path) != entry.crc32c:
            raise Corrupt(f"file {entry.path} of backup {source} is missing or damaged: nothing was restored")
    return manifest


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            crc = crc32c(part, crc)
    return crc


def _copy(disk: Disk, source: Path, target: Path, manifest: Manifest, timeline: str) -> None:
    """The journal first and the checkpoint last: a folder with the one and not the other is refused by a server."""
    rest = [entry for entry in manifest.files if entry.path != manifest.checkpoint]
    rest.sort(key=lambda entry: not entry.path.startswith(journal_file.PREFIX))
    disk.make_folder(target)
    folders = {(target / entry.path).parent for entry in rest}
    for folder in sorted(folders):
        disk.make_folder(folder)
    for entry in rest:
        _copy_file(disk, source / entry.path, target / entry.path, entry)
    for folder in sorted(folders):
        disk.sync_folder(folder)
    held = checkpoint.decode(disk.read(source / manifest.checkpoint), manifest.checkpoint)
    before = held.restored.epochs if held.restored else 0
    origin = Origin(manifest.timeline, manifest.lsn, before + 1 + secrets.randbelow(EPOCHS_SKIPPED))
    checkpoint.write(disk, target, replace(held, timeline=timeline, restored=origin))


def _copy_file(disk: Disk, source: Path, target: Path, entry: Entry) -> None:
    """The bytes that were checked, or an error: a disk may read them differently the second time."""
    crc = 0
    file = disk.create(target)
    try:
        with pa.memory_map(str(source)) as mapped:
            while len(part := mapped.read_buffer(PART_BYTES)):
                crc = crc32c(part, crc)
                file.write([part])
        file.sync()
    finally:
        file.close()
    if crc != entry.crc32c:
        raise Corrupt(f"file {entry.path} changed while it was read: nothing usable was restored")
