"""The files of a lake table's snapshots: all of main's, or those that one snapshot changed, read from manifests in
Python.

Java is asked for a file only when the file takes part in a commit. Each question crosses into the JVM, and a hundred
thousand files would take minutes. Java lists a manifest's living files in the manifest's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lakestore.errors import Corrupt
from lakestore.iceberg import cache, places
from lakestore.iceberg.avro import Container
from lakestore.iceberg.delete_index import DeleteIndex, only_path
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list
from lakestore.iceberg.manifests import DELETED, POSITION_DELETES, File, damage, entry_names
from lakestore_tiering.iceberg_java import Iceberg, LakeDelete, LakeFile, Lazy

Key = tuple[str, int]


@dataclass(slots=True)
class Changes:
    """The files that one snapshot added and removed."""

    added: list[LakeFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    added_deletes: list[tuple[str | None, Key, LakeDelete]] = field(default_factory=list)
    """Each with the path of the one data file that it covers; None if it may cover several."""
    removed_deletes: set[Key] = field(default_factory=set)


def files(lake: Iceberg) -> Iterator[LakeFile]:
    """Every data file of main with its deletes. Reads all manifests."""
    snapshot = lake.table.currentSnapshot()
    if snapshot is None:
        return
    uuid, derived = lake.uuid(), cache.of_process()
    held = [(Entries.opened(each, uuid, derived), java) for each, java in _manifests(lake, snapshot)]
    deletes, index = dict[Key, LakeDelete](), DeleteIndex()
    for entries, java in held:
        if entries.manifest.content == DELETES:
            index.add_all(entries)
            reader = _Reader(lake, java, is_data=False)
            deletes |= {_key(entry.file): reader.delete(entry.file, place) for place, entry in enumerate(entries)}
    for entries, java in held:
        if entries.manifest.content != DELETES:
            reader = _Reader(lake, java, is_data=True)
            for place, entry in enumerate(entries):
                made = reader.data(entry.file, place)
                for delete in index.of(entry):
                    made.deletes[_key(delete.file)] = deletes[_key(delete.file)]
                yield made


def changes(lake: Iceberg, snapshot: Any) -> Changes:
    """The files that a snapshot added and removed. Reads only the manifests written for it."""
    found, number = Changes(), int(snapshot.snapshotId())
    for manifest, java in _manifests(lake, snapshot, number):
        data, is_data = places.read(manifest.path), manifest.content != DELETES
        entries, reader = Entries(data, manifest), _Reader(lake, java, is_data=is_data)
        for place in np.flatnonzero(entries.added).tolist():
            file = entries.read(place).file
            if is_data:
                found.added.append(reader.data(file, place))
            else:
                only = only_path(file) if file.content == POSITION_DELETES else None
                path = None if only is None else only.decode()
                found.added_deletes.append((path, _key(file), reader.delete(file, place)))
        gone = _gone(data, manifest) if manifest.deleted_files != 0 else []
        if is_data:
            found.removed += [path for path, _ in gone]
        else:
            found.removed_deletes.update(gone)
    return found


def total(lake: Iceberg, default: int) -> int:
    """Number of main's data files in its summary; `default` if the writer left it out."""
    snapshot = lake.table.currentSnapshot()
    text = None if snapshot is None else snapshot.summary().get("total-data-files")
    return default if text is None else int(text)


def read_manifests(lake: Iceberg, files: dict[str, LakeFile], known: set[str]) -> set[str]:
    """Read main's manifests that are not in `known` and bind their files to them. Returns main's manifests.

    Manifests are merged and rewritten, and old ones disappear with their snapshots.
    """
    listed = set()
    for manifest, java in _manifests(lake, lake.table.currentSnapshot()):
        listed.add(manifest.path)
        if manifest.path in known:
            continue
        entries = Entries(places.read(manifest.path), manifest)
        if manifest.content != DELETES:
            reader = _Reader(lake, java, is_data=True)
            for place, path in enumerate(entries.paths(np.arange(len(entries)))):
                if path in files:
                    files[path].source = reader.lazy(place, path)
        else:
            _renew_deletes(entries, _Reader(lake, java, is_data=False), files)
    return listed


def _renew_deletes(entries: Entries, reader: _Reader, files: dict[str, LakeFile]) -> None:
    several = {}
    for place, entry in enumerate(entries):
        only, key = only_path(entry.file), _key(entry.file)
        if only is None:
            several[key] = reader.delete(entry.file, place)
        elif (covered := files.get(only.decode())) is not None and key in covered.deletes:
            covered.deletes[key] = reader.delete(entry.file, place)
    for file in files.values() if several else ():
        file.deletes |= {key: several[key] for key in several.keys() & file.deletes.keys()}


def manifests(lake: Iceberg) -> set[str]:
    """Main's manifests."""
    location = str(lake.table.currentSnapshot().manifestListLocation())
    return {each.path for each in read_list(places.read(location), location)}


def _manifests(lake: Iceberg, snapshot: Any, own: int | None = None) -> Iterator[tuple[Manifest, Any]]:
    java = {str(each.path()): each for each in snapshot.allManifests(lake.table.io())}
    location = str(snapshot.manifestListLocation())
    for each in read_list(places.read(location), location):
        if own is None or each.added_snapshot_id == own:
            yield each, java[each.path]


def _gone(data: bytes, manifest: Manifest) -> list[Key]:
    container = Container.opened(data, manifest.path)
    with damage(manifest.path):
        records = (each for each in container.records(entry_names(container)) if each["status"] == DELETED)
        return [_key_of(each["data_file"]) for each in records]


def _key_of(file: Any) -> Key:
    offset = file.get("content_offset")
    return file["file_path"], -1 if offset is None else offset


def _key(file: File) -> Key:
    return file.path, -1 if file.content_offset is None else file.content_offset


class _Reader:
    """The files of one manifest as Java objects, read at the first request."""

    def __init__(self, lake: Iceberg, manifest: Any, *, is_data: bool) -> None:
        self._lake, self._manifest, self._is_data = lake, manifest, is_data
        self._files: Any = None

    def data(self, file: File, place: int) -> LakeFile:
        here = self._lake.is_partitioned_by(file.spec_id)
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
            reader = read(self._manifest, table.io(), table.specs())
            try:
                self._files = self._lake.java_list_of(reader)
            finally:
                reader.close()
        found = self._files.get(place)
        if str(found.location()) != path:
            raise Corrupt(f"manifest {self._manifest.path()} names {found.location()} where {path} was read")
        return found
