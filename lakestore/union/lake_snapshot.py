"""A lake snapshot as its files: data files, each with the delete files that may name its rows.

A manifest never changes and consecutive snapshots share most manifests. Decoded manifests are therefore cached as
arrays, in bounded memory: planning a new snapshot reads only its new manifests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Corrupt, Invalid, PlanExpired
from lakestore.iceberg import cache, manifests, metadata_files, places
from lakestore.iceberg.delete_index import DeleteIndex
from lakestore.iceberg.field_ids import id_of
from lakestore.iceberg.manifest_entries import Entries, Longs, recent_name
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list
from lakestore.iceberg.manifests import Entry, File
from lakestore.iceberg.row_search import BoundsTable, RowSearch, packed
from lakestore.model.table import Table
from lakestore.rows.casting import Rules, TargetType, refuse
from lakestore.rows.ranges import OffsetSet, OffsetsFrom
from lakestore.union.lake_ranges import Hidden, RowNumbers
from lakestore.union.lake_tests import Mask
from lakestore.union.plan import TableScan


def declared(array: pa.Array, field: pa.Field, table: Table) -> pa.Array:
    """A column of a file in the table's type."""
    if array.type == field.type and not pa.types.is_nested(field.type):
        return array
    nested = next((column.nested for column in table.columns if column.name == field.name), ())
    return refuse(array, field, _STORED, table=table.name, ids=iter(nested))


def recast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in another type of the same shape, at every depth. Struct fields are matched by name."""
    return refuse(array, pa.field("", kind), _STORED)


def _by_id(source: pa.StructType, want: TargetType) -> list[int | None]:
    numbers = [id_of(part) for part in source]
    if all(number is None for number in numbers):
        names = [part.name for part in source]
        return [_index(names, part.field.name) for part in want.parts]
    return [_index(numbers, part.id) for part in want.parts]


_STORED = Rules(lambda array, kind, misfits: pc.cast(array, kind), checked=False, places=_by_id)
"""Values of the lake's files. Nothing is checked; a cast that fails raises Arrow's error."""


def _index(known: Sequence[object], one: object) -> int | None:
    return known.index(one) if one in known else None


METADATA_KEPT = 32
MANIFESTS_BYTES_MAX = 256 << 20
"""Memory for cached manifests: about 300,000 files with statistics of six columns."""
LISTED_BYTES = 600
"""Memory of one entry of a manifest list."""


@contextmanager
def named(path: str) -> Iterator[None]:
    """Turns errors of the storage into errors that name the file."""
    try:
        with places.store_errors(path):
            yield
    except FileNotFoundError as error:
        raise PlanExpired(f"file {path} is gone: the read took longer than its lease, so read again") from error
    except (pa.ArrowInvalid, struct.error) as error:
        places.forget_small_files(path)
        raise Corrupt(f"file {path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class LakeTable:
    """An Iceberg table as described by one metadata file. Metadata files never change."""

    location: str
    """Location of the metadata file."""
    document: Mapping[str, Any]

    @property
    def specs(self) -> Mapping[int, Mapping[str, Any]]:
        """Partition specs by id."""
        return {spec["spec-id"]: spec for spec in self.document.get("partition-specs", ())}

    @property
    def schema(self) -> Mapping[str, Any]:
        """The current schema."""
        current = self.document.get("current-schema-id")
        return next((each for each in self.document["schemas"] if each["schema-id"] == current), {})

    def snapshot(self, number: int) -> Mapping[str, Any]:
        """A snapshot's entry in the metadata. Raises `Invalid` if there is none."""
        for snapshot in self.document.get("snapshots", ()):
            if snapshot["snapshot-id"] == number:
                found: Mapping[str, Any] = snapshot
                return found
        raise Invalid(f"{self.location} has no snapshot {number}")


@lru_cache(maxsize=METADATA_KEPT)
def metadata(location: str) -> LakeTable:
    """The table as described by one metadata file."""
    with named(location):
        data = places.read(location)
        try:
            return LakeTable(location, metadata_files.parsed(data))
        except ValueError as error:
            raise Corrupt(f"file {location} is not the metadata of an Iceberg table: {error}") from error


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file of a snapshot."""

    file: File
    deletes: tuple[File, ...] = ()
    """Delete files and vectors that may name its rows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's manifests. A read opens only those that it needs."""

    data: tuple[Manifest, ...]
    deletes: DeleteIndex
    """The deletes of all data files."""
    nbytes: int

    def planned(self, entries: Entries, places: Iterable[int]) -> Iterator[PlannedFile]:
        """The data files at these positions of a manifest."""
        for place in places:
            entry = entries.read(place)
            yield PlannedFile(entry.file, tuple(each.file for each in self.deletes.of(entry)))


_MANIFESTS: cache.RecentValues[Entries] = cache.RecentValues(MANIFESTS_BYTES_MAX)
_SNAPSHOTS: cache.RecentValues[Snapshot] = cache.RecentValues(MANIFESTS_BYTES_MAX)


def snapshot(scan: TableScan) -> Snapshot:
    """The snapshot of a plan. Raises `Invalid` if it has equality deletes, which reads do not support."""
    listed = metadata(scan.metadata_location).snapshot(scan.snapshot_id)["manifest-list"]
    known = _SNAPSHOTS.get(listed)
    if known is None:
        known = _opened(listed, scan.table)
        _SNAPSHOTS.put(listed, known)
    return known


def _opened(listed: str, table: Table) -> Snapshot:
    """A snapshot with its deletes. A delete applies to a data file by path, partition and sequence number, as
    Iceberg's specification says.
    """
    found, deletes, size = _manifests(listed), DeleteIndex(), 0
    for manifest in found:
        if manifest.content == DELETES:
            held = entries_of(manifest, table.uuid)
            _refuse_equality(held, table.name)
            deletes.add_all(held)
            size += held.nbytes
    return Snapshot(tuple(each for each in found if each.content != DELETES), deletes, size + LISTED_BYTES * len(found))


def _refuse_equality(held: Entries, name: str) -> None:
    found = np.flatnonzero(held.contents == manifests.EQUALITY_DELETES)
    if len(found):
        raise Invalid(
            f"lake table {name} cannot be read: {held.paths(found[:1])[0]}, of another engine, deletes rows by values"
            " (equality deletes): let that engine rewrite its table without them"
        )


def forget() -> None:
    """Empty all caches. Benchmarks call it for a cold start."""
    metadata.cache_clear()
    _MANIFESTS.clear()
    _SNAPSHOTS.clear()


def planned(scan: TableScan) -> tuple[PlannedFile, ...]:
    """All data files of a plan's snapshot."""
    found = snapshot(scan)
    return tuple(
        each
        for manifest in found.data
        for entries in [entries_of(manifest, scan.table.uuid)]
        for each in found.planned(entries, range(len(entries)))
    )


def _manifests(listed: str) -> list[Manifest]:
    with named(listed):
        return read_list(places.read(listed), listed)


def entries_of(manifest: Manifest, table_uuid: str) -> Entries:
    """The live entries of a manifest of a table."""
    name = recent_name(manifest, table_uuid)
    known = _MANIFESTS.get(name)
    if known is None:
        with named(manifest.path):
            known = Entries.opened(manifest, table_uuid, cache.of_process())
        _MANIFESTS.put(name, known)
    return known


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One file of a lake snapshot."""

    content: str
    """data, position deletes or equality deletes."""
    path: str
    format: str
    rows: int
    bytes: int


_CONTENT = {manifests.DATA: "data", manifests.POSITION_DELETES: "position deletes"}


def files(metadata_location: str, snapshot_id: int) -> list[LakeFile]:
    """The files of a snapshot."""
    table = metadata(metadata_location)
    listed, uuid = table.snapshot(snapshot_id)["manifest-list"], str(table.document.get("table-uuid", ""))
    held = sorted(_manifests(listed), key=lambda each: each.content == DELETES)
    found = (entry.file for manifest in held for entry in entries_of(manifest, uuid))
    return [
        LakeFile(_CONTENT.get(each.content, "equality deletes"), each.path, each.format, each.rows, each.bytes)
        for each in found
    ]


def history(metadata_location: str) -> list[Mapping[str, Any]]:
    """The snapshots that branch main still has, oldest first. Each has a summary, whose operation is append, overwrite,
    replace (a compaction) or delete.
    """
    document = metadata(metadata_location).document
    known = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots", ())}
    kept = [known[entry["snapshot-id"]] for entry in document.get("snapshot-log", ()) if entry["snapshot-id"] in known]
    return [snapshot for snapshot in kept if "summary" in snapshot]


@dataclass(frozen=True, slots=True)
class FileList(Sequence[PlannedFile]):
    """Data files of one snapshot, in the order of its manifests."""

    snapshot: Snapshot | None
    """None if there are no files."""
    places: tuple[tuple[Entries, Longs], ...]
    """Manifests, each with the positions of its files."""

    def __len__(self) -> int:
        return sum(len(positions) for _, positions in self.places)

    def __iter__(self) -> Iterator[PlannedFile]:
        for entries, positions in self.places:
            assert self.snapshot is not None
            yield from self.snapshot.planned(entries, positions.tolist())

    @overload
    def __getitem__(self, number: int) -> PlannedFile: ...

    @overload
    def __getitem__(self, number: slice) -> list[PlannedFile]: ...

    def __getitem__(self, number: int | slice) -> PlannedFile | list[PlannedFile]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        left = range(len(self))[number]
        for entries, positions in self.places:
            if left < len(positions):
                assert self.snapshot is not None
                return next(self.snapshot.planned(entries, [int(positions[left])]))
            left -= len(positions)
        raise IndexError(number)

    @property
    def rows(self) -> int:
        """Rows of all files, including deleted ones."""
        return sum(int(entries.rows[positions].sum()) for entries, positions in self.places)

    def sizes(self) -> list[tuple[str, int]]:
        """Path and size in bytes of each file."""
        found: list[tuple[str, int]] = []
        for entries, positions in self.places:
            found += zip(entries.paths(positions), entries.sizes[positions].tolist(), strict=True)
        return found

    def shared_deletes(self) -> Iterator[Entry]:
        """Deletes that apply to whole partitions, each once for every file here that will ask for it."""
        for entries, positions in self.places:
            assert self.snapshot is not None
            for _, delete in self.snapshot.deletes.shared(entries, positions):
                yield delete

    def split(self, meant: Callable[[Entries, Longs], Mask]) -> tuple[FileList, FileList]:
        """(files that `meant` accepts, the others). `meant` judges positions of one manifest."""
        masks = [meant(entries, positions) for entries, positions in self.places]
        return self._only(masks), self._only([~mask for mask in masks])

    def _only(self, masks: Sequence[Mask]) -> FileList:
        both = ((entries, positions[mask]) for (entries, positions), mask in zip(self.places, masks, strict=True))
        return FileList(self.snapshot, tuple((entries, positions) for entries, positions in both if len(positions)))

    def split_whole(self, meant: Callable[[Entries, Longs], Mask], hidden: Hidden) -> tuple[FileList, FileList]:
        """`split`, but the first part has only files whose rows are all visible: none deleted, none in `hidden`."""
        return self.split(partial(self._is_whole, meant, _Near(hidden)))

    def _is_whole(
        self, meant: Callable[[Entries, Longs], Mask], near: _Near, entries: Entries, positions: Longs
    ) -> Mask:
        assert self.snapshot is not None
        whole = meant(entries, positions)
        whole[whole] = ~self.snapshot.deletes.may_name(entries, positions[whole])
        whole[whole] = ~near.of(entries, positions[whole])
        return whole


class _Near:
    """Finds the files that may hold a hidden row: `RowNumbers.near` for many files at once."""

    def __init__(self, hidden: Hidden) -> None:
        self._hidden = hidden
        gone = {bucket: each for bucket, each in hidden.items() if isinstance(each, OffsetSet)}
        self._search = RowSearch(packed(gone))
        starts = {bucket: each.start for bucket, each in hidden.items() if isinstance(each, OffsetsFrom)}
        self._buckets = np.array(sorted(starts), np.int64)
        self._starts = np.array([starts[bucket] for bucket in sorted(starts)], np.int64)

    def of(self, entries: Entries, places: Longs) -> Mask:
        """Marks the positions whose file may hold a hidden row."""
        found = np.zeros(len(places), np.bool_)
        if not self._hidden:
            return found
        all_ends, all_known = entries.ends
        ends, known = all_ends[places], all_known[places]
        sure = np.flatnonzero(known)
        found[sure[self._search.files(BoundsTable(ends[sure], known[sure]))]] = True
        found[sure] |= self._behind(ends[sure])
        for number in np.flatnonzero(~known).tolist():
            file = entries.read(int(places[number])).file
            found[number] = bool(RowNumbers.of(file).near(self._hidden))
        return found

    def _behind(self, ends: Longs) -> Mask:
        """Marks files that may hold an offset at or after the end of its bucket."""
        found, (least, most, _, last) = np.zeros(len(ends), np.bool_), ends.T
        first, end = np.searchsorted(self._buckets, least), np.searchsorted(self._buckets, most, side="right")
        one = np.flatnonzero(end - first == 1)
        found[one] = last[one] >= self._starts[first[one]]
        for number in np.flatnonzero(end - first > 1).tolist():
            found[number] = bool(last[number] >= self._starts[first[number] : end[number]].min())
        return found
