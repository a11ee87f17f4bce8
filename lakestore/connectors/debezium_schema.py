"""The Kafka Connect schema of a table's events, for consumers whose JSON converter wants it in every message."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from lakestore.model.table import Table

_Json = dict[str, Any]
_SIMPLE: dict[pa.DataType, _Json] = {
    pa.bool_(): {"type": "boolean"},
    pa.int8(): {"type": "int8"},
    pa.int16(): {"type": "int16"},
    pa.int32(): {"type": "int32"},
    pa.int64(): {"type": "int64"},
    pa.uint8(): {"type": "int16"},
    pa.uint16(): {"type": "int32"},
    pa.uint32(): {"type": "int64"},
    pa.float32(): {"type": "float"},
    pa.float64(): {"type": "double"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "bytes"},
    pa.date32(): {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    pa.time64("us"): {"type": "int64", "name": "io.debezium.time.MicroTime", "version": 1},
    pa.timestamp("us"): {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
    pa.timestamp("us", tz="UTC"): {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
}
_SOURCE = (
    ("version", "string"), ("connector", "string"), ("name", "string"), ("ts_ms", "int64"), ("snapshot", "string"),
    ("db", "string"), ("table", "string"), ("ts_us", "int64"), ("bucket", "int32"), ("offset", "int64"),
)  # fmt: skip
_TRANSACTION = (("id", "string"), ("total_order", "int64"), ("data_collection_order", "int64"))


def envelope(table: Table) -> str:
    """The text in front of an event: its schema, up to where the payload begins."""
    row = _record([_field(column.arrow.name, column.arrow) for column in table.columns], f"{table.name}.Value")
    source = _record([_named(name, {"type": kind, "optional": False}) for name, kind in _SOURCE], "lakestore.Source")
    transaction = _record(
        [_named(name, {"type": kind, "optional": False}) for name, kind in _TRANSACTION], "event.block"
    )
    fields = [
        _named("before", row | {"optional": True}),
        _named("after", row | {"optional": True}),
        _named("source", source),
        _named("op", {"type": "string", "optional": False}),
        _named("ts_ms", {"type": "int64", "optional": True}),
        _named("transaction", transaction | {"optional": True}),
    ]
    return _front(_record(fields, f"{table.name}.Envelope") | {"version": 1})


def key(table: Table) -> str:
    """The text in front of a key."""
    return _front(_record([_field(field.name, field) for field in table.key_schema], f"{table.name}.Key"))


def _front(schema: _Json) -> str:
    return f'{{"schema":{json.dumps(schema, separators=(",", ":"), ensure_ascii=False)},"payload":'


def _record(fields: list[_Json], name: str) -> _Json:
    return {"type": "struct", "fields": fields, "optional": False, "name": name}


def _named(name: str, schema: _Json) -> _Json:
    return schema | {"field": name}


def _field(name: str, field: pa.Field) -> _Json:
    return _named(name, _schema(field))


def _schema(field: pa.Field) -> _Json:
    return _type(field.type) | {"optional": bool(field.nullable)}


def _type(kind: pa.DataType) -> _Json:
    t = pa.types
    if t.is_struct(kind):
        return {"type": "struct", "fields": [_field(part.name, part) for part in kind]}
    if t.is_list(kind):
        return {"type": "array", "items": _schema(kind.value_field)}
    if t.is_map(kind):
        return {"type": "map", "keys": _schema(kind.key_field), "values": _schema(kind.item_field)}
    if t.is_decimal(kind):
        return {"type": "string"}
    return _SIMPLE[kind] if kind in _SIMPLE else {"type": "bytes"}
