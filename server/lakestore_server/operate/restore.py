"""The restore of a backup into a new data folder: every checksum first, then the copy, under a new timeline.

The timeline changes because the history after the backup is gone: a position that was handed out then may name
something else now, so every old position is refused. Producers and subscriptions stand where they stood at the cut.
A lake that is in the backup is restored with it, to another place too: then its files are written for that place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lakestore.errors import Conflict, Corrupt, Invalid, NotFound
from lakestore.model import file_uri
from lakestore_server.files import backup_manifest, checkpoint, data_folder, journal_file
from lakestore_server.files.backup_manifest import WAREHOUSE, Entry, LakePlace, Manifest
from lakestore_server.host.disk import Disk, RealDisk
from lakestore_server.iceberg import locations
from lakestore_server.iceberg.metadata_store import local_folder
from lakestore_server.iceberg.relocation import Relocation
from lakestore_server.operate import copies, restore_lake
from lakestore_server.operate.restore_lake import LakeOutcome, Ways
from lakestore_server.state.state import Origin

EPOCHS_SKIPPED = 1 << 24
"""At most so many epochs are passed over by a restore, a random number of them: an epoch of the history that was lost
is not given again to another process, whose client may not say which history it means."""
AS_IT_WAS = Ways()


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restore."""

    lsn: int
    time_us: int
    release: str
    timeline: str
    files: int
    bytes: int
    warehouse: str = ""
    """URI of the warehouse that the restored server goes on with; empty if the backup does not say it."""
    lake: LakeOutcome = field(default_factory=LakeOutcome)


def restore(
    source: Path, target: Path, disk: Disk | None = None, *, warehouse: str = "", ways: Ways = AS_IT_WAS
) -> Restored:
    """Check a backup whole, then copy it into an empty folder under a new timeline.

    `warehouse`: the place of the lake, by default in the folder if the backup has it, else where it was. `Conflict`,
    and nothing is restored, if rows would be lost that only the lake had and that is not accepted.
    """
    disk = disk or RealDisk()
    source, target = source.resolve(), target.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise Invalid(f"the data folder {target} and the backup {source} must not lie in one another")
    if disk.list(target) or (target.exists() and not target.is_dir()):
        raise Invalid(f"{target} is not an empty folder: restore into a new one")
    manifest = verified(source, disk)
    place = _warehouse(manifest, target, warehouse, ways)
    timeline = uuid.uuid4().hex[:12]
    with _unfinished(disk, target):
        _copy(disk, source, target, manifest, timeline)
        moved = _copy_lake(disk, source, manifest, place) if _brings_lake(manifest, ways) else {}
        lake = restore_lake.finish(target, place, moved, ways) if place else LakeOutcome()
    size = sum(entry.size for entry in manifest.files)
    about = manifest.lsn, manifest.time_us, manifest.release, timeline, len(manifest.files), size
    return Restored(*about, place, lake)


@contextmanager
def _unfinished(disk: Disk, target: Path) -> Iterator[None]:
    """Mark the folder until the block has ended: no server takes a part for the whole. A refusal leaves no folder."""
    disk.make_folder(target)
    disk.create(target / data_folder.RESTORING).close()
    disk.sync_folder(target)
    try:
        yield
    except Conflict:
        shutil.rmtree(target)
        raise
    disk.remove(target / data_folder.RESTORING)
    disk.sync_folder(target)


def _brings_lake(manifest: Manifest, ways: Ways) -> bool:
    return manifest.lake is LakePlace.INSIDE and (not ways.anew or ways.rewind)


def _warehouse(manifest: Manifest, target: Path, given: str, ways: Ways) -> str:
    """The URI of the restored server's warehouse."""
    inner = target / WAREHOUSE
    if given:
        place = file_uri.named(given)
    else:
        is_new = manifest.lake is not LakePlace.OUTSIDE and ways.anew and not ways.rewind
        place = file_uri.to_uri(inner) if is_new or _brings_lake(manifest, ways) else manifest.warehouse
    if not place and ways.any:
        raise Invalid("this backup does not say where its warehouse is: name it with --warehouse")
    if _brings_lake(manifest, ways):
        folder = local_folder(place)
        if folder is None:
            raise Invalid(f"the lake of this backup goes into a folder of this machine, and {place} is none")
        if folder.exists() and any(folder.iterdir()):
            raise Invalid(f"the warehouse {folder} is not an empty folder: name a new one with --warehouse")
    return place


def verified(source: Path, disk: Disk) -> Manifest:
    """The manifest of a backup whose every byte is as it was written, or an error that names the file."""
    if backup_manifest.NAME not in disk.list(source):
        raise NotFound(f"{source} has no {backup_manifest.NAME}: it is no backup, or one that was not finished")
    manifest = Manifest.decode(disk.read(source / backup_manifest.NAME), str(source / backup_manifest.NAME))
    for entry in manifest.files:
        path = source / entry.path
        if path.resolve().parent != (source / entry.path).parent or source not in path.resolve().parents:
            raise Corrupt(f"the manifest of {source} names {entry.path}, which lies outside of it")
        if not path.is_file() or path.stat().st_size != entry.size or copies.crc_of(disk, path) != entry.crc32c:
            raise Corrupt(f"file {entry.path} of backup {source} is missing or damaged: nothing was restored")
    return manifest


def _is_lake(entry: Entry) -> bool:
    return entry.path.startswith(f"{WAREHOUSE}/")


def _copy(disk: Disk, source: Path, target: Path, manifest: Manifest, timeline: str) -> None:
    """The journal first and the checkpoint last: a folder with the one and not the other is refused by a server."""
    rest = [entry for entry in manifest.files if entry.path != manifest.checkpoint and not _is_lake(entry)]
    rest.sort(key=lambda entry: not entry.path.startswith(journal_file.PREFIX))
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


def _copy_lake(disk: Disk, source: Path, manifest: Manifest, place: str) -> Mapping[str, str]:
    """Copy the lake's files into the warehouse, written anew if it is another place; old to new metadata files."""
    old, folder = manifest.warehouse, Path(locations.plain(place))
    for entry in filter(_is_lake, manifest.files):
        path = folder / entry.path.removeprefix(f"{WAREHOUSE}/")
        disk.make_folder(path.parent)
        _copy_file(disk, source / entry.path, path, entry)
    moved: Mapping[str, str] = {}
    if locations.plain(old) != locations.plain(place):

        def read(location: str) -> bytes:
            return (source / WAREHOUSE / locations.plain(location)[len(locations.plain(old)) + 1 :]).read_bytes()

        relocation = Relocation(old, place, read, _save)
        moved = {location: relocation.move(location) for location in manifest.pointers.values()}
    for found, _, _ in os.walk(folder):
        disk.sync_folder(Path(found))
    return moved


def _save(location: str, data: bytes) -> None:
    with Path(locations.plain(location)).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy_file(disk: Disk, source: Path, target: Path, entry: Entry) -> None:
    """The bytes that were checked, or an error: a disk may read them differently the second time."""
    if copies.written(disk, target, disk.pieces(source)) != (entry.size, entry.crc32c):
        raise Corrupt(f"file {entry.path} changed while it was read: nothing usable was restored")
