"""Deletion vectors, Iceberg's blob `deletion-vector-v1`, and the Puffin files that hold them.

A vector is the deleted positions of one data file: length, magic number, 64-bit roaring bitmap, CRC. A Puffin file is
blobs and a JSON footer. The footer lists the place and the data file of each blob.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from pyroaring import BitMap64

from lakestore.errors import Corrupt

Positions = npt.NDArray[np.int64]
"""Row numbers in a data file, sorted and distinct."""

_MAGIC = b"PFA1"
_FILLED_BYTES_MAX = 1 << 20
"""DuckDB 1.5 returns wrong bytes for a range that touches two ranges in its cache. It reads on to the next such range
if the gap is not longer than what it reads, and at most so many bytes."""
_TAIL = struct.Struct("<iI4s")
"""The end of a file: bytes of the footer's JSON, flags, magic number."""
_COMPRESSED = 1
_VECTOR_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])
_VECTOR_BYTES_MIN = 20
_VECTOR = "deletion-vector-v1"
_POSITION_ID = 2_147_483_645
"""The field id of the row position, which a vector's blob names."""
_REFERENCED = "referenced-data-file"


def vector(positions: Positions) -> bytes:
    """Encode positions as a blob."""
    body = _VECTOR_MAGIC + BitMap64(positions.astype(np.uint64)).serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def positions(data: bytes, name: str) -> Positions:
    """Decode a blob. Raises `Corrupt` with the file's name."""
    size = len(data) - 8
    whole = len(data) >= _VECTOR_BYTES_MIN and struct.unpack_from(">I", data)[0] == size
    if not whole or data[4:8] != _VECTOR_MAGIC or struct.unpack_from(">I", data, size + 4)[0] != zlib.crc32(data[4:-4]):
        raise Corrupt(f"{name} holds no readable deletion vector")
    try:
        return np.asarray(BitMap64.deserialize(data[8:-4]).to_array(), dtype=np.int64)
    except (ValueError, OverflowError, MemoryError) as error:
        raise Corrupt(f"{name} holds no readable deletion vector: {error}") from error


def puffin(vectors: Sequence[tuple[str, Positions]]) -> tuple[bytes, list[tuple[int, int]]]:
    """A Puffin file of the vectors of these data files, and begin and length of each vector in it."""
    out, blobs, places = bytearray(_MAGIC), [], list[tuple[int, int]]()
    for path, held in vectors:
        made = vector(held)
        before = places[-1][1] if places else len(_MAGIC)
        out += bytes(min(before, _FILLED_BYTES_MAX) + 1)
        places.append((len(out), len(made)))
        said = {_REFERENCED: path, "cardinality": str(len(held))}
        blob = {"type": _VECTOR, "fields": [_POSITION_ID], "snapshot-id": -1, "sequence-number": -1}
        blobs.append({**blob, "offset": len(out), "length": len(made), "properties": said})
        out += made
    return _closed(out, {"blobs": blobs, "properties": {"created-by": "lakestore"}}), places


def vectors(data: bytes, name: str) -> Mapping[str, Positions]:
    """Data file to its positions, from a Puffin file. Raises `Corrupt`."""
    found: dict[str, Positions] = {}
    footer = Footer.read(data, name)
    for blob in footer.blobs:
        path = (blob.get("properties") or {}).get(_REFERENCED)
        if blob.get("type") == _VECTOR and path is not None:
            begin = blob["offset"]
            found[path] = positions(data[begin : begin + blob["length"]], name)
    return found


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a Puffin file. No other part names data files."""

    begin: int
    """Where the footer's JSON begins. Blobs and magic numbers come before it."""
    json: dict[str, Any]

    @property
    def blobs(self) -> list[dict[str, Any]]:
        """Types, positions and properties of the blobs."""
        found: list[dict[str, Any]] = self.json["blobs"]
        return found

    @property
    def references(self) -> set[str] | None:
        """The data files of the vectors; None if a blob is no vector."""
        if any(blob.get("type") != _VECTOR for blob in self.blobs):
            return None
        return {str((blob.get("properties") or {}).get(_REFERENCED, "")) for blob in self.blobs}

    @staticmethod
    def read(data: bytes, name: str) -> Footer:
        """Decode the footer of a file. Raises `Corrupt`, also for a compressed footer."""
        tail = len(data) - _TAIL.size
        size, flags, magic = _TAIL.unpack_from(data, tail) if tail >= 0 else (0, 0, b"")
        begin = tail - size
        plain = magic == _MAGIC and not flags & _COMPRESSED and size >= 0
        if not plain or begin < 8 or data[begin - 4 : begin] != _MAGIC or data[:4] != _MAGIC:
            raise Corrupt(f"{name} is no Puffin file with a plain footer")
        try:
            found = Footer(begin, orjson.loads(data[begin:tail]))
            if not all(isinstance(blob["offset"] + blob["length"], int) for blob in found.blobs):
                raise ValueError("a blob has no place")
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{name} is no Puffin file with a readable footer: {error}") from error
        return found


def moved(data: bytes, name: str, place: Any) -> bytes:
    """The file with new paths of data files: `place` maps an old path to a new one. The blobs keep their places."""
    footer = Footer.read(data, name)
    for blob in footer.blobs:
        said = blob.get("properties") or {}
        if _REFERENCED in said:
            said[_REFERENCED] = place(said[_REFERENCED])
    return _closed(bytearray(data[: footer.begin - 4]), footer.json)


def _closed(out: bytearray, footer: Mapping[str, Any]) -> bytes:
    text = orjson.dumps(footer)
    return bytes(out + _MAGIC + text + _TAIL.pack(len(text), 0, _MAGIC))
