"""Arrow columns as JSON: what a JSON parser reads back is the value, for every type, nested, null and sliced."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from lakestore.rows.json_texts import CONNECT, PLAIN, Style, objects, values
from tests.support.all_types import SCHEMA, rows
from tests.support.seeds import examples

EPOCH = dt.datetime(1970, 1, 1)


def _expected(value: Any, kind: pa.DataType) -> Any:
    """What Kafka Connect's JSON says of a Python value."""
    t = pa.types
    if value is None:
        return None
    if t.is_struct(kind):
        return {part.name: _expected(value[part.name], part.type) for part in kind}
    if t.is_list(kind):
        return [_expected(each, kind.value_type) for each in value]
    if t.is_map(kind):
        pairs = [[_expected(key, kind.key_type), _expected(each, kind.item_type)] for key, each in value]
        return {key: each for key, each in pairs} if t.is_string(kind.key_type) else pairs
    return _scalar(value, kind)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH.date()).days
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


@given(made=rows([1, 2, 3, 4]))
@settings(max_examples=examples(60))
def test_json_of_every_type_is_the_value(made: pa.Table) -> None:
    for batch in (made.combine_chunks(), made.slice(1, 2).combine_chunks()):
        columns = [batch.column(name).chunk(0) for name in SCHEMA.names]
        found = [json.loads(text) for text in objects(SCHEMA.names, columns, CONNECT).to_pylist()]
        for row, read in zip(batch.to_pylist(), found, strict=True):
            for field in SCHEMA:
                expected, value = _expected(row[field.name], field.type), read[field.name]
                if pa.types.is_float32(field.type) and isinstance(expected, float):
                    assert pa.scalar(value, pa.float32()).as_py() == expected
                else:
                    assert value == expected, field


@given(made=rows([1, 2, 3, 4]))
@settings(max_examples=examples(20))
def test_a_slice_is_written_as_the_rows_it_shows(made: pa.Table) -> None:
    for name in SCHEMA.names:
        whole = made.combine_chunks().column(name).chunk(0)
        assert values(whole, PLAIN).to_pylist()[2:] == values(whole.slice(2), PLAIN).to_pylist()


@pytest.mark.parametrize("text", ['"', "\\", "\n\t\r\b\f", "\x00", "\x1f\x7f", "ä€𝄞", "\u2028", "", "a\\nb"])
def test_texts_with_special_characters_are_read_back(text: str) -> None:
    found = values(pa.array(["plain", text, None]), CONNECT).to_pylist()
    assert [json.loads(each) for each in found] == ["plain", text, None]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_floats_are_numbers_that_stay_floats_and_texts_where_json_has_none(kind: pa.DataType) -> None:
    found = values(pa.array([1.0, -0.0, 0.5, math.nan, math.inf, -math.inf, None], kind), CONNECT).to_pylist()
    assert found == ["1.0", "-0.0", "0.5", '"NaN"', '"Infinity"', '"-Infinity"', "null"]


def test_small_decimals_have_all_their_digits() -> None:
    array = pa.array([Decimal("0.0000000001"), Decimal(0), Decimal("-12.5"), None], pa.decimal128(20, 10))
    assert values(array, CONNECT).to_pylist() == ['"0.0000000001"', '"0.0000000000"', '"-12.5000000000"', "null"]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (CONNECT, ["19000", "3723000004", "1600000000000001", '"2020-09-13T12:26:40.000001Z"', '"AP8="', '[[1,"a"]]']),
        (
            PLAIN,
            [
                '"2022-01-08"',
                '"01:02:03.000004"',
                '"2020-09-13T12:26:40.000001"',
                '"2020-09-13T12:26:40.000001Z"',
                '"00ff"',
                '{"1":"a"}',
            ],
        ),
    ],
)
def test_styles_differ_in_times_bytes_and_maps(style: Style, expected: list[str]) -> None:
    moment = 1_600_000_000_000_001
    arrays = [
        pa.array([19_000], pa.int32()).cast(pa.date32()),
        pa.array([3_723_000_004], pa.time64("us")),
        pa.array([moment], pa.timestamp("us")),
        pa.array([moment], pa.timestamp("us", tz="UTC")),
        pa.array([b"\x00\xff"]),
        pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())),
    ]
    assert [values(array, style).to_pylist()[0] for array in arrays] == expected


def test_null_structs_lists_and_maps_are_null_also_where_their_parts_are_required() -> None:
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    assert values(pa.array([{"a": 1}, None], inner), CONNECT).to_pylist() == ['{"a":1}', "null"]
    assert values(pa.array([[], None, [None]], pa.list_(inner)), CONNECT).to_pylist() == ["[]", "null", "[null]"]
    assert values(pa.array([[], None], pa.map_(pa.string(), inner)), CONNECT).to_pylist() == ["{}", "null"]
