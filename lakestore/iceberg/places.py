"""Locations of lake files: file systems, and reads and writes of whole small files.

Nothing is synced. Files that are written here can be written again from other files.
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
    """A source of files by location."""

    def open_input_file(self, path: str, /) -> NativeFile:
        """Open a file for random reads. Raises `FileNotFoundError`."""


_instead: list[Files] = []
"""The source of all files, in a process that may open none itself; otherwise empty."""


def use(files: Files) -> None:
    """Read every location from this source from now on. Writing is then impossible."""
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
    """The bytes of a file. Raises `OSError`, and `FileNotFoundError` if there is none."""
    filesystem, path = place(location)
    with filesystem.open_input_file(path) as stream:
        found: bytes = stream.read()
    return found


def version(location: str) -> str:
    """A text that differs between two files that were at this location: size and time of change of a local file.

    It is empty for an object store, which would have to be asked. Raises `FileNotFoundError` if a local file is gone.
    """
    local = None if _instead else file_uri.to_path(location)
    if local is None:
        return ""
    info = os.stat(local)
    return f"{info.st_size}-{info.st_mtime_ns}"


def read_part(location: str, begin: int, size: int) -> bytes:
    """`size` bytes of a file from `begin` on; fewer if the file ends earlier."""
    filesystem, path = place(location)
    with filesystem.open_input_file(path) as stream:
        found: bytes = stream.read_at(size, begin)
    return found


def write(location: str, data: bytes) -> None:
    """Write a whole file and create its folders. Nothing is synced."""
    with create(location) as stream:
        stream.write(data)


def create(location: str) -> NativeFile:
    """Open a new file for writing and create its folders."""
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
    """The file system of an object store and the root path in it. It is cached to keep the connections."""
    filesystem, root = FileSystem.from_uri(address)
    return filesystem, root.rstrip("/")
