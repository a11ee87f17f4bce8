"""Offset indexes of data files, in bounded memory and in the derived cache.

1. The index of a large data file is one value, which is mapped. A value costs a file, so the indexes of small data
   files are stored in bundles, 64 for each table.
2. An index that is lost, damaged or evicted is read from its data file again. No bound changes an answer.
3. Indexes of hot files, which the snapshot builder writes, are in memory only.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Corrupt
from lakestore.iceberg import adopted_rows, other_formats, places
from lakestore.iceberg.cache import Damaged, DerivedCache, Key, RecentValues, Section, Value
from lakestore.iceberg.puffin import Positions
from lakestore.iceberg.row_search import BUCKET_SHIFT, Bounds, BoundsTable, Keys, RowSearch, packed
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows.ranges import OffsetSet

_KEYS, _ORDER = 1, 2
_DIGESTS, _ENDS, _ORDERED, _ALL_KEYS, _ALL_ORDERS = range(1, 6)
"""Sections of an index, and of a bundle."""
_DIGEST_BYTES = 16


class DataFile(Protocol):
    """A data file, from a manifest or from Iceberg Java."""

    @property
    def path(self) -> str:
        """Its location, spelled as in the manifest."""

    @property
    def format(self) -> str:
        """PARQUET, ORC or AVRO."""

    @property
    def rows(self) -> int:
        """Its number of rows by the manifest."""

    @property
    def bytes(self) -> int:
        """Its size by the manifest."""

    @property
    def bounds(self) -> Bounds | None:
        """None if the writer stored no bounds. The file may then hold any offset."""


F = TypeVar("F", bound=DataFile)


@dataclass(frozen=True, slots=True)
class FileOffsets:
    """The offset index of one data file."""

    keys: Keys
    order: npt.NDArray[np.int32] | None
    """Position of each key in the file; None if the file is in the order of the keys."""

    @property
    def nbytes(self) -> int:
        """Memory of the index in bytes."""
        return int(self.keys.nbytes + (0 if self.order is None else self.order.nbytes))

    def sections(self) -> dict[int, Section]:
        """The sections of the cached value."""
        keys = self.keys.astype("<i8", copy=False)
        return {_KEYS: keys} if self.order is None else {_KEYS: keys, _ORDER: self.order.astype("<i4", copy=False)}

    @staticmethod
    def of_value(value: Value, rows: int) -> FileOffsets:
        """The index over a cached value. `Damaged` if it has another number of rows."""
        keys = value.array(_KEYS, "<i8")
        order = value.array(_ORDER, "<i4") if _ORDER in value.numbers else None
        if len(keys) != rows or (order is not None and len(order) != rows):
            raise Damaged(f"it has {len(keys)} rows where the manifest says {rows}")
        return FileOffsets(keys, order)

    def positions(self, places: npt.NDArray[np.int64]) -> Positions:
        """The sorted positions in the file of the keys at these places of the index."""
        return np.sort(places if self.order is None else self.order[places]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DeadRows(Generic[F]):
    """Dead rows of one data file."""

    file: F
    positions: Positions
    keys: Keys


def read_offsets(file: DataFile, group: str = "") -> FileOffsets:
    """Read the row numbers of a data file and build its index; of an adopted file from its offset file, which has the
    uuid of the table in its name. Raises `Corrupt`."""
    try:
        rows = _read_numbers(file, group)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(f"data file {file.path} cannot be read: {error}") from error
    if rows.num_rows != file.rows:
        raise Corrupt(f"data file {file.path} has {rows.num_rows} rows where its manifest says {file.rows}")
    for name in (LAKE_BUCKET, LAKE_OFFSET):
        adopted_rows.check_numbers(rows.column(name), file.path)
    buckets, offsets = (rows.column(name).to_numpy() for name in (LAKE_BUCKET, LAKE_OFFSET))
    keys = (buckets.astype(np.int64) << BUCKET_SHIFT) | offsets
    if len(keys) < 2 or bool(np.all(keys[1:] > keys[:-1])):
        return FileOffsets(keys, None)
    order = np.argsort(keys, kind="stable").astype(np.int32)
    ordered = keys[order]
    if bool(np.any(ordered[1:] == ordered[:-1])):
        raise Corrupt(f"data file {file.path} holds a row twice")
    return FileOffsets(ordered, order)


SMALL_BYTES = 128 << 10
"""A data file of up to this size is read whole, with one request: 0.16 ms instead of 0.6 ms for a file of two rows."""


def _read_numbers(file: DataFile, group: str) -> pa.Table:
    try:
        return read_columns(file.path, file.format, [LAKE_BUCKET, LAKE_OFFSET], file.bytes)
    except (pa.ArrowInvalid, KeyError):  # KeyError of a small file
        if file.format != "PARQUET" or not group or not adopted_rows.is_adopted(file.path):
            raise
    return adopted_rows.read(file.path, group, file.rows)


def read_columns(location: str, form: str, columns: Sequence[str], size: int | None = None) -> pa.Table:
    """Columns of a data or delete file, in row order. `size` is its number of bytes, if known."""
    if form != "PARQUET":
        with other_formats.opened_at(location, form) as other:
            schema = pa.schema([other.schema.field(name) for name in columns])
            return pa.Table.from_batches(other.batches(columns), schema)
    if size is not None and size <= SMALL_BYTES:
        file = pq.ParquetFile(pa.BufferReader(places.read(location)))
        return file.read(list(columns), use_threads=False).select(list(columns))
    with places.store_errors(location), places.open_file(location) as stream:
        return pq.read_table(stream, columns=list(columns), partitioning=None)


MEMORY_BYTES = 128 << 20
KEPT_ROWS_MIN = 1 << 10
"""The index of a data file with this many rows or more is one value."""
MAPPED_MAX = 4_096
"""Indexes over mapped values that stay open."""
AHEAD = 4
"""Indexes that are loaded ahead of the caller."""
BUNDLES = 64
BUNDLE_BYTES_MAX = 1 << 20
"""Bytes of the indexes in a bundle. It keeps the newest."""
FRESH_BYTES_MAX = 16 << 20
"""Bytes of indexes that wait for their bundle. Further indexes stay in memory only."""
_KIND, _BUNDLE_KIND = "offsets-1", "offset-bundle-1"


@dataclass(frozen=True, slots=True)
class OffsetFigures:
    """The state of a cache of indexes, and its work."""

    memory_bytes: int
    """Bytes of indexes in memory, without mapped ones."""
    disk_bytes: int
    """Bytes of all values of the derived cache, when this process last looked."""
    files: int
    """Number of values of the derived cache, at the same time."""
    mapped: int
    """Open indexes over mapped values."""
    read: int
    """Indexes that were read from data files."""
    evicted: int
    """Indexes and values that were evicted, from memory or from disk."""


@dataclass(frozen=True, slots=True)
class _Mapped:
    """An index over a mapped value."""

    offsets: FileOffsets

    @property
    def nbytes(self) -> int:
        """1, because the bound is a number of indexes."""
        return 1


class _Bundle:
    """Indexes of small data files, by the first 16 bytes of the digest of their key. Immutable."""

    def __init__(self, indexes: Mapping[bytes, FileOffsets], nbytes: int) -> None:
        self.indexes, self.nbytes = indexes, nbytes

    @staticmethod
    def of_value(value: Value) -> _Bundle:
        """The bundle over a cached value. Raises `Damaged`."""
        digests, ends = bytes(value.section(_DIGESTS)), value.array(_ENDS, "<i8")
        is_ordered, keys, orders = (
            value.array(_ORDERED, "?"),
            value.array(_ALL_KEYS, "<i8"),
            value.array(_ALL_ORDERS, "<i4"),
        )
        if not len(digests) // _DIGEST_BYTES == len(ends) == len(is_ordered) or not len(keys) == len(orders):
            raise Damaged("its columns are not equally long")
        found, begin = {}, 0
        for number, (end, ordered) in enumerate(zip(ends.tolist(), is_ordered.tolist(), strict=True)):
            name = digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
            found[name] = FileOffsets(keys[begin:end], orders[begin:end] if ordered else None)
            begin = end
        return _Bundle(found, value.nbytes)

    def sections(self) -> dict[int, Section]:
        """The sections of the cached value."""
        held = list(self.indexes.values())
        orders = [np.zeros(len(each.keys), "<i4") if each.order is None else each.order for each in held]
        return {
            _DIGESTS: b"".join(self.indexes),
            _ENDS: np.cumsum([len(each.keys) for each in held], dtype="<i8"),
            _ORDERED: np.array([each.order is not None for each in held], np.bool_),
            _ALL_KEYS: np.concatenate([np.empty(0, "<i8"), *(each.keys for each in held)]),
            _ALL_ORDERS: np.concatenate([np.empty(0, "<i4"), *orders]),
        }


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An index that was loaded from a file."""

    offsets: FileOffsets
    is_mapped: bool = False
    is_read: bool = False
    """True if it was read from the data file and not from the cache."""
    is_bundled: bool = False


class OffsetCache:
    """Offset indexes by data file. Thread-safe. `each` loads several indexes at once."""

    def __init__(
        self,
        cache: DerivedCache | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES,
        pool: Executor | None = None,
        working: Callable[[], None] = lambda: None,
    ) -> None:
        """`working` is called before an index is loaded, which may take long. `pool` loads several at once."""
        self._pool, self._working = pool, working
        self._memory: RecentValues[FileOffsets | _Bundle] = RecentValues(memory_bytes)
        """Indexes by the path of their data file, and bundles by group and number."""
        self._mapped: RecentValues[_Mapped] = RecentValues(MAPPED_MAX)
        self._cache = cache or DerivedCache()
        self._read = 0
        self._fresh: dict[tuple[str, int], dict[bytes, FileOffsets]] = defaultdict(dict)
        """Indexes that wait for their bundle, by group and number of the bundle."""
        self._fresh_bytes = 0
        self._lock = threading.Lock()
        """Guards the counters and the fresh indexes."""

    @property
    def figures(self) -> OffsetFigures:
        """The figures so far."""
        disk = self._cache.figures
        return OffsetFigures(
            memory_bytes=self._memory.nbytes,
            disk_bytes=disk.nbytes,
            files=disk.files,
            mapped=self._mapped.nbytes,
            read=self._read,
            evicted=self._memory.evicted + disk.evicted,
        )

    def put(self, path: str, offsets: FileOffsets) -> None:
        """Keep the index of a new file that belongs to no group in memory."""
        self._memory.put(_name("", path), offsets)

    def drop(self, paths: Iterable[str]) -> None:
        """Drop the indexes of removed files that belong to no group from memory."""
        self._drop("", paths)

    def _drop(self, group: str, paths: Iterable[str]) -> None:
        for path in paths:
            self._memory.drop(_name(group, path))
            self._mapped.drop(_name(group, path))

    def forget(self, group: str, paths: Iterable[str]) -> None:
        """Remove the indexes of data files that left the lake, from memory and from the derived cache."""
        for path in paths:
            self._drop(group, [path])
            self._cache.discard(Key(_KIND, group, path, ""))

    def of(self, file: DataFile, group: str = "") -> FileOffsets:
        """The index of a data file. `group` is the uuid of its table; without one the derived cache is not used."""
        known = self._known(_name(group, file.path))
        if known is None:
            self._working()
            known = self._admitted(file, group, self._loaded(file, group))
        return known

    def each(self, files: Iterable[F], group: str = "") -> Iterator[tuple[F, FileOffsets]]:
        """Data files with their indexes. Indexes that are not in memory are loaded a few files ahead."""
        ahead: deque[tuple[F, Future[_Loaded] | None]] = deque()
        for file in files:
            name = _name(group, file.path)
            known = self._pool is None or name in self._memory or name in self._mapped
            loading = None if known or self._pool is None else self._pool.submit(self._loaded, file, group)
            ahead.append((file, loading))
            if len(ahead) > AHEAD:
                yield self._first(ahead, group)
        while ahead:
            yield self._first(ahead, group)
        self._bundle()

    def find(self, files: Iterable[F], dead: Mapping[int, OffsetSet], group: str = "") -> list[DeadRows[F]]:
        """The files that hold dead rows, with the positions of these rows.

        The caller compares the number of rows: a dead row that no file holds would stay visible.
        """
        search, known, found = RowSearch(packed(dead)), list(files), []
        for file, index in self.each((known[number] for number in search.files(BoundsTable.of(known))), group):
            places = search.places(index.keys)
            if len(places):
                found.append(DeadRows(file, index.positions(places), index.keys[places]))
        return found

    def _known(self, name: str) -> FileOffsets | None:
        mapped = self._mapped.get(name)
        if mapped is not None:
            return mapped.offsets
        known = self._memory.get(name)
        return known if isinstance(known, FileOffsets) else None

    def _first(self, ahead: deque[tuple[F, Future[_Loaded] | None]], group: str) -> tuple[F, FileOffsets]:
        file, loading = ahead.popleft()
        if loading is None:
            return file, self.of(file, group)
        self._working()
        return file, self._admitted(file, group, loading.result())

    def _loaded(self, file: DataFile, group: str) -> _Loaded:
        """The index from the derived cache. On a miss it is read from the data file and added."""
        if not group or self._cache.folder is None:
            return _Loaded(read_offsets(file, group), is_read=True)
        key = Key(_KIND, group, file.path, _version(file))
        if file.rows < KEPT_ROWS_MIN:
            return self._loaded_small(file, key)
        found = self._of_value(self._cache.find(key), key, file.rows)
        if found is None:
            made = read_offsets(file, group)
            found = self._of_value(self._cache.store(key, made.sections()), key, file.rows)
            return replace(found, is_read=True) if found else _Loaded(made, is_read=True)
        return found

    def _of_value(self, value: Value | None, key: Key, rows: int) -> _Loaded | None:
        try:
            return None if value is None else _Loaded(FileOffsets.of_value(value, rows), is_mapped=value.is_mapped)
        except (Damaged, KeyError) as error:
            self._cache.discard(key, error)
            return None

    def _loaded_small(self, file: DataFile, key: Key) -> _Loaded:
        digest = key.digest[:_DIGEST_BYTES]
        number = digest[0] % BUNDLES
        found = self._bundle_of(key.group, number).indexes.get(digest)
        if found is not None and len(found.keys) == file.rows:
            return _Loaded(found, is_bundled=True)
        made = read_offsets(file, key.group)
        with self._lock:
            if self._fresh_bytes < FRESH_BYTES_MAX:
                self._fresh[key.group, number][digest] = made
                self._fresh_bytes += made.nbytes
        return _Loaded(made, is_read=True)

    def _bundle_of(self, group: str, number: int) -> _Bundle:
        name = f"{group} {number}"
        known = self._memory.get(name)
        if not isinstance(known, _Bundle):
            known = self._stored_bundle(group, number)
            self._memory.put(name, known)
        return known

    def _stored_bundle(self, group: str, number: int) -> _Bundle:
        key = _bundle_key(group, number)
        if (value := self._cache.find(key)) is not None:
            try:
                return _Bundle.of_value(value)
            except (Damaged, KeyError) as error:
                self._cache.discard(key, error)
        return _Bundle({}, 0)

    def _bundle(self) -> None:
        """Write the fresh indexes to their bundles. Indexes that another process adds at the same time may be lost."""
        with self._lock:
            fresh, self._fresh, self._fresh_bytes = self._fresh, defaultdict(dict), 0
        for (group, number), indexes in fresh.items():
            held = self._stored_bundle(group, number)
            value = self._cache.store(_bundle_key(group, number), _newest({**held.indexes, **indexes}).sections())
            self._memory.drop(f"{group} {number}")
            if value is None:
                return

    def _admitted(self, file: DataFile, group: str, loaded: _Loaded) -> FileOffsets:
        with self._lock:
            self._read += loaded.is_read
        if loaded.is_mapped:
            self._mapped.put(_name(group, file.path), _Mapped(loaded.offsets))
        elif not loaded.is_bundled:
            self._memory.put(_name(group, file.path), loaded.offsets)
        return loaded.offsets


def _name(group: str, path: str) -> str:
    """The name of an index in memory. Another table may have been restored to the same path, so the group belongs to
    it."""
    return f"{group}\0{path}"


def bundle_names(group: str) -> set[str]:
    """The names of the values that are bundles of a table."""
    return {_bundle_key(group, number).name for number in range(BUNDLES)}


def value_names(group: str, paths: Iterable[str]) -> set[str]:
    """The names of the values that a table with these data files may have."""
    return bundle_names(group) | {Key(_KIND, group, path, "").name for path in paths}


def _newest(indexes: dict[bytes, FileOffsets]) -> _Bundle:
    """A bundle of the last of these indexes, as many as fit."""
    kept: dict[bytes, FileOffsets] = {}
    left = BUNDLE_BYTES_MAX
    for digest, index in reversed(indexes.items()):
        left -= index.nbytes
        if left < 0:
            break
        kept[digest] = index
    return _Bundle(dict(reversed(kept.items())), BUNDLE_BYTES_MAX - left)


def _bundle_key(group: str, number: int) -> Key:
    return Key(_BUNDLE_KIND, group, f"bundle {number}", "")


def _version(file: DataFile) -> str:
    """The version of a data file in a key. An object store is not asked: rows and bounds identify the file."""
    try:
        local = places.version(file.path)
    except OSError:  # reading the file fails too, with a better message
        local = ""
    return f"{file.rows} {file.bounds} {local}"
