"""Decodes Avro records: the bodies of a block by schema, the columns of each schema in one step, then the wanted
fields.

The decoder does not build an object container for a compiled reader. Such readers trust block boundaries, so one
damaged record shifts its neighbours, and no available reader supports all types. Reading field by field is as fast, and
every record stays within its own bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode.avro_columns import LONG, columns
from lakestore.kafka.bridge.decode.avro_schema import Incompatible, Node, adapt, crc64, merge_schemas, schema_tree
from lakestore.kafka.bridge.decode.framing import VARINT_BYTES_MAX, Cursors, Fault, Part, SchemaName, strip_framing
from lakestore.kafka.bridge.decode.pieces import VALUE, Piece, as_struct, fault_rejects, join_pieces, select_rows
from lakestore.kafka.bridge.decode.schemas import RegistrySchema, Schemas
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import SchemaSpec, Wire
from lakestore.model.decimals import from_unscaled_value

if TYPE_CHECKING:
    from lakestore.kafka.bridge.decode.registry import Registry

_SHORT = "the record ends inside a field"


class Unreadable(Exception):
    """The bytes of a record do not match its schema."""

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
    """The value of a record as an array of one. Raises `Unreadable`."""
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
    return from_unscaled_value(value, node.arrow.scale)


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
        raise Unreadable(
            Fault("bad-enum", f"an enum has {len(node.symbols)} symbols, and the value is none of them", path)
        )
    return node.symbols[number]


def _branch(place: _Place, count: int, path: str) -> int:
    number = place.long(path)
    if not 0 <= number < count:
        raise Unreadable(Fault("bad-union", f"a union has {count} branches, and the value is none of them", path))
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


SCHEMAS_MERGED_MAX = 500
"""Schemas of one topic that are merged into the wanted fields; the newest ones."""


@dataclass(slots=True)
class _Topic:
    """The schemas that records of one topic have named."""

    known: dict[str | int, Node | Fault] = field(default_factory=dict)
    reader: Node | None = None
    newest: Node | None = None


class AvroRecords:
    """A decoder of values or keys."""

    def __init__(
        self,
        *,
        wire: Wire = "auto",
        part: Part = "value",
        declared: SchemaSpec | None = None,
        registry: Registry | None = None,
        topic: str = "",
    ) -> None:
        self._wire: Wire = wire
        self._part: Part = part
        self._registered = registry is not None
        spec = declared or SchemaSpec()
        self._schemas = Schemas("AVRO", part, spec, registry)
        self._wanted = schema_tree(spec.text) if spec.text else None
        self._print = f"crc64:{crc64(spec.text)}" if spec.text else ""
        self._topics: dict[str, _Topic] = {}
        self._topic = topic

    def decode(self, records: Records, wanted: pa.Schema | None = None) -> DecodedBlock:
        block = strip_framing(records, self._wire, self._part, format="avro", registry=self._registered)
        topic = self._topics.setdefault(records.topic, _Topic())
        self._topic = records.topic
        rejects, found = list(block.rejects), []
        for name, rows in block.groups():
            node = self._node(name, records.topic, topic)
            if isinstance(node, Fault):
                stage = Stage.DECODE if node.code == "bad-schema" else Stage.WIRE
                said = (node.code, node.sentence, node.path)
                rejects += [Reject(record, stage, *said) for record in block.record[rows].tolist()]
                continue
            found.append((node, _read(node, block.payloads_of(rows), block.record[rows], rejects)))
        reader = self._reader(topic)
        pieces = [each for node, piece in found if (each := _adapted(piece, node, reader, rejects)) is not None]
        empty = reader.arrow if reader is not None else pa.struct([])
        return join_pieces(pieces, rejects, {TOMBSTONE: block.nulls}, empty)

    def schema(self) -> pa.Schema | None:
        topic = self._topics.setdefault(self._topic, _Topic())
        if topic.reader is None and self._wanted is None and self._topic:
            self._node(None, self._topic, topic)
        reader = self._reader(topic)
        if reader is None:
            return None
        if reader.kind == "record":
            return pa.schema([field.arrow for field in reader.fields])
        return pa.schema([pa.field(VALUE, reader.arrow, nullable=reader.nullable)])

    def _reader(self, topic: _Topic) -> Node | None:
        return self._wanted or topic.reader

    def _node(self, name: SchemaName | None, topic: str, state: _Topic) -> Node | Fault:
        if name is not None and name.id in state.known:
            return state.known[name.id]
        if self._wanted is not None and (name is None or name.id == self._print):
            return self._wanted
        found = self._schemas.declared_schema(topic) if name is None else self._schemas.by_name(name, topic)
        if isinstance(found, Fault):
            return found
        node = _tree(found)
        state.known[found.id if name is None and found.id is not None else name.id if name is not None else ""] = node
        _merge(state)
        return node


def _merge(state: _Topic) -> None:
    numbers = sorted((name for name in state.known if isinstance(name, int)), reverse=True)
    names: list[str | int] = [*numbers, *reversed([name for name in state.known if isinstance(name, str)])]
    nodes = [node for name in names[:SCHEMAS_MERGED_MAX] if isinstance(node := state.known[name], Node)]
    state.newest = nodes[0] if nodes else None
    state.reader = state.newest
    for older in nodes[1:]:
        assert state.reader is not None
        state.reader = merge_schemas(state.reader, older)


def _tree(schema: RegistrySchema) -> Node | Fault:
    try:
        return schema_tree(schema.text, schema.references)
    except Invalid as error:
        return Fault("bad-schema", str(error), "")


def _read(node: Node, payloads: pa.BinaryArray, record: Ints, rejects: list[Reject]) -> Piece:
    cursors = Cursors.of(payloads)
    values = columns(node, cursors)
    fine = np.flatnonzero(~cursors.bad)
    piece = Piece(select_rows(values, ~cursors.bad), record[fine])
    long = [row for row, fault in cursors.faults.items() if fault.code == LONG]
    rejects += fault_rejects({row: fault for row, fault in cursors.faults.items() if fault.code != LONG}, record)
    return piece if not long else _with_long(piece, node, payloads, record, sorted(long), rejects)


def _with_long(
    piece: Piece, node: Node, payloads: pa.BinaryArray, record: Ints, long: Sequence[int], rejects: list[Reject]
) -> Piece:
    values, rows = [piece.values], []
    for row in long:
        try:
            values.append(array(node, payloads[row].as_py()))
            rows.append(row)
        except Unreadable as error:
            rejects += fault_rejects({row: error.fault}, record)
    return Piece(pa.concat_arrays(values), np.concatenate([piece.record, record[rows]]))


def _adapted(piece: Piece, node: Node, reader: Node | None, rejects: list[Reject]) -> Piece | None:
    if reader is None or reader is node:
        return Piece(as_struct(piece.values), piece.record)
    try:
        return Piece(as_struct(adapt(piece.values, node, reader)), piece.record)
    except Incompatible as error:
        said = (Stage.SCHEMA, "waits-for-proposal", str(error), error.path)
        rejects += [Reject(record, *said) for record in piece.record.tolist()]
        return None
