"""Maps of JSON lines by Arrow's reader: what it takes is what the lines are by themselves, and it is taken at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakestore.kafka.bridge.decode.json_records import entries_as_lists, has_keys_once, map_paths
from lakestore.loading import json_blocks
from lakestore.model.table import define
from tests.support.loading import chunks
from tests.support.seeds import examples

INNER = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("t", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        ("s", pa.struct([("m", pa.map_(pa.string(), INNER)), ("d", pa.map_(pa.string(), pa.decimal128(9, 3)))])),
    ]
)
KEYS = st.sampled_from(['"a"', '"b"', '"m"', '"\\"{"', '"\\\\"', '"é,:"', '""', '"\\u0061"', "a", "1", '"key"'])
ATOMS = st.sampled_from(
    ["1", "-7", "1.5", "null", '"x"', '"}"', '"2026-01-01T00:00:00Z"', "true", "[]", "{}", "NaN", "1e-40", '"\\\\"', "",
     '[{"key":"a","value":1}]', '{"x":1,"l":["a","]"]}', '{"x":2}', '{"l":null,"y":1}', "{,}", "[1", "}"]
)  # fmt: skip


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(KEYS, st.sampled_from([":", ": ", " :", "::", "", ","]), values), max_size=3)
    joined = st.builds(
        lambda pairs, comma: "{" + comma.join(map("".join, pairs)) + "}",
        pairs, st.sampled_from([",", ", ", " ,", ",,", " "]),
    )  # fmt: skip
    return st.one_of(joined, values)


MAPS = _objects(ATOMS)
STRUCTS = st.builds(lambda name, value: f'{{"{name}":{value}}}', st.sampled_from(["m", "d", "\\u006d"]), MAPS)
LINES = st.one_of(
    st.builds(lambda name, value: f'{{"i":1,"{name}":{value}}}', st.sampled_from(["m", "t"]), MAPS),
    st.builds(lambda value: f'{{"s":{value}}}', STRUCTS),
    st.builds(lambda one, two: f'{{"m":{one},"s":{two}}}', MAPS, STRUCTS),
)
GOOD = '{"i":1,"m":{"a":1,"b":2},"t":{"x":"2026-01-01T00:00:00Z"},"s":{"m":{"k":{"x":1,"l":["a"]}},"d":{"p":1.5}}}'


def _read(path: Path, lines: list[str]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    path.write_text("\n".join(lines) + "\n")
    found = chunks(path, define("a.b", SCHEMA, buckets=1))
    rows = [row for chunk in found for row in chunk.batch.to_pylist()]
    full = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    return full, {bad.line: bad.reason for chunk in found for bad in chunk.bad}


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, min_size=1, max_size=4))
@example(['{"m":{"a":1,"a":2}}'])
@example(['{"m":{"a":1,"\\u0061":2}}'])
@example(['{"m":[{"key":"a","value":1}]}'])
@example(['{"m":{"a":1}', '"b":{"c":1}}'])
@example(['{"m":{"a":1,}}', '{"m":{,"a":1}}', '{"m":{"a":1 "b":2}}', '{"m":{"a"::1}}', '{"m":{"a":1:2}}'])
@example(['{"\\u006d":{"a":1}}'])
@example(['{"s":{"\\u006d":[]}}'])
@example(['{"m":{"a":1},"m":{"b":1}}'])
@example(['{"s":{"d":{"a":1e-40}}}'])
def test_maps_are_read_at_once_as_they_are_one_by_one(tmp_path: Path, lines: list[str]) -> None:
    mixed = [each for line in lines for each in (GOOD, line)]
    at_once, refused = _read(tmp_path / "x.jsonl", mixed)
    with mock.patch.object(json_blocks, "parse_lines", return_value=None):
        one_by_one, bad = _read(tmp_path / "x.jsonl", mixed)
    assert refused.keys() == bad.keys()
    assert repr(at_once) == repr(one_by_one)


def test_no_line_of_maps_is_read_by_itself(tmp_path: Path) -> None:
    with mock.patch.object(json_blocks.JsonLines, "_one_by_one", side_effect=AssertionError("by itself")):
        rows, bad = _read(tmp_path / "x.jsonl", [GOOD, '{"m":{},"s":{"m":null}}', '{"m":null}'] * 500)
    assert (len(rows), bad) == (1_500, {})
    assert rows[0]["s"]["m"] == [("k", {"x": 1, "l": ["a"]})]


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (pa.map_(pa.string(), pa.int64()), [("c",)]),
        (pa.struct([("a", pa.struct([("b", pa.map_(pa.string(), pa.int64()))]))]), [("c", "a", "b")]),
        (pa.map_(pa.int64(), pa.int64()), None),
        (pa.list_(pa.map_(pa.string(), pa.int64())), None),
        (pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())), None),
        (pa.list_(pa.int64()), []),
    ],
)
def test_maps_that_can_be_read_at_once(kind: pa.DataType, paths: list[tuple[str, ...]] | None) -> None:
    assert map_paths([pa.field("c", kind)]) == paths


def test_a_text_is_rewritten_at_the_paths_alone() -> None:
    text = b'{"m":{"m":{"m":1}},"n":{"m":{}}}\n{"n":{"m":{"a":"}","b":[1,{"c":2}]}}}'
    assert entries_as_lists(text, [("m",), ("n", "m")]) == (
        b'{"m":[{"key":"m","value":{"m":1}}],"n":{"m":[]}}\n'
        b'{"n":{"m":[{"key":"a","value":"}"},{"key":"b","value":[1,{"c":2}]}]}}'
    )


def test_a_key_twice_in_one_map_is_seen() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    assert has_keys_once(pa.array([[("a", 1), ("b", 1)], None, [("a", 1)], []], kind))
    assert has_keys_once(pa.array([], kind))
    assert not has_keys_once(pa.array([[("a", 1)], [("b", 1), ("c", 2), ("b", 1)]], kind))
