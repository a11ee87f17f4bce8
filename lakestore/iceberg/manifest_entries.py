"""The living entries of one manifest side by side: figures of all its files as arrays, and an entry where it is wanted.

A manifest of ten thousand files is laid out by array operations. The bytes of its records are what is kept of it; an
`Entry` is decoded from them when it is asked for, so whoever chooses files by their figures pays for the chosen ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import orjson

from lakestore.errors import Corrupt
from lakestore.iceberg.avro import MARGIN, Bytes, Container, Fields, Places, longs, present
from lakestore.iceberg.avro_values import Codec, codec_of
from lakestore.iceberg.manifest_lists import DATA, Manifest
from lakestore.iceberg.manifests import ADDED, DELETED, FAILURES, Entry, damage, entry_names, entry_of
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET

Longs = npt.NDArray[np.int64]
STATUS, SEQUENCE, CONTENT, PATH, FORMAT, ROWS, SIZE = 0, 3, 134, 100, 101, 103, 104
VALUES, NULLS, LOWER, UPPER, REFERENCED, FIRST_ROW_ID = 109, 110, 125, 128, 143, 142
"""Field ids of entries."""
DECODED_MAX = 100
"""Entries of a manifest that stay decoded: those that somebody came back to, not those of a pass over all files."""
_COLUMNS_KEPT = 16
"""Columns, each with one of its maps, in which the places of values are kept."""
_ENTRY_BYTES, _FIGURES = 1_500, 16 + _COLUMNS_KEPT
"""Memory of a decoded entry, measured with six columns; figures that are kept of a file once they were asked for."""
ABSENT = -1
"""A figure that the manifest does not say."""
_KEPT = frozenset((STATUS, SEQUENCE, CONTENT, PATH, ROWS, SIZE, VALUES, NULLS, LOWER, UPPER, REFERENCED, FIRST_ROW_ID))
_FORMATS = re.compile(b"|".join(bytes([2 * len(name)]) + name for name in (b"PARQUET", b"PUFFIN", b"AVRO", b"ORC")))
"""A file's format, which stands behind its path: the one thing in a record that can be looked for."""


class Entries(Sequence[Entry]):
    """The living entries of a manifest, in its order."""

    def __init__(self, data: bytes, manifest: Manifest) -> None:
        """`data` are the manifest's bytes; `Corrupt` where they are damaged."""
        container = Container.opened(data, manifest.path)
        self.manifest = manifest
        joined, blocks = container.joined()
        self._data = joined + MARGIN
        self._bytes: Bytes = np.frombuffer(self._data, np.uint8)
        with damage(manifest.path):
            names = entry_names(container)
            self._codec = container.codec(names)
            schema = orjson.loads(container.meta["avro.schema"])
            self._partitions = _partition_fields(schema, dict(names))
            self._fields = Fields(schema)
        self._kinds = dict(self._fields.fields)
        try:
            starts, places = self._laid_out(blocks)
        except FAILURES:
            starts, places = self._walked(self._read_through(container.name, blocks))
        with damage(manifest.path):
            status, _ = longs(self._bytes, places[STATUS])
        living = np.flatnonzero(status != DELETED)
        ends = np.append(starts[1:], len(joined))
        self._starts, self._ends, self._status = starts[living], ends[living], status[living]
        self._places = {number: at[living] for number, at in places.items()}
        self._check_sequences()
        self._decoded: dict[int, Entry] = {}
        self._mapped: dict[tuple[int, int], Places] = {}
        """Places of the values that maps have for a key."""

    # Layout.

    def _laid_out(self, blocks: Sequence[tuple[int, int]]) -> tuple[Places, dict[int, Places]]:
        """Where the records begin, and their fields: found from each record's format on, and held against the rest."""
        count = sum(records for records, _ in blocks)
        formats = np.fromiter((found.start() for found in _FORMATS.finditer(self._data)), np.int64)
        names = [number for number, _ in self._fields.fields]
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
        """The places of some fields that follow one another, and those behind them."""
        found = {}
        for number, kind in self._fields.fields[first:end]:
            if number in _KEPT or number in self._partitions:
                found[number] = at
            at = self._fields.passed(kind, self._bytes, at)
        return found, at

    def _walked(self, starts: Places) -> tuple[Places, dict[int, Places]]:
        with damage(self.manifest.path):
            return starts, self._walk(starts, 0, len(self._fields.fields))[0]

    def _read_through(self, name: str, blocks: Sequence[tuple[int, int]]) -> Places:
        """Where the records begin, found by reading one after the other."""
        starts, at = [], 0
        edge = 0
        try:
            for records, size in blocks:
                edge += size
                for _ in range(records):
                    starts.append(at)
                    _, at = self._codec.read(self._data, at)
                if at != edge:
                    raise ValueError("a block does not end where it should")
        except FAILURES as error:
            raise Corrupt(f"{name} is no readable Avro file: {str(error) or type(error).__name__}") from error
        return np.array(starts, np.int64)

    def _check_sequences(self) -> None:
        unsaid = np.flatnonzero(self._said(SEQUENCE) == ABSENT)
        if self.manifest.sequence and bool(np.any(self._status[unsaid] != ADDED)):
            raise Corrupt(f"{self.manifest.path} has an old file without a sequence number")

    @property
    def nbytes(self) -> int:
        """Memory in bytes, about: with the figures that are made when they are first asked for."""
        figures = 8 * len(self) * (len(self._places) + 1 + _FIGURES)
        return len(self._data) + figures + _ENTRY_BYTES * min(len(self), DECODED_MAX)

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
        """An entry for one who needs it once: it is decoded, and not kept."""
        with damage(self.manifest.path):
            record, _ = self._codec.read(self._data, int(self._starts[place]))
            first = self.first_row_ids
            return entry_of(record, self.manifest, None if first is None else int(first[place]))

    def __iter__(self) -> Iterator[Entry]:
        return (self.read(place) for place in range(len(self)))

    def records(self, places: Places) -> Iterator[bytes]:
        """The records of the files at these places, as their bytes."""
        for begin, end in zip(self._starts[places].tolist(), self._ends[places].tolist(), strict=True):
            yield self._data[begin:end]

    def spans(self, field: int, places: Places) -> tuple[Places, Places, npt.NDArray[np.bool_]] | None:
        """The spans of a map of bounds in the records of files: begin, end, and whether there is a map.

        None where the manifest has no such field, or another form of it than Iceberg writes.
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
        """The paths of the one data file that delete files at these places say that they are about."""
        begin, size = (each[places].tolist() for each in self._references())
        both = zip(begin, size, strict=True)
        return [None if count == ABSENT else self._data[at : at + count] for at, count in both]

    # Figures.

    @cached_property
    def rows(self) -> Longs:
        """Rows of each file."""
        return self._numbers(ROWS)

    @property
    def added(self) -> npt.NDArray[np.bool_]:
        """Whether each file was added by the snapshot that wrote the manifest."""
        found: npt.NDArray[np.bool_] = self._status == ADDED
        return found

    @cached_property
    def sizes(self) -> Longs:
        """Bytes of each file."""
        return self._numbers(SIZE)

    @cached_property
    def contents(self) -> Longs:
        """The content of each file."""
        return np.maximum(self._said(CONTENT), DATA)

    @cached_property
    def sequences(self) -> Longs:
        """The sequence number of each file's data."""
        said = self._said(SEQUENCE)
        return np.where(said == ABSENT, self.manifest.sequence, said)

    @cached_property
    def first_row_ids(self) -> Longs | None:
        """The id of each file's first row; None in a manifest that gives none."""
        begin = self.manifest.first_row_id
        if begin is None or self.manifest.content != DATA:
            return None
        said = self._said(FIRST_ROW_ID)
        given = np.where(said == ABSENT, self.rows, 0)
        return np.where(said == ABSENT, begin + np.cumsum(given) - given, said)

    @cached_property
    def path_hashes(self) -> Longs:
        """A hash of each file's path, which holds as long as the process."""
        begin, size = self._texts(self._places[PATH])
        return self._hashes(begin, size)

    def paths(self, places: Places) -> list[str]:
        """The paths of the files at these places."""
        begin, size = self._texts(self._places[PATH][places])
        both = zip(begin.tolist(), (begin + size).tolist(), strict=True)
        with damage(self.manifest.path):
            return [self._data[at:end].decode() for at, end in both]

    @cached_property
    def named(self) -> tuple[Longs, Places]:
        """The hash of the one data file's path that each delete file is about, and which of them are about one."""
        begin, size = self._references()
        low, high = self.bounds(PATH_ID, LOWER), self.bounds(PATH_ID, UPPER)
        lows, highs = self._hashes(*low), self._hashes(*high)
        hashes = np.where(size == ABSENT, lows, self._hashes(begin, size))
        bounded = (low[1] != ABSENT) & (low[1] == high[1]) & (lows == highs)
        return hashes, np.flatnonzero((size != ABSENT) | bounded)

    def _references(self) -> tuple[Places, Longs]:
        """Place and number of bytes of the data file's path that each delete file names; `ABSENT` of others."""
        size, begin = np.full(len(self), ABSENT), np.zeros(len(self), np.int64)
        if REFERENCED in self._places:
            with damage(self.manifest.path):
                _, held = present(self._kinds[REFERENCED], self._bytes, self._places[REFERENCED])
            begin[held], size[held] = self._texts(self._places[REFERENCED][held] + 1)
        return begin, size

    def bounds(self, field: int, side: int) -> tuple[Places, Longs]:
        """Place and number of bytes of a column's bound in each file, `LOWER` or `UPPER`; `ABSENT` of a lacking one."""
        found, size = self._of_map(side, field)
        held = np.flatnonzero(found != ABSENT)
        begin = np.zeros(len(self), np.int64)
        begin[held], size[held] = self._texts(found[held])
        return begin, size

    def bound_bytes(self, field: int, side: int, places: Places) -> list[bytes | None]:
        """A column's bound in the files at these places, as its bytes; None where there is none."""
        begin, size = (each[places] for each in self.bounds(field, side))
        with damage(self.manifest.path):
            both = zip(begin.tolist(), size.tolist(), strict=True)
            return [None if count == ABSENT else self._data[at : at + count] for at, count in both]

    def counts(self, field: int, which: int) -> Longs:
        """A column's `VALUES` or `NULLS` in each file, or `ABSENT`."""
        found, count = self._of_map(which, field)
        held = np.flatnonzero(found != ABSENT)
        with damage(self.manifest.path):
            count[held], _ = longs(self._bytes, found[held])
        return count

    def numbers(self, begin: Places, size: Longs) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Bounds of whole numbers, dates or times as numbers, and which of them are known."""
        value, known = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.bool_)
        for width, code in ((4, "<i4"), (8, "<i8")):
            own = np.flatnonzero(size == width)
            if len(own):
                spread = self._bytes[begin[own, np.newaxis] + np.arange(width)]
                value[own], known[own] = np.ascontiguousarray(spread).view(code).ravel(), True
        return value, known

    @cached_property
    def ends(self) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Least and greatest bucket, least and greatest offset of each file's rows; and whether they are known."""
        sides = [(LAKE_FIELD_IDS[name], side) for name in (LAKE_BUCKET, LAKE_OFFSET) for side in (LOWER, UPPER)]
        found = [self.numbers(*self.bounds(field, side)) for field, side in sides]
        known = np.logical_and.reduce([each for _, each in found])
        ends = np.stack([value for value, _ in found], axis=1) if len(self) else np.empty((0, 4), np.int64)
        return np.where(known[:, np.newaxis], ends, 0), known

    def partition(self, field: int) -> list[Any]:
        """The values of a partition field, by its id, of all files."""
        return self._values(field, slice(None))

    def partitions(self, places: Places) -> list[tuple[tuple[str, Any], ...]]:
        """The partitions of the files at these places: names of fields and values, in the manifest's order."""
        columns = [[(name, value) for value in self._values(field, places)] for field, name in self._partitions.items()]
        return list(zip(*columns, strict=True)) if columns else [()] * len(places)

    def _values(self, field: int, places: Places | slice) -> list[Any]:
        if field not in self._places:
            return [None] * len(self._starts[places])
        read = _reader(self._kinds[field]).read
        with damage(self.manifest.path):
            return [read(self._data, at)[0] for at in self._places[field][places].tolist()]

    def _numbers(self, field: int) -> Longs:
        with damage(self.manifest.path):
            return longs(self._bytes, self._places[field])[0]

    def _said(self, field: int) -> Longs:
        """The numbers of a field, `ABSENT` where it has none."""
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
        return np.fromiter((hash(data[at:end]) if end >= at else 0 for at, end in both), np.int64, len(begin))

    def _of_map(self, field: int, key: int) -> tuple[Places, Longs]:
        """(place of the value that a map has for a key, or `ABSENT`; as many times `ABSENT`)."""
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


def _partition_fields(schema: Mapping[str, Any], names: Mapping[int, str]) -> dict[int, str]:
    """The fields of a file's partition by their ids, in their order, each with the name that it is read by."""
    file = next(field["type"] for field in schema["fields"] if field.get("field-id") == 2)
    record = next(field["type"] for field in file["fields"] if field.get("field-id") == 102)
    return {field["field-id"]: names.get(field["field-id"], field["name"]) for field in record["fields"]}


def _holds_bounds(kind: Any) -> bool:
    """Whether a field is null, or a map from numbers of columns to bytes as Iceberg writes one."""
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
