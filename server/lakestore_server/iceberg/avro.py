"""Avro container files as Iceberg's manifests are: read whole and written again, whatever the records hold.

Every field is kept, of whichever format version, so a file that is read and written says the same. A union is `null`
and one other type, the only one that Iceberg uses.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakestore.errors import Corrupt

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_SCHEMA, _CODEC = "avro.schema", "avro.codec"
_META = {"type": "map", "values": "bytes"}

Read = Callable[["_Input"], Any]
Write = Callable[[bytearray, Any], None]


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
        try:
            return _decoded(data)
        except (struct.error, IndexError, KeyError, TypeError, ValueError, OSError, zlib.error) as error:
            raise Corrupt(f"{name} is no readable Avro file: {error}") from error

    def encode(self) -> bytes:
        """The bytes of a file with that content."""
        out = bytearray(_MAGIC)
        _codec_of(_META, {}).write(out, self.meta)
        out += self.sync
        codec, body = _codec_of(orjson.loads(self.meta[_SCHEMA]), {}), bytearray()
        for record in self.records:
            codec.write(body, record)
        if self.records:
            packed = _compressed(bytes(body), self.meta.get(_CODEC, b"null"))
            _write_long(out, len(self.records))
            _write_long(out, len(packed))
            out += packed + self.sync
        return bytes(out)


def _decoded(data: bytes) -> AvroFile:
    if data[:4] != _MAGIC:
        raise ValueError("it does not begin as one")
    source = _Input(data, 4)
    meta: dict[str, bytes] = _codec_of(_META, {}).read(source)
    sync, records = source.take(_SYNC_BYTES), []
    codec = _codec_of(orjson.loads(meta[_SCHEMA]), {})
    while source.at < len(data):
        count, size = _read_long(source), _read_long(source)
        block = _Input(_expanded(source.take(size), meta.get(_CODEC, b"null")), 0)
        records += [codec.read(block) for _ in range(count)]
        if source.take(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end where it should")
    return AvroFile(meta, sync, records)


class _Input:
    """Bytes that are read from a place on."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise ValueError("it is cut short")
        found, self.at = self.data[self.at : end], end
        return found


def _expanded(block: bytes, codec: bytes) -> bytes:
    if codec == b"null":
        return block
    if codec == b"deflate":
        return zlib.decompress(block, -15)
    if codec == b"zstandard":
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            return bytes(stream.read())
    raise ValueError(f"its codec {codec.decode()!r} is not read here")


def _compressed(block: bytes, codec: bytes) -> bytes:
    if codec == b"null":
        return block
    if codec == b"deflate":
        maker = zlib.compressobj(wbits=-15)
        return maker.compress(block) + maker.flush()
    return bytes(pa.compress(block, "zstd", asbytes=True))


@dataclass(frozen=True, slots=True)
class _Type:
    read: Read
    write: Write


def _read_long(source: _Input) -> int:
    shift = total = 0
    while True:
        byte = source.data[source.at]
        source.at += 1
        total |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (total >> 1) ^ -(total & 1)
        shift += 7


def _write_long(out: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _number(code: str) -> _Type:
    packed = struct.Struct(code)
    return _Type(lambda s: packed.unpack(s.take(packed.size))[0], lambda out, value: out.extend(packed.pack(value)))


_PLAIN: Mapping[str, _Type] = {
    "null": _Type(lambda _: None, lambda _, __: None),
    "boolean": _number("<?"),
    "int": _Type(_read_long, _write_long),
    "long": _Type(_read_long, _write_long),
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": _Type(lambda s: s.take(_read_long(s)), _write_bytes),
    "string": _Type(lambda s: s.take(_read_long(s)).decode(), lambda out, value: _write_bytes(out, value.encode())),
}


def _codec_of(schema: Any, names: dict[str, _Type]) -> _Type:
    """The reader and writer of a schema's values; `names` has the named types so far."""
    if isinstance(schema, str):
        return _PLAIN.get(schema) or names[schema]
    if isinstance(schema, list):
        return _union(schema, names)
    kind = schema["type"]
    if kind == "record":
        return _record(schema, names)
    if kind == "array":
        return _array(_codec_of(schema["items"], names))
    if kind == "map":
        return _map(_codec_of(schema["values"], names))
    if kind == "fixed":
        size = schema["size"]
        made = names[schema["name"]] = _Type(lambda s: s.take(size), lambda out, value: out.extend(value))
        return made
    return _codec_of(kind, names)


def _record(schema: Any, names: dict[str, _Type]) -> _Type:
    parts = [(field["name"], _codec_of(field["type"], names)) for field in schema["fields"]]

    def write(out: bytearray, value: Any) -> None:
        for name, codec in parts:
            codec.write(out, value[name])

    made = names[schema["name"]] = _Type(lambda s: {name: codec.read(s) for name, codec in parts}, write)
    return made


def _union(schema: list[Any], names: dict[str, _Type]) -> _Type:
    if len(schema) != 2 or "null" not in schema:
        raise ValueError("it has a union that Iceberg does not use")
    null = schema.index("null")
    codec = _codec_of(schema[1 - null], names)

    def read(source: _Input) -> Any:
        return None if _read_long(source) == null else codec.read(source)

    def write(out: bytearray, value: Any) -> None:
        _write_long(out, null if value is None else 1 - null)
        if value is not None:
            codec.write(out, value)

    return _Type(read, write)


def _blocks(source: _Input) -> int:
    """The number of items in the next block of an array or a map; its size in bytes is passed over."""
    count = _read_long(source)
    if count < 0:
        _read_long(source)
    return abs(count)


def _array(codec: _Type) -> _Type:
    def read(source: _Input) -> list[Any]:
        found: list[Any] = []
        while count := _blocks(source):
            found += [codec.read(source) for _ in range(count)]
        return found

    def write(out: bytearray, value: list[Any]) -> None:
        if value:
            _write_long(out, len(value))
            for item in value:
                codec.write(out, item)
        _write_long(out, 0)

    return _Type(read, write)


def _map(codec: _Type) -> _Type:
    text = _PLAIN["string"]

    def read(source: _Input) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := _blocks(source):
            for _ in range(count):
                key = text.read(source)
                found[key] = codec.read(source)
        return found

    def write(out: bytearray, value: Mapping[str, Any]) -> None:
        if value:
            _write_long(out, len(value))
            for key, item in value.items():
                text.write(out, key)
                codec.write(out, item)
        _write_long(out, 0)

    return _Type(read, write)
