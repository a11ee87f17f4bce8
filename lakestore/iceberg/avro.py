"""Avro container files, the format of Iceberg's manifests.

1. A file is read whole. Every field is kept, so a file that is read and written again has the same content.
2. A union has two types, and one of them is `null`. Iceberg uses no other union.
3. An array that Iceberg marks as a map is read as a map.
"""

from __future__ import annotations

import bz2
import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore.errors import Corrupt, Invalid
from lakestore.iceberg.avro_values import Codec, Read, codec_of, read_long, take, write_long

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_LONG_BITS = 64
_ITEMS_MAX = 1 << 16
"""The most items of an array. No table has more columns, and no file has more row groups."""
_MAP = "map"
_FIXED_SIZES: Mapping[str, int] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
MARGIN = bytes(16)
"""Zeros after the bytes of the records: a number that is cut short ends in them."""


def longs(data: Bytes, at: Places) -> tuple[Places, Places]:
    """Variable-length numbers at these places, and the place after each number."""
    byte = data[at]
    after = at + 1
    value = (byte & 0x7F).astype(np.uint64)
    left, shift = np.flatnonzero(byte >= 0x80), 7
    while len(left):
        if shift >= _LONG_BITS:
            raise ValueError("a number has more than 64 bits")
        byte = data[after[left]]
        value[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[left] += 1
        left, shift = left[byte >= 0x80], shift + 7
    half = (value >> np.uint64(1)).astype(np.int64)
    return half ^ -(value & np.uint64(1)).astype(np.int64), after


def passed_longs(data: Bytes, at: Places) -> Places:
    """The place after each variable-length number."""
    after = at + 1
    left, size = np.flatnonzero(data[at] >= 0x80), 1
    while len(left):
        if (size := size + 1) > 10:
            raise ValueError("a number has more than 64 bits")
        more = data[after[left]] >= 0x80
        after[left] += 1
        left = left[more]
    return after


class Fields:
    """Steps over the fields of the records of one schema, for many records at once."""

    def __init__(self, schema: Any) -> None:
        self._known: dict[str, Any] = {}
        self._learn(schema)
        self.fields: tuple[tuple[int, Any], ...] = tuple(self._flat(schema))
        """Id and type of each field, in order. A nested record is replaced by its fields."""

    def _flat(self, record: Any) -> Iterator[tuple[int, Any]]:
        for field in record["fields"]:
            kind, number = self._named(field["type"]), field.get("field-id", 0)
            if isinstance(kind, dict) and kind["type"] == "record":
                yield from self._flat(kind)
            else:
                yield number, kind

    def _learn(self, kind: Any) -> None:
        """Collect the named types in a type."""
        if isinstance(kind, list):
            for part in kind:
                self._learn(part)
        if not isinstance(kind, dict):
            return
        if kind["type"] in ("fixed", "record"):
            self._known[kind["name"]] = kind
        for field in kind.get("fields", ()):
            self._learn(field["type"])
        for part in (kind["type"], kind.get("items"), kind.get("values")):
            self._learn(part)

    def _named(self, kind: Any) -> Any:
        """The definition of a type that may be given by name."""
        if isinstance(kind, str):
            return self._known.get(kind, kind)
        if isinstance(kind, dict) and isinstance(kind["type"], list | dict):
            return self._named(kind["type"])
        return kind

    def passed(self, kind: Any, data: Bytes, at: Places) -> Places:
        """The place after each value of a type."""
        if isinstance(kind, list):
            return self._passed_union(kind, data, at)
        if isinstance(kind, dict):
            return self._passed_nested(kind, data, at)
        if kind in ("int", "long"):
            return passed_longs(data, at)
        if kind in ("string", "bytes"):
            return behind(data, *longs(data, at))
        if kind in self._known:
            return self.passed(self._known[kind], data, at)
        if kind not in _FIXED_SIZES:
            raise ValueError(f"its type {kind!r} is not known")
        return at + _FIXED_SIZES[kind]

    def _passed_union(self, kind: list[Any], data: Bytes, at: Places) -> Places:
        inner, held = present(kind, data, at)
        after = at + 1
        if len(held) == len(at):
            return self.passed(inner, data, after)
        if len(held):
            after[held] = self.passed(inner, data, after[held])
        return after

    def _passed_nested(self, kind: Mapping[str, Any], data: Bytes, at: Places) -> Places:
        name = kind["type"]
        if name == "record":
            for field in kind["fields"]:
                at = self.passed(self._named(field["type"]), data, at)
            return at
        if name == "fixed":
            return at + int(kind["size"])
        if name not in ("array", _MAP):
            return self.passed(name, data, at)
        at = at.copy()
        for _, active, places in self.items(kind, data, at):
            at[active] = places
        return at

    def items(self, kind: Mapping[str, Any], data: Bytes, at: Places) -> Iterator[tuple[Places, Places, Places]]:
        """Step through the items of many arrays or maps at once.

        Step n yields item n of each array that has one: places of the items, indexes of their arrays, places after the
        items. The last step has no items; it yields the index of every array and the place after the array.
        """
        parts = ("string", kind["values"]) if kind["type"] == _MAP else (kind["items"],)
        at, active = at.copy(), np.arange(len(at))
        while len(active):
            left, places = longs(data, at[active])
            blocked = left < 0
            if blocked.any():
                places[blocked] = passed_longs(data, places[blocked])
                left = np.abs(left)
            if int(left.max()) > _ITEMS_MAX:
                raise ValueError(f"an array has more than {_ITEMS_MAX:,} items")
            at[active] = places
            open_ = left > 0
            active, left = active[open_], left[open_]
            held = active
            while len(held):
                begin = at[held]
                places = begin
                for part in parts:
                    places = self.passed(self._named(part), data, places)
                at[held] = places
                yield begin, held, places
                left -= 1
                held, left = held[left > 0], left[left > 0]
        yield np.empty(0, np.int64), np.arange(len(at)), at


def present(kind: Any, data: Bytes, at: Places) -> tuple[Any, Places]:
    """The type in a union with null, and the indexes of places with a value. Without a union all have one."""
    if not isinstance(kind, list):
        return kind, np.arange(len(at))
    if len(kind) != 2 or "null" not in kind:
        raise ValueError("it has a union that Iceberg does not use")
    null = kind.index("null")
    branch = data[at]
    held = branch == 2 - 2 * null
    if not bool(np.all(held | (branch == 2 * null))):
        raise ValueError("a value is of no type of its union")
    return kind[1 - null], np.flatnonzero(held)


def behind(data: Bytes, size: Places, at: Places) -> Places:
    """The place after `size` bytes at each place; `ValueError` if the data ends earlier."""
    after: Places = at + size
    if len(after) and (int(size.min()) < 0 or int(after.max()) > len(data) - len(MARGIN)):
        raise ValueError("it is cut short")
    return after


Names = tuple[tuple[int, str], ...]
"""Field ids and the names of these fields in decoded records. Names in the file are ignored."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_SCHEMA, _CODEC = "avro.schema", "avro.codec"
_META = b'{"type":"map","values":"bytes"}'
_CODECS_KEPT = 256
_CRC_BYTES = 4
_SNAPPY_RATIO_MAX = 64
"""The most bytes that one byte of snappy expands to."""
_FAILURES = (struct.error, AttributeError, IndexError, KeyError, TypeError, ValueError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class AvroFile:
    """The content of a container file."""

    meta: Mapping[str, bytes]
    """The header: schema, codec and the writer's own keys."""
    sync: bytes
    records: list[Any]

    @staticmethod
    def decode(data: bytes, name: str) -> AvroFile:
        """Decode a file. Raises `Corrupt`."""
        container = Container.opened(data, name)
        return AvroFile(container.meta, container.sync, container.records())

    def encode(self) -> bytes:
        """The bytes of a file with this content."""
        body = bytearray()
        write = _codec(self.meta[_SCHEMA], ()).write
        for record in self.records:
            write(body, record)
        return _whole(self.meta, self.sync, len(self.records), bytes(body))


@dataclass(frozen=True, slots=True)
class Container:
    """A container file with a decoded header. Its records are decoded on demand."""

    name: str
    meta: Mapping[str, bytes]
    sync: bytes
    data: bytes
    begin: int
    """Where the first block begins."""

    @staticmethod
    def opened(data: bytes, name: str) -> Container:
        """Decode the header of a file. Raises `Corrupt`."""
        try:
            if data[:4] != _MAGIC:
                raise ValueError("it does not begin as one")
            meta, at = _codec(_META, ()).read(data, 4)
            sync, at = take(data, at, _SYNC_BYTES)
            meta[_SCHEMA]
        except _FAILURES as error:
            raise _damage(name, error) from error
        return Container(name, meta, sync, data, at)

    def records(self, names: Names = ()) -> list[Any]:
        """All records. A field whose id is in `names` gets the name there. Raises `Corrupt`."""
        return [record for block in self.blocks(names) for record in block]

    def blocks(self, names: Names = ()) -> Iterator[list[Any]]:
        """The records, block by block."""
        at = self.begin
        while at < len(self.data):
            try:
                found, at = self._block(_codec(self.meta[_SCHEMA], names).read, at)
            except _FAILURES as error:
                raise _damage(self.name, error) from error
            yield found

    def joined(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The bytes of all records, and for each block its number of records and of bytes."""
        parts, sizes, at = [], [], self.begin
        while at < len(self.data):
            try:
                count, block, at = self._expanded(at)
            except _FAILURES as error:
                raise _damage(self.name, error) from error
            parts.append(block)
            sizes.append((count, len(block)))
        return b"".join(parts), sizes

    def codec(self, names: Names = ()) -> Codec:
        """The codec of a record."""
        return _codec(self.meta[_SCHEMA], names)

    def _expanded(self, at: int) -> tuple[int, bytes, int]:
        """(number of records in the block, their bytes, place after the block)."""
        count, at = read_long(self.data, at)
        size, at = read_long(self.data, at)
        packed, at = take(self.data, at, size)
        block = _expanded(packed, self.meta.get(_CODEC, b"null"))
        if not 0 <= count <= len(block):
            raise ValueError("a block has another number of records than bytes for them")
        sync, at = take(self.data, at, _SYNC_BYTES)
        if sync != self.sync:
            raise ValueError("a block does not end where it should")
        return count, block, at

    def _block(self, read: Read, at: int) -> tuple[list[Any], int]:
        count, block, at = self._expanded(at)
        place = 0
        found: list[Any] = []
        for _ in range(count):
            record, place = read(block, place)
            found.append(record)
        if place != len(block):
            raise ValueError("a block does not end where it should")
        return found, at


def encoded(schema: bytes, meta: Mapping[str, bytes], records: Sequence[Any]) -> bytes:
    """A deflated file of these records. Equal content gives equal bytes."""
    body, write = bytearray(), _codec(schema, ()).write
    for record in records:
        write(body, record)
    header = {_SCHEMA: schema, _CODEC: b"deflate", **meta}
    sync = hashlib.blake2b(body, digest_size=_SYNC_BYTES).digest()
    return _whole(header, sync, len(records), bytes(body))


def packed(meta: Mapping[str, bytes], records: Sequence[bytes]) -> bytes:
    """A deflated file of records that are encoded already. Equal content gives equal bytes."""
    body = b"".join(records)
    header = {**meta, _CODEC: b"deflate"}
    return _whole(header, hashlib.blake2b(body, digest_size=_SYNC_BYTES).digest(), len(records), body)


def _damage(name: str, error: Exception) -> Corrupt:
    return Corrupt(f"{name} is no readable Avro file: {str(error) or type(error).__name__}")


def _whole(meta: Mapping[str, bytes], sync: bytes, count: int, body: bytes) -> bytes:
    out = bytearray(_MAGIC)
    _codec(_META, ()).write(out, meta)
    out += sync
    if count:
        packed = _compressed(body, meta.get(_CODEC, b"null"))
        write_long(out, count)
        write_long(out, len(packed))
        out += packed + sync
    return bytes(out)


@lru_cache(maxsize=_CODECS_KEPT)
def _codec(schema: bytes, names: Names) -> Codec:
    return codec_of(orjson.loads(schema), dict(names))


def _expanded(block: bytes, codec: bytes) -> bytes:
    if codec == b"null":
        return block
    if codec == b"deflate":
        return zlib.decompress(block, -15)
    if codec == b"zstandard":
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            return bytes(stream.read())
    if codec == b"snappy":
        return _unsnapped(block)
    if codec == b"bzip2":
        return bz2.decompress(block)
    raise ValueError(f"its codec {codec.decode(errors='replace')!r} is not read here")


def _unsnapped(block: bytes) -> bytes:
    """Decompress a snappy block. The block begins with the number of bytes and ends with their checksum."""
    size = place = 0
    while True:
        size |= (block[place] & 0x7F) << 7 * place
        if block[place] < 0x80:
            break
        place += 1
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise ValueError("a block says that it is larger than snappy makes it")
    made: bytes = pa.decompress(block[:-_CRC_BYTES], decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(made) != int.from_bytes(block[-_CRC_BYTES:], "big"):
        raise ValueError("a block has another checksum")
    return made


def _compressed(block: bytes, codec: bytes) -> bytes:
    if codec == b"null":
        return block
    if codec == b"deflate":
        maker = zlib.compressobj(wbits=-15)
        return maker.compress(block) + maker.flush()
    if codec == b"zstandard":
        return bytes(pa.compress(block, "zstd", asbytes=True))
    raise Invalid(f"Avro files with codec {codec.decode()!r} are not written here")
