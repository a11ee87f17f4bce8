"""Reads JSON objects of a known kind as Arrow structs, one block at a time, however their values are written.

- A shape describes a JSON value: None for null, a word for a leaf, a list of one shape for arrays, a dict for objects.
- Where a text is expected, a list, an object or a fraction is the leaf "text": its JSON text with numbers as written.
- Where an integer or a time is expected, a fraction makes its column a decimal, so no other number is rounded.
- Compiled code reads a block with the expected fields and shapes. If it fails, records are parsed one by one, grouped
  by shape, and the invalid records are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakestore.kafka.bridge.decode.debezium.connect_values import ANY, DECIMAL, DIGITS_MAX, VARIABLE_DECIMAL, Kind
from lakestore.kafka.bridge.decode.far_decimals import FarDecimals
from lakestore.kafka.bridge.decode.framing import spans
from lakestore.kafka.bridge.records import Ints
from lakestore.model.decimals import fit_type

Shape = None | str | list[Any] | dict[str, Any]
_LEAVES = {bool: "bool", int: "int", float: "float", str: "string"}
_READ = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "string": pa.string(), "text": pa.string()}
_BY_WIRE = {"boolean": "bool", "float": "float", "double": "float", "float32": "float", "float64": "float"}
_FRACTION = pa.decimal128(DIGITS_MAX, 9)
_SAMPLES = 8
_BLOCK_MAX = 1 << 30


class Clash(Exception):
    """No single reading takes two shapes."""


@dataclass(slots=True)
class ShapedBlock:
    """A block after reading: structs with their row numbers, and the rows that could not be read."""

    parts: list[tuple[Ints, pa.StructArray]] = field(default_factory=list)
    faults: list[tuple[int, str, str]] = field(default_factory=list)


def shape_of(value: Any) -> Shape:
    """The shape of a parsed JSON value."""
    if isinstance(value, dict):
        return {name: shape_of(part) for name, part in value.items()}
    if isinstance(value, list):
        inner: Shape = None
        for part in value:
            inner = merge_shapes(inner, shape_of(part))
        return [inner]
    return None if value is None else _LEAVES[type(value)]


def merge_shapes(one: Shape, other: Shape) -> Shape:
    """The shape whose reading takes values of both. Raises `Clash`."""
    if one is None or other is None or one == other:
        return one if other is None else other
    if "text" in (one, other):
        return "text"
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: merge_shapes(one.get(name), part) for name, part in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return [merge_shapes(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str) and {one, other} == {"int", "float"}:
        return "float"
    raise Clash


def learn_shape(texts: pa.BinaryArray, kind: Kind) -> Shape:
    """The shape of the first records' fields that the kind has. None if the records do not show it."""
    found: Shape = None
    for text in texts.take(pa.array(np.linspace(0, len(texts) - 1, _SAMPLES).astype(np.int64))).to_pylist():
        try:
            found = merge_shapes(found, _fitted(orjson.loads(text), kind))
        except (orjson.JSONDecodeError, Clash):
            continue
    return found


def objects(texts: pa.BinaryArray, kind: Kind, shape: Shape) -> ShapedBlock:
    """Read texts, none null, as structs of the kind's fields. Other fields are ignored."""
    everything = np.arange(len(texts), dtype=np.int64)
    if not len(texts):
        return ShapedBlock()
    if not _has_map(kind):
        read = _type(kind, shape)
        far = _far_decimals(read).rows(texts)
        near, some = (everything, texts) if far is None else (everything[~far], texts.filter(pa.array(~far)))
        try:
            block = ShapedBlock([(near, _block(some, read))] if len(near) else [])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        else:
            if far is not None:
                _one_by_one(texts, everything[far], kind, block)
            return block
    return _one_by_one(texts, everything, kind, ShapedBlock())


def _one_by_one(texts: pa.BinaryArray, rows: Ints, kind: Kind, block: ShapedBlock) -> ShapedBlock:
    """Parse these records one by one, and add them to the block."""
    groups = _Groups(kind)
    for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            value = orjson.loads(text)
            if not isinstance(value, dict):
                block.faults.append((row, "not-an-object", "the record is not a JSON object"))
                continue
            groups.add(row, value)
        except orjson.JSONDecodeError as why:
            _group(texts, np.array([row], np.int64), (kind, None), block, str(why))
        except (Clash, RecursionError):
            block.faults.append((row, "mixed-array", "an array of the record holds values of several types"))
    for some, shape in groups.found:
        _group(texts, np.array(some, np.int64), (kind, shape), block)
    return block


class _Groups:
    """Groups of records. One reading takes all shapes of a group."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.found: list[tuple[list[int], Shape]] = []

    def add(self, row: int, value: Any) -> None:
        shape = _fitted(value, self._kind)
        for at, (rows, known) in enumerate(self.found):
            try:
                both = merge_shapes(known, shape)
            except Clash:
                continue
            rows.append(row)
            self.found[at] = (rows, both)
            return
        self.found.append(([row], shape))


def _group(texts: pa.BinaryArray, rows: Ints, form: tuple[Kind, Shape], block: ShapedBlock, why: str = "") -> None:
    """Read rows of one shape. On failure read halves, down to the invalid record."""
    kind, shape = form
    some, read = texts.take(pa.array(rows)), _type(kind, shape)
    by_hand = _has_map(kind) or _has_text(shape)
    far = None if by_hand else _far_decimals(read).rows(some)
    if far is not None and not far.all():
        _group(texts, rows[~far], form, block)
        _group(texts, rows[far], form, block)
        return
    try:
        if by_hand or far is not None:
            listed = [_plain(json.loads(text, parse_float=_Float), kind, shape) for text in some.to_pylist()]
            block.parts.append((rows, pa.array(listed, read)))
        else:
            block.parts.append((rows, _block(some, read)))
        return
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if len(rows) == 1:
            block.faults.append(
                (int(rows[0]), "bad-json", f"the record is not JSON of its schema: {why or _line(error)}")
            )
            return
    half = len(rows) // 2
    _group(texts, rows[:half], form, block)
    _group(texts, rows[half:], form, block)


class _Float(float):
    """A number with a point or an exponent, and its text."""

    def __new__(cls, text: str) -> _Float:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_text(part)}" for name, part in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return value.text if isinstance(value, _Float) else json.dumps(value, ensure_ascii=False)


def _line(why: Exception) -> str:
    return (str(why).splitlines() or [type(why).__name__])[0].removesuffix(" in row 0").removesuffix(".")


def _block(texts: pa.BinaryArray, kind: pa.DataType) -> pa.StructArray:
    """Read texts of one object each, without far decimals. `{` and `}` are required: texts must not run into others."""
    table = table_of(texts, pa.schema(kind), "ignore")
    return table.select(pa.schema(kind).names).combine_chunks().to_struct_array().combine_chunks()


@lru_cache(maxsize=256)
def _far_decimals(kind: pa.DataType) -> FarDecimals:
    """The patterns for the fields of a type; the blocks of a topic have few different ones."""
    return FarDecimals(kind if pa.types.is_struct(kind) else ())


def table_of(texts: pa.BinaryArray, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Return texts of one object each as rows. Raises `ArrowInvalid` if they are not, or do not fit the schema.

    `unexpected` says what to do with fields that the schema lacks: "ignore" them, or "infer" their types.
    """
    text = _trimmed(texts.cast(pa.string()))
    whole = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
    if whole.size > _BLOCK_MAX:
        raise pa.ArrowInvalid("the block is too large")
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    reading = pj.ReadOptions(use_threads=False, block_size=whole.size + 1)
    table = pj.read_json(pa.BufferReader(whole), read_options=reading, parse_options=options)
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("a record holds several JSON values")
    return table


def _trimmed(text: pa.StringArray) -> pa.StringArray:
    for trim in (False, True):
        text = pc.utf8_trim(text, " \t\r\n") if trim else text
        offsets, data = spans(text)
        full = bool((np.diff(offsets) > 1).all())
        if full and (data[offsets[:-1]] == ord("{")).all() and (data[offsets[1:] - 1] == ord("}")).all():
            return text
    raise pa.ArrowInvalid("a record is not a JSON object")


def _fitted(value: Any, kind: Kind) -> Shape:
    if isinstance(value, dict) and kind.wire == "struct":
        fields = kind.fields
        return {name: _fitted(value[name], part) for name, part in fields if name in value}
    if isinstance(value, list) and kind.wire == "array" and kind.item:
        inner: Shape = None
        for part in value:
            inner = _together(inner, _fitted(part, kind.item), kind.item)
        return [inner]
    if kind.wire == "map":
        return None
    if isinstance(value, dict | list | float) and _is_text(kind):
        return "text"
    return shape_of(value)


def _together(one: Shape, other: Shape, kind: Kind) -> Shape:
    try:
        return merge_shapes(one, other)
    except Clash:
        if _is_text(kind):
            return "text"
        raise


def _is_text(kind: Kind) -> bool:
    return kind.wire == "string" and pa.types.is_string(kind.type) and not kind.name


def _type(kind: Kind, shape: Shape) -> pa.DataType:
    if shape is None or (isinstance(shape, dict) and kind.wire == "struct"):
        return _expected(kind, shape or {})
    if isinstance(shape, list):
        if kind.wire != "array" or kind.item is None:
            return pa.list_(_type(Kind("string"), shape[0]))
        return pa.list_(_type(kind.item, shape[0]))
    if isinstance(shape, dict):
        return pa.struct([(name, _type(Kind("string"), part)) for name, part in shape.items()])
    if shape in ("int", "float"):
        return _number(kind, shape)
    return _READ[shape]


def _number(kind: Kind, shape: str) -> pa.DataType:
    if kind.name == DECIMAL or (kind.target is not None and pa.types.is_decimal(kind.target)):
        return pa.decimal128(DIGITS_MAX, max(kind.scale, 0))
    if shape == "float" and (kind.wire == ANY or kind.wire.startswith("int")):
        return _FRACTION
    return pa.float64() if kind.wire in _BY_WIRE and kind.wire != "boolean" else _READ[shape]


def _expected(kind: Kind, shape: Mapping[str, Any]) -> pa.DataType:
    if kind.wire == "struct":
        return pa.struct([pa.field(name, _type(part, shape.get(name))) for name, part in kind.fields])
    if kind.wire == "array" and kind.item:
        return pa.list_(_type(kind.item, None))
    if kind.wire == "map" and kind.item:
        return pa.map_(pa.string(), _type(kind.item, None))
    if kind.name in (DECIMAL, VARIABLE_DECIMAL):
        return pa.string()
    return _READ[_BY_WIRE.get(kind.wire, "int" if kind.wire.startswith("int") else "string")]


def _has_map(kind: Kind) -> bool:
    inner = [part for _, part in kind.fields] + ([kind.item] if kind.item else [])
    return kind.wire == "map" or any(map(_has_map, inner))


def _has_text(shape: Shape) -> bool:
    parts = shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ()
    return shape == "text" or any(map(_has_text, parts))


def _plain(value: Any, kind: Kind, shape: Shape) -> Any:
    if value is None:
        return None
    if shape == "text":
        return value if isinstance(value, str) else _text(value)
    if shape in ("int", "float") and pa.types.is_decimal(read := _number(kind, shape)):
        return fit_type(Decimal(value.text if isinstance(value, _Float) else value), read)
    if kind.wire == "map" and kind.item:
        pairs = value.items() if isinstance(value, dict) else value
        item = kind.item
        return [(str(name), _plain(part, item, None)) for name, part in pairs]
    if kind.wire == "struct" and isinstance(value, dict):
        said = shape if isinstance(shape, dict) else {}
        return {name: _plain(value.get(name), part, said.get(name)) for name, part in kind.fields}
    if kind.wire == "array" and isinstance(value, list) and kind.item:
        item = kind.item
        return [_plain(part, item, shape[0] if isinstance(shape, list) else None) for part in value]
    return value
