"""Offset indexes of data files, and the look-up of dead rows by them: (bucket, offset) to (data file, position).

A file's `__bucket` and `__offset` columns, sorted, are its offset index. The index is read from the file when first
needed and kept while memory lasts, as files never change; it can be kept as a file. Every dead row must be found: a row
that is found nowhere would stay visible in the lake, so a round compares the number (`flush`).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Corrupt, NewerFormat
from lakestore.lake import other_formats
from lakestore.lake.places import place
from lakestore.lake.puffin import Positions
from lakestore.lake.row_search import BUCKET_SHIFT, Bounds, BoundsTable, Keys, RowSearch, packed
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows.offsets import OffsetSet

INDEX_BYTES_MAX = 512 << 20
_MAGIC, _VERSION = b"LSOI", 1
_HEAD = struct.Struct("<4sHHQQ")
"""Magic, version, flags, rows, packed bytes; then the packed body and its CRC."""
_ORDERED = 1
_CRC_BYTES = 4


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
        """The index as a file's bytes: keys as differences, the order as it is, both packed."""
        steps = np.diff(self.keys, prepend=np.int64(0)).astype("<i8", copy=False)
        body = steps.tobytes() + (b"" if self.order is None else self.order.astype("<i4", copy=False).tobytes())
        packed = pa.compress(body, "zstd", asbytes=True)
        flags = 0 if self.order is None else _ORDERED
        data: bytes = _HEAD.pack(_MAGIC, _VERSION, flags, len(self.keys), len(packed)) + packed
        checksum: int = google_crc32c.value(data)
        return data + checksum.to_bytes(_CRC_BYTES, "little")

    @staticmethod
    def decode(data: bytes, name: str) -> FileOffsets:
        """The index that `encode` wrote; `Corrupt`, with the file's name, of any other bytes."""
        if len(data) < _HEAD.size + _CRC_BYTES:
            raise Corrupt(f"{name} is no offset index: it is cut short")
        magic, version, flags, rows, size = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise Corrupt(f"{name} is no offset index")
        if google_crc32c.value(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
            raise Corrupt(f"{name} is a damaged offset index: its checksum is another one")
        if version != _VERSION:
            raise NewerFormat(f"{name} is an offset index of version {version}, and this release reads {_VERSION}")
        packed = memoryview(data)[_HEAD.size : _HEAD.size + size]
        whole = rows * (12 if flags & _ORDERED else 8)
        body = pa.decompress(packed, decompressed_size=whole, codec="zstd", asbytes=True)
        keys = np.cumsum(np.frombuffer(body, "<i8", rows), dtype=np.int64)
        order = np.frombuffer(body, "<i4", rows, offset=8 * rows).astype(np.int32) if flags & _ORDERED else None
        return FileOffsets(keys, order)

    def positions(self, places: npt.NDArray[np.int64]) -> Positions:
        """Sorted positions in the file of these places of the index."""
        return np.sort(places if self.order is None else self.order[places]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DeadRows(Generic[F]):
    """Dead rows of one data file."""

    file: F
    positions: Positions
    keys: Keys


class OffsetIndexes:
    """Offset indexes of data files, the least recently used let go first."""

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.nbytes = 0
        """Memory of the kept indexes in bytes."""
        self._kept: OrderedDict[str, FileOffsets] = OrderedDict()

    def of(self, file: DataFile) -> FileOffsets:
        """The index of a file."""
        kept = self._kept.get(file.path)
        if kept is not None:
            self._kept.move_to_end(file.path)
            return kept
        made = read_offsets(file)
        self._kept[file.path] = made
        self.nbytes += made.nbytes
        while self.nbytes > self._bytes_max and len(self._kept) > 1:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return made

    def find(self, files: Iterable[F], dead: Mapping[int, OffsetSet]) -> list[DeadRows[F]]:
        """The files that hold dead rows, with their positions."""
        search, known, found = RowSearch(packed(dead)), list(files), []
        for number in search.files(BoundsTable(known)):
            file = known[number]
            index = self.of(file)
            places = search.places(index.keys)
            if len(places):
                found.append(DeadRows(file, index.positions(places), index.keys[places]))
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
