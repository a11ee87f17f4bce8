"""The live files of a lake table's main as columns, by manifest, kept from round to round.

1. A round reads the manifests that are new since the last round. The others are in memory, or mapped from the cache.
2. A file becomes an object only when rows of it died or a compaction takes it, and a Java object only for a commit.
3. What a round does for every file is array arithmetic: 1 ms for 100,000 files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lakestore.iceberg import places
from lakestore.iceberg.cache import DerivedCache
from lakestore.iceberg.delete_index import DeleteIndex
from lakestore.iceberg.manifest_entries import Entries, Longs, path_hash, recent_name
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list
from lakestore.iceberg.manifests import POSITION_DELETES, Entry
from lakestore.iceberg.row_search import BoundsTable, Keys, RowSearch
from lakestore.iceberg.values import partition_key
from lakestore.rows.distinct import distinct
from lakestore_tiering.iceberg_java import Iceberg, LakeFile
from lakestore_tiering.snapshot_files import Key, ManifestReader, key_of_file

Partition = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Figures of data files, for the choice of a compaction: one array entry for each file."""

    bytes: Longs
    rows: Longs
    deleted: Longs
    """Rows that delete files of this file alone name."""
    partitions: Longs
    """A number for each partition."""
    foreign: int
    """Files in another format than Lakestore writes."""

    @staticmethod
    def of(files: Iterable[LakeFile]) -> FileColumns:
        """The columns of files that are objects already."""
        known, codes = list(files), dict[Partition, int]()
        deleted = [sum(delete.rows for delete in file.deletes.values() if delete.alone) for file in known]
        return FileColumns(
            np.array([file.bytes for file in known], np.int64),
            np.array([file.rows for file in known], np.int64),
            np.array(deleted, np.int64),
            np.array([_code(codes, file.partition or ()) for file in known], np.int64),
            sum(file.format != FORMAT for file in known),
        )


FORMAT = "PARQUET"
"""Format of the files that Lakestore writes. Another engine's rewrite may leave other formats."""


def _code(codes: dict[Partition, int], partition: Iterable[Any]) -> int:
    return codes.setdefault(tuple(map(partition_key, partition)), len(codes))


class LiveFiles:
    """The files of main as of one snapshot, and the memory that makes the next look cheap."""

    def __init__(self) -> None:
        self._main: MainFiles | None = None
        self._left: list[str] = []
        self._codes: dict[Partition, int] = {}
        self.manifests_read = 0
        """Manifests that were opened so far, from the lake or from the cache."""

    def removed_paths(self) -> list[str]:
        """Paths of data files that left main since the last call."""
        found, self._left = self._left, []
        return found

    def at_main(self, lake: Iceberg, derived: DerivedCache) -> MainFiles:
        """The files of main now."""
        before = self._main
        if before is not None and before.spec_id != lake.spec_id:
            before = self._main = None  # files of the spec before have no partition under this one
            self._codes.clear()
        if before is not None and before.snapshot_id == lake.current_id():
            return before
        snapshot = lake.table.currentSnapshot()
        location = "" if snapshot is None else str(snapshot.manifestListLocation())
        listed = read_list(places.read(location), location) if location else []
        known = {} if before is None else before.by_name
        uuid = lake.uuid()
        opened = {name: known.get(name) or self._opened(each, uuid, derived) for name, each in _named(listed)}
        self._main = MainFiles(lake, snapshot, opened, self._codes)
        if before is not None:
            self._left += _gone(before, self._main)
        return self._main

    def _opened(self, manifest: Manifest, uuid: str, derived: DerivedCache) -> ManifestColumns:
        self.manifests_read += 1
        return ManifestColumns(Entries.opened(manifest, uuid, derived))


def _named(manifests: Iterable[Manifest]) -> Iterator[tuple[str, Manifest]]:
    return ((recent_name(each, ""), each) for each in manifests)


def _gone(before: MainFiles, after: MainFiles) -> list[str]:
    """Paths of the data files of `before` that `after` does not have. Manifests of both are not looked at."""
    old = [each.entries for each in before.data if each.name not in after.by_name]
    new = [each.entries.path_hashes for each in after.data if each.name not in before.by_name]
    # One search for all files: a search for each manifest sorted `new` each time, 2.4 s for 100 manifests.
    hashes = [each.path_hashes for each in old]
    is_gone = ~np.isin(np.concatenate([np.empty(0, np.int64), *hashes]), np.concatenate([np.empty(0, np.int64), *new]))
    parts = np.split(is_gone, np.cumsum([len(each) for each in hashes])[:-1]) if old else []
    return [path for each, gone in zip(old, parts, strict=True) for path in each.paths(np.flatnonzero(gone))]


class ManifestColumns:
    """One manifest of main, with columns that are computed once."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.name = recent_name(entries.manifest, "")
        self._partitions: Longs | None = None

    @cached_property
    def foreign(self) -> int:
        """Number of data files in another format than Lakestore writes."""
        return int(np.count_nonzero(~self.entries.has_format(FORMAT)))

    def partitions(self, codes: dict[Partition, int], spec_id: int) -> Longs:
        """The number of each file's partition; files of an earlier partitioning share one number."""
        if self._partitions is None:
            count = len(self.entries)
            if self.entries.manifest.spec_id != spec_id:
                self._partitions = np.full(count, _code(codes, ()))
            else:
                found = self.entries.partitions(np.arange(count))
                self._partitions = np.array([_code(codes, (value for _, value in each)) for each in found], np.int64)
        return self._partitions


class MainFiles:
    """The files of one snapshot of main. A file's number is its place in the joined columns."""

    def __init__(
        self, lake: Iceberg, snapshot: Any, opened: dict[str, ManifestColumns], codes: dict[Partition, int]
    ) -> None:
        self.snapshot_id = lake.current_id()
        self.spec_id = lake.spec_id
        self.by_name = opened
        self.data = [each for each in opened.values() if each.entries.manifest.content != DELETES]
        self.deletes = [each for each in opened.values() if each.entries.manifest.content == DELETES]
        self._lake, self._snapshot, self._codes = lake, snapshot, codes
        self._order = {each.entries.manifest.path: number for number, each in enumerate(opened.values())}
        self._begins = np.cumsum([0, *(len(each.entries) for each in self.data)])

    def __len__(self) -> int:
        """Number of data files."""
        return int(self._begins[-1])

    @property
    def delete_files(self) -> int:
        """Number of delete files and vectors."""
        return sum(len(each.entries) for each in self.deletes)

    @cached_property
    def files_with_deletes(self) -> int:
        """Number of data files, live or not, that have a delete file of their own; others have none or share one."""
        return len(distinct(self._joined([each.entries.named[0][each.entries.named[1]] for each in self.deletes])))

    def manifest_sizes(self) -> tuple[list[int], list[int]]:
        """The sizes in bytes of the manifests of data files, and of delete files."""
        data, deletes = ([each.entries.manifest.length for each in kind] for kind in (self.data, self.deletes))
        return data, deletes

    def files(self) -> list[LakeFile]:
        """Every data file as an object: for tests and tables of few files."""
        return self._objects(np.arange(len(self)))

    def holding(self, keys: Keys) -> list[LakeFile]:
        """The data files whose bounds allow one of these rows."""
        return self._objects(np.array(RowSearch(keys).files(self._bounds), np.int64))

    def is_numbered(self, besides: Sequence[str] = ()) -> bool:
        """True if every data file besides these has columns for row numbers. Adopted files have no bounds of them."""
        gone = np.array([path_hash(path.encode()) for path in besides], np.int64)
        parts = ((each.entries, each.entries.ends[1]) for each in self.data)
        return all(bool(np.all(known) or np.all(known | np.isin(each.path_hashes, gone))) for each, known in parts)

    def at_paths(self, paths: Sequence[str]) -> list[LakeFile] | None:
        """The data files with these paths; None if main lacks one."""
        order, hashes = self._by_hash
        wanted = np.array([path_hash(path.encode()) for path in paths], np.int64)
        found = np.searchsorted(hashes, wanted)
        if not len(hashes) or bool(np.any(hashes[np.minimum(found, len(hashes) - 1)] != wanted)):
            return [] if not paths else None
        files = self._objects(order[found])
        return files if [file.path for file in files] == list(paths) else None

    def covered_by(self, shared: set[Key]) -> dict[Key, set[str]]:
        """The data files that each of these delete files of several data files covers."""
        found: dict[Key, set[str]] = {key: set() for key in shared}
        for each in self.data if shared else ():
            entries = each.entries
            numbers = np.arange(len(entries))
            for number, delete in self._index.shared(entries, numbers):
                if (key := key_of_file(delete.file)) in found:
                    found[key].update(entries.paths(numbers[number : number + 1]))
        return found

    def columns(self) -> FileColumns:
        """The figures of all data files."""
        return FileColumns(
            self._joined([each.entries.sizes for each in self.data]),
            self._joined([each.entries.rows for each in self.data]),
            self._deleted,
            self._joined([each.partitions(self._codes, self.spec_id) for each in self.data]),
            sum(each.foreign for each in self.data),
        )

    @cached_property
    def _bounds(self) -> BoundsTable:
        return BoundsTable.joined([each.entries.ends for each in self.data])

    @cached_property
    def _by_hash(self) -> tuple[Longs, Longs]:
        """The numbers of the data files in the order of their paths' hashes, and the sorted hashes."""
        hashes = self._joined([each.entries.path_hashes for each in self.data])
        order = np.argsort(hashes, kind="stable")
        return order, hashes[order]

    @cached_property
    def _deleted(self) -> Longs:
        """For each data file the rows that delete files of this file alone name."""
        found = np.zeros(len(self), np.int64)
        order, hashes = self._by_hash
        sequences = self._joined([each.entries.sequences for each in self.data])
        for each in self.deletes if len(self) else ():
            entries = each.entries
            named, at = entries.named
            at = at[entries.contents[at] == POSITION_DELETES]
            place = np.minimum(np.searchsorted(hashes, named[at]), len(hashes) - 1)
            hit = (hashes[place] == named[at]) & (entries.sequences[at] >= sequences[order[place]])
            np.add.at(found, order[place[hit]], entries.rows[at[hit]])
        return found

    @cached_property
    def _index(self) -> DeleteIndex:
        index = DeleteIndex()
        for each in self.deletes:
            index.add_all(each.entries)
        return index

    def _objects(self, numbers: npt.NDArray[np.int64]) -> list[LakeFile]:
        readers: dict[str, ManifestReader] = {}
        owners = np.searchsorted(self._begins, numbers, side="right") - 1
        pairs = zip(owners.tolist(), (numbers - self._begins[owners]).tolist(), strict=True)
        return [self._object(self.data[owner].entries, place, readers) for owner, place in pairs]

    def _object(self, entries: Entries, place: int, readers: dict[str, ManifestReader]) -> LakeFile:
        entry = entries.read(place)
        made = self._reader(entries.manifest, readers).data(entry.file, place)
        for delete, held, at in self._deletes_of(entry):
            reader = self._reader(held.manifest, readers)
            made.deletes[key_of_file(delete.file)] = reader.delete(delete.file, at)
        return made

    def _deletes_of(self, data: Entry) -> Iterator[tuple[Entry, Entries, int]]:
        """The deletes that may name rows of a data file, each with its manifest and place."""
        found = self._index.of(data)
        near = {key_of_file(held[at].file): (held, at) for held, at in self._index.places_of(data)} if found else {}
        return ((delete, *near[key_of_file(delete.file)]) for delete in found)

    def _reader(self, manifest: Manifest, readers: dict[str, ManifestReader]) -> ManifestReader:
        if manifest.path not in readers:
            readers[manifest.path] = ManifestReader(
                self._lake, lambda: self._java(manifest.path), manifest.path, is_data=manifest.content != DELETES
            )
        return readers[manifest.path]

    def _java(self, path: str) -> Any:
        return self._snapshot.allManifests(self._lake.table.io()).get(self._order[path])

    @staticmethod
    def _joined(parts: Sequence[Longs]) -> Longs:
        return np.concatenate([np.empty(0, np.int64), *parts])
