"""Codecs of Avro values: a reader and a writer for each type of a schema, built once for the schema.

A reader takes bytes and a place. It returns the value and the place after the value. Bytes that are no value of the
schema raise `ValueError`, `IndexError` or `struct.error`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Read = Callable[[bytes, int], tuple[Any, int]]
Write = Callable[[bytearray, Any], None]
_LONG_BITS = 64
_DEPTH_MAX = 64
_PACKED_MAX = 1_024
"""A map with this many items is decoded at once. A smaller map is decoded on first use."""
_SMALL = tuple((byte >> 1) ^ -(byte & 1) for byte in range(0x80))
"""The numbers that take one byte, by this byte."""


@dataclass(slots=True)
class Codec:
    """Reader and writer of the values of a type."""

    read: Read
    write: Write


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length number."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return _SMALL[byte], at
    total, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift >= _LONG_BITS:
            raise ValueError("a number has more than 64 bits")
        byte = data[at]
        at += 1
        total |= (byte & 0x7F) << shift
        shift += 7
    return (total >> 1) ^ -(total & 1), at


def write_long(out: bytearray, value: int) -> None:
    """Append a variable-length number."""
    if -0x40 <= value < 0x40:
        out.append((value << 1) ^ (value >> 63))
        return
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def take(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    """Read `count` bytes."""
    end = at + count
    if count < 0 or end > len(data):
        raise ValueError("it is cut short")
    return data[at:end], end


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    return take(data, at, size)


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_long(out, len(value))
    out += value


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at)
    return found.decode(), at


def _write_text(out: bytearray, value: str) -> None:
    _write_bytes(out, value.encode())


def _number(code: str) -> Codec:
    packed = struct.Struct(code)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return packed.unpack_from(data, at)[0], at + packed.size

    return Codec(read, lambda out, value: out.extend(packed.pack(value)))


def _fixed(size: int) -> Codec:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"a value of {size} bytes has {len(value)}")
        out += value

    return Codec(lambda data, at: take(data, at, size), write)


_PLAIN: Mapping[str, Codec] = {
    "null": Codec(lambda _, at: (None, at), lambda _, __: None),
    "boolean": _number("<?"),
    "int": Codec(read_long, write_long),
    "long": Codec(read_long, write_long),
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": Codec(_read_bytes, _write_bytes),
    "string": Codec(_read_text, _write_text),
}


def codec_of(schema: Any, names: Mapping[int, str]) -> Codec:
    """The codec of a schema. A field of a record has its name from `names` by id, otherwise from the schema."""
    return _Maker(names).codec(schema, 0)


class _Maker:
    """Builds the codecs of one schema and remembers its named types."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._known: dict[str, Codec] = {}

    def codec(self, schema: Any, depth: int) -> Codec:
        """The codec of a part of the schema."""
        if depth > _DEPTH_MAX:
            raise ValueError(f"its schema nests deeper than {_DEPTH_MAX}")
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._known[schema]
        if isinstance(schema, list):
            return self._union(schema, depth + 1)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, depth + 1)
        if kind == "array":
            return self._array(schema, depth + 1)
        if kind == "map":
            return _map(_PLAIN["string"], self.codec(schema["values"], depth + 1))
        if kind == "fixed":
            made = self._known[schema["name"]] = _fixed(schema["size"])
            return made
        return self.codec(kind, depth + 1)

    def _record(self, schema: Any, depth: int) -> Codec:
        parts = []
        for field in schema["fields"]:
            name = self._names.get(field.get("field-id", 0), field["name"])
            parts.append((name, self.codec(field["type"], depth)))
        reads = [(name, codec.read) for name, codec in parts]
        writes = [(name, codec.write) for name, codec in parts]

        def read(data: bytes, at: int) -> tuple[Any, int]:
            value = {}
            for name, part in reads:
                value[name], at = part(data, at)
            return value, at

        def write(out: bytearray, value: Any) -> None:
            for name, part in writes:
                part(out, value[name])

        made = self._known[schema["name"]] = Codec(read, write)
        return made

    def _union(self, schema: list[Any], depth: int) -> Codec:
        if len(schema) != 2 or "null" not in schema:
            raise ValueError("it has a union that Iceberg does not use")
        null = schema.index("null")
        inner = self.codec(schema[1 - null], depth)
        inner_read, inner_write, nothing, something = inner.read, inner.write, 2 * null, 2 - 2 * null

        def read(data: bytes, at: int) -> tuple[Any, int]:
            branch = data[at]
            if branch == nothing:
                return None, at + 1
            if branch != something:
                raise ValueError("a value is of no type of its union")
            return inner_read(data, at + 1)

        def write(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(nothing)
            else:
                out.append(something)
                inner_write(out, value)

        return Codec(read, write)

    def _array(self, schema: Any, depth: int) -> Codec:
        items = schema["items"]
        if schema.get("logicalType") == "map":
            key, value = (self.codec(field["type"], depth) for field in items["fields"])
            return _packed(_map(key, value), tuple(field["type"] for field in items["fields"]))
        return _array(self.codec(items, depth))


class PackedMap(Mapping[Any, Any]):
    """A map that is never empty. Its items are decoded on first use."""

    __slots__ = ("_held", "_read", "packed")

    def __init__(self, packed: bytes, read: Read) -> None:
        self.packed = packed
        """The map as Avro encodes it."""
        self._read = read
        self._held: dict[Any, Any] | None = None

    def _items(self) -> dict[Any, Any]:
        if self._held is None:
            self._held, _ = self._read(self.packed, 0)
        return self._held

    def __getitem__(self, key: Any) -> Any:
        return self._items()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def __len__(self) -> int:
        return len(self._items())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self._items())


_NUMBER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_SHORT_BYTES_MAX = 32
_SHORT_BYTES = b"|".join(re.escape(bytes([2 * size])) + b"." * size for size in range(_SHORT_BYTES_MAX + 1))
_ITEMS: Mapping[tuple[Any, ...], bytes] = {
    ("int", "long"): _NUMBER + _NUMBER,
    ("int", "bytes"): _NUMBER + b"(?:" + _SHORT_BYTES + b")",
}
"""Pattern of an item by the types of key and value, for the maps that each file of a manifest has."""


def _packed(whole: Codec, kinds: tuple[Any, ...]) -> Codec:
    """The codec of a map that skips its bytes by a pattern. Without a pattern for these types it is `whole`."""
    item = _ITEMS.get(kinds) if all(isinstance(kind, str) for kind in kinds) else None
    if item is None:
        return whole
    whole_read, whole_write, forms = whole.read, whole.write, _Forms(item)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        begin = at
        while True:
            count, at = read_long(data, at)
            if not count:
                return (PackedMap(data[begin:at], whole_read) if at - begin > 1 else {}), at
            found = forms.of(count).match(data, at) if 0 < count < _PACKED_MAX else None
            if found is None:
                return whole_read(data, begin)
            at = found.end()

    def write(out: bytearray, held: Any) -> None:
        if isinstance(held, PackedMap):
            out += held.packed
        else:
            whole_write(out, held)

    return Codec(read, write)


class _Forms:
    """Patterns of several items, by their number."""

    def __init__(self, item: bytes) -> None:
        self._item = item
        self._made: dict[int, re.Pattern[bytes]] = {}

    def of(self, count: int) -> re.Pattern[bytes]:
        """The pattern of this many items in a row."""
        made = self._made.get(count)
        if made is None:
            made = self._made[count] = re.compile(b"(?:%b){%d}+" % (self._item, count), re.DOTALL)
        return made


def _blocks(data: bytes, at: int) -> tuple[int, int]:
    """The number of items in the next block of an array or a map. Its size in bytes is skipped."""
    count, at = read_long(data, at)
    if count < 0:
        _, at = read_long(data, at)
        count = -count
    if count > len(data) - at:
        raise ValueError("an array has more items than bytes")
    return count, at


def _array(codec: Codec) -> Codec:
    item_read, item_write = codec.read, codec.write

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: list[Any] = []
        while True:
            count, at = _blocks(data, at)
            if not count:
                return found, at
            for _ in range(count):
                item, at = item_read(data, at)
                found.append(item)

    def write(out: bytearray, value: Any) -> None:
        if value:
            write_long(out, len(value))
            for item in value:
                item_write(out, item)
        write_long(out, 0)

    return Codec(read, write)


def _map(key: Codec, value: Codec) -> Codec:
    key_read, value_read, key_write, value_write = key.read, value.read, key.write, value.write

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: dict[Any, Any] = {}
        while True:
            count, at = _blocks(data, at)
            if not count:
                return found, at
            for _ in range(count):
                name, at = key_read(data, at)
                found[name], at = value_read(data, at)

    def write(out: bytearray, held: Any) -> None:
        if held:
            write_long(out, len(held))
            for name, item in held.items():
                key_write(out, name)
                value_write(out, item)
        write_long(out, 0)

    return Codec(read, write)
