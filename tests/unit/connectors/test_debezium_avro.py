"""Debezium's Avro as rows: the same ends as JSON, and columns by the properties that Connect writes into schemas."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakestore.kafka.bridge.decode.decoders import decoder
from lakestore.kafka.bridge.outcome import Op
from lakestore.kafka.bridge.spec import SchemaSpec, SourceSpec, TableSpec, TopicSpec
from tests.support.avro_cases import records, written
from tests.support.bridge_blocks import check_decoded
from tests.support.debezium_events import event

MICRO = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
MONEY = {"type": "bytes", "scale": 2, "precision": 10, "connect.version": 1, "logicalType": "decimal",
         "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
         "connect.name": "org.apache.kafka.connect.data.Decimal"}  # fmt: skip
VARIABLE = {"type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
            "connect.name": "io.debezium.data.VariableScaleDecimal",
            "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]}  # fmt: skip
DAY = {"type": "int", "connect.name": "io.debezium.time.Date"}
ROW = {"type": "record", "name": "Value", "namespace": "shop.public.orders", "fields": [
    {"name": "id", "type": "long"}, {"name": "placed", "type": ["null", MICRO]},
    {"name": "amount", "type": ["null", MONEY]}, {"name": "any", "type": ["null", VARIABLE]},
    {"name": "day", "type": ["null", DAY]}, {"name": "note", "type": ["null", "string"]},
    {"name": "raw", "type": ["null", "bytes"]},
]}  # fmt: skip
SOURCE = {"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql", "fields": [
    *({"name": name, "type": "string"} for name in ("version", "connector", "name")),
    {"name": "ts_ms", "type": "long"}, {"name": "snapshot", "type": ["null", "string"]},
    *({"name": name, "type": "string"} for name in ("db", "schema", "table")),
    {"name": "txId", "type": ["null", "long"]}, {"name": "lsn", "type": ["null", "long"]},
]}  # fmt: skip
BLOCK = {"type": "record", "name": "block", "namespace": "event", "fields": [
    {"name": "id", "type": "string"}, {"name": "total_order", "type": "long"},
    {"name": "data_collection_order", "type": "long"},
]}  # fmt: skip
ENVELOPE = {"type": "record", "name": "Envelope", "namespace": "shop.public.orders", "fields": [
    {"name": "before", "type": ["null", ROW]}, {"name": "after", "type": ["null", "shop.public.orders.Value"]},
    {"name": "source", "type": SOURCE}, {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]},
    {"name": "transaction", "type": ["null", BLOCK]},
]}  # fmt: skip
KEY = {"type": "record", "name": "Key", "namespace": "shop.public.orders", "fields": [{"name": "id", "type": "long"}]}


def text(schema: Any) -> str:
    """A schema as text."""
    return json.dumps(schema)


def test_events_in_avro_are_rows_with_the_columns_that_their_schema_means() -> None:
    row = {"id": 1, "placed": -1, "amount": Decimal("-1.25"), "any": {"scale": 1, "value": b"\x0f"}, "day": 1,
           "note": "__debezium_unavailable_value", "raw": b"__debezium_unavailable_value"}  # fmt: skip
    values: list[Any] = [event("c", None, row), event("d", row), None, event("d"), event("t"), event("m"), b"\xff"]
    keys = [1, 1, 1, 2, None, None, 3]
    topic = TopicSpec(
        "", "orders", target=TableSpec("shop.orders", truncate="ignore"), format="debezium-avro", wire="plain",
        schema=SchemaSpec(text(ENVELOPE)), key_schema=SchemaSpec(text(KEY)),
    )  # fmt: skip
    made = decoder(topic, SourceSpec("", "", ""))
    bodies = [written(ENVELOPE, value) if isinstance(value, dict) else value for value in values]
    found = records(bodies, keys=[None if key is None else written(KEY, {"id": key}) for key in keys])
    decoded = made.decode(found, None)
    check_decoded(decoded, len(values))
    assert decoded.op is not None
    assert decoded.op.tolist() == [Op.PUT, Op.DELETE, Op.DELETE]
    assert decoded.values.to_pylist()[0] == {
        "id": 1, "placed": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), "amount": Decimal("-1.25"), "any": "1.5",
        "day": dt.date(1970, 1, 2), "note": None, "raw": None,
    }  # fmt: skip
    assert [row["id"] for row in decoded.values.to_pylist()] == [1, 1, 2]
    assert sorted(decoded.kept) == ["note", "raw"]
    assert decoded.kept["raw"].to_pylist() == [True, False, False]
    assert {reason: rows.tolist() for reason, rows in decoded.passed.items()} == {
        "tombstone": [2], "truncate": [4], "message": [5],
    }  # fmt: skip
    assert [reject.record for reject in decoded.rejects] == [6]
    assert decoded.key_names == ("id",)
    assert decoded.envelope is not None
    assert decoded.envelope.field("position").to_pylist() == [24, 24, 24]
    schema = made.schema()
    assert schema is not None
    assert schema.field("placed").type == pa.timestamp("us")
    some = made.decode(found, pa.schema([("id", pa.int64()), ("placed", pa.int64())]))
    assert {"id": 1, "placed": -1}.items() <= some.values.to_pylist()[0].items()
