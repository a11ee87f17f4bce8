"""The first look at a lake table's main: every data file with its deletes, by manifests that are read here.

Java is asked for a file when it takes part in a commit: each question about a file crosses into the JVM, and a table of
a hundred thousand files would take minutes of them. Java lists the living files of a manifest in the manifest's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakestore.errors import Corrupt
from lakestore.lake import places
from lakestore.lake.delete_index import DeleteIndex, only_path
from lakestore.lake.manifest_entries import Entries
from lakestore.lake.manifest_lists import DELETES, read_list
from lakestore.lake.manifests import File
from lakestore_tiering.iceberg_java import Iceberg, LakeDelete, LakeFile, Lazy

Key = tuple[str, int]


def files(lake: Iceberg) -> Iterator[LakeFile]:
    """Every data file of main, with its deletes: reads all manifests."""
    snapshot = lake.table.currentSnapshot()
    if snapshot is None:
        return
    location = str(snapshot.manifestListLocation())
    java = {str(each.path()): each for each in snapshot.allManifests(lake.table.io())}
    listed = read_list(places.read(location), location)
    held = [Entries(places.read(each.path), each) for each in listed]
    deletes, index = dict[Key, LakeDelete](), DeleteIndex()
    for entries in held:
        if entries.manifest.content == DELETES:
            index.add_all(entries)
            reader = _Reader(lake, java[entries.manifest.path], is_data=False)
            for place, entry in enumerate(entries):
                alone = only_path(entry.file) is not None
                lazy = Lazy(lambda reader=reader, place=place, path=entry.file.path: reader.get(place, path))  # type: ignore[misc]
                deletes[_key(entry.file)] = LakeDelete(entry.file.rows, alone, lazy)
    for entries in held:
        if entries.manifest.content != DELETES:
            reader = _Reader(lake, java[entries.manifest.path], is_data=True)
            for place, entry in enumerate(entries):
                made = _lake_file(lake, entry.file, reader, place)
                for delete in index.of(entry):
                    made.deletes[_key(delete.file)] = deletes[_key(delete.file)]
                yield made


def _lake_file(lake: Iceberg, file: File, reader: _Reader, place: int) -> LakeFile:
    lazy = Lazy(lambda: reader.get(place, file.path))
    made = LakeFile(file.path, file.rows, file.bytes, file.bounds, lazy, file.format)
    if lake.is_partitioned_by(file.spec_id):
        made.partition = _text(file) or str(made.java.partition())
    return made


def _text(file: File) -> str:
    """The partition as Java spells it, of numbers, dates, times and texts; empty of other values."""
    parts = []
    for name, value in file.partition.items():
        if value is not None and type(value) not in (int, str):
            return ""
        parts.append(f"{name}={'null' if value is None else str(value)}")
    return f"PartitionData{{{', '.join(parts)}}}"


def _key(file: File) -> Key:
    return file.path, -1 if file.content_offset is None else file.content_offset


class _Reader:
    """The files of one manifest as Java has them, read when the first is asked for."""

    def __init__(self, lake: Iceberg, manifest: Any, *, is_data: bool) -> None:
        self._lake, self._manifest, self._is_data = lake, manifest, is_data
        self._files: Any = None

    def get(self, place: int, path: str) -> Any:
        """The file at a place among the living ones, which has this path."""
        if self._files is None:
            api, table = self._lake.api.ManifestFiles, self._lake.table
            read = api.read if self._is_data else api.readDeleteManifest
            reader = read(self._manifest, table.io(), table.specs())
            try:
                self._files = self._lake.java_listed(reader)
            finally:
                reader.close()
        found = self._files.get(place)
        if str(found.location()) != path:
            raise Corrupt(f"manifest {self._manifest.path()} names {found.location()} where {path} was read")
        return found
