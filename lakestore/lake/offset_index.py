"""Offset indexes of data files: (bucket, offset) of a row to its position in the file.

A file's `__bucket` and `__offset` columns, sorted, are its offset index. The index is read from the data file when it
is first needed, and can be kept as a file that is mapped: `offset_cache`.

    LSOI  version u16  flags u16  rows u64  16 bytes of zero    keys, i64 each    order, i32 each    CRC32C u32
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
from lakestore.lake.row_search import BUCKET_SHIFT, Bounds, Keys
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET

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
