"""Offset indexes in bounded memory and on bounded disk: a table of any size needs neither for all of its files.

Under a folder each group, a table, has a folder of its own with an index file for each data file. These are mapped:
the machine keeps as much of them in memory as it has room for. The least recently used go, from memory as from disk,
and are read from their data files when they are needed again; so does one that is lost or damaged. Indexes of small
files, and all without a folder, are in memory alone. Nothing is synced.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Corrupt, NewerFormat
from lakestore.iceberg import other_formats
from lakestore.iceberg.kept import Kept
from lakestore.iceberg.places import place
from lakestore.iceberg.puffin import Positions
from lakestore.iceberg.row_search import BUCKET_SHIFT, Bounds, BoundsTable, Keys, RowSearch, packed
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows.ranges import OffsetSet

_MAGIC, _VERSION = b"LSOI", 2
_HEAD = struct.Struct("<4sHHQ16x")
_ORDERED = 1
_CRC_BYTES = 4
_CHECKED_BYTES = 1 << 20
"""Bytes that are checked at once."""


class DataFile(Protocol):
    """A data file, whoever listed it."""

    @property
    def path(self) -> str:
        """Its location as the manifest spells it."""

    @property
    def format(self) -> str:
        """PARQUET, ORC or AVRO."""

    @property
    def rows(self) -> int:
        """Its rows by its manifest."""

    @property
    def bounds(self) -> Bounds | None:
        """None when its writer kept no bounds: then it may hold any offset."""


F = TypeVar("F", bound=DataFile)


@dataclass(frozen=True, slots=True)
class FileOffsets:
    """The offset index of one data file."""

    keys: Keys
    order: npt.NDArray[np.int32] | None
    """Position of each key in the file; None when the file has this order itself."""

    @property
    def nbytes(self) -> int:
        """Memory of the index in bytes."""
        return int(self.keys.nbytes + (0 if self.order is None else self.order.nbytes))

    def encode(self) -> bytes:
        """The index as a file's bytes."""
        keys = self.keys.astype("<i8", copy=False).tobytes()
        order = b"" if self.order is None else self.order.astype("<i4", copy=False).tobytes()
        data: bytes = _HEAD.pack(_MAGIC, _VERSION, 0 if self.order is None else _ORDERED, len(self.keys)) + keys + order
        checksum: int = google_crc32c.value(data)
        return data + checksum.to_bytes(_CRC_BYTES, "little")

    @staticmethod
    def decode(data: memoryview, name: str, *, is_checked: bool = False) -> FileOffsets:
        """The index that `encode` wrote, upon these very bytes; `Corrupt`, with the file's name, of any other bytes.

        With `is_checked` the checksum is not compared: these bytes were decoded before.
        """
        if len(data) < _HEAD.size + _CRC_BYTES:
            raise Corrupt(f"{name} is no offset index: it is cut short")
        magic, version, flags, rows = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise Corrupt(f"{name} is no offset index")
        if not is_checked and _checksum(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
            raise Corrupt(f"{name} is a damaged offset index: its checksum is another one")
        if version != _VERSION:
            raise NewerFormat(f"{name} is an offset index of version {version}, and this release reads {_VERSION}")
        ordered = bool(flags & _ORDERED)
        if len(data) != _HEAD.size + rows * (12 if ordered else 8) + _CRC_BYTES:
            raise Corrupt(f"{name} is no offset index: it has another number of bytes than its rows take")
        keys = np.frombuffer(data, "<i8", rows, _HEAD.size)
        return FileOffsets(keys, np.frombuffer(data, "<i4", rows, _HEAD.size + 8 * rows) if ordered else None)

    def positions(self, places: npt.NDArray[np.int64]) -> Positions:
        """Sorted positions in the file of these places of the index."""
        return np.sort(places if self.order is None else self.order[places]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DeadRows(Generic[F]):
    """Dead rows of one data file."""

    file: F
    positions: Positions
    keys: Keys


def _checksum(data: memoryview) -> int:
    found = 0
    for begin in range(0, len(data), _CHECKED_BYTES):
        found = google_crc32c.extend(found, bytes(data[begin : begin + _CHECKED_BYTES]))
    return found


def read_offsets(file: DataFile) -> FileOffsets:
    """The offset index of a file, read from its two columns."""
    try:
        rows = read_columns(file.path, file.format, [LAKE_BUCKET, LAKE_OFFSET])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(f"data file {file.path} cannot be read: {error}") from error
    if rows.num_rows != file.rows:
        raise Corrupt(f"data file {file.path} has {rows.num_rows} rows where its manifest says {file.rows}")
    buckets, offsets = (rows.column(name).to_numpy() for name in (LAKE_BUCKET, LAKE_OFFSET))
    keys = (buckets.astype(np.int64) << BUCKET_SHIFT) | offsets
    if len(keys) < 2 or bool(np.all(keys[1:] > keys[:-1])):
        return FileOffsets(keys, None)
    order = np.argsort(keys, kind="stable").astype(np.int32)
    ordered = keys[order]
    if bool(np.any(ordered[1:] == ordered[:-1])):
        raise Corrupt(f"data file {file.path} holds a row twice")
    return FileOffsets(ordered, order)


def read_columns(location: str, form: str, columns: Sequence[str]) -> pa.Table:
    """Columns of a data or delete file, in the order of its rows."""
    if form != "PARQUET":
        with other_formats.opened_at(location, form) as other:
            schema = pa.schema([other.schema.field(name) for name in columns])
            return pa.Table.from_batches(other.batches(columns), schema)
    filesystem, path = place(location)
    return pq.read_table(path, columns=list(columns), filesystem=filesystem, partitioning=None)


log = logging.getLogger("lakestore.offsets")
MEMORY_BYTES, DISK_BYTES = 128 << 20, 4 << 30
KEPT_ROWS_MIN = 1 << 10
"""Rows of a data file from which on its index is worth a file: smaller ones are read as fast from the data file."""
MAPPED_MAX = 4_096
"""Index files that are mapped at once; a process may map some 65,000."""
AHEAD = 4
"""Indexes that are read before they are needed."""
_SUFFIX, _TEMPORARY = ".offsets", ".new"


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """The state of a cache and its work so far."""

    memory_bytes: int
    """Indexes in memory; mapped ones are not counted."""
    disk_bytes: int
    files: int
    """Index files."""
    mapped: int
    """Index files that are mapped."""
    read: int
    """Indexes that were read from data files."""
    evicted: int
    """Indexes that went for lack of room, from memory or from disk."""


@dataclass(frozen=True, slots=True)
class _Mapped:
    """An index upon a mapped file."""

    offsets: FileOffsets

    @property
    def nbytes(self) -> int:
        """One: what is bounded is the number of mapped files."""
        return 1


class OffsetCache:
    """Offset indexes by data file. Thread-safe; several indexes are read at once by `each`."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES,
        disk_bytes: int = DISK_BYTES,
        pool: Executor | None = None,
        working: Callable[[], None] = lambda: None,
    ) -> None:
        """`working` is called before an index is read, which takes its time; several are read at once in the pool."""
        self._pool, self._working = pool, working
        self._memory: Kept[FileOffsets] = Kept(memory_bytes)
        self._mapped: Kept[_Mapped] = Kept(MAPPED_MAX)
        self._disk = None if folder is None else IndexFolder(folder, disk_bytes)
        self._read = 0
        self._lock = threading.Lock()
        """Held to count; what keeps indexes has locks of its own."""

    @property
    def figures(self) -> CacheFigures:
        """The state and the work so far."""
        disk = self._disk
        return CacheFigures(
            memory_bytes=self._memory.nbytes,
            disk_bytes=disk.nbytes if disk else 0,
            files=disk.count if disk else 0,
            mapped=self._mapped.nbytes,
            read=self._read,
            evicted=self._memory.evicted + (disk.evicted if disk else 0),
        )

    def put(self, path: str, offsets: FileOffsets) -> None:
        """Keep the index of a file that was just written, in memory."""
        self._memory.put(path, offsets)

    def drop(self, paths: Iterable[str]) -> None:
        """Forget the indexes of files that are gone."""
        for path in paths:
            self._memory.drop(path)
            self._mapped.drop(path)

    def of(self, file: DataFile, group: str = "") -> FileOffsets:
        """The index of a data file; of one in a group it is kept on disk, too."""
        known = self._known(file.path, group)
        if known is None:
            self._working()
            known = self._admitted(file, group, self._loaded(file, group))
        return known

    def each(self, files: Iterable[F], group: str = "") -> Iterator[tuple[F, FileOffsets]]:
        """Data files with their indexes; those that are not in memory are read some files ahead."""
        ahead: deque[tuple[F, Future[_Loaded] | None]] = deque()
        for file in files:
            known = self._pool is None or file.path in self._memory or file.path in self._mapped
            loading = None if known or self._pool is None else self._pool.submit(self._loaded, file, group)
            ahead.append((file, loading))
            if len(ahead) > AHEAD:
                yield self._first(ahead, group)
        while ahead:
            yield self._first(ahead, group)

    def find(self, files: Iterable[F], dead: Mapping[int, OffsetSet], group: str = "") -> list[DeadRows[F]]:
        """The files that hold dead rows, with their positions.

        Every dead row must be found: one that is found nowhere would stay visible, so who asks compares the number.
        """
        search, known, found = RowSearch(packed(dead)), list(files), []
        for file, index in self.each((known[number] for number in search.files(BoundsTable.of(known))), group):
            places = search.places(index.keys)
            if len(places):
                found.append(DeadRows(file, index.positions(places), index.keys[places]))
        return found

    def keep_only(self, group: str, paths: Iterable[str]) -> int:
        """Remove the index files of a group but those of these data files; their number."""
        return self._disk.keep_only(group, paths) if self._disk else 0

    def forget(self, group: str, paths: Iterable[str]) -> None:
        """Remove the indexes of data files that left the lake."""
        for path in paths:
            self.drop([path])
            if self._disk:
                self._disk.remove(group, path)

    def _known(self, path: str, group: str) -> FileOffsets | None:
        mapped = self._mapped.get(path)
        if mapped is not None:
            if self._disk:
                self._disk.used(group, path)
            return mapped.offsets
        return self._memory.get(path)

    def _first(self, ahead: deque[tuple[F, Future[_Loaded] | None]], group: str) -> tuple[F, FileOffsets]:
        file, loading = ahead.popleft()
        if loading is None:
            return file, self.of(file, group)
        self._working()
        return file, self._admitted(file, group, loading.result())

    def _loaded(self, file: DataFile, group: str) -> _Loaded:
        """An index from disk, or else read from the data file and written to disk if it is worth it."""
        disk = self._disk if group and file.rows >= KEPT_ROWS_MIN else None
        found = disk.mapped(group, file) if disk else None
        if found is not None:
            return _Loaded(found, is_mapped=True, is_read=False)
        made = read_offsets(file)
        if disk and disk.written(group, file.path, made):
            found = disk.mapped(group, file)
        return _Loaded(found or made, is_mapped=found is not None, is_read=True)

    def _admitted(self, file: DataFile, group: str, loaded: _Loaded) -> FileOffsets:
        with self._lock:
            self._read += loaded.is_read
        if loaded.is_mapped:
            self._mapped.put(file.path, _Mapped(loaded.offsets))
            if self._disk:
                self._disk.used(group, file.path)
        else:
            self._memory.put(file.path, loaded.offsets)
        return loaded.offsets


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An index that was not in memory."""

    offsets: FileOffsets
    is_mapped: bool
    is_read: bool
    """Whether it was read from the data file."""


class IndexFolder:
    """Index files by group and data file, bounded in bytes. Thread-safe. A mapped file that goes can be read on."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._lock = threading.Lock()
        self._checked: set[Path] = set()
        """The files that this life has written, or compared with their checksums."""
        self._sizes: OrderedDict[Path, int] = OrderedDict()
        """The one that was used last is the last."""
        self.nbytes, self.evicted = 0, 0
        for _, path, size in sorted(self._listed()):
            self._sizes[path] = size
            self.nbytes += size
        self._evict()

    @property
    def count(self) -> int:
        """Index files."""
        return len(self._sizes)

    def mapped(self, group: str, file: DataFile) -> FileOffsets | None:
        """The index of a data file; None if there is none that is whole."""
        path = self._path(group, file.path)
        try:
            with path.open("rb") as opened:
                data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            found = FileOffsets.decode(data, str(path), is_checked=path in self._checked)
        except FileNotFoundError:
            return None
        except (Corrupt, NewerFormat, OSError, ValueError) as error:
            log.warning("offset index %s cannot be read and is made anew: %s", path, error)
            return None
        self._checked.add(path)
        return found if len(found.keys) == file.rows else None

    def written(self, group: str, data_file: str, made: FileOffsets) -> bool:
        """Write an index; False if that fails, or if it has more bytes than all may have."""
        path, data = self._path(group, data_file), made.encode()
        if len(data) > self._bytes_max:
            return False
        new = path.with_suffix(f"{_TEMPORARY}-{os.getpid()}-{threading.get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(data)
            new.replace(path)
        except OSError as error:
            log.warning("the offset index of %s is not kept: %s", data_file, error)
            return False
        with self._lock:
            self._checked.add(path)
            self.nbytes += len(data) - self._sizes.pop(path, 0)
            self._sizes[path] = len(data)
            self._evict()
        return True

    def used(self, group: str, data_file: str) -> None:
        """Note that an index was used."""
        path = self._path(group, data_file)
        with self._lock:
            if path in self._sizes:
                self._sizes.move_to_end(path)

    def remove(self, group: str, data_file: str) -> None:
        """Remove an index, if it is there."""
        with self._lock:
            self._remove(self._path(group, data_file))

    def keep_only(self, group: str, data_files: Iterable[str]) -> int:
        """Remove the indexes of a group but those of these data files; their number."""
        wanted = {self._path(group, path) for path in data_files}
        with self._lock:
            gone = [path for path in self._sizes if path.parent.name == group and path not in wanted]
            for path in gone:
                self._remove(path)
        return len(gone)

    def _path(self, group: str, data_file: str) -> Path:
        return self._folder / group / f"{hashlib.sha256(data_file.encode()).hexdigest()[:32]}{_SUFFIX}"

    def _listed(self) -> Iterator[tuple[float, Path, int]]:
        """Time, path and bytes of every index; files that were never finished go."""
        for path in self._folder.glob("*/*"):
            if path.suffix != _SUFFIX:
                path.unlink(missing_ok=True)
                continue
            info = path.stat()
            yield info.st_mtime, path, info.st_size

    def _evict(self) -> None:
        while self.nbytes > self._bytes_max and self._sizes:
            self._remove(next(iter(self._sizes)))
            self.evicted += 1

    def _remove(self, path: Path) -> None:
        self.nbytes -= self._sizes.pop(path, 0)
        self._checked.discard(path)
        path.unlink(missing_ok=True)


def remove_groups(folder: Path, keep: Iterable[str]) -> None:
    """Remove the folders of all groups but these."""
    kept = set(keep)
    for found in folder.iterdir() if folder.is_dir() else ():
        if found.name not in kept:
            shutil.rmtree(found, ignore_errors=True)
