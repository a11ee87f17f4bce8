"""Samples of JSON as a schema and as candidates for a key."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.kafka.bridge.decode.inference import infer_schema
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.model.types import type_name
from tests.support.bridge_blocks import block, check_decoded
from tests.support.seeds import examples


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-9223372036854775808"], "int64"),
        (["1", "null"], "int64"),
        (["1", "1.5"], "float64"),
        (["1e300"], "float64"),
        (["1e999999999", "1e-999999999"], "string"),
        (["0.0", "-0e5"], "float64"),
        (["9223372036854775808"], "decimal(38,0)"),
        (["0.1234567890123456789", "10"], "decimal(38,19)"),
        (["1" * 39], "string"),
        (["true"], "bool"),
        (["true", "1"], "string"),
        (['"x"'], "string"),
        (['"1"', "1"], "string"),
        (['"2026-01-01"', '"2026-02-28"'], "date"),
        (['"2026-02-30"'], "string"),
        (['"2026-01-01T10:00:00Z"', '"2026-01-01 10:00+02:00"', '"2026-01-01T10:00:00.123456789+0200"'], "timestamptz"),
        (['"2026-01-01T10:00:00"'], "timestamp"),
        (['"2026-01-01T10:00:00"', '"2026-01-01T10:00:00Z"'], "string"),
        (['"2026-01-01T10:00:00Z"', '""'], "string"),
        (["null"], "string"),
        (["[1,null]", "[2.5]"], "list<float64>"),
        (["[]"], "list<string>"),
        (["{}"], "string"),
        (['{"x":1}', '{"y":"a"}', "null"], "struct<x: int64, y: string>"),
        (['{"x":1}', "[]"], "string"),
        (["NaN", "1"], "float64"),
        (['"NaN"', "1.5"], "float64"),
        (['"-Infinity"', "1"], "float64"),
        (['"NaN"'], "string"),
        (['"NaN"', '"x"', "1"], "string"),
    ],
)
def test_field_has_the_type_that_holds_its_samples(texts: list[str], kind: str) -> None:
    records = block([f'{{"a":{text}}}'.encode() for text in texts])
    found = infer_schema(records)
    assert type_name(found.schema.field("a").type, "a") == kind


def test_names_that_are_many_and_seldom_are_keys_of_a_map() -> None:
    records = block([json.dumps({"m": {f"user-{at}": at}}).encode() for at in range(100)])
    assert infer_schema(records).schema.field("m").type == pa.map_(pa.string(), pa.int64())


def test_what_is_missing_and_what_is_no_json_is_counted() -> None:
    values = [b'{"a":1,"b":1,"A":2,"__c":1}', b'{"a":2,"b":null}', b"x", None, b'{"a":3}']
    found = infer_schema(block(values))
    assert found.schema.names == ["a", "b"]
    assert (found.records, found.unread, dict(found.missing)) == (3, 1, {"b": 2})


def test_nearly_all_samples_decide_and_the_odd_ones_are_counted() -> None:
    rows: list[dict[str, Any]] = [{"qty": at, "in": {"day": "2026-01-01"}, "l": [at]} for at in range(1_001)]
    rows.append({"qty": "many", "in": {"day": "soon"}, "l": [1]})
    found = infer_schema(block([json.dumps(row).encode() for row in rows]))
    assert {part.name: type_name(part.type, part.name) for part in found.schema} == {
        "qty": "int64", "in": "struct<day: date>", "l": "list<int64>",
    }  # fmt: skip
    assert dict(found.odd) == {"qty": (pa.int64(), 1), "in.day": (pa.date32(), 1)}
    assert not found.mixed
    found = infer_schema(block([json.dumps(row).encode() for row in rows[-20:]]))
    assert (found.schema.field("qty").type, dict(found.mixed), dict(found.odd)) == (
        pa.string(), {"qty": (pa.int64(), 1)}, {},
    )  # fmt: skip


def test_candidates_for_a_key() -> None:
    rows = [{"kind": "k", "customer_id": at % 2, "order_id": at, "at": 1.5, "seen": at + 100} for at in range(10)]
    values = [json.dumps(row).encode() for row in rows]
    found = infer_schema(block(values, topic="shop.orders")).keys
    assert [each.field for each in found] == ["order_id", "customer_id", "seen", "kind"]
    assert [each.repeats for each in found] == pytest.approx([0.0, 0.8, 0.0, 0.9])
    for keys in (
        [str(row["seen"]).encode() for row in rows],
        [json.dumps({"seen": row["seen"]}).encode() for row in rows],
    ):
        first = infer_schema(block(values, keys=keys, topic="shop.orders")).keys[0]
        assert (first.field, first.is_kafka_key) == ("seen", True)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=3),
        st.datetimes().map(lambda moment: moment.isoformat()),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)),
    max_leaves=5,
)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), min_size=1, max_size=5))
def test_samples_fit_into_what_was_inferred_of_them(rows: list[dict[str, Any]]) -> None:
    records = block([json.dumps(row).encode() for row in rows])
    decoder = JsonDecoder()
    decoded = decoder.decode(records, None)
    check_decoded(decoded, len(records))
    assert not decoded.rejects
    assert decoder.schema() == infer_schema(records).schema
