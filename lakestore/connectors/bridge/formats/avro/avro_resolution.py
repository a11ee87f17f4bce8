"""Records of one Avro schema as records of another: names and aliases, defaults, promotions, by whole columns.

Without a declared schema the fields wanted are those of the newest schema, and those that only older ones have: nothing
that a record holds is left out because a newer schema has dropped its field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.formats.avro.avro_schema import Field, Node, struct
from lakestore.errors import Invalid
from lakestore.model.decimals import from_unscaled

_NUMBERS = ("int", "long", "float", "double")
_TEXTS = ("string", "bytes")


class Incompatible(Invalid):
    """Records of a schema do not become records of another."""

    def __init__(self, sentence: str, path: str) -> None:
        super().__init__(sentence)
        self.path = path


def merged(newest: Node, older: Node) -> Node:
    """The newest schema with the fields that only an older one has, optional, and the wider of two types."""
    if newest.kind == "optional" or older.kind == "optional":
        item = merged(_bare(newest), _bare(older))
        return Node("optional", item.arrow, item=item, null_branch=0, meaning=newest.meaning or item.meaning)
    if newest.kind == older.kind == "record":
        return _merged_record(newest, older)
    if newest.kind == older.kind and newest.kind in ("array", "map"):
        assert newest.item is not None
        assert older.item is not None
        return _nest(newest, merged(newest.item, older.item))
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
        fields.append(replace(field, node=merged(field.node, former.node)))
    for field in older.fields:
        if field.name not in taken and field.name not in {each.name for each in fields}:
            fields.append(replace(field, node=_optional(field.node), default=None, has_default=False))
    return replace(newest, fields=tuple(fields), arrow=struct(fields))


def adapt(values: pa.Array, writer: Node, reader: Node, path: str = "") -> pa.Array:
    """Values of the writer's schema as the reader's; `Incompatible` if there is no way."""
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
    """Whether Avro reads one as the other."""
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
    mask = values.is_null() if values.null_count else None
    if not children:
        return pa.array([{}] * len(values), reader.arrow)
    return pa.StructArray.from_arrays(children, fields=list(reader.arrow), mask=mask)


def _to_nest(values: pa.Array, writer: Node, reader: Node, path: str) -> pa.Array:
    assert writer.item is not None
    assert reader.item is not None
    mask = values.is_null() if values.null_count else None
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
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(reader.arrow), mask=mask)


def _writer_of(field: Field, writer: Node) -> Field | None:
    """The writer's field for one of the reader's: by name, or else by one of its aliases."""
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


def _default(node: Node, said: Any) -> Any:
    """A default of a schema, which is JSON, as a value of the node's Arrow type."""
    if node.kind == "optional":
        return None if said is None else _default(_bare(node), said)
    if node.kind == "record":
        return {field.name: _default(field.node, said.get(field.name, field.default)) for field in node.fields}
    if node.kind in ("array", "map"):
        assert node.item is not None
        item = node.item
        pairs = [(key, _default(item, each)) for key, each in said.items()] if node.kind == "map" else []
        return pairs or [_default(item, each) for each in said]
    if node.kind == "union":
        field = node.fields[0]
        return None if said is None else {field.name: _default(field.node, said)}
    return _default_scalar(node, said)


def _default_scalar(node: Node, said: Any) -> Any:
    if node.kind in ("bytes", "fixed"):
        raw = said.encode("latin-1")
        if node.logical == "decimal":
            return from_unscaled(int.from_bytes(raw, "big", signed=True), node.arrow.scale)
        return raw
    return said * 1000 if node.logical == "time-millis" else said
