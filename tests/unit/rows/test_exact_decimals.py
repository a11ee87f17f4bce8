"""Decimals are stored exactly or are misfits: no number becomes another one, whatever the other rows hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.kafka.bridge.records import Records
from lakestore.model.decimals import fits
from lakestore.rows.casting import ARROW, CSV, JSON, RECORDS, ROWS, Rules, mask

WRAPS = "22538915407902587859119"
"""Times 10**18 it is beyond 2**128."""
SCALES = st.integers(0, 38)


@st.composite
def _numbers(draw: st.DrawFn) -> str:
    digits = draw(st.text("0123456789", min_size=1, max_size=45))
    point = draw(st.integers(1, len(digits)))
    whole, part = digits[:point].lstrip("0") or "0", digits[point:]
    return draw(st.sampled_from(["", "-"])) + whole + (f".{part}" if part else "")


NUMBERS = st.one_of(_numbers(), st.builds(lambda text, e: f"{text}e{e}", _numbers(), st.integers(-12, 12)))


def _expected(text: str, kind: pa.DataType) -> Decimal | None:
    return Decimal(text) if fits(Decimal(text), kind) else None


def _check(array: pa.Array, sent: Sequence[str], kind: pa.DataType, rules: Rules) -> None:
    made, bad = mask(array, pa.field("c", kind), rules)
    made.validate(full=True)
    expected = [_expected(text, kind) for text in sent]
    assert made.to_pylist() == expected
    assert (bad.tolist() if bad is not None else [False] * len(array)) == [value is None for value in expected]


@pytest.mark.parametrize("rules", [ARROW, RECORDS, CSV, JSON], ids=["arrow", "records", "csv", "json"])
@seed(1)
@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=3), SCALES, st.sampled_from([38, 20, 9]))
@example([WRAPS], 18, 38)
@example([WRAPS, "1"], 18, 38)
@example(["9" * 38 + ".0"], 0, 38)
def test_texts_become_the_same_decimal(rules: Rules, sent: list[str], scale: int, precision: int) -> None:
    kind = pa.decimal128(precision, min(scale, precision))
    _check(pa.array(sent), sent, kind, rules)
    _check(pa.array(sent[:1]), sent[:1], kind, rules)


@pytest.mark.parametrize("rules", [ROWS, ARROW, RECORDS, JSON], ids=["rows", "arrow", "records", "json"])
@seed(1)
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256]),
    st.lists(st.integers(-(10**76) + 1, 10**76 - 1), min_size=1, max_size=3),
    st.integers(0, 76), st.integers(0, 76), SCALES,
)  # fmt: skip
@example(pa.decimal128, [int(WRAPS), 1], 0, 0, 18)
def test_decimals_become_the_same_decimal(
    rules: Rules, source: Callable[[int, int], pa.DataType], numbers: list[int], cut: int, before: int, scale: int
) -> None:
    most = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 76}[source]
    kind = pa.decimal128(38, scale)
    before = min(before, most)
    with localcontext(prec=100):
        values = [Decimal(number // 10**cut % 10**most).scaleb(-before) for number in numbers]
    sent = [str(value) for value in values]
    _check(pa.array(values, source(most, before)), sent, kind, rules)
    _check(pa.array(values[:1], source(most, before)), sent[:1], kind, rules)


@pytest.mark.parametrize("rules", [ARROW, RECORDS, JSON], ids=["arrow", "records", "json"])
def test_decimals_of_a_negative_scale_become_the_same_number(rules: Rules) -> None:
    array = pa.array([Decimal("1E+37"), Decimal("12000")], pa.decimal128(36, -3))
    for kind in (pa.decimal128(38, 18), pa.int64()):
        made, bad = mask(array, pa.field("c", kind), rules)
        assert made.to_pylist() == [None, 12_000]
        assert bad is not None
        assert bad.tolist() == [True, False]


@pytest.mark.parametrize("rules", [ARROW, RECORDS, JSON], ids=["arrow", "records", "json"])
@seed(1)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3), SCALES)
@example([0.1, 1e-7, 2.5e20], 2)
def test_floats_become_the_decimal_of_their_shortest_text(rules: Rules, sent: list[float], scale: int) -> None:
    _check(pa.array(sent), [str(value) for value in sent], pa.decimal128(38, scale), rules)


def _block(records: list[bytes]) -> Records:
    count = len(records)
    zeros, numbers = np.zeros(count, np.int64), np.arange(count, dtype=np.int64)
    return Records("file", "", zeros, numbers, zeros - 1, pa.nulls(count, pa.binary()), pa.array(records, pa.binary()))


def _plain(numbers: Sequence[str], kind: pa.DataType) -> dict[int, Any]:
    wanted = pa.schema([("id", pa.int64()), ("v", kind)])
    records = [b'{"id":%d,"v":%s}' % (id_, number.encode()) for id_, number in enumerate(numbers)]
    decoded = JsonDecoder().decode(_block(records), wanted)
    return {row["id"]: row["v"] for row in decoded.values.to_pylist()}


def _debezium(numbers: Sequence[str], kind: pa.DataType) -> dict[int, Any]:
    wanted = pa.schema([("id", pa.int64()), ("v", kind)])
    records = [
        b'{"op":"c","before":null,"after":{"id":%d,"v":%s},"source":{"connector":"x","table":"t"},"ts_ms":1}'
        % (id_, number.encode())
        for id_, number in enumerate(numbers)
    ]
    decoded = DebeziumJson(wire="plain").decode(_block(records), wanted)
    return {row["id"]: row["v"] for row in decoded.values.to_pylist()}


DECODERS = pytest.mark.parametrize("decode", [_plain, _debezium], ids=["plain", "debezium"])
Decode = Callable[[Sequence[str], pa.DataType], dict[int, Any]]


@DECODERS
@seed(1)
@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=3), SCALES)
@example([WRAPS], 18)
@example([WRAPS, "1"], 18)
@example(["12345678901e30"], 0)
@example(["1e-999999999", "1"], 2)
def test_json_numbers_become_the_same_decimal(decode: Decode, sent: list[str], scale: int) -> None:
    kind = pa.decimal128(38, scale)
    for numbers in (sent, sent[:1], [*sent, "1e60"]):
        made = decode(numbers, kind)
        assert {row: value for row, value in made.items() if value is not None} == {
            row: value for row, text in enumerate(numbers) if (value := _expected(text, kind)) is not None
        }


@DECODERS
def test_json_text_with_escaped_digits_becomes_the_same_decimal(decode: Decode) -> None:
    escaped = '"' + "".join(f"\\u{ord(digit):04x}" for digit in WRAPS) + '"'
    assert decode([escaped, "1"], pa.decimal128(38, 18)) == {1: 1}
    assert orjson.loads(escaped) == WRAPS


IDS = st.integers(-(2**63), 2**63 - 1).map(str)


@DECODERS
@seed(1)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(IDS, NUMBERS), min_size=1, max_size=4))
@example(["9007199254740993", "1.5"])
@example(["9007199254740993", "1.0"])
@example(["9007199254740993", WRAPS, "1.5"])
def test_integers_of_a_block_with_fractions_are_exact(decode: Decode, sent: list[str]) -> None:
    made = decode(sent, pa.int64())
    for row, text in enumerate(sent):
        number = Decimal(text)
        whole = -(2**63) <= number < 2**63 and number == int(number)
        if text.lstrip("-").isdigit() and whole:
            assert made[row] == number
        elif not whole:
            assert made.get(row) is None
        else:
            assert made.get(row) in (None, number)


@DECODERS
def test_numbers_of_a_text_column_are_as_they_were_written(decode: Decode) -> None:
    sent = ["9007199254740993", "1.50", "123456789012345678901", '"x"']
    assert decode(sent, pa.string()) == dict(enumerate([*sent[:3], "x"]))
