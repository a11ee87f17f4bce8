"""Warehouse names as engines use them, and the URL prefixes that stand for them. Pure.

`now` and `now-v3` show every table's head. `at:<token or time>` and `at-v3:<…>` show one cut of all tables. The forms
with v3 show tables of format version 2 as version 3. Engines paste a prefix into paths without escaping, so it is `now`
or `at-<base64url>`.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyarrow.fs import FileInfo, FileSelector, FileType

from lakestore.errors import Invalid
from lakestore.iceberg.places import place
from lakestore.model import times
from lakestore.model.names import PRESENTED
from lakestore.model.outside_values import excerpt
from lakestore_server.catalog.errors import NoSuchWarehouse
from lakestore_server.snapshots.removal import remove_file, remove_folder

log = logging.getLogger("lakestore.present")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Usage:
    """The number and size of presented files."""

    files: int = 0
    bytes: int = 0


def machine_of(folder: Path) -> str:
    """The name that a data folder gives its server among the servers of a journal: each removes its own files."""
    return hashlib.sha256(f"{platform.node()}\0{folder.resolve()}".encode()).hexdigest()[:12]


class Folders:
    """The presented files of one server in a warehouse. Errors of the storage are `OSError`s."""

    def __init__(self, warehouse: str, history: str, former: str = "") -> None:
        """`history` is the name of the server's folder, `former` that of the history from which it was restored; empty
        for none."""
        place = f"{warehouse.rstrip('/')}/{PRESENTED}"
        self._root, self._former = f"{place}/{history}", f"{place}/{former}" if former else ""

    def of(self, table_uuid: str) -> str:
        """The URI of a table's folder."""
        return f"{self._root}/{table_uuid}"

    def run(self, table_uuid: str, run: str) -> str:
        """The URI of a run's folder of a table."""
        return f"{self.of(table_uuid)}/{run}"

    def remove_document(self, location: str) -> None:
        """Remove a metadata file."""
        try:
            remove_file(location)
        except FileNotFoundError:
            return  # the run's folder is gone with everything in it

    def usage(self) -> Usage:
        """Count all files of all tables. Scans the folder."""
        files = [info for info in self._infos(self._root, recursive=True) if info.type == FileType.File]
        return Usage(len(files), sum(info.size or 0 for info in files))

    def tables(self) -> list[str]:
        """The uuids of tables that have a folder."""
        return [info.base_name for info in self._infos(self._root) if _UUID.fullmatch(info.base_name)]

    def runs(self, table_uuid: str) -> list[str]:
        """The runs that have a folder for a table."""
        return [info.base_name for info in self._infos(self.of(table_uuid)) if _RUN.fullmatch(info.base_name)]

    def remove_run(self, table_uuid: str, run: str) -> None:
        """Remove the files of a run for a table."""
        self._remove(self.run(table_uuid, run))

    def remove_table(self, table_uuid: str) -> None:
        """Remove all files of a table."""
        self._remove(self.of(table_uuid))

    def remove_indexes(self, table_uuid: str) -> None:
        """Remove the offset indexes that release 0.2 stored beside runs."""
        self._remove(f"{self.of(table_uuid)}/indexes")

    def remove_former(self) -> None:
        """Remove the presented files of the former history."""
        if self._former:
            self._remove(self._former)
            self._former = ""

    def _infos(self, folder: str, *, recursive: bool = False) -> Iterator[FileInfo]:
        filesystem, path = place(folder)
        yield from filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))

    def _remove(self, folder: str) -> None:
        try:
            remove_folder(folder)
        except FileNotFoundError:
            return  # another process has removed it
        log.info("no presented files are left in %s", folder)


V3 = 3
LAKE = "lake"
_HEADS = {"now": 0, "now-v3": V3}
_WAREHOUSES = {"at-v3:": ("at-v3-", V3), "at:": ("at-", 0)}
"""Prefix of a warehouse's name to the beginning of its URL prefix and the format version to show; 0 for a table's
own.
"""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A warehouse that presents cuts."""

    position: str
    """A token or a time; empty for each table's head at the time of its load."""
    format_version: int
    """The Iceberg format version to show; 0 for a table's own."""


def prefix_of(name: str, lake: str) -> str:
    """The URL prefix of a warehouse; empty for the lake itself, whose URI is `lake`. Raises `NoSuchWarehouse` for
    other names.
    """
    if name in ("", LAKE) or name.rstrip("/") == lake:
        return ""
    if name in _HEADS:
        return name
    for begin, (prefix, _) in _WAREHOUSES.items():
        if name.startswith(begin):
            try:
                position = said_position(name.removeprefix(begin))
            except Invalid as error:
                raise NoSuchWarehouse(f"warehouse {excerpt(name)}: {error.message}") from error
            return prefix + base64.urlsafe_b64encode(position.encode()).rstrip(b"=").decode()
    raise NoSuchWarehouse(
        f"there is no warehouse {excerpt(name)}: `now` is every table's head, `at:<token or time>` one cut of all"
        " tables, `lake` or none what is tiered"
    )


def of_prefix(prefix: str) -> Warehouse:
    """The warehouse of a URL prefix. Raises `NoSuchWarehouse` for others."""
    if prefix in _HEADS:
        return Warehouse("", _HEADS[prefix])
    for begin, version in _WAREHOUSES.values():
        if prefix.startswith(begin):
            try:
                text = prefix.removeprefix(begin)
                raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
                return Warehouse(times.position_text(raw.decode("ascii")), version)
            except (ValueError, Invalid) as error:
                raise NoSuchWarehouse(
                    f"{excerpt(prefix)} is not a prefix of this catalog: ask /v1/config for one"
                ) from error
    raise NoSuchWarehouse(f"{excerpt(prefix)} is not a prefix of this catalog: ask /v1/config for one")


def said_position(text: str) -> str:
    """The token or time in a URL, where spaces and plus signs may have been exchanged."""
    for each in _readings(text):
        if times.micros_of(each) is not None:
            return each
    return times.position_text(text)


def _readings(text: str) -> Iterator[str]:
    yield text
    yield text.replace("+", " ", 1)
    day, space, zone = text.rpartition(" ")
    if space:
        yield f"{day}+{zone}"
        yield f"{day.replace('+', ' ', 1)}+{zone}"
