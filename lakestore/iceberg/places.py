"""Locations of lake files: their file systems, and small files read and written whole.

Nothing is synced: files that are written here are made of others, and made again when they are gone.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Protocol

from pyarrow import NativeFile
from pyarrow.fs import FileSystem, LocalFileSystem

from lakestore.model import file_uri

_STORES_KEPT = 16


class Files(Protocol):
    """Files that are read by their locations."""

    def open_input_file(self, path: str, /) -> NativeFile:
        """The file, to be read from any place; `FileNotFoundError` where there is none."""


_instead: list[Files] = []
"""The one source of all files, in a process that opens none by itself."""


def use(files: Files) -> None:
    """From now on read every location through these files. Nothing can be written then."""
    _instead[:] = [files]


def place(location: str) -> tuple[Any, str]:
    """The file system and path of a location."""
    if _instead:
        return _instead[0], location
    local = file_uri.to_path(location)
    if local is not None:
        return _local(), local
    scheme, _, rest = location.partition("://")
    store, _, path = rest.partition("/")
    filesystem, root = _store(f"{scheme}://{store}")
    return filesystem, f"{root}/{path}"


def read(location: str) -> bytes:
    """The bytes of a file; `OSError` where it cannot be read, `FileNotFoundError` where there is none."""
    filesystem, path = place(location)
    with filesystem.open_input_file(path) as stream:
        found: bytes = stream.read()
    return found


def version(location: str) -> str:
    """Whatever tells a file from another one at its place, without opening it: empty for a store, which would be asked.

    `FileNotFoundError` where a local file is gone.
    """
    local = None if _instead else file_uri.to_path(location)
    if local is None:
        return ""
    info = os.stat(local)
    return f"{info.st_size}-{info.st_mtime_ns}"


def read_part(location: str, begin: int, size: int) -> bytes:
    """So many bytes of a file from a place on; fewer where it ends before."""
    filesystem, path = place(location)
    with filesystem.open_input_file(path) as stream:
        found: bytes = stream.read_at(size, begin)
    return found


def write(location: str, data: bytes) -> None:
    """Write a file whole, with the folders that it lies in; nothing is synced."""
    with create(location) as stream:
        stream.write(data)


def create(location: str) -> NativeFile:
    """A stream into a new file, with the folders that it lies in."""
    filesystem, path = place(location)
    try:
        return filesystem.open_output_stream(path)
    except FileNotFoundError:
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(path)


@lru_cache(maxsize=1)
def _local() -> FileSystem:
    return LocalFileSystem()


@lru_cache(maxsize=_STORES_KEPT)
def _store(address: str) -> tuple[FileSystem, str]:
    """The file system of a store, whose connections are worth keeping, and the store's path in it."""
    filesystem, root = FileSystem.from_uri(address)
    return filesystem, root.rstrip("/")
