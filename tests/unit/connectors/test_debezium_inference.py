"""Fields that change events bring without a schema: their kinds, what is odd, and the text of what no type holds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.outcome import DecodedBlock
from tests.support.bridge_blocks import check_decoded
from tests.support.debezium_events import block, event, with_schema


def decoded(values: Sequence[Any], wanted: pa.Schema | None = None) -> DecodedBlock:
    """Rows with a field `a` of these values, without a schema."""
    found = DebeziumJson().decode(block([({"id": 1}, event("c", None, {"a": value})) for value in values]), wanted)
    check_decoded(found, len(values))
    return found


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([[1, 2], [], None], pa.list_(pa.int64()), [[1, 2], [], None]),
        ([[], []], pa.list_(pa.string()), [[], []]),
        ([[1, "x"], ["y"]], pa.list_(pa.string()), [["1", "x"], ["y"]]),
        ([[1, 2], "s"], pa.string(), ["[1,2]", "s"]),
        ([{"x": [1.5, None]}, "s", 7], pa.string(), ['{"x":[1.5,null]}', "s", "7"]),
        ([[{"x": 1}], [[2]]], pa.list_(pa.string()), [['{"x":1}'], ["[2]"]]),
        ([1.5, "Infinity", 2, "-Infinity"], pa.float64(), [1.5, math.inf, 2.0, -math.inf]),
        (["NaN", "x"], pa.string(), ["NaN", "x"]),
        ([1, "x"], pa.string(), ["1", "x"]),
    ],
)
def test_a_field_without_a_schema_has_the_type_that_holds_it(values: list[Any], kind: Any, expected: list[Any]) -> None:
    found = decoded(values)
    assert not found.rejects
    assert found.values.type.field("a").type == kind
    assert [row["a"] for row in found.values.to_pylist()] == expected


def test_numbers_in_a_text_are_as_they_were_written() -> None:
    value = json.dumps(event("c", None, {"a": ["?", "s"]})).replace('"?"', "1.10, 12345678901234567890123")
    found = DebeziumJson().decode(block([({"id": 1}, value.encode())]), pa.schema([("a", pa.string())]))
    assert found.values.to_pylist() == [{"a": '[1.10,12345678901234567890123,"s"]'}]


def test_nan_is_a_number_among_numbers() -> None:
    found = decoded([1.5, "NaN"])
    assert [str(row["a"]) for row in found.values.to_pylist()] == ["1.5", "nan"]


def test_a_value_that_was_not_sent_is_known_in_a_list_that_is_text() -> None:
    found = decoded([[1], ["__debezium_unavailable_value"]], pa.schema([("a", pa.string())]))
    assert [row["a"] for row in found.values.to_pylist()] == ["[1]", None]
    assert found.kept["a"].to_pylist() == [False, True]


@pytest.mark.parametrize("odd", ["many", {"x": 1}, [1]])
def test_one_odd_sample_in_many_does_not_decide(odd: Any) -> None:
    found = decoded([*range(150), odd])
    assert found.values.type.field("a").type == pa.int64()
    assert [(each.record, each.code) for each in found.rejects] == [(150, "wrong-type")]
    assert decoded([*range(50), odd]).values.type.field("a").type == pa.string()


MICRO_TIME = {"field": "t", "type": "int64", "name": "io.debezium.time.MicroTime"}
ISO_TIME = {"field": "t", "type": "string", "name": "io.debezium.time.IsoTime"}


@pytest.mark.parametrize(
    ("field", "values", "text"),
    [
        (MICRO_TIME, [86_400_000_000, 3_600_000_000, 3_600_500_000], ["24:00:00", "01:00:00", "01:00:00.500000"]),
        (ISO_TIME, ["24:00:00Z", "01:00:00Z"], ["24:00:00Z", "01:00:00Z"]),
    ],
)
def test_the_end_of_a_day_is_a_text_or_a_dead_letter(field: dict[str, Any], values: list[Any], text: list[str]) -> None:
    schema = {"type": "struct", "fields": [
        {"field": "after", "type": "struct", "fields": [field]}, {"field": "op", "type": "string"},
    ]}  # fmt: skip
    records = block([(None, with_schema(schema, {"after": {"t": value}, "op": "c"})) for value in values])
    found = DebeziumJson().decode(records, None)
    assert [(each.record, each.code) for each in found.rejects] == [(0, "out-of-range")]
    assert "type: string or int64" in found.rejects[0].sentence
    found = DebeziumJson().decode(records, pa.schema([("t", pa.string())]))
    assert [row["t"] for row in found.values.to_pylist()] == text
