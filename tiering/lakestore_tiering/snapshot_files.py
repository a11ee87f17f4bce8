"""The files that one snapshot of a lake table changed, read from manifests in Python.

Java is asked for a file only when the file takes part in a commit. Each question crosses into the JVM, and a hundred
thousand files would take minutes. Java lists a manifest's living files in the manifest's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lakestore.errors import Corrupt
from lakestore.iceberg import places
from lakestore.iceberg.avro import Container
from lakestore.iceberg.delete_index import only_path
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list
from lakestore.iceberg.manifests import DELETED, File, damage, entry_names
from lakestore_tiering.iceberg_java import Iceberg, LakeDelete, LakeFile, Lazy

Key = tuple[str, int]


@dataclass(slots=True)
class Changes:
    """The data files that one snapshot added and removed."""

    added: list[LakeFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def changes(lake: Iceberg, snapshot: Any) -> Changes:
    """The data files that a snapshot added and removed. Reads only the manifests written for it."""
    found, number = Changes(), int(snapshot.snapshotId())
    for manifest, java in _manifests(lake, snapshot, number):
        if manifest.content == DELETES:
            continue
        data = places.read(manifest.path)
        entries, reader = Entries(data, manifest), ManifestReader(lake, java, manifest.path, is_data=True)
        for place in np.flatnonzero(entries.added).tolist():
            found.added.append(reader.data(entries.read(place).file, place))
        if manifest.deleted_files != 0:
            found.removed += _removed(data, manifest)
    return found


def _manifests(lake: Iceberg, snapshot: Any, own: int) -> Iterator[tuple[Manifest, Callable[[], Any]]]:
    """The manifests that were written for a snapshot, each with a function that returns it as a Java object."""
    location = str(snapshot.manifestListLocation())
    for number, each in enumerate(read_list(places.read(location), location)):
        if each.added_snapshot_id == own:
            yield each, partial(_java_manifest, lake, snapshot, number)


def _java_manifest(lake: Iceberg, snapshot: Any, number: int) -> Any:
    return snapshot.allManifests(lake.table.io()).get(number)


def _removed(data: bytes, manifest: Manifest) -> list[str]:
    container = Container.opened(data, manifest.path)
    with damage(manifest.path):
        records = (each for each in container.records(entry_names(container)) if each["status"] == DELETED)
        return [each["data_file"]["file_path"] for each in records]


def key_of_file(file: File) -> Key:
    """The path of a delete file, and its position in a Puffin file or -1."""
    return file.path, -1 if file.content_offset is None else file.content_offset


class ManifestReader:
    """The files of one manifest as Java objects, read at the first request."""

    def __init__(self, lake: Iceberg, manifest: Callable[[], Any], path: str, *, is_data: bool) -> None:
        """`manifest` returns the Java object of the manifest at `path`."""
        self._lake, self._manifest, self._path, self._is_data = lake, manifest, path, is_data
        self._files: Any = None

    def data(self, file: File, place: int) -> LakeFile:
        here = self._lake.spec_id == file.spec_id
        partition = tuple(file.partition.values()) if here else None
        return LakeFile(
            file.path, file.rows, file.bytes, file.bounds, self.lazy(place, file.path), file.format, partition
        )

    def delete(self, file: File, place: int) -> LakeDelete:
        return LakeDelete(file.rows, only_path(file) is not None, self.lazy(place, file.path))

    def lazy(self, place: int, path: str) -> Lazy:
        return Lazy(lambda: self.get(place, path))

    def get(self, place: int, path: str) -> Any:
        """The living file at an index, which must have this path."""
        if self._files is None:
            api, table = self._lake.api.ManifestFiles, self._lake.table
            read = api.read if self._is_data else api.readDeleteManifest
            manifest = self._manifest()
            if str(manifest.path()) != self._path:
                raise Corrupt(f"Iceberg lists {manifest.path()} where {self._path} was read")
            reader = read(manifest, table.io(), table.specs())
            try:
                self._files = self._lake.java_list_of(reader)
            finally:
                reader.close()
        found = self._files.get(place)
        if str(found.location()) != path:
            raise Corrupt(f"manifest {self._path} names {found.location()} where {path} was read")
        return found
