"""Decimals are stored exactly or are misfits: no number becomes another one, whatever the other rows hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from lakestore.kafka.bridge.decode import json_fallback
from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.kafka.bridge.records import Records
from lakestore.model.decimals import fit_type, fits
from lakestore.model.table import define
from lakestore.model.types import integer_bounds
from lakestore.rows.casting import ARROW, CSV, JSON, RECORDS, ROWS, Rules, mask
from tests.support.loading import chunks

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


@pytest.mark.parametrize("rules", [ROWS, ARROW, RECORDS], ids=["rows", "arrow", "records"])
@pytest.mark.parametrize("name", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)])
def test_integers_become_the_same_decimal_of_every_type_that_holds_them(rules: Rules, name: str) -> None:
    """The value decides, not the type of the integers."""
    source = pa.type_for_alias(name)
    low, high = integer_bounds(source)
    edges = [edge for digits in range(20) for edge in (10**digits - 1, 10**digits, -(10**digits), 1 - 10**digits)]
    numbers = sorted({low, high, *(edge for edge in edges if low <= edge <= high)})
    array, sent = pa.array(numbers, source), list(map(str, numbers))
    for precision in range(1, 39):
        for scale in range(precision + 1):
            _check(array, sent, pa.decimal128(precision, scale), rules)


def _nearest(text: str, kind: pa.DataType) -> float:
    """The nearest float; of two, the one whose last bit is 0."""
    number = Fraction(text)
    if kind == pa.float64():
        return float(number)
    near = np.float32(float(number))
    floats = [near, *(np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf))]
    return float(min(floats, key=lambda each: (abs(Fraction(float(each)) - number), int(each.view(np.uint32)) & 1)))


@st.composite
def _between_floats(draw: st.DrawFn) -> str:
    """A number of at most 60 digits in the middle of two floats of 32 bits, or a little beside it."""
    middle = Fraction(2 * draw(st.integers(2**23, 2**24 - 1)) + 1, 2) * Fraction(2) ** draw(st.integers(-20, 20))
    digits = str(middle.numerator * 10**30 // middle.denominator)
    assert middle * 10**30 == int(digits)
    beside = draw(st.sampled_from(["0", "0000001"]))
    return draw(st.sampled_from(["", "-"])) + f"{digits[:-30] or '0'}.{digits[-30:]}{beside}"


@pytest.mark.parametrize("rules", [ARROW, RECORDS, CSV], ids=["arrow", "records", "csv"])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@seed(1)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(_between_floats(), NUMBERS), min_size=1, max_size=4))
@example(["1.00000005960464477539062500000001", "7.038531e-26"])
def test_decimals_and_texts_become_the_nearest_float_by_one_rounding(
    rules: Rules, kind: pa.DataType, sent: list[str]
) -> None:
    expected = [_nearest(text, kind) for text in sent]
    made, bad = mask(pa.array(sent), pa.field("c", kind), rules)
    assert (made.to_pylist(), bad) == (expected, None)
    if rules is CSV:
        return
    for source in (pa.decimal256(76, 38), pa.decimal128(38, 25), pa.decimal64(18, 3)):
        held = [text for text in sent if fits(Decimal(text), source)]
        values = [fit_type(Decimal(text), source) for text in held]
        made, bad = mask(pa.array(values, source), pa.field("c", kind), rules)
        assert (made.to_pylist(), bad) == ([_nearest(text, kind) for text in held], None)


@pytest.mark.parametrize("rules", [ARROW, RECORDS], ids=["arrow", "records"])
def test_a_number_beyond_the_floats_of_32_bits_is_a_misfit(rules: Rules) -> None:
    """The greatest float, the middle between it and the power of two above, and the least number above the middle."""
    numbers = ["340282346638528859811704183484516925440", "340282356779733661637539395458142568447"]
    beyond = ["340282356779733661637539395458142568448", "1" + 60 * "0"]
    for array in (pa.array([*numbers, *beyond]), pa.array(map(Decimal, [*numbers, *beyond]), pa.decimal256(76, 0))):
        made, bad = mask(array, pa.field("c", pa.float32()), rules)
        assert made.to_pylist() == [float(numbers[0])] * 2 + [None] * 2
        assert bad is not None
        assert bad.tolist() == [False, False, True, True]


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


def _loaded(file: Path, texts: Sequence[str], kind: pa.DataType) -> dict[int, Any]:
    file.write_text("".join(f"{text}\n" for text in texts))
    table = define("d.t", pa.schema([("id", pa.int64()), ("v", kind)]), buckets=1)
    (chunk,) = chunks(file, table)
    return {row["id"]: row["v"] for row in chunk.batch.to_pylist()}


def _json_lines(numbers: Sequence[str], kind: pa.DataType) -> dict[int, Any]:
    texts = [f'{{"id":{id_},"v":{number}}}' for id_, number in enumerate(numbers)]
    with TemporaryDirectory() as folder:
        return _loaded(Path(folder) / "a.jsonl", texts, kind)


def _csv(numbers: Sequence[str], kind: pa.DataType) -> dict[int, Any]:
    texts = ["id,v", *(f"{id_},[{number}]" for id_, number in enumerate(numbers))]
    with TemporaryDirectory() as folder:
        return {id_: value[0] for id_, value in _loaded(Path(folder) / "a.csv", texts, pa.list_(kind)).items()}


@pytest.mark.parametrize("decode", [_plain, _debezium, _json_lines, _csv], ids=["plain", "debezium", "lines", "csv"])
def test_python_reads_only_the_records_with_a_far_decimal(decode: Decode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside samples, which have the same number in a small block and in a large one."""
    parsed: list[int] = []
    for module, name in ((json_fallback, "parse_object"), (orjson, "loads")):
        function = getattr(module, name)

        def counted(text: Any, function: Callable[[Any], Any] = function) -> Any:
            parsed.append(1)
            return function(text)

        monkeypatch.setattr(module, name, counted)
    counts = []
    for size in (300, 3_000):
        numbers = [f"{id_}.25" for id_ in range(size)]
        far = {0: "12345678901234567890123456789", size // 2: "1e20", size - 1: f"{WRAPS}.5"}
        for id_, number in far.items():
            numbers[id_] = number
        parsed.clear()
        made = decode(numbers, pa.decimal128(38, 4))
        counts.append(len(parsed))
        assert made == {id_: Decimal(number) for id_, number in enumerate(numbers)}
    assert counts[0] == counts[1]
    assert counts[0] < 150


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
