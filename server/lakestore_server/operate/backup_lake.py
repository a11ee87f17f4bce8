"""The lake's part of a backup: the files that the pointers of one cut name, if the warehouse lies in the data folder.

They are held by hard links in the data folder before anything is copied, so that no expiry of any engine takes a file
away meanwhile; where the backup is on the same file system the links are the backup. A file that is gone already was
expired after the cut: then another cut is made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lakestore.errors import Conflict
from lakestore_server.files import data_folder
from lakestore_server.files.backup_manifest import WAREHOUSE, Entry
from lakestore_server.host.disk import FOLDER_MODE, Disk
from lakestore_server.iceberg import locations, relocation
from lakestore_server.iceberg.metadata_store import local_folder
from lakestore_server.operate import copies
from lakestore_server.state.catalog_change import DROPPED, Pointer
from lakestore_server.state.view import View


class LakeFileGone(Exception):
    """A file that a pointer's metadata names is not there."""

    def __init__(self, table: str, location: str) -> None:
        super().__init__(location)
        self.table, self.location = table, location


def inner_warehouse(data: Path, uri: str) -> Path | None:
    """The warehouse's folder if it lies in the data folder."""
    folder = local_folder(uri)
    return folder if folder is not None and data.resolve() in folder.resolve().parents else None


def hold(view: View, uri: str, data: Path) -> Path:
    """Link every file that the view's pointers name into a folder of the data folder; `LakeFileGone`.

    The folder has the files as they lie in the warehouse.
    """
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

    folders: set[Path] = set()
    for (namespace, name), pointer in pointers(view).items():
        for location in relocation.named(pointer.location, lambda place: held(place).read_bytes()):
            target = held(location)
            try:
                if target.parent not in folders:
                    target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                    folders.add(target.parent)
                _link(locations.plain(location), target)
            except FileNotFoundError as error:
                raise LakeFileGone(_told(view, namespace, name), location) from error
    return stage


def pointers(view: View) -> dict[tuple[str, str], Pointer]:
    """The pointers whose files are to be there: those of tables whose removal has begun name what goes."""
    going = {(DROPPED, uuid) for uuid, held in view.dropped.items() if not held.until_us}
    return {key: pointer for key, pointer in view.pointers.items() if key not in going}


def _told(view: View, namespace: str, name: str) -> str:
    """A table as its users call it."""
    return f"{view.dropped[name].name} (dropped)" if namespace == DROPPED else f"{namespace}.{name}"


def _link(source: str, target: Path) -> None:
    """One call for a file that is linked: a lake may have a hundred thousand of them."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise
    except OSError:  # another owner's file, too many links, or a file system without them
        shutil.copyfile(source, target)


def release(data: Path) -> None:
    """Let go of what is held; also of what a server that was killed held."""
    stage = data / data_folder.LAKE_HELD
    if stage.is_dir():
        shutil.rmtree(stage)


def write(disk: Disk, stage: Path, folder: Path) -> Iterator[Entry]:
    """Bring what is held into a backup's folder, durably; the entries of the manifest."""
    place = folder / WAREHOUSE
    try:
        stage.rename(place)
    except OSError:  # another file system
        for path, _ in _files(stage):
            target = place / os.path.relpath(path, stage)
            disk.make_folder(target.parent)
            copies.written(disk, target, disk.pieces(Path(path)))
    for path, size in _files(place):
        yield Entry(path[len(str(folder)) + 1 :], size, copies.crc_of(disk, Path(path)))
    for found, _, _ in os.walk(place):
        disk.sync_folder(Path(found))


def _files(folder: Path) -> list[tuple[str, int]]:
    """Path and size of every file below a folder, sorted."""
    found, left = [], [str(folder)]
    while left:
        with os.scandir(left.pop()) as listed:
            for each in listed:
                if each.is_dir(follow_symlinks=False):
                    left.append(each.path)
                elif each.is_file():
                    found.append((each.path, each.stat().st_size))
    return sorted(found)
