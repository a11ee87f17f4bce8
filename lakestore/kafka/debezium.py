"""Changes as Debezium events: JSON with `before`, `after`, `source` and `op`.

An update with its before-image is one event. Snapshot rows are reads (`r`). `source` names a row by table, bucket and
offset, so that a consumer can recognise an event that it has seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Internal
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.release import RELEASE
from lakestore.rows.json_texts import CONNECT, joined, objects

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
    """The JSON text before the payload of an event: its schema."""
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
    """The JSON text before a key."""
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


CONNECTOR = "lakestore"
PIECE_ROWS = 20_000
_OPS = {"+I": "c", "+U": "u", "-D": "d"}
_BEFORE = "-U"


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one table, in order."""

    keys: pa.Array | None
    """JSON of the primary key, as bytes; None for a log table."""
    values: pa.Array
    """JSON of the event, as bytes."""
    buckets: npt.NDArray[np.int32]
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)


class Pairs:
    """Keeps the two rows of an update together if a message ends between them."""

    def __init__(self) -> None:
        self._held: dict[str, pa.Table] = {}

    def whole(self, name: str, rows: pa.Table) -> pa.Table:
        """Prepend the kept row, and hold back a last before-image whose update has not arrived."""
        held = self._held.pop(name, None)
        if held is not None:
            rows = pa.concat_tables([held, rows])
        if rows.num_rows and rows.column("__change")[-1].as_py() == _BEFORE:
            self._held[name] = rows.slice(rows.num_rows - 1)
            return rows.slice(0, rows.num_rows - 1)
        return rows


class Debezium:
    """Encodes events of one version of a table."""

    def __init__(self, table: Table, *, name: str = CONNECTOR, with_schema: bool = False) -> None:
        self._table = table
        said = {"version": RELEASE, "connector": CONNECTOR, "name": name}
        self._origin = json.dumps(said, separators=(",", ":"), ensure_ascii=False)[:-1]
        place = {"db": table.namespace, "table": table.short_name}
        self._place = json.dumps(place, separators=(",", ":"))[1:-1]
        self._schemas = (key(table), envelope(table)) if with_schema else None

    def events(self, rows: pa.Table, *, snapshot: bool, now_ms: int) -> Iterator[Events]:
        """The events of rows from a change stream with before-images. Updates must be complete."""
        for start, end in _pieces(rows):
            batches = rows.slice(start, end - start).combine_chunks().to_batches()
            yield from (self._of(batch, snapshot=snapshot, now_ms=now_ms) for batch in batches if batch.num_rows)

    def _of(self, batch: pa.RecordBatch, *, snapshot: bool, now_ms: int) -> Events:
        names = [name for name in batch.schema.names if name not in SYSTEM_TYPES]
        row_text = objects(names, [batch.column(name) for name in names], CONNECT)
        change = batch.column("__change").to_numpy(zero_copy_only=False)
        shown = np.flatnonzero(change != _BEFORE)
        op = change[shown]
        before, after = _images(change, shown)
        rest = batch.select(list(SYSTEM_TYPES)).take(pa.array(shown))
        value = joined(
            '{"before":', row_text.take(before).fill_null("null"),
            ',"after":', row_text.take(after).fill_null("null"),
            f',"source":{self._origin}', *self._source(rest, snapshot=snapshot),
            '},"op":"', _ops(op, snapshot=snapshot), f'","ts_ms":{now_ms},"transaction":null}}',
        )  # fmt: skip
        keys = self._keys(batch, shown)
        if self._schemas:
            value = joined(self._schemas[1], value, "}")
        buckets = rest.column("__bucket").to_numpy().astype(np.int32)
        return Events(keys, value.cast(pa.binary()), buckets, op == "-D")

    def _source(self, rows: pa.RecordBatch, *, snapshot: bool) -> list[object]:
        micros = rows.column("__timestamp").cast(pa.int64())
        millis = pa.array(micros.to_numpy() // 1000)
        return [
            ',"ts_ms":', millis.cast(pa.string()),
            f',"snapshot":"{"true" if snapshot else "false"}",{self._place},"ts_us":', micros.cast(pa.string()),
            ',"bucket":', rows.column("__bucket").cast(pa.string()),
            ',"offset":', rows.column("__offset").cast(pa.string()),
        ]  # fmt: skip

    def _keys(self, batch: pa.RecordBatch, rows_shown: npt.NDArray[np.int64]) -> pa.Array | None:
        names = list(self._table.primary_key)
        if not names:
            return None
        text = objects(names, [batch.column(name).take(pa.array(rows_shown)) for name in names], CONNECT)
        if self._schemas:
            text = joined(self._schemas[0], text, "}")
        return text.cast(pa.binary())


def _pieces(rows: pa.Table) -> Iterator[tuple[int, int]]:
    change, start = rows.column("__change"), 0
    while start < rows.num_rows:
        end = min(start + PIECE_ROWS, rows.num_rows)
        if end < rows.num_rows and change[end - 1].as_py() == _BEFORE:
            end -= 1
        yield start, end
        start = end


def _images(change: npt.NDArray[np.object_], shown: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    op = change[shown]
    update, delete = op == "+U", op == "-D"
    paired = update & (shown > 0) & (change[np.maximum(shown, 1) - 1] == _BEFORE)
    if int((change == _BEFORE).sum()) != int(paired.sum()):
        raise Internal("a before-image stands without its update in a change stream")
    before = np.where(delete, shown, shown - 1)
    return pa.array(before, mask=~(paired | delete)), pa.array(shown, mask=delete)


def _ops(change: npt.NDArray[np.object_], *, snapshot: bool) -> pa.Array:
    if snapshot:
        return pa.array(np.full(len(change), "r"), pa.string())
    index = np.select([change == "+I", change == "+U"], [0, 1], 2)
    return pa.array(list(_OPS.values())).take(pa.array(index))
