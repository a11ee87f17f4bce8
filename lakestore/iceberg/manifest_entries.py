"""The living entries of one manifest as columns: an array for each figure of its files, and an `Entry` on demand.

1. Array operations find the fields of all records at once: 1,000 files take 12 ms, and 0.5 ms from the derived cache.
2. The bytes of the records are kept. An `Entry` is decoded from them on first use, so a caller that chooses files by
   their figures decodes the chosen files alone.
3. A column of a cached value is an array over the value's bytes, without a copy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, overload

import mmh3
import numpy as np
import numpy.typing as npt
import orjson

from lakestore.errors import Corrupt
from lakestore.iceberg import places as lake
from lakestore.iceberg.avro import MARGIN, Bytes, Container, Fields, Names, Places, longs, present
from lakestore.iceberg.avro_values import Codec, codec_of
from lakestore.iceberg.cache import Damaged, DerivedCache, Key, Section, Value
from lakestore.iceberg.manifest_lists import DATA, Manifest
from lakestore.iceberg.manifests import ADDED, DELETED, FAILURES, Entry, damage, entry_names, entry_of
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET

Longs = npt.NDArray[np.int64]
STATUS, SEQUENCE, CONTENT, PATH, FORMAT, ROWS, SIZE = 0, 3, 134, 100, 101, 103, 104
VALUES, NULLS, LOWER, UPPER, REFERENCED, FIRST_ROW_ID = 109, 110, 125, 128, 143, 142
"""Field ids of entries."""
DECODED_MAX = 100
"""Decoded entries that a manifest keeps in memory. A pass over all files keeps none."""
_COLUMNS_KEPT = 16
"""Pairs of map and column for which the places of the values are kept."""
_ENTRY_BYTES, _FIGURES = 1_500, 16 + _COLUMNS_KEPT
"""Bytes of a decoded entry, measured with six columns; figures of a file that are kept after their first use."""
ABSENT = -1
"""A figure that is not in the manifest."""
_KEPT = frozenset((STATUS, SEQUENCE, CONTENT, PATH, ROWS, SIZE, VALUES, NULLS, LOWER, UPPER, REFERENCED, FIRST_ROW_ID))
_FORMATS = re.compile(b"|".join(bytes([2 * len(name)]) + name for name in (b"PARQUET", b"PUFFIN", b"AVRO", b"ORC")))
"""The format of a file, which follows its path. It is the only part of a record that a search can find."""


def path_hash(path: bytes | memoryview) -> int:
    """The hash of a path. It is the same in every process, so it can be stored."""
    return int.from_bytes(mmh3.mmh3_x64_128_digest(path)[:8], "little", signed=True)


class _Shape:
    """The fields of a manifest's records."""

    def __init__(self, schema: bytes, names: Names) -> None:
        parsed = orjson.loads(schema)
        self.codec: Codec = codec_of(parsed, dict(names))
        self.partitions = _partition_fields(parsed, dict(names))
        self.fields = Fields(parsed)
        self.kinds = dict(self.fields.fields)


_shape = lru_cache(maxsize=64)(_Shape)


class _Records:
    """The records of a manifest that is read now, and the places of their fields."""

    def __init__(self, data: bytes, name: str) -> None:
        container = Container.opened(data, name)
        joined, blocks = container.joined()
        self.name, self.data = name, joined + MARGIN
        self._bytes: Bytes = np.frombuffer(self.data, np.uint8)
        with damage(name):
            self.schema, self.names = container.meta["avro.schema"], entry_names(container)
            self.shape = _shape(self.schema, self.names)
        try:
            starts, places = self._laid_out(blocks)
        except FAILURES:
            starts, places = self._walked(self._read_through(container.name, blocks))
        with damage(name):
            status, _ = longs(self._bytes, places[STATUS])
        living = np.flatnonzero(status != DELETED)
        ends = np.append(starts[1:], len(joined))
        self.starts, self.ends, self.status = starts[living], ends[living], status[living]
        self.places = {number: at[living] for number, at in places.items()}

    def _laid_out(self, blocks: Sequence[tuple[int, int]]) -> tuple[Places, dict[int, Places]]:
        """Begin and fields of each record. The search starts at each record's format and checks that the records join.

        `ValueError` or another of `FAILURES` if a path contains the name of a format, or if the bytes are damaged.
        """
        count = sum(records for records, _ in blocks)
        formats = np.fromiter((found.start() for found in _FORMATS.finditer(self.data)), np.int64)
        names = [number for number, _ in self.shape.fields.fields]
        middle = names.index(FORMAT)
        if len(formats) != count:
            raise ValueError("a file has no format, or one too many")
        places, ends = self._walk(formats, middle, len(names))
        starts = np.concatenate([np.zeros(min(count, 1), np.int64), ends[:-1]])
        before, reached = self._walk(starts, 0, middle)
        edges = np.cumsum([size for _, size in blocks])
        firsts = np.cumsum([records for records, _ in blocks])
        whole = np.concatenate([starts, ends[-1:]])
        if not np.array_equal(reached, formats) or (count and not np.array_equal(whole[firsts], edges)):
            raise ValueError("a record does not end where the next begins")
        return starts, before | places

    def _walk(self, at: Places, first: int, end: int) -> tuple[dict[int, Places], Places]:
        """The places of consecutive fields, and the place after them."""
        found = {}
        fields = self.shape.fields
        for number, kind in fields.fields[first:end]:
            if number in _KEPT or number in self.shape.partitions:
                found[number] = at
            at = fields.passed(kind, self._bytes, at)
        return found, at

    def _walked(self, starts: Places) -> tuple[Places, dict[int, Places]]:
        with damage(self.name):
            return starts, self._walk(starts, 0, len(self.shape.fields.fields))[0]

    def _read_through(self, name: str, blocks: Sequence[tuple[int, int]]) -> Places:
        """Begin of each record, by decoding one record after the other."""
        starts, at = [], 0
        edge = 0
        try:
            for records, size in blocks:
                edge += size
                for _ in range(records):
                    starts.append(at)
                    _, at = self.shape.codec.read(self.data, at)
                if at != edge:
                    raise ValueError("a block does not end where it should")
        except FAILURES as error:
            raise Corrupt(f"{name} is no readable Avro file: {str(error) or type(error).__name__}") from error
        return np.array(starts, np.int64)


SCHEMA_SECTION, NAMES_SECTION, RECORDS_SECTION, STARTS, ENDS, STATUSES = range(1, 7)
PATH_HASHES, LAKE_ENDS, LAKE_KNOWN, NAMED_HASHES, NAMED_PLACES = range(7, 12)
FIGURES, PLACES_BASE = 100, 10_000
"""Sections of a cached manifest. A field's figures have number 100 plus its id, its places 10,000 plus its id."""
_TEXTS, _NAMED = {SCHEMA_SECTION, NAMES_SECTION, RECORDS_SECTION}, (NAMED_HASHES, NAMED_PLACES)
_KIND = f"manifest-1-{sys.byteorder}"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Everything that `Entries` reads: the bytes of the records and the columns, in memory or in a cached value."""

    shape: _Shape
    records: Callable[[], memoryview]
    """Returns the bytes of the records with the margin after them. Bytes of a value are checked by the first call."""
    starts: Places
    ends: Places
    status: Longs
    places: Mapping[int, Places]
    """Places of a field in the records, by field id."""
    figures: Mapping[int, Any]
    """Columns of the cached value, by number of the section; empty without a value."""
    nbytes: int
    """Memory of this process. A mapped value counts 0."""

    @staticmethod
    def of_records(made: _Records) -> _Layout:
        """The layout of a manifest that is read now."""
        view, nbytes = memoryview(made.data), len(made.data) + 8 * len(made.starts) * (len(made.places) + 1)
        return _Layout(made.shape, lambda: view, made.starts, made.ends, made.status, made.places, {}, nbytes)

    @staticmethod
    def of_value(value: Value, again: Callable[[Damaged], memoryview]) -> _Layout:
        """The layout over a cached value. Raises `Damaged`.

        Few readers use the records, so they are neither read nor checked here. `again` returns the records if the
        value's records turn out to be damaged.
        """
        names = tuple((number, name) for number, name in orjson.loads(value.section(NAMES_SECTION)))
        shape = _shape(bytes(value.section(SCHEMA_SECTION)), names)
        arrays = {each: value.array(each, "?" if each == LAKE_KNOWN else "<i8") for each in value.numbers - _TEXTS}
        places = {number - PLACES_BASE: array for number, array in arrays.items() if number >= PLACES_BASE}
        count = len(arrays[STARTS])
        for number, array in arrays.items():
            if number not in _NAMED and len(array) != count * (4 if number == LAKE_ENDS else 1):
                raise Damaged("its columns are not equally long")
        known: list[memoryview] = []

        def records() -> memoryview:
            if not known:
                try:
                    known.append(value.section(RECORDS_SECTION))
                except Damaged as error:
                    known.append(again(error))
            return known[0]

        nbytes = 0 if value.is_mapped else value.nbytes
        return _Layout(shape, records, arrays[STARTS], arrays[ENDS], arrays[STATUSES], places, arrays, nbytes)


class Entries(Sequence[Entry]):
    """The living entries of a manifest, in the order of the manifest."""

    def __init__(self, data: bytes | _Layout, manifest: Manifest) -> None:
        """`data` is the whole manifest. Raises `Corrupt`."""
        layout = data if isinstance(data, _Layout) else _Layout.of_records(_Records(data, manifest.path))
        self.manifest, self._layout, self._sections = manifest, layout, layout.figures
        shape = layout.shape
        self._codec, self._partitions = shape.codec, shape.partitions
        self._fields, self._kinds = shape.fields, shape.kinds
        self._starts, self._ends, self._status, self._places = layout.starts, layout.ends, layout.status, layout.places
        self._check_sequences()
        self._decoded: dict[int, Entry] = {}
        self._mapped: dict[tuple[int, int], Places] = {}
        """Places of values in maps, by field id of the map and by key."""

    @staticmethod
    def opened(manifest: Manifest, group: str, cache: DerivedCache) -> Entries:
        """The entries from the cache. On a miss the manifest is read and added. `group` is the uuid of the table."""
        key = Key(_KIND, group, manifest.path, _version(manifest))
        known = _of_value(cache.find(key), manifest, key, cache)
        if known is not None:
            return known
        made = _Records(lake.read(manifest.path), manifest.path)
        entries = Entries(_Layout.of_records(made), manifest)
        if cache.folder is None:
            return entries
        return _of_value(cache.store(key, entries.sections(made.schema, made.names)), manifest, key, cache) or entries

    def sections(self, schema: bytes, names: Names) -> dict[int, Section]:
        """The sections of the cached value, for records of this schema."""
        found: dict[int, Section] = {
            SCHEMA_SECTION: schema,
            NAMES_SECTION: orjson.dumps(names),
            STARTS: self._starts,
            ENDS: self._ends,
            STATUSES: self._status,
            PATH_HASHES: self.path_hashes,
            LAKE_ENDS: self.ends[0],
            LAKE_KNOWN: self.ends[1],
            FIGURES + ROWS: self.rows,
            FIGURES + SIZE: self.sizes,
        }
        found |= {FIGURES + field: self._said(field) for field in (SEQUENCE, CONTENT, FIRST_ROW_ID)}
        found |= {PLACES_BASE + field: at for field, at in self._places.items()}
        if self.manifest.content != DATA:
            found[NAMED_HASHES], found[NAMED_PLACES] = self.named
        return {**found, RECORDS_SECTION: self._data}

    @cached_property
    def _data(self) -> memoryview:
        return self._layout.records()

    @cached_property
    def _bytes(self) -> Bytes:
        return np.frombuffer(self._data, np.uint8)

    def _check_sequences(self) -> None:
        unsaid = np.flatnonzero(self._said(SEQUENCE) == ABSENT)
        if self.manifest.sequence and bool(np.any(self._status[unsaid] != ADDED)):
            raise Corrupt(f"{self.manifest.path} has an old file without a sequence number")

    @property
    def nbytes(self) -> int:
        """About the memory in bytes, with the figures that are computed on first use."""
        return self._layout.nbytes + 8 * len(self) * _FIGURES + _ENTRY_BYTES * min(len(self), DECODED_MAX)

    # Entries.

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> Entry: ...

    @overload
    def __getitem__(self, place: slice) -> list[Entry]: ...

    def __getitem__(self, place: int | slice) -> Entry | list[Entry]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        known = self._decoded.get(place)
        if known is None:
            if len(self._decoded) >= DECODED_MAX:
                self._decoded = {}
            known = self._decoded[place] = self.read(range(len(self))[place])
        return known

    def read(self, place: int) -> Entry:
        """Decode an entry without keeping it in memory."""
        with damage(self.manifest.path):
            record, _ = self._codec.read(bytes(self._data[self._starts[place] : self._ends[place]]), 0)
            first = self.first_row_ids
            return entry_of(record, self.manifest, None if first is None else int(first[place]))

    def __iter__(self) -> Iterator[Entry]:
        return (self.read(place) for place in range(len(self)))

    def records(self, places: Places) -> Iterator[bytes]:
        """The bytes of the records at these places."""
        for begin, end in zip(self._starts[places].tolist(), self._ends[places].tolist(), strict=True):
            yield bytes(self._data[begin:end])

    def spans(self, field: int, places: Places) -> tuple[Places, Places, npt.NDArray[np.bool_]] | None:
        """The spans of a map of bounds in these records: begin, end, and True if the file has the map.

        None if the manifest has no such field, or a form of it that Iceberg does not write.
        """
        kind = self._kinds.get(field)
        if not _holds_bounds(kind):
            return None
        begin = self._places[field][places]
        with damage(self.manifest.path):
            _, held = present(kind, self._bytes, begin)
            end = self._fields.passed(kind, self._bytes, begin)
        there = np.zeros(len(places), np.bool_)
        there[held] = True
        starts = self._starts[places]
        return begin - starts, end - starts, there

    def references(self, places: Places) -> list[bytes | None]:
        """For each delete file at these places, the path of the data file that it references, or None."""
        begin, size = (each[places].tolist() for each in self._references())
        both = zip(begin, size, strict=True)
        return [None if count == ABSENT else bytes(self._data[at : at + count]) for at, count in both]

    # Figures.

    @cached_property
    def rows(self) -> Longs:
        """Rows of each file."""
        return self._figure(ROWS)

    @property
    def added(self) -> npt.NDArray[np.bool_]:
        """True for each file that the snapshot of the manifest added."""
        found: npt.NDArray[np.bool_] = self._status == ADDED
        return found

    @cached_property
    def sizes(self) -> Longs:
        """Bytes of each file."""
        return self._figure(SIZE)

    @cached_property
    def contents(self) -> Longs:
        """The content type of each file."""
        return np.maximum(self._said(CONTENT), DATA)

    @cached_property
    def sequences(self) -> Longs:
        """The data sequence number of each file."""
        said = self._said(SEQUENCE)
        return np.where(said == ABSENT, self.manifest.sequence, said)

    @cached_property
    def first_row_ids(self) -> Longs | None:
        """The id of each file's first row; None if the manifest list gives the manifest no ids."""
        begin = self.manifest.first_row_id
        if begin is None or self.manifest.content != DATA:
            return None
        said = self._said(FIRST_ROW_ID)
        given = np.where(said == ABSENT, self.rows, 0)
        return np.where(said == ABSENT, begin + np.cumsum(given) - given, said)

    @cached_property
    def path_hashes(self) -> Longs:
        """The `path_hash` of each file's path."""
        if (known := self._sections.get(PATH_HASHES)) is not None:
            return known  # type: ignore[no-any-return]
        begin, size = self._texts(self._places[PATH])
        return self._hashes(begin, size)

    def paths(self, places: Places) -> list[str]:
        """The paths of the files at these places."""
        begin, size = self._texts(self._places[PATH][places])
        both = zip(begin.tolist(), (begin + size).tolist(), strict=True)
        with damage(self.manifest.path):
            return [str(self._data[at:end], "utf-8") for at, end in both]

    def has_format(self, name: str) -> npt.NDArray[np.bool_]:
        """True for each file of this format. It follows the path by the specification; other manifests are decoded."""
        numbers = list(self._kinds)
        if numbers.index(FORMAT) != numbers.index(PATH) + 1:
            return np.array([self.read(place).file.format == name for place in range(len(self))], np.bool_)
        begin, size = self._texts(self._places[PATH])
        text = bytes([2 * len(name)]) + name.encode()
        after = np.minimum((begin + size)[:, np.newaxis] + np.arange(len(text)), len(self._bytes) - 1)
        # Some writers use small letters. Bit 5 is the difference.
        same = (self._bytes[after] | 0x20) == (np.frombuffer(text, np.uint8) | 0x20)
        found: npt.NDArray[np.bool_] = np.all(same, axis=1)
        return found

    @cached_property
    def named(self) -> tuple[Longs, Places]:
        """For each delete file the hash of the path of its one data file, and the places of the files that have one."""
        if NAMED_HASHES in self._sections:
            return self._sections[NAMED_HASHES], self._sections[NAMED_PLACES]
        begin, size = self._references()
        low, high = self.bounds(PATH_ID, LOWER), self.bounds(PATH_ID, UPPER)
        lows, highs = self._hashes(*low), self._hashes(*high)
        hashes = np.where(size == ABSENT, lows, self._hashes(begin, size))
        bounded = (low[1] != ABSENT) & (low[1] == high[1]) & (lows == highs)
        return hashes, np.flatnonzero((size != ABSENT) | bounded)

    def _references(self) -> tuple[Places, Longs]:
        """Place and length of the path that each delete file references; length `ABSENT` without a reference."""
        size, begin = np.full(len(self), ABSENT), np.zeros(len(self), np.int64)
        if REFERENCED in self._places:
            with damage(self.manifest.path):
                _, held = present(self._kinds[REFERENCED], self._bytes, self._places[REFERENCED])
            begin[held], size[held] = self._texts(self._places[REFERENCED][held] + 1)
        return begin, size

    def bounds(self, field: int, side: int) -> tuple[Places, Longs]:
        """Place and length of a column's bound, `LOWER` or `UPPER`, in each file; length `ABSENT` without one."""
        found, size = self._of_map(side, field)
        held = np.flatnonzero(found != ABSENT)
        begin = np.zeros(len(self), np.int64)
        begin[held], size[held] = self._texts(found[held])
        return begin, size

    def bound_bytes(self, field: int, side: int, places: Places) -> list[bytes | None]:
        """The bytes of a column's bound in the files at these places, or None."""
        begin, size = (each[places] for each in self.bounds(field, side))
        with damage(self.manifest.path):
            both = zip(begin.tolist(), size.tolist(), strict=True)
            return [None if count == ABSENT else bytes(self._data[at : at + count]) for at, count in both]

    def counts(self, field: int, which: int) -> Longs:
        """A column's `VALUES` or `NULLS` count in each file, or `ABSENT`."""
        found, count = self._of_map(which, field)
        held = np.flatnonzero(found != ABSENT)
        with damage(self.manifest.path):
            count[held], _ = longs(self._bytes, found[held])
        return count

    def numbers(self, begin: Places, size: Longs) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Bounds of whole numbers, dates or times as numbers, and True for each bound that is there."""
        value, known = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.bool_)
        for width, code in ((4, "<i4"), (8, "<i8")):
            own = np.flatnonzero(size == width)
            if len(own):
                spread = self._bytes[begin[own, np.newaxis] + np.arange(width)]
                value[own], known[own] = np.ascontiguousarray(spread).view(code).ravel(), True
        return value, known

    @cached_property
    def ends(self) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Least and greatest bucket and offset of each file, and True for each file that has all four."""
        if LAKE_ENDS in self._sections:
            return self._sections[LAKE_ENDS].reshape(-1, 4), self._sections[LAKE_KNOWN]
        sides = [(LAKE_FIELD_IDS[name], side) for name in (LAKE_BUCKET, LAKE_OFFSET) for side in (LOWER, UPPER)]
        found = [self.numbers(*self.bounds(field, side)) for field, side in sides]
        known = np.logical_and.reduce([each for _, each in found])
        ends = np.stack([value for value, _ in found], axis=1) if len(self) else np.empty((0, 4), np.int64)
        return np.where(known[:, np.newaxis], ends, 0), known

    def partition(self, field: int) -> list[Any]:
        """The value of a partition field in each file, by id of the field."""
        return self._values(field, slice(None))

    def partitions(self, places: Places) -> list[tuple[tuple[str, Any], ...]]:
        """The partitions of the files at these places: pairs of field name and value, in the manifest's order."""
        columns = [[(name, value) for value in self._values(field, places)] for field, name in self._partitions.items()]
        return list(zip(*columns, strict=True)) if columns else [()] * len(places)

    def _values(self, field: int, places: Places | slice) -> list[Any]:
        if field not in self._places:
            return [None] * len(self._starts[places])
        read = _reader(self._kinds[field]).read
        spans = zip(self._places[field][places].tolist(), self._ends[places].tolist(), strict=True)
        with damage(self.manifest.path):
            return [read(bytes(self._data[at:end]), 0)[0] for at, end in spans]

    def _figure(self, field: int) -> Longs:
        """The numbers of a required field."""
        if (known := self._sections.get(FIGURES + field)) is not None:
            return known  # type: ignore[no-any-return]
        with damage(self.manifest.path):
            return longs(self._bytes, self._places[field])[0]

    def _said(self, field: int) -> Longs:
        """The numbers of an optional field; `ABSENT` if a file has none."""
        if (known := self._sections.get(FIGURES + field)) is not None:
            return known  # type: ignore[no-any-return]
        found = np.full(len(self), ABSENT)
        if field in self._places:
            with damage(self.manifest.path):
                inner, held = present(self._kinds[field], self._bytes, self._places[field])
                at = self._places[field][held] + (inner is not self._kinds[field])
                found[held], _ = longs(self._bytes, at)
        return found

    def _texts(self, at: Places) -> tuple[Places, Longs]:
        with damage(self.manifest.path):
            size, begin = longs(self._bytes, at)
        return begin, size

    def _hashes(self, begin: Places, size: Longs) -> Longs:
        data, ends = self._data, begin + size
        both = zip(begin.tolist(), ends.tolist(), strict=True)
        return np.fromiter((path_hash(data[at:end]) if end >= at else 0 for at, end in both), np.int64, len(begin))

    def _of_map(self, field: int, key: int) -> tuple[Places, Longs]:
        """(place of the value for a key in each file's map or `ABSENT`, an array of `ABSENT` for the result)."""
        known = self._mapped.get((field, key))
        if known is not None:
            return known.copy(), np.full(len(self), ABSENT)
        found = np.full(len(self), ABSENT)
        if field in self._places:
            with damage(self.manifest.path):
                inner, held = present(self._kinds[field], self._bytes, self._places[field])
                at = self._places[field][held] + (inner is not self._kinds[field])
                for begin, active, _ in self._fields.items(inner, self._bytes, at):
                    if len(begin):
                        number, value = longs(self._bytes, begin)
                        same = number == key
                        found[held[active[same]]] = value[same]
        if len(self._mapped) >= _COLUMNS_KEPT:
            self._mapped = {}
        self._mapped[field, key] = found.copy()
        return found, np.full(len(self), ABSENT)


def _of_value(value: Value | None, manifest: Manifest, key: Key, cache: DerivedCache) -> Entries | None:
    """The entries over a cached value; None without a value or if it is damaged."""

    def again(error: Damaged) -> memoryview:
        cache.discard(key, error)
        return memoryview(_Records(lake.read(manifest.path), manifest.path).data)

    try:
        return None if value is None else Entries(_Layout.of_value(value, again), manifest)
    except (Damaged, KeyError, ValueError) as error:
        cache.discard(key, error)
        return None


def forget(path: str, group: str, cache: DerivedCache) -> None:
    """Remove the value of a manifest that left the lake."""
    cache.discard(Key(_KIND, group, path, ""))


def value_name(path: str, group: str) -> str:
    """The name of the value of a manifest."""
    return Key(_KIND, group, path, "").name


def recent_name(manifest: Manifest, group: str) -> str:
    """The name of a manifest's entries in memory. Another manifest at the same location has another name.

    An old list may give a manifest no first row id and a newer list one, so the id is part of the name.
    """
    return f"{group} {manifest.path} {_listed(manifest)} {manifest.first_row_id}"


def _listed(manifest: Manifest) -> str:
    """The columns of a manifest list that distinguish two manifests at one location."""
    return f"{manifest.length} {manifest.added_snapshot_id} {manifest.sequence} {manifest.min_sequence}"


def _version(manifest: Manifest) -> str:
    """The version of a manifest in a key. An object store is not asked, because the list tells enough."""
    return f"{_listed(manifest)} {lake.version(manifest.path)}"


def _partition_fields(schema: Mapping[str, Any], names: Mapping[int, str]) -> dict[int, str]:
    """The partition fields in order: id to the name in decoded records."""
    file = next(field["type"] for field in schema["fields"] if field.get("field-id") == 2)
    record = next(field["type"] for field in file["fields"] if field.get("field-id") == 102)
    return {field["field-id"]: names.get(field["field-id"], field["name"]) for field in record["fields"]}


def _holds_bounds(kind: Any) -> bool:
    """True if a type is a union of null and a map from column ids to bytes, in the form that Iceberg writes."""
    return (
        isinstance(kind, list)
        and len(kind) == 2
        and kind[0] == "null"
        and isinstance(kind[1], dict)
        and kind[1]["type"] == "array"
        and isinstance(kind[1]["items"], dict)
        and [each["type"] for each in kind[1]["items"].get("fields", ())] == ["int", "bytes"]
    )


def _reader(kind: Any) -> Codec:
    return codec_of(kind, {})
