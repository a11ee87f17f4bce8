"""Versions of what lies on disk: an older one is read, a newer one is refused with the release to run.

The file `release` in a data folder names the release that opened it last; nothing but that sentence depends on it.
"""

from __future__ import annotations

from pathlib import Path

from lakestore.errors import NewerFormat
from lakestore.release import RELEASE
from lakestore_server.host.disk import Disk

NAME = "release"


def check(version: int, newest: int, what: str) -> None:
    """`NewerFormat` if `what` has a version that this release does not read."""
    if version > newest:
        raise NewerFormat(
            f"{what} has format version {version} and this release ({RELEASE}) reads up to {newest}: run the newer "
            "release that wrote it, or, if there was none, restore from a backup, for then the file is damaged"
        )


def with_release(error: NewerFormat, disk: Disk, folder: Path) -> NewerFormat:
    """The same error, with the release to run if the folder names it."""
    said = written_by(disk, folder)
    return NewerFormat(f"{error.message} (release {said} opened {folder} last)") if said else error


def written_by(disk: Disk, folder: Path) -> str:
    """The release that opened a folder last; empty when it does not say."""
    if NAME not in disk.list(folder):
        return ""
    return disk.read(folder / NAME).decode("utf-8", "replace").strip()[:40]


def sign(disk: Disk, folder: Path) -> None:
    """Name this release in a folder, before it writes anything there."""
    if written_by(disk, folder) == RELEASE:
        return
    temporary = folder / f"{NAME}.tmp"
    if temporary.name in disk.list(folder):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write([f"{RELEASE}\n".encode()])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, folder / NAME)
    disk.sync_folder(folder)
