"""Avro read value by value, for the few records whose arrays are too long to read beside others'.

The limits are those of `avro_columns`: what one refuses, the other does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from lakestore.connectors.bridge.formats.avro.avro_schema import Node
from lakestore.connectors.bridge.framing.cursors import VARINT_BYTES_MAX, Fault
from lakestore.model.decimals import from_unscaled

_SHORT = "the record ends inside a field"


class Unreadable(Exception):
    """The record's bytes are not its schema's."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


@dataclass(slots=True)
class _Place:
    data: bytes
    at: int = 0

    def take(self, count: int, path: str) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise Unreadable(Fault("short-payload", _SHORT, path))
        self.at += count
        return self.data[self.at - count : self.at]

    def long(self, path: str) -> int:
        value = shift = 0
        for _ in range(VARINT_BYTES_MAX):
            if self.at >= len(self.data):
                raise Unreadable(Fault("short-payload", _SHORT, path))
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << 64) - 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise Unreadable(Fault("bad-number", "a number has more than 10 bytes", path))


def array(node: Node, payload: bytes) -> pa.Array:
    """The one value of a record, as an array of the schema's type; or `Unreadable`."""
    place = _Place(payload)
    value = _value(node, place, "")
    if place.at < len(payload):
        text = "bytes are left over behind the last field of the schema"
        raise Unreadable(Fault("trailing-bytes", text, ""))
    return pa.array([value], node.arrow)


def _value(node: Node, place: _Place, path: str) -> Any:
    return _READERS[node.kind](node, place, path)


def _boolean(_node: Node, place: _Place, path: str) -> bool:
    byte = place.take(1, path)
    if byte not in (b"\0", b"\1"):
        raise Unreadable(Fault("bad-boolean", "a boolean is a byte of 0 or 1", path))
    return byte == b"\1"


def _int(node: Node, place: _Place, path: str) -> int:
    value = place.long(path)
    if not -(1 << 31) <= value < 1 << 31:
        raise Unreadable(Fault("out-of-range", "a number does not fit the 32 bits of an Avro int", path))
    return value * 1000 if node.logical == "time-millis" else value


def _decimal(node: Node, raw: bytes, path: str) -> Decimal:
    value = int.from_bytes(raw, "big", signed=True)
    if abs(value) >= 10**node.arrow.precision or len(raw) > node.arrow.bit_width // 8:
        text = f"a decimal has more than the {node.arrow.precision} digits of its schema"
        raise Unreadable(Fault("out-of-range", text, path))
    return from_unscaled(value, node.arrow.scale)


def _bytes(node: Node, place: _Place, path: str) -> Any:
    raw = place.take(place.long(path), path)
    return _decimal(node, raw, path) if node.logical == "decimal" else raw


def _string(_node: Node, place: _Place, path: str) -> str:
    try:
        return place.take(place.long(path), path).decode()
    except UnicodeDecodeError:
        raise Unreadable(Fault("bad-utf8", "a text is not UTF-8", path)) from None


def _fixed(node: Node, place: _Place, path: str) -> Any:
    raw = place.take(node.size, path)
    if node.logical == "decimal":
        return _decimal(node, raw, path)
    if node.logical == "uuid":
        return str(UUID(bytes=raw))
    if node.logical == "duration":
        return dict(zip(("months", "days", "milliseconds"), struct.unpack("<III", raw), strict=True))
    return raw


def _enum(node: Node, place: _Place, path: str) -> str:
    number = place.long(path)
    if not 0 <= number < len(node.symbols):
        raise Unreadable(Fault("bad-enum", f"an enum has {len(node.symbols)} symbols, and this is none", path))
    return node.symbols[number]


def _branch(place: _Place, count: int, path: str) -> int:
    number = place.long(path)
    if not 0 <= number < count:
        raise Unreadable(Fault("bad-union", f"a union has {count} branches, and this is none of them", path))
    return number


def _optional(node: Node, place: _Place, path: str) -> Any:
    assert node.item is not None
    branch = _branch(place, 1 if node.item.kind == "null" else 2, path)
    return None if branch == node.null_branch else _value(node.item, place, path)


def _union(node: Node, place: _Place, path: str) -> Any:
    count = len(node.fields) + (node.null_branch >= 0)
    branch = _branch(place, count, path)
    if branch == node.null_branch:
        return None
    field = node.fields[branch - (0 <= node.null_branch < branch)]
    assert field.node.item is not None
    return {field.name: _value(field.node.item, place, f"{path}.{field.name}")}


def _record(node: Node, place: _Place, path: str) -> dict[str, Any]:
    front = f"{path}." if path else ""
    return {field.name: _value(field.node, place, front + field.name) for field in node.fields}


def _items(node: Node, place: _Place, path: str) -> list[Any]:
    assert node.item is not None
    least = node.item.bytes_min + (node.kind == "map")
    found: list[Any] = []
    while count := place.long(path):
        if count < 0:
            size, count = place.long(path), -count
            if not 0 <= size <= len(place.data) - place.at:
                text = "an array's piece is larger than the rest of the record"
                raise Unreadable(Fault("short-payload", text, path))
        if count > (len(place.data) - place.at) // max(least, 1):
            raise Unreadable(Fault("short-payload", "an array has more items than the record has bytes", path))
        for _ in range(count):
            key = _string(node, place, f"{path}{{}}") if node.kind == "map" else None
            value = _value(node.item, place, f"{path}{{}}" if node.kind == "map" else f"{path}[]")
            found.append((key, value) if node.kind == "map" else value)
    return found


def _simple(form: str) -> Callable[[Node, _Place, str], Any]:
    size = struct.calcsize(form)

    def read(_node: Node, place: _Place, path: str) -> Any:
        return struct.unpack(form, place.take(size, path))[0]

    return read


_READERS: dict[str, Callable[[Node, _Place, str], Any]] = {
    "null": lambda _node, _place, _path: None,
    "boolean": _boolean,
    "int": _int,
    "long": lambda _node, place, path: place.long(path),
    "float": _simple("<f"),
    "double": _simple("<d"),
    "bytes": _bytes,
    "string": _string,
    "fixed": _fixed,
    "enum": _enum,
    "optional": _optional,
    "union": _union,
    "record": _record,
    "array": _items,
    "map": _items,
}
