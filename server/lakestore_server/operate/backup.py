"""The backup verb: a consistent copy of the data folder, made while the server serves.

A checkpoint is made and its parts are held: segments by their open maps, and the journal after the checkpoint up to one
commit, the cut. Commits continue while the cut is copied.

- Files of a warehouse in the data folder are copied; for another warehouse the backup holds the pointers.
- The index is not copied: a restored server rebuilds it.
- The manifest is written last, so a folder without one is no backup. A failed backup removes what it wrote.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.errors import Conflict, Invalid, LakestoreError
from lakestore.release import RELEASE
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import locations, relocation
from lakestore_server.catalog.metadata_store import local_folder
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.checkpoint import Checkpointer
from lakestore_server.files import backup_manifest, checkpoint, data_folder, journal_file
from lakestore_server.files.backup_manifest import WAREHOUSE, BackupFile, BackupManifest, LakePlace
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.data_folder import SEGMENTS
from lakestore_server.files.journal import file_header
from lakestore_server.files.segment import Segment
from lakestore_server.host import event_log
from lakestore_server.host.disk import FOLDER_MODE, PIECE_BYTES, Disk
from lakestore_server.index.run_file import EMPTY_LSN
from lakestore_server.state.catalog_change import DROPPED, Pointer
from lakestore_server.state.view import View


def pieces_of(data: Any) -> Iterator[pa.Buffer]:
    """Bytes in memory or in a map, in pieces."""
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return (whole.slice(at, min(PIECE_BYTES, whole.size - at)) for at in range(0, whole.size, PIECE_BYTES))


def write_file(disk: Disk, path: Path, pieces: Iterable[Any]) -> tuple[int, int]:
    """Write a new file and sync it; its size and checksum. The caller syncs the folder."""
    size = crc = 0
    file = disk.create(path)
    try:
        for piece in pieces:
            crc = crc32c(piece, crc)
            size += file.write([piece])
        file.sync()
    finally:
        file.close()
    return size, crc


def crc_of(disk: Disk, path: Path) -> int:
    """The checksum of a whole file."""
    crc = 0
    for piece in disk.pieces(path):
        crc = crc32c(piece, crc)
    return crc


class LakeFileGone(Exception):
    """A file that a pointer's metadata names does not exist."""

    def __init__(self, table: str, location: str) -> None:
        super().__init__(location)
        self.table, self.location = table, location


def inner_warehouse(data: Path, uri: str) -> Path | None:
    """The warehouse's folder if it is in the data folder, else None."""
    folder = local_folder(uri)
    return folder if folder is not None and data.resolve() in folder.resolve().parents else None


def hold(view: View, uri: str, data: Path) -> Path:
    """Hard-link every file that the view's pointers name into a folder of the data folder; or raise `LakeFileGone`. The
    folder has the layout of the warehouse."""
    stage = data / data_folder.LAKE_HELD
    release(data)
    stage.mkdir(mode=FOLDER_MODE)

    def held(location: str) -> Path:
        if not locations.inside(location, uri):
            raise Conflict(
                f"{location} lies outside of the warehouse {uri}: back up without the lake (--without-lake), and the "
                "warehouse with its own means"
            )
        return stage / locations.plain(location)[len(locations.plain(uri)) + 1 :]

    folders: dict[str, tuple[str, str]] = {}
    """Folder of locations to its path and to the folder of its links."""
    for (namespace, name), pointer in pointers(view).items():
        for location in relocation.named(pointer.location, lambda place: held(place).read_bytes()):
            above, _, own = location.rpartition("/")
            try:
                if above not in folders or not _PLAIN_NAME.fullmatch(own):
                    target = held(location)
                    target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                    own = target.name
                    folders[above] = os.path.dirname(locations.plain(location)), str(target.parent)
                source, links = folders[above]
                _link(f"{source}/{own}", f"{links}/{own}")
            except FileNotFoundError as error:
                raise LakeFileGone(_told(view, namespace, name), location) from error
    return stage


def pointers(view: View) -> dict[tuple[str, str], Pointer]:
    """The pointers whose files must exist. A table that is being removed has none."""
    going = {(DROPPED, uuid) for uuid, held in view.dropped.items() if not held.until_us}
    return {key: pointer for key, pointer in view.pointers.items() if key not in going}


def _told(view: View, namespace: str, name: str) -> str:
    """The name by which users know a table."""
    return f"{view.dropped[name].name} (dropped)" if namespace == DROPPED else f"{namespace}.{name}"


_PLAIN_NAME = re.compile(r"\w[\w.=+-]*", re.ASCII)
"""The name of a file that a location spells as it is. A folder of 10 files is then checked once, not ten times."""


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise
    except OSError:  # the file has another owner or too many links, or the file system has no links
        shutil.copyfile(source, target)


def release(data: Path) -> None:
    """Remove the held links, also links that a killed server left."""
    stage = data / data_folder.LAKE_HELD
    if stage.is_dir():
        shutil.rmtree(stage)


def write_lake_files(disk: Disk, stage: Path, folder: Path) -> Iterator[BackupFile]:
    """Move the held files into a backup's folder, durably; yields the manifest's entries."""
    place = folder / WAREHOUSE
    try:
        stage.rename(place)
    except OSError:
        for path, _ in _walked(stage)[0]:
            target = place / os.path.relpath(path, stage)
            disk.make_folder(target.parent)
            write_file(disk, target, disk.pieces(Path(path)))
    files, folders = _walked(place)
    with ThreadPoolExecutor(THREADS, "backup") as pool:
        parts = [files[begin : begin + PART_FILES] for begin in range(0, len(files), PART_FILES)]
        for part in pool.map(lambda part: [(*file, crc_of(disk, Path(file[0]))) for file in part], parts):
            yield from (BackupFile(path[len(str(folder)) + 1 :], size, crc) for path, size, crc in part)
        # A file system joins syncs that run at once, so 10,000 folders take seconds, not half a minute.
        for _ in pool.map(lambda found: disk.sync_folder(Path(found)), folders):
            pass


def _walked(folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """The files below a folder with their sizes, and the folders, itself included."""
    found, folders, left = [], [], [str(folder)]
    while left:
        folders.append(left.pop())
        with os.scandir(folders[-1]) as listed:
            for each in listed:
                if each.is_dir(follow_symlinks=False):
                    left.append(each.path)
                elif each.is_file():
                    found.append((each.path, each.stat().st_size))
    return sorted(found), folders


THREADS, PART_FILES = 16, 100
"""Threads that read files and sync folders of the lake, and the files that one of them reads at a time."""
log = logging.getLogger("lakestore.backup")
CUTS = 3
"""Attempts at a cut, if lake files expire meanwhile."""


@dataclass(frozen=True, slots=True)
class BackupCut:
    """The parts of a backup at one commit."""

    view: View
    checkpoint: Checkpoint
    segments: Sequence[Segment]
    journal: Sequence[tuple[str, bytes]]
    """Name and bytes of the journal files after the checkpoint."""


class BackupVerbs:
    """The verb `backup`; one backup at a time."""

    def __init__(self, engine: Engine, checkpointer: Checkpointer, warehouse: str) -> None:
        self._engine, self._checkpointer, self._warehouse = engine, checkpointer, warehouse
        self._running = threading.Lock()

    def backup(self, request: pb.BackupRequest) -> pb.BackupAnswer:
        """Copy the present state into an empty folder of the server's machine."""
        folder = _checked(request.folder, self._engine)
        if not self._running.acquire(blocking=False):
            raise Conflict("another backup is running: wait for its end")
        try:
            manifest = self._made(folder, without_lake=request.without_lake)
        finally:
            self._running.release()
        size = sum(entry.size for entry in manifest.files)
        event_log.event(
            log, logging.INFO, "backup", folder=str(folder), lsn=manifest.lsn, files=len(manifest.files), bytes=size
        )
        return pb.BackupAnswer(
            token=self._engine.view.token(manifest.lsn),
            files=len(manifest.files) + 1,
            bytes=size,
            lake=manifest.lake.value,
            warehouse=manifest.warehouse,
        )

    def _made(self, folder: Path, *, without_lake: bool) -> BackupManifest:
        engine = self._engine
        inner = inner_warehouse(engine.folder, self._warehouse)
        lake = LakePlace.OUTSIDE if inner is None else LakePlace.LEFT_OUT if without_lake else LakePlace.INSIDE
        try:
            cut, held = self._cut_with_lake() if lake is LakePlace.INSIDE else (self.cut(), None)
            return write(engine.disk, folder, cut, Origin(engine.timeline, self._warehouse, lake), held)
        except OSError as error:
            _remove(engine.disk, folder)
            raise Conflict(
                f"the backup cannot be written to {folder} ({error.strerror}): free space, or name another folder"
            ) from error
        except LakestoreError:
            _remove(engine.disk, folder)
            raise
        finally:
            release(engine.folder)

    def _cut_with_lake(self) -> tuple[BackupCut, Path]:
        for left in reversed(range(CUTS)):
            cut = self.cut()
            try:
                return cut, hold(cut.view, self._warehouse, self._engine.folder)
            except LakeFileGone as gone:
                if not left:
                    raise Conflict(
                        f"the lake of table {gone.table} is not whole, as {gone.location} is gone: a backup could not "
                        "restore it; mend the table, or drop it with --purge, or back up without the lake"
                        " (--without-lake)"
                    ) from gone
        raise AssertionError("the last attempt returns or raises")

    def cut(self) -> BackupCut:
        """A checkpoint and the journal after it, up to one commit. A shared journal is not copied: then the cut is the
        checkpoint's, and an empty journal file follows it."""
        engine = self._engine
        with self._checkpointer.held() as made:
            if engine.loop.journal.is_shared:
                empty = journal_file.name_of(made.lsn + 1), file_header(secrets.randbits(64))
                return BackupCut(made.view, made.content, made.segments, [empty])
            view, (last, size) = engine.loop.run(lambda: (engine.view, engine.loop.journal.written))
            first = journal_file.name_of(made.lsn + 1)
            names = journal_file.names(engine.disk, engine.folder)
            files = [(name, engine.disk.read(engine.folder / name)) for name in names if first <= name <= last]
        journal = [(name, data[:size] if name == last else data) for name, data in files]
        return BackupCut(view, made.content, made.segments, journal)


def _checked(text: str, engine: Engine) -> Path:
    folder = Path(text)
    if not text or not folder.is_absolute():
        raise Invalid(f"{text!r} is not an absolute path of a folder on the server's machine")
    try:
        folder, data = folder.resolve(), engine.folder.resolve()
        is_used = bool(engine.disk.list(folder)) or (folder.exists() and not folder.is_dir())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Invalid(f"{text!r} cannot be a backup's folder ({why}): name another one") from error
    if folder == data or data in folder.parents or folder in data.parents:
        raise Invalid(f"the backup's folder {folder} and the data folder {data} must not lie in one another")
    if is_used:
        raise Invalid(f"{folder} is not an empty folder: name a new one for each backup")
    return folder


def _remove(disk: Disk, folder: Path) -> None:
    with suppress(OSError):
        for name in disk.list(folder):
            path = folder / name
            if path.is_dir():
                disk.remove_folder(path)
            else:
                disk.remove(path)


@dataclass(frozen=True, slots=True)
class Origin:
    """The backed-up server, as the manifest describes it."""

    timeline: str
    warehouse: str
    lake: LakePlace


def write(disk: Disk, folder: Path, cut: BackupCut, origin: Origin, held: Path | None = None) -> BackupManifest:
    """Write a cut into an empty folder, durably, with the held lake files. The manifest is written last."""
    disk.make_folder(folder)
    entries = list(_segments(disk, folder, cut.segments))
    for name, data in cut.journal:
        entries.append(_written(disk, folder, name, data))
    name = checkpoint.name_of(cut.checkpoint.lsn)
    checkpoint.write(disk, folder, replace(cut.checkpoint, runs=(), index_lsn=EMPTY_LSN))  # the index is not copied
    encoded = disk.read(folder / name)
    entries.append(BackupFile(name, len(encoded), crc32c(encoded)))
    view = cut.view
    locations = {f"{namespace}.{name}": pointer.location for (namespace, name), pointer in pointers(view).items()}
    entries += write_lake_files(disk, held, folder) if held else ()
    about = origin.warehouse, origin.lake
    manifest = BackupManifest(RELEASE, view.time_us, origin.timeline, view.lsn, name, tuple(entries), locations, *about)
    disk.sync_folder(folder)
    aside = f"{backup_manifest.NAME}.tmp"
    _written(disk, folder, aside, manifest.encode())
    disk.rename(folder / aside, folder / backup_manifest.NAME)
    disk.sync_folder(folder)
    return manifest


def _segments(disk: Disk, folder: Path, segments: Sequence[Segment]) -> Iterator[BackupFile]:
    """Copy each file that holds needed segments once and whole, with its unneeded parts."""
    files = {each.path: each.part.file for each in segments}
    files |= {kept.path: kept.data for each in segments for kept in each.files}
    for each in segments:
        each.check_all()
    folders = {path.parent.name for path in files}
    for name in folders:
        disk.make_folder(folder / SEGMENTS / name)
    for path, data in files.items():
        name = path.parent.name
        written = _written(disk, folder / SEGMENTS / name, path.name, data)
        yield BackupFile(f"{SEGMENTS}/{name}/{written.path}", written.size, written.crc32c)
    for name in folders:
        disk.sync_folder(folder / SEGMENTS / name)


def _written(disk: Disk, folder: Path, name: str, data: Any) -> BackupFile:
    return BackupFile(name, *write_file(disk, folder / name, pieces_of(data)))
