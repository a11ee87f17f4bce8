"""JSON lines: a block is read as its lines are by themselves, whatever stands in it, and nothing is rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestore.model.table import Table, define
from tests.support.loading import chunks
from tests.support.seeds import examples

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 3)),
        ("t", pa.timestamp("us", "UTC")),
        ("o", pa.struct([("a", pa.int32()), ("p", pa.decimal128(9, 3)), ("b", pa.binary())])),
        ("l", pa.list_(pa.decimal128(9, 3))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)
PLAIN = pa.schema([field for field in SCHEMA if field.name not in ("m", "l")])
"""Columns that Arrow's reader takes; the others are read line by line."""
NUMBERS = st.sampled_from(
    ["1", "-7", "1.0", "1.5", "12345678901234567890", "9223372036854775807", "9223372036854775808", "1e3", "1e-1",
     "1e-30", "1e-999999999", "1e999999", "0.1234", "123456.789", "1234567.8", "0." + "0" * 40 + "1", "NaN", '"12"',
     '"1.5"', '"x"', '""', "true", "null", "{}", "[]", '"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00.1234567Z"',
     '"2026-01-01"', '"00ff"', '"0"', '"\\u00e9"', '"a\\nb"', "00", "1 ", "tru"]
)  # fmt: skip
NAMES = st.sampled_from(['"i"', '"s"', '"f"', '"d"', '"t"', '"\\u0064"', '"D"', '"o.a"'])
INNER = st.builds(
    lambda pairs: "{" + ",".join(f'"{name}": {value}' for name, value in pairs) + "}",
    st.lists(st.tuples(st.sampled_from(["a", "p", "b", "q"]), NUMBERS), max_size=2),
)
FIELDS = st.lists(
    st.one_of(st.tuples(NAMES, NUMBERS), st.tuples(st.just('"o"'), INNER), st.tuples(st.just('"o"'), NUMBERS)),
    max_size=3,
)
LINES = st.one_of(
    FIELDS.map(lambda pairs: "{" + ", ".join(f"{name}:{value}" for name, value in pairs) + "}"),
    st.sampled_from(["", "  ", "[]", "{", "}{", '{"i": 1} {"i": 2}', '{"i": 1},', "\ufeff{}", "\r", ' {"i":1} \r']),
)


def _read(path: Path, text: str, table: Table) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows, and the lines that are refused."""
    path.write_bytes(text.encode())
    found = chunks(path, table)
    rows = [row for chunk in found for row in chunk.batch.to_pylist()]
    return rows, {bad.line: bad.reason for chunk in found for bad in chunk.bad}


def _full(row: dict[str, Any], table: Table) -> dict[str, Any]:
    return {name: row.get(name) for name in table.schema.names}


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, max_size=12), st.booleans())
def test_a_block_is_read_as_its_lines_are(tmp_path: Path, lines: list[str], plain: bool) -> None:
    table = define("a.b", PLAIN if plain else SCHEMA, buckets=1)
    path = tmp_path / "x.jsonl"
    good = '{"i": 1, "s": "a", "f": 1.5, "d": 1.5, "t": "2026-01-01T00:00:00Z", "o": {"a": 1, "p": 2.5}}'
    mixed = [line for each in lines for line in (good, each)]
    whole, refused = _read(path, "\n".join(mixed) + "\n", table)
    rows: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(mixed, start=1):
        one, told = _read(path, line + "\n", table)
        rows += one
        bad.update({number: why} if (why := "".join(told.values())) else {})
    assert refused.keys() == bad.keys()
    assert repr([_full(row, table) for row in whole]) == repr([_full(row, table) for row in rows])


@pytest.mark.parametrize("name", ["d", "\\u0064"])
@pytest.mark.parametrize("number", ["1e-30", "1e-999999999", "0." + "0" * 30 + "1"])
def test_a_far_decimal_is_refused_by_its_line_and_takes_none_along(tmp_path: Path, name: str, number: str) -> None:
    """Beside many good lines; a small float is no decimal."""
    good = [json.dumps({"i": i, "d": "1.250", "f": 1e-30}) for i in range(200)]
    lines = [*good, f'{{"{name}": {number}}}', *good, f'{{"o": {{"p": {number}}}}}', *good]
    table = define("a.b", PLAIN, buckets=1)
    rows, bad = _read(tmp_path / "x.jsonl", "\n".join(lines), table)
    assert (len(rows), sorted(bad)) == (600, [201, 402])


def test_a_name_twice_and_numbers_beyond_their_type_are_refused(tmp_path: Path) -> None:
    lines = {
        '{"i": 1, "i": 2}': "twice",
        '{"i": 9223372036854775808}': "beyond int64",
        '{"o": {"a": 4294967296}}': "beyond int32",
        '{"i": 1.5}': "not an int64",
        '{"d": 1.2345}': "does not hold exactly",
        '{"f": NaN}': "does not have",
    }
    table = define("a.b", PLAIN, buckets=1)
    good = '{"i": 1}\n' * 100
    _, bad = _read(tmp_path / "x.jsonl", good + "\n".join(lines), table)
    assert sorted(bad) == [101, 102, 103, 104, 105, 106]
    for (_, says), why in zip(lines.items(), (bad[line] for line in sorted(bad)), strict=True):
        assert says in why


def test_a_number_is_no_time(tmp_path: Path) -> None:
    """Nobody says its unit: alone in a block, beside texts, and as a text."""
    table = define("a.b", PLAIN, buckets=1)
    for number in ("1000", "1e3", "1.5", '"1000"', "-1"):
        for others in (0, 100):
            text = '{"t": "2026-01-01T00:00:00Z"}\n' * others
            rows, bad = _read(tmp_path / "x.jsonl", f'{text}{{"t": {number}}}\n', table)
            assert (len(rows), list(bad)) == (others, [others + 1])
