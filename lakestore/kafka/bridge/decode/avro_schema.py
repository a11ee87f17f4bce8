"""Avro schemas as trees of nodes. Each node has the Arrow type of its values.

- A union of null and one other type is that type, optional.
- A union of several types is a struct with one child for each branch. One child has a value.
- The metadata of an Arrow field holds the Avro field's names, aliases and `connect.*` properties.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.decimals import from_unscaled_value
from lakestore.rows.casting import null_mask

DEPTH_MAX = 64
ALIASES = b"aliases"
"""Key in the metadata of an Arrow field: former names, as JSON."""
DEFAULT = b"default"
"""Key in the metadata of an Arrow field: the schema's default, as JSON."""
PRIMITIVE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMES: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
DURATION = pa.struct([pa.field(name, pa.uint32(), nullable=False) for name in ("months", "days", "milliseconds")])
_MEANINGS = ("connect.name", "connect.parameters", "connect.version", "doc")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    default: Any = None
    has_default: bool = False
    meaning: tuple[tuple[str, str], ...] = ()
    """Avro and Connect properties that give the value a meaning, such as `logicalType`."""

    @property
    def arrow(self) -> pa.Field:
        said = {name.encode(): text.encode() for name, text in self.meaning}
        if self.aliases:
            said[ALIASES] = json.dumps(self.aliases).encode()
        if self.has_default:
            said[DEFAULT] = json.dumps(self.default).encode()
        return pa.field(self.name, self.node.arrow, nullable=self.node.nullable, metadata=said or None)


@dataclass(frozen=True, slots=True)
class Node:
    """A type in a schema."""

    kind: str
    """A primitive's name, record, enum, fixed, array, map, optional or union."""
    arrow: pa.DataType
    fields: tuple[Field, ...] = ()
    """Fields of a record. A union has one for each branch except `null`."""
    item: Node | None = None
    """Type of the items of an array or map, or of an optional value."""
    symbols: tuple[str, ...] = ()
    size: int = 0
    logical: str = ""
    null_branch: int = -1
    """Index of null among the branches of an optional type or union."""
    name: str = ""
    meaning: tuple[tuple[str, str], ...] = ()

    @property
    def nullable(self) -> bool:
        return self.kind in ("optional", "null") or (self.kind == "union" and self.null_branch >= 0)

    @property
    def bytes_min(self) -> int:
        if self.kind == "record":
            return sum(field.node.bytes_min for field in self.fields)
        return {"null": 0, "fixed": self.size, "float": 4, "double": 8}.get(self.kind, 1)


def struct(fields: Iterable[Field]) -> pa.DataType:
    """The struct type of a record. All children are nullable, because the record itself may be null."""
    return pa.struct([field.arrow.with_nullable(True) for field in fields])


def schema_tree(text: str, references: Mapping[str, str] | None = None) -> Node:
    """Parse a schema. Raises `Invalid`."""
    return _Reader(*_parsed(text, references)).node([], 0)


def crc64(text: str) -> str:
    """Avro's 64-bit fingerprint of a schema, as hexadecimal in wire order."""
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    canonical = to_parsing_canonical_form(_parsed(text, None)[0])
    return bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO")).hex()


def _parsed(text: str, references: Mapping[str, str] | None) -> tuple[Any, dict[str, Any]]:
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema  # files need none, and come here, too

    names: dict[str, Any] = {}
    try:
        for reference in (references or {}).values():
            parse_schema(json.loads(reference), named_schemas=names)
        return parse_schema(json.loads(text), named_schemas=names), names
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid(f"this is not an Avro schema: {type(error).__name__} {error}") from None
    except RecursionError:
        raise Invalid("this Avro schema is nested too deeply") from None


class _Reader:
    """Builds the tree of a schema that fastavro has parsed, so names are qualified."""

    def __init__(self, schema: Any, names: dict[str, Any]) -> None:
        self._schema, self._names = schema, names

    def node(self, within: list[str], depth: int) -> Node:
        return self._node(self._schema, within, depth)

    def _node(self, schema: Any, within: list[str], depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise Invalid(f"an Avro schema is nested more than {DEPTH_MAX} deep: no table's column is")
        if isinstance(schema, list):
            return self._union(schema, within, depth + 1)
        if isinstance(schema, str):
            if schema in PRIMITIVE:
                return Node(schema, PRIMITIVE[schema])
            return self._named(schema, self._names[schema], within, depth)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._node(kind, within, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(schema["name"], schema, within, depth)
        if kind in ("array", "map"):
            return self._nest(kind, schema, within, depth)
        return _primitive(kind, schema) if kind in PRIMITIVE else self._node(kind, within, depth)

    def _nest(self, kind: str, schema: Any, within: list[str], depth: int) -> Node:
        item = self._node(schema["items" if kind == "array" else "values"], within, depth + 1)
        if not item.bytes_min and kind == "array":
            raise Invalid("an Avro array holds values without any bytes: such an array has no column")
        if kind == "array":
            arrow = pa.list_(item.arrow)
        else:
            arrow = pa.map_(pa.string(), item.arrow)
        return Node(kind, arrow, item=item)

    def _named(self, name: str, schema: Any, within: list[str], depth: int) -> Node:
        kind = schema["type"]
        if kind == "enum":
            return Node("enum", pa.string(), symbols=tuple(schema["symbols"]), name=name, meaning=_meaning(schema))
        if kind == "fixed":
            return _fixed(name, schema)
        if name in within:
            chain = " in ".join([name, *reversed(within[within.index(name) :])])
            raise Invalid(f"the Avro record {name} holds itself ({chain}): no column's type does")
        fields = tuple(self._field(field, [*within, name], depth + 1) for field in schema["fields"])
        arrow = struct(fields)
        return Node("record", arrow, fields=fields, name=name, meaning=_meaning(schema))

    def _field(self, field: Any, within: list[str], depth: int) -> Field:
        node = self._node(field["type"], within, depth)
        meaning = dict(node.meaning) | dict(_meaning(field))
        aliases = tuple(str(alias) for alias in field.get("aliases", ()))
        told = tuple(meaning.items())
        return Field(field["name"], node, aliases, field.get("default"), "default" in field, told)

    def _union(self, branches: list[Any], within: list[str], depth: int) -> Node:
        nodes = [self._node(branch, within, depth) for branch in branches]
        null = next((at for at, node in enumerate(nodes) if node.kind == "null"), -1)
        rest = [node for node in nodes if node.kind != "null"]
        if null >= 0 and len(rest) == 1:
            item = rest[0]
            return Node("optional", item.arrow, item=item, null_branch=null, meaning=item.meaning)
        if not rest:
            return Node("optional", pa.null(), item=nodes[0], null_branch=0)
        short = [_branch(node) for node in rest]
        names = [node.name if short.count(name) > 1 else name for name, node in zip(short, rest, strict=True)]
        fields = tuple(
            Field(name, Node("optional", each.arrow, item=each)) for name, each in zip(names, rest, strict=True)
        )
        return Node("union", struct(fields), fields=fields, null_branch=null)


def _branch(node: Node) -> str:
    return node.name.rpartition(".")[2] if node.name else node.kind


def _meaning(schema: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(schema, dict):
        return ()
    said = [(name, schema[name]) for name in _MEANINGS if name in schema]
    return tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in said)


def _primitive(kind: str, schema: Any) -> Node:
    logical, meaning = schema.get("logicalType"), _meaning(schema)
    if (kind, logical) in _TIMES:
        return Node(kind, _TIMES[kind, logical], logical=logical, meaning=meaning)
    if kind == "bytes" and logical == "decimal":
        arrow = _decimal(schema, 0)
        if arrow is not None:
            return Node(kind, arrow, logical=logical, meaning=meaning)
    return Node(kind, PRIMITIVE[kind], meaning=meaning)


def _fixed(name: str, schema: Any) -> Node:
    size, logical, meaning = int(schema["size"]), schema.get("logicalType"), _meaning(schema)
    arrow = _decimal(schema, size) if logical == "decimal" else None
    if arrow is not None:
        return Node("fixed", arrow, size=size, logical="decimal", name=name, meaning=meaning)
    if logical == "duration" and size == 12:
        return Node("fixed", DURATION, size=size, logical=logical, name=name, meaning=meaning)
    if logical == "uuid" and size == 16:
        return Node("fixed", pa.string(), size=size, logical=logical, name=name, meaning=meaning)
    return Node("fixed", pa.binary(size) if size else pa.binary(), size=size, name=name, meaning=meaning)


def _decimal(schema: Any, size: int) -> pa.DataType | None:
    """The Arrow type of a decimal. None if its precision or scale is invalid: then the values are plain bytes."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return None
    if precision > 76 or size > 32:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


_NUMBERS = ("int", "long", "float", "double")
_TEXTS = ("string", "bytes")


class Incompatible(Invalid):
    """Records of one schema cannot be read as records of another."""

    def __init__(self, sentence: str, path: str) -> None:
        super().__init__(sentence)
        self.path = path


def merge_schemas(newest: Node, older: Node) -> Node:
    """Merge an older schema into the newest. Old fields become optional; of two types the wider stays."""
    if newest.kind == "optional" or older.kind == "optional":
        item = merge_schemas(_bare(newest), _bare(older))
        return Node("optional", item.arrow, item=item, null_branch=0, meaning=newest.meaning or item.meaning)
    if newest.kind == older.kind == "record":
        return _merged_record(newest, older)
    if newest.kind == older.kind and newest.kind in ("array", "map"):
        assert newest.item is not None
        assert older.item is not None
        return _nest(newest, merge_schemas(newest.item, older.item))
    if _promotes(newest, older) and not _promotes(older, newest):
        return older
    return newest


def _merged_record(newest: Node, older: Node) -> Node:
    taken: set[str] = set()
    fields = []
    for field in newest.fields:
        former = _writer_of(field, older)
        if former is None:
            fields.append(field)
            continue
        taken.add(former.name)
        fields.append(replace(field, node=merge_schemas(field.node, former.node)))
    for field in older.fields:
        if field.name not in taken and field.name not in {each.name for each in fields}:
            fields.append(replace(field, node=_optional(field.node), default=None, has_default=False))
    return replace(newest, fields=tuple(fields), arrow=struct(fields))


def adapt(values: pa.Array, writer: Node, reader: Node, path: str = "") -> pa.Array:
    """Convert values of the writer's schema to the reader's. Raises `Incompatible`."""
    if writer == reader:
        return values
    if reader.kind == "optional" or writer.kind == "optional":
        if values.null_count and reader.kind != "optional":
            raise Incompatible(f"{path} is null in records, and may not be by the newest schema", path)
        return adapt(values, _bare(writer), _bare(reader), path)
    if writer.kind == "null":
        return pa.nulls(len(values), reader.arrow)
    if reader.kind == "union":
        return _to_union(values, writer, reader, path)
    if writer.kind == reader.kind == "record":
        return _to_record(values, writer, reader, path)
    if writer.kind == reader.kind and writer.kind in ("array", "map"):
        return _to_nest(values, writer, reader, path)
    if not _promotes(writer, reader):
        raise _refusal(writer, reader, path)
    try:
        return pc.cast(values, reader.arrow, safe=writer.kind not in ("int", "long") or reader.kind not in _NUMBERS[2:])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _refusal(writer, reader, path) from None


def _refusal(writer: Node, reader: Node, path: str) -> Incompatible:
    text = f"{path or 'the value'} is {writer.kind} in the record's schema, and {reader.kind} in the newest"
    return Incompatible(f"{text}, which does not hold it", path)


def _promotes(writer: Node, reader: Node) -> bool:
    kinds = (writer.kind, reader.kind)
    if writer.kind in _NUMBERS and reader.kind in _NUMBERS:
        return _NUMBERS.index(writer.kind) <= _NUMBERS.index(reader.kind)
    if pa.types.is_decimal(writer.arrow) or pa.types.is_decimal(reader.arrow):
        return bool(pa.types.is_decimal(writer.arrow) and pa.types.is_decimal(reader.arrow))
    if writer.kind == reader.kind == "fixed":
        return writer.size == reader.size
    if "enum" in kinds:
        return reader.kind in ("enum", "string")
    return writer.kind == reader.kind or (writer.kind in _TEXTS and reader.kind in _TEXTS)


def _to_record(values: pa.Array, writer: Node, reader: Node, path: str) -> pa.Array:
    children = []
    for field in reader.fields:
        below = f"{path}.{field.name}" if path else field.name
        former = _writer_of(field, writer)
        if former is not None:
            child = values.field(writer.fields.index(former))
            children.append(adapt(child, former.node, field.node, below))
        elif field.has_default:
            constant = pa.array([_default(field.node, field.default)], field.node.arrow)
            children.append(constant.take(pa.array([0] * len(values), pa.int32())))
        elif field.node.nullable:
            children.append(pa.nulls(len(values), field.node.arrow))
        else:
            text = f"{below} is not in the record's schema, and the newest has no default for it"
            raise Incompatible(text, below)
    mask = null_mask(values)
    if not children:
        return pa.array([{}] * len(values), reader.arrow)
    return pa.StructArray.from_arrays(children, fields=list(reader.arrow), mask=mask)


def _to_nest(values: pa.Array, writer: Node, reader: Node, path: str) -> pa.Array:
    assert writer.item is not None
    assert reader.item is not None
    mask = null_mask(values)
    if writer.kind == "array":
        items = adapt(values.values, writer.item, reader.item, f"{path}[]")
        return pa.ListArray.from_arrays(values.offsets, items, type=reader.arrow, mask=mask)
    items = adapt(values.items, writer.item, reader.item, f"{path}{{}}")
    return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=reader.arrow, mask=mask)


def _to_union(values: pa.Array, writer: Node, reader: Node, path: str) -> pa.Array:
    mine = {field.name: (field, at) for at, field in enumerate(writer.fields)} if writer.kind == "union" else {}
    children = []
    placed = False
    for field in reader.fields:
        item = _bare(field.node)
        if field.name in mine:
            former, at = mine.pop(field.name)
            children.append(adapt(values.field(at), former.node, field.node, f"{path}.{field.name}"))
        elif writer.kind != "union" and not placed and (writer.kind, writer.name) == (item.kind, item.name):
            children.append(adapt(values, writer, item, path))
            placed = True
        else:
            children.append(pa.nulls(len(values), field.node.arrow))
    if mine or (writer.kind != "union" and not placed):
        raise Incompatible(f"{path} has branches that the newest schema's union does not have", path)
    mask = null_mask(values)
    return pa.StructArray.from_arrays(children, fields=list(reader.arrow), mask=mask)


def _writer_of(field: Field, writer: Node) -> Field | None:
    named = {each.name: each for each in writer.fields}
    return next((named[name] for name in (field.name, *field.aliases) if name in named), None)


def _bare(node: Node) -> Node:
    return node.item if node.kind == "optional" and node.item is not None else node


def _optional(node: Node) -> Node:
    return node if node.nullable else Node("optional", node.arrow, item=node, null_branch=0, meaning=node.meaning)


def _nest(node: Node, item: Node) -> Node:
    if node.kind == "array":
        arrow = pa.list_(item.arrow)
    else:
        arrow = pa.map_(pa.string(), item.arrow)
    return replace(node, item=item, arrow=arrow)


def _default(node: Node, value: Any) -> Any:
    if node.kind == "optional":
        return None if value is None else _default(_bare(node), value)
    if node.kind == "record":
        return {field.name: _default(field.node, value.get(field.name, field.default)) for field in node.fields}
    if node.kind in ("array", "map"):
        assert node.item is not None
        item = node.item
        pairs = [(key, _default(item, each)) for key, each in value.items()] if node.kind == "map" else []
        return pairs or [_default(item, each) for each in value]
    if node.kind == "union":
        field = node.fields[0]
        return None if value is None else {field.name: _default(field.node, value)}
    return _default_scalar(node, value)


def _default_scalar(node: Node, value: Any) -> Any:
    if node.kind in ("bytes", "fixed"):
        raw = value.encode("latin-1")
        if node.logical == "decimal":
            return from_unscaled_value(int.from_bytes(raw, "big", signed=True), node.arrow.scale)
        return raw
    return value * 1000 if node.logical == "time-millis" else value
