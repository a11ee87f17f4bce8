"""The folders of presented files: `__presented/<timeline>/<table uuid>/<run>/` of the warehouse.

A run is one life of the presenter. Its process removes the files of cuts that it is told to forget; whole runs of ended
processes, and all of a table that is gone, are removed here. Only folders of this server's history are ever touched,
and those of the one that it was restored from: others may share the warehouse.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileType

from lakestore.lake.places import place
from lakestore.model.names import PRESENTED

log = logging.getLogger("lakestore.present")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Usage:
    """The files that lie there."""

    files: int = 0
    bytes: int = 0


class Folders:
    """The presented files of a warehouse. Errors of the storage are `OSError`s."""

    def __init__(self, warehouse: str, timeline: str, former: str = "") -> None:
        """`former` is the timeline of the history that this one was restored from; empty for none."""
        place = f"{warehouse.rstrip('/')}/{PRESENTED}"
        self._root, self._former = f"{place}/{timeline}", f"{place}/{former}" if former else ""

    def of(self, table_uuid: str) -> str:
        """The URI of a table's folder."""
        return f"{self._root}/{table_uuid}"

    def run(self, table_uuid: str, run: str) -> str:
        """The URI of a run's folder of a table."""
        return f"{self.of(table_uuid)}/{run}"

    def remove_document(self, location: str) -> None:
        """Remove a metadata file."""
        filesystem, path = place(location)
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            return  # the run is gone with all it had

    def usage(self) -> Usage:
        """All files of all tables; one look at each."""
        files = [info for info in self._infos(self._root, recursive=True) if info.type == FileType.File]
        return Usage(len(files), sum(info.size or 0 for info in files))

    def tables(self) -> list[str]:
        """The uuids of tables that have a folder."""
        return [info.base_name for info in self._infos(self._root) if _UUID.fullmatch(info.base_name)]

    def runs(self, table_uuid: str) -> list[str]:
        """The runs that have a folder of a table."""
        return [info.base_name for info in self._infos(self.of(table_uuid)) if _RUN.fullmatch(info.base_name)]

    def remove_run(self, table_uuid: str, run: str) -> None:
        """Remove what a run wrote of a table."""
        self._remove(self.run(table_uuid, run))

    def remove_table(self, table_uuid: str) -> None:
        """Remove all of a table."""
        self._remove(self.of(table_uuid))

    def remove_indexes(self, table_uuid: str) -> None:
        """Remove the offset indexes that release 0.2 kept beside runs."""
        self._remove(f"{self.of(table_uuid)}/indexes")

    def remove_former(self) -> None:
        """Remove what the history presented that this one was restored from."""
        if self._former:
            self._remove(self._former)
            self._former = ""

    def _infos(self, folder: str, *, recursive: bool = False) -> Iterator[FileInfo]:
        filesystem, path = place(folder)
        yield from filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))

    def _remove(self, folder: str) -> None:
        filesystem, path = place(folder)
        try:
            filesystem.delete_dir(path)
        except FileNotFoundError:
            return  # somebody was faster
        log.info("presented files are removed: %s", folder)
