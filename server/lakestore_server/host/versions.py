"""Format versions of files: this release reads its own and the previous release's, and refuses others by name.

A newer release may also write longer entries or further keys under the same version. A reader that skipped them would
have another state than the writer, so a decoder refuses what it does not know.

The file `release` in a data folder names the release that opened it last. Only error sentences use it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lakestore.errors import Invalid, NewerFormat
from lakestore.release import RELEASE
from lakestore_server.host.disk import Disk

NAME = "release"


def check(version: int, known: Collection[int], what: str) -> None:
    """Raises `NewerFormat` or `Invalid` if this release does not read this version of `what`."""
    if version > max(known):
        raise NewerFormat(
            f"{what} has format version {version} and this release ({RELEASE}) reads up to {max(known)}: run the newer "
            "release that wrote it, or, if there was none, restore from a backup, for then the file is damaged"
        )
    if version not in known:
        raise Invalid(
            f"{what} has format version {version}, which no release wrote: this release ({RELEASE}) reads "
            f"{' and '.join(map(str, known))}. Restore from a backup of a release"
        )


def of_first_release(what: str) -> Invalid:
    """The error for a file of release 0.1."""
    return Invalid(
        f"{what} was written by release 0.1: open its folder once with release 0.2 and end that in order, "
        f"then run this release ({RELEASE})"
    )


def newer(what: str) -> NewerFormat:
    """The error for something that this release does not know, of a file or record whose version it reads."""
    return NewerFormat(
        f"{what} is of a newer release: this one ({RELEASE}) does not know all of it. Run the newer release that"
        " wrote it"
    )


def checked_entry(entry: Sequence[Any], length_max: int, what: str) -> Sequence[Any]:
    """The entry; `NewerFormat` if it is longer than this release writes it."""
    if len(entry) > length_max:
        raise newer(what)
    return entry


def checked_entries(entries: Iterable[Sequence[Any]], length_max: int, what: str) -> Iterator[Sequence[Any]]:
    """The entries; `NewerFormat` if one is longer than this release writes it."""
    return (checked_entry(entry, length_max, what) for entry in entries)


def check_keys(data: Mapping[str, Any], names: Collection[str], what: str) -> None:
    """Raises `NewerFormat`, with the names, if the mapping has keys that this release does not know."""
    if unknown := sorted(data.keys() - set(names)):
        raise newer(f"{what} with {', '.join(unknown)}")


def with_release(error: NewerFormat, disk: Disk, folder: Path) -> NewerFormat:
    """The same error, extended by the release to run if the folder names it."""
    said = written_by(disk, folder)
    return NewerFormat(f"{error.message} (release {said} opened {folder} last)") if said else error


def written_by(disk: Disk, folder: Path) -> str:
    """The release that opened a folder last; empty if unknown."""
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
