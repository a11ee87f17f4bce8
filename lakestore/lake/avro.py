"""Avro container files as Iceberg's manifests are: read whole and written again, whatever the records hold.

Every field is kept, of whichever format version, so a file that is read and written says the same. A union is `null`
and one other type, the only one that Iceberg uses. An array that Iceberg marks as a map is one here, too.
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

import orjson
import pyarrow as pa

from lakestore.errors import Corrupt, Invalid
from lakestore.lake.avro_values import Codec, Read, codec_of, read_long, take, write_long

Names = tuple[tuple[int, str], ...]
"""Field ids with the names that records use for them, whatever the file calls the fields."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_SCHEMA, _CODEC = "avro.schema", "avro.codec"
_META = b'{"type":"map","values":"bytes"}'
_CODECS_KEPT = 256
_CRC_BYTES = 4
_SNAPPY_RATIO_MAX = 64
"""Bytes that one byte of snappy can stand for, at most."""
_FAILURES = (struct.error, AttributeError, IndexError, KeyError, TypeError, ValueError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class AvroFile:
    """A container file's content."""

    meta: Mapping[str, bytes]
    """The header, with schema and codec."""
    sync: bytes
    records: list[Any]

    @staticmethod
    def decode(data: bytes, name: str) -> AvroFile:
        """The content of a file's bytes, or `Corrupt`."""
        container = Container.opened(data, name)
        return AvroFile(container.meta, container.sync, container.records())

    def encode(self) -> bytes:
        """The bytes of a file with that content."""
        body = bytearray()
        write = _codec(self.meta[_SCHEMA], ()).write
        for record in self.records:
            write(body, record)
        return _whole(self.meta, self.sync, len(self.records), bytes(body))


@dataclass(frozen=True, slots=True)
class Container:
    """A container file whose header is read."""

    name: str
    meta: Mapping[str, bytes]
    sync: bytes
    data: bytes
    begin: int
    """The place of the first block."""

    @staticmethod
    def opened(data: bytes, name: str) -> Container:
        """The file with these bytes, or `Corrupt`."""
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
        """All records, with fields named by their ids where `names` has them; `Corrupt` where the bytes say no."""
        return [record for block in self.blocks(names) for record in block]

    def blocks(self, names: Names = ()) -> Iterator[list[Any]]:
        """The records of one block after the other."""
        at = self.begin
        while at < len(self.data):
            try:
                found, at = self._block(_codec(self.meta[_SCHEMA], names).read, at)
            except _FAILURES as error:
                raise _damage(self.name, error) from error
            yield found

    def joined(self) -> tuple[bytes, list[tuple[int, int]]]:
        """All records' bytes one after the other, and for each block the number of its records and of its bytes."""
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
        """The codec of one record."""
        return _codec(self.meta[_SCHEMA], names)

    def _expanded(self, at: int) -> tuple[int, bytes, int]:
        """(the number of records in a block, their bytes, the place behind the block)."""
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
    """A file of these records, deflated; the same content gives the same bytes."""
    body, write = bytearray(), _codec(schema, ()).write
    for record in records:
        write(body, record)
    header = {_SCHEMA: schema, _CODEC: b"deflate", **meta}
    sync = hashlib.blake2b(body, digest_size=_SYNC_BYTES).digest()
    return _whole(header, sync, len(records), bytes(body))


def packed(meta: Mapping[str, bytes], records: Sequence[bytes]) -> bytes:
    """A file with this header of records that are bytes already; the same content gives the same bytes."""
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
    """The bytes of a block of snappy: it begins with their number, and a checksum of them stands behind it."""
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
