"""Debezium's types as columns: by the schema part, and by declared columns without one."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakestore.kafka.bridge.decode.debezium import connect_values
from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from tests.support.bridge_blocks import check_decoded
from tests.support.debezium_events import block, event, with_schema

DECIMAL = "org.apache.kafka.connect.data.Decimal"
POINT = [{"field": "wkb", "type": "bytes"}, {"field": "srid", "type": "int32", "optional": True}]
VARIABLE = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]


def base64(raw: bytes) -> str:
    """Bytes as JSON has them."""
    return b64encode(raw).decode()


def unscaled(number: int, size: int | None = None) -> str:
    """A decimal's unscaled value as Connect writes it."""
    size = size or (number.bit_length() + 8) // 8
    return base64(number.to_bytes(size, "big", signed=True))


CASES: list[tuple[dict[str, Any], Any, pa.DataType, Any]] = [
    ({"type": "int16"}, 7, pa.int32(), 7),
    ({"type": "float"}, 1.5, pa.float32(), 1.5),
    ({"type": "double"}, 3, pa.float64(), 3.0),
    ({"type": "double"}, "NaN", pa.float64(), None),
    ({"type": "boolean"}, True, pa.bool_(), True),
    ({"type": "bytes"}, base64(b"\x00\xff"), pa.binary(), b"\x00\xff"),
    ({"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "9"}}, "AAE=", pa.binary(), b"\0\1"),
    ({"type": "int32", "name": "io.debezium.time.Date"}, 19_000, pa.date32(), dt.date(2022, 1, 8)),
    ({"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, -1, pa.date32(), dt.date(1969, 12, 31)),
    ({"type": "int32", "name": "io.debezium.time.Time"}, 1_500, pa.time64("us"), dt.time(0, 0, 1, 500_000)),
    ({"type": "int64", "name": "io.debezium.time.MicroTime"}, 7, pa.time64("us"), dt.time(0, 0, 0, 7)),
    ({"type": "int64", "name": "io.debezium.time.NanoTime"}, 7_900, pa.time64("us"), dt.time(0, 0, 0, 7)),
    (
        {"type": "int64", "name": "io.debezium.time.Timestamp"},
        1,
        pa.timestamp("us"),
        dt.datetime(1970, 1, 1, 0, 0, 0, 1_000),
    ),
    (
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        -1,
        pa.timestamp("us"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    ),
    (
        {"type": "int64", "name": "io.debezium.time.NanoTimestamp"},
        -1,
        pa.timestamp("us"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    ),
    (
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        "2020-02-29T23:00:00.1234567+02:00",
        pa.timestamp("us", tz="UTC"),
        dt.datetime(2020, 2, 29, 21, 0, 0, 123_456, dt.UTC),
    ),
    ({"type": "string", "name": "io.debezium.time.ZonedTime"}, "10:15:30Z", pa.string(), "10:15:30Z"),
    ({"type": "string", "name": "io.debezium.time.IsoDate"}, "2000-01-02Z", pa.date32(), dt.date(2000, 1, 2)),
    (
        {"type": "string", "name": "io.debezium.time.IsoTimestamp"},
        "2000-01-02T03:04:05.5Z",
        pa.timestamp("us"),
        dt.datetime(2000, 1, 2, 3, 4, 5, 500_000),
    ),
    ({"type": "int64", "name": "io.debezium.time.MicroDuration"}, 60, pa.int64(), 60),
    ({"type": "string", "name": "io.debezium.time.Interval"}, "P1Y2M3DT4H5M6.78S", pa.string(), "P1Y2M3DT4H5M6.78S"),
    ({"type": "int32", "name": "io.debezium.time.Year"}, 2024, pa.int32(), 2024),
    (
        {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
        unscaled(-12_345),
        pa.decimal128(10, 2),
        Decimal("-123.45"),
    ),
    (
        {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
        123.45,
        pa.decimal128(10, 2),
        Decimal("123.45"),
    ),
    (
        {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "0"}},
        unscaled(10**38 - 1),
        pa.decimal128(38, 0),
        Decimal(10**38 - 1),
    ),
    (
        {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "1"}},
        unscaled(-5, 20),
        pa.decimal128(38, 1),
        Decimal("-0.5"),
    ),
    (
        {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "-2", "connect.decimal.precision": "5"}},
        unscaled(7),
        pa.decimal128(7, 0),
        Decimal(700),
    ),
    (
        {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "50"}},
        unscaled(10**45),
        pa.string(),
        "1" + "0" * 43 + ".00",
    ),
    (
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": VARIABLE},
        {"scale": 3, "value": unscaled(-1_500)},
        pa.string(),
        "-1.500",
    ),
    ({"type": "string", "name": "io.debezium.data.Enum", "parameters": {"allowed": "a,b"}}, "a", pa.string(), "a"),
    ({"type": "string", "name": "io.debezium.data.EnumSet"}, "a,b", pa.string(), "a,b"),
    ({"type": "string", "name": "io.debezium.data.Json"}, '{"a": 1}', pa.string(), '{"a": 1}'),
    ({"type": "string", "name": "io.debezium.data.Xml"}, "<a/>", pa.string(), "<a/>"),
    ({"type": "string", "name": "io.debezium.data.Ltree"}, "a.b", pa.string(), "a.b"),
    ({"type": "string", "name": "io.debezium.data.Uuid"}, "0d1f", pa.string(), "0d1f"),
    (
        {"type": "struct", "name": "io.debezium.data.geometry.Geometry", "fields": POINT},
        {"wkb": base64(b"\1\1"), "srid": 4326},
        pa.struct([("wkb", pa.binary()), ("srid", pa.int32())]),
        {"wkb": b"\1\1", "srid": 4326},
    ),
    (
        {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}},
        [0, None, 1],
        pa.list_(pa.date32()),
        [dt.date(1970, 1, 1), None, dt.date(1970, 1, 2)],
    ),
    ({"type": "array", "items": {"type": "string"}}, [], pa.list_(pa.string()), []),
    (
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "string", "optional": True}},
        {"a": "1", "b": None},
        pa.map_(pa.string(), pa.string()),
        [("a", "1"), ("b", None)],
    ),
]


def told(field: dict[str, Any]) -> dict[str, Any]:
    """An envelope's schema whose row has one field beside its key."""
    row = {"type": "struct", "fields": [{"field": "id", "type": "int32"}, {"field": "x"} | field]}
    fields = [{"field": "before"} | row, {"field": "after"} | row, {"field": "op", "type": "string"}]
    return {"type": "struct", "name": "a.Envelope", "fields": fields}


@pytest.mark.parametrize(("field", "sent", "kind", "meant"), CASES, ids=lambda part: str(part)[:40])
def test_a_type_by_its_schema(field: dict[str, Any], sent: Any, kind: pa.DataType, meant: Any) -> None:
    decoder = DebeziumJson()
    rows = [{"id": 1, "x": sent}, {"id": 2, "x": None}]
    pairs = [({"id": row["id"]}, with_schema(told(field), event("c", None, row))) for row in rows]
    decoded = decoder.decode(block(pairs), None)
    check_decoded(decoded, 2)
    assert not decoded.rejects
    column = decoded.values.field("x")
    assert column.type == kind
    schema = decoder.schema()
    assert schema is not None
    assert schema.field("x").type == kind
    value, null = column.to_pylist()
    assert null is None
    assert value == meant or (meant is None and value != value)


BAD = [
    ({"type": "bytes"}, "A"),
    ({"type": "bytes"}, "****"),
    ({"type": "bytes"}, "AA=A"),
    ({"type": "int32"}, "x"),
    ({"type": "int32"}, 1 << 40),
    ({"type": "int32"}, {"a": 1}),
    ({"type": "int32"}, [1]),
    ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1 << 62),
    ({"type": "int64", "name": "io.debezium.time.Timestamp"}, 1 << 62),
    ({"type": "int64", "name": "io.debezium.time.MicroTime"}, -1),
    ({"type": "int32", "name": "io.debezium.time.Date"}, 1 << 40),
    ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "yesterday"),
    ({"type": "bytes", "name": DECIMAL, "parameters": {"scale": "1"}}, unscaled(10**38)),
    ({"type": "bytes", "name": DECIMAL, "parameters": {"scale": "1", "connect.decimal.precision": "2"}}, unscaled(100)),
    ({"type": "array", "items": {"type": "int32"}}, [1, "x"]),
    ({"type": "array", "items": {"type": "bytes"}}, ["A"]),
    ({"type": "struct", "fields": POINT}, "x"),
    ({"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}, {"a": "x"}),
]


@pytest.mark.parametrize(("field", "sent"), BAD, ids=lambda part: str(part)[:40])
def test_a_value_that_its_type_cannot_take_is_refused_alone(field: dict[str, Any], sent: Any) -> None:
    rows = [{"id": 1, "x": None}, {"id": 2, "x": sent}, {"id": 3, "x": None}]
    pairs = [({"id": row["id"]}, with_schema(told(field), event("c", None, row))) for row in rows]
    decoded = DebeziumJson().decode(block(pairs), None)
    check_decoded(decoded, 3)
    assert [reject.record for reject in decoded.rejects] == [1]
    assert decoded.record.tolist() == [0, 2]


def test_decimals_without_a_schema_are_read_by_what_they_can_be() -> None:
    wanted = pa.schema([("id", pa.int64()), ("x", pa.decimal128(10, 2))])
    texts = [unscaled(12_345), "123.45", "-7", 1.25, "1234", "bad!"]
    pairs = [({"id": at}, event("c", None, {"id": at, "x": text})) for at, text in enumerate(texts)]
    decoded = DebeziumJson().decode(block(pairs), wanted)
    check_decoded(decoded, len(texts))
    assert decoded.values.field("x").to_pylist() == [
        Decimal("123.45"),
        Decimal("123.45"),
        Decimal("-7"),
        Decimal("1.25"),
    ]
    assert [(reject.record, reject.code) for reject in decoded.rejects] == [(4, "unsure-decimal"), (5, "wrong-type")]
    said = DebeziumJson(units={"x": "text"}).decode(block(pairs[4:5]), wanted)
    assert said.values.field("x").to_pylist() == [Decimal(1234)]
    said = DebeziumJson(units={"x": "base64"}).decode(block(pairs[4:5]), wanted)
    assert said.values.field("x").to_pylist() == [Decimal(0xD76DF8 - (1 << 24)) / 100]


def test_a_decimal_text_of_a_far_exponent_is_refused_alone() -> None:
    """Arrow's cast ends the process for it."""
    kind = connect_values.Kind("string", target=pa.decimal128(10, 2), unit="text")
    faults = connect_values.Faults()
    made = connect_values.convert(pa.array(["1.5", "1e-999999999", "25e-1"]), kind, "value.a", faults)
    assert made.to_pylist() == [Decimal("1.50"), None, Decimal("2.50")]
    assert [(rows.tolist(), code) for rows, code, _, _ in faults.found] == [([1], "wrong-type")]


def test_times_without_a_schema_stay_as_they_came() -> None:
    wanted = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    numbers = [({"id": 1}, event("c", None, {"id": 1, "at": 5})), ({"id": 1}, event("d", {"id": 1, "at": 5}))]
    assert DebeziumJson().decode(block(numbers), wanted).values.field("at").to_pylist() == [5, 5]
    mixed = [*numbers, ({"id": 2}, event("c", None, {"id": 2, "at": "2020-01-01T00:00:00Z"}))]
    decoded = DebeziumJson().decode(block(mixed), wanted)
    assert decoded.values.field("at").to_pylist() == ["5", "5", "2020-01-01T00:00:00Z"]


@pytest.mark.parametrize(
    ("field", "marker"),
    [
        ({"type": "string"}, "__debezium_unavailable_value"),
        ({"type": "bytes"}, base64(b"__debezium_unavailable_value")),
        ({"type": "array", "items": {"type": "string"}}, ["__debezium_unavailable_value"]),
        ({"type": "array", "items": {"type": "bytes"}}, [base64(b"__debezium_unavailable_value")]),
        ({"type": "array", "items": {"type": "int32"}}, list(b"__debezium_unavailable_value")),
        (
            {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
            {"__debezium_unavailable_value": "__debezium_unavailable_value"},
        ),
    ],
)
def test_an_unavailable_value_is_known_in_each_of_its_forms(field: dict[str, Any], marker: Any) -> None:
    pairs = [({"id": 1}, with_schema(told(field), event("u", None, {"id": 1, "x": x}))) for x in (marker, None)]
    decoded = DebeziumJson().decode(block(pairs), None)
    assert not decoded.rejects
    assert decoded.kept["x"].to_pylist() == [True, False]
    assert decoded.values.field("x").to_pylist() == [None, None]


def test_base64_is_read_strictly() -> None:
    """A text of the wrong length, alphabet or padding is wrong as a whole."""
    texts = {"": b"", "AA==": b"\0", "AB==": b"\0", "AAA=": b"\0\0", "AAAA": b"\0\0\0", "+/9=": b"\xfb\xff"}
    wrong = ["A", "====", "A===", "AA=", "AA=A", "AAAA=", "AAAA====", "AA==AA==", "AAA\n", "AA-_", "AAA\u00e9"]
    made, faults = connect_values.decode_base64(pa.array([*texts, *wrong, None], pa.string()))
    assert made.to_pylist() == [*texts.values(), *[None] * (len(wrong) + 1)]
    assert faults.to_pylist() == [*[False] * len(texts), *[True] * len(wrong), False]
