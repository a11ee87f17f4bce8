"""JSON records: rules of values, and one reading whether a block is read at once or record by record."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.kafka.bridge.decode import json_fallback, json_records
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.kafka.bridge.outcome import DecodedBlock
from tests.support.bridge_blocks import block, check_decoded
from tests.support.seeds import examples

WANTED = pa.schema(
    [
        ("i", pa.int64()),
        ("small", pa.int8()),
        ("f", pa.float64()),
        ("d", pa.decimal128(6, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("inner", pa.struct([("x", pa.int64()), ("t", pa.timestamp("us"))])),
        ("list", pa.list_(pa.int64())),
    ]
)
GOOD = b'{"i":1,"small":2,"f":0.5,"d":1.25,"s":"x","b":true,"at":"2026-01-01T00:00:00Z","inner":{"x":1},"list":[1]}'


def one(value: bytes, wanted: pa.Schema = WANTED) -> tuple[dict[str, Any] | None, str]:
    """(row, code of the reject) of one record alone."""
    return ends([value], wanted)[0]


def ends(values: list[bytes], wanted: pa.Schema = WANTED) -> list[tuple[dict[str, Any] | None, str]]:
    """(row, code of the reject) of each record."""
    records = block(values)
    decoded = JsonDecoder().decode(records, wanted)
    check_decoded(decoded, len(records))
    return by_record(decoded, len(values))


def by_record(decoded: DecodedBlock, count: int) -> list[tuple[dict[str, Any] | None, str]]:
    found: list[tuple[dict[str, Any] | None, str]] = [(None, "")] * count
    for number, row in zip(decoded.record.tolist(), decoded.values.to_pylist(), strict=True):
        found[number] = (row, "")
    for reject in decoded.rejects:
        found[reject.record] = (None, reject.code)
    return found


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("i", '"12"', 12),
        ("i", "12.0", 12),
        ("i", "1e2", 100),
        ("i", "-9223372036854775808", -(2**63)),
        ("i", "null", None),
        ("small", "-128", -128),
        ("f", "1", 1.0),
        ("f", '"1.5"', 1.5),
        ("f", "1e-400", 0.0),
        ("f", '"Infinity"', math.inf),
        ("d", "1.25", Decimal("1.25")),
        ("d", '"1.250"', Decimal("1.25")),
        ("d", "1.2500000000000000000000000000000000000000000000000", Decimal("1.25")),
        ("d", "9e3", Decimal("9000.00")),
        ("d", "125e-2", Decimal("1.25")),
        ("d", "12500000000000000000000000000000e-31", Decimal("1.25")),
        ("d", "0.00000000000000000000000000000000000000000000000000", Decimal("0.00")),
        ("s", "1", "1"),
        ("s", "1.10", "1.10"),
        ("s", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("s", "true", "true"),
        ("s", '{"a":[1.0,null,"é"]}', '{"a":[1.0,null,"é"]}'),
        ("s", '"\\ud83d\\ude00"', "\U0001f600"),
        ("b", '"true"', True),
        ("list", "[1,null,2]", [1, None, 2]),
        ("inner", '{"x":"7","t":null,"y":1}', {"x": 7, "t": None}),
    ],
)
def test_value_is_read_losslessly(field: str, text: str, value: Any) -> None:
    row, code = one(f'{{"{field}":{text}}}'.encode())
    assert row is not None, code
    assert row[field] == value


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "not-an-object"),
        (b"1", "not-an-object"),
        (b'"x"', "not-an-object"),
        (b"null", "not-an-object"),
        (b"{", "bad-json"),
        (b"{}}", "bad-json"),
        (b"{}{}", "bad-json"),
        (b'{"i":1}\0', "bad-json"),
        (b'{"i":01}', "bad-json"),
        (b'{"i":1,}', "bad-json"),
        (b"{'i':1}", "bad-json"),
        (b'{"s":"a\nb"}', "bad-json"),
        (b'{"s":"\xff"}', "bad-utf8"),
        (b'{"other":"\xff"}', "bad-utf8"),
        (b'{"s":"\\ud800"}', "bad-utf8"),
        (b'{"i":1,"i":1}', "duplicate-key"),
        (b'{"i":1,"\\u0069":1}', "duplicate-key"),
        (b'{"inner":{"x":1,"x":2}}', "duplicate-key"),
        (b'{"i":1.5}', "not-an-integer"),
        (b'{"i":1e-999999999}', "not-an-integer"),
        (b'{"i":1e999999999}', "out-of-range"),
        (b'{"i":9223372036854775808}', "out-of-range"),
        (b'{"small":128}', "out-of-range"),
        (b'{"i":true}', "not-a-number"),
        (b'{"i":"1 "}', "not-a-number"),
        (b'{"f":NaN}', "not-finite"),
        (b'{"f":-Infinity}', "not-finite"),
        (b'{"i":NaN}', "not-finite"),
        (b'{"f":1e400}', "out-of-range"),
        (b'{"f":"nan"}', "not-a-number"),
        (b'{"d":1.255}', "out-of-range"),
        (b'{"d":12345.6}', "out-of-range"),
        (b'{"d":1e999999}', "out-of-range"),
        (b'{"d":1e-999999999}', "out-of-range"),
        (b'{"d":"1e-999999"}', "out-of-range"),
        (b'{"d":0.' + b"0" * 60 + b"1}", "out-of-range"),
        (b'{"d":"x"}', "not-a-number"),
        (b'{"b":1}', "not-a-boolean"),
        (b'{"at":true}', "not-a-time"),
        (b'{"list":{}}', "not-a-list"),
        (b'{"inner":[]}', "not-an-object"),
        (b'{"deep":' + b"[" * 501 + b"]" * 501 + b"}", "too-deep"),
        (b'{"deep":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}", "too-deep"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_record_that_is_refused(value: bytes, code: str) -> None:
    """Alone, and in the midst of a block that is read at once but for it."""
    assert one(value) == (None, code)
    among = ends([GOOD] * 700 + [value] + [GOOD] * 700)
    assert among[700] == (None, code)
    assert all(row is not None for at, (row, _) in enumerate(among) if at != 700)


@pytest.mark.parametrize(
    "value",
    [
        b"\xef\xbb\xbf" + GOOD,
        b" \r\n" + GOOD + b"\n",
        GOOD.replace(b",", b"\n,\r\n"),
        GOOD[:-1] + b',"new":NaN,"newer":-Inf}',
        GOOD[:-1] + b',"new":1,"new":2}',
        GOOD[:-1] + b',"new":1e999}',
        GOOD[:-1] + b',"new":"\\ud800"}',
        GOOD[:-1] + b',"deep":' + b"[" * 400 + b"]" * 400 + b"}",
    ],
    ids=lambda value: str(value[-20:]),
)
def test_record_is_taken_beside_what_is_not_read(value: bytes) -> None:
    row = one(GOOD)[0]
    assert row is not None
    assert one(value) == (row, "")
    assert ends([GOOD] * 100 + [value])[100] == (row, "")


def test_records_that_end_in_one_another_are_told_apart() -> None:
    """Two of them would be as many objects as records, put together without a care."""
    values = [b'{"s":"}', b'{"}', b"{}{}", b'{"s":{}', b"{}}", b"{}\0}", b"{}"]
    assert [code for _, code in ends(values)] == ["bad-json"] * 6 + [""]
    assert [code for _, code in ends([b"{}{}", b"{}\0}", b"{}"])] == ["bad-json", "bad-json", ""]


def test_numbers_of_times_are_kept_as_they_came() -> None:
    values = [b'{"at":1700000000123}', b'{"at":1700000000123.25}', b'{"at":"2026-01-01"}', b'{"at":"17"}', b"{}"]
    for some in (values, values * 100):
        rows = [row for row, _ in ends(some)]
        texts = [None if row is None or row["at"] is None else str(row["at"]) for row in rows[:5]]
        assert texts == ["1700000000123", "1700000000123.25", "2026-01-01", "17", None]


def test_block_of_fields_sent_in_other_types_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = JsonDecoder()
    monkeypatch.setattr(decoder, "_one_by_one", lambda *_: pytest.fail("a record is read by itself"))
    for text, row in (
        ('{"at":17}', {"at": 17}),
        ('{"at":17.5,"inner":{"t":1}}', {"at": Decimal("17.5"), "inner": {"x": None, "t": 1}}),
        ('{"at":"2026-01-01"}', {"at": "2026-01-01"}),
        ('{"i":"12","small":"-3","f":"1.5","s":7,"list":["1",null]}', {"i": 12, "s": "7", "f": 1.5, "list": [1, None]}),
        ('{"s":true,"i":12.0,"list":[1e2]}', {"s": "true", "i": 12, "list": [100]}),
        ('{"i":9007199254740993.0}', {"i": 9007199254740993}),
    ):
        decoded = decoder.decode(block([text.encode()] * 100), WANTED)
        assert row.items() <= decoded.values[99].as_py().items()


def test_new_fields_are_told_with_their_types() -> None:
    decoder = JsonDecoder()
    assert not decoder.decode(block([GOOD] * 100), WANTED).extra
    new = GOOD[:-1] + b',"n":1,"g":1.5,"t":"x","nothing":null}'
    nested = b'{"inner":{"y":true}}'
    extra = decoder.decode(block([GOOD] * 100 + [new] * 10 + [nested] * 10), WANTED).extra
    assert extra == {
        "n": pa.int64(),
        "g": pa.float64(),
        "t": pa.string(),
        "inner.y": pa.bool_(),
    }


def test_seldom_new_field_is_told() -> None:
    values = [GOOD] * 1_000
    values[777] = GOOD[:-1] + b',"seldom":1}'
    assert JsonDecoder().decode(block(values), WANTED).extra == {"seldom": pa.int64()}


def test_frame_of_a_registry_is_taken_off() -> None:
    framed = b"\0\0\0\0\x07" + GOOD
    decoded = JsonDecoder(wire="auto").decode(block([framed, GOOD]), WANTED)
    assert decoded.values[0] == decoded.values[1]
    assert JsonDecoder().decode(block([framed]), WANTED).rejects[0].code == "bad-json"
    assert JsonDecoder(wire="confluent").decode(block([GOOD]), WANTED).rejects[0].code == "bad-magic"


def test_tombstones_are_passed() -> None:
    decoded = JsonDecoder().decode(block([None, GOOD, None]), WANTED)
    assert decoded.passed["tombstone"].tolist() == [0, 2]
    assert decoded.record.tolist() == [1]


def test_types_that_are_read_by_hand() -> None:
    wanted = pa.schema([("m", pa.map_(pa.string(), pa.int64())), ("raw", pa.binary()), ("four", pa.binary(4))])
    assert one(b'{"m":{"a":1},"raw":"AAE=","four":"AAECAw=="}', wanted)[0] == {
        "m": [("a", 1)],
        "raw": b"\0\1",
        "four": b"\0\1\2\3",
    }
    assert one(b'{"m":{"a":1,"a":2}}', wanted) == (None, "duplicate-key")
    assert one(b'{"raw":"%%"}', wanted) == (None, "not-base64")
    assert one(b'{"four":"AAE="}', wanted) == (None, "out-of-range")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-200, 200),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["1", "-12", "1.5", "1e3", "+1", ".5", "5.", "true", "NaN", "Infinity", "2026", "", " 1", "0x1"]),
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["x", "t", "y"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from([*WANTED.names, "other", "é"]), VALUES, max_size=5)
TEXTS = st.one_of(
    FIELDS.map(lambda fields: json.dumps(fields).encode()),
    FIELDS.map(lambda fields: json.dumps(fields, ensure_ascii=False, indent=1).encode()),
    st.sampled_from([GOOD, b"{}", b"", b"[]", b'{"d":1.10}', b'{"d":1E+2,"f":-0.0}', b'{"i":-0}', b'{"at":1.0}']),
    st.tuples(FIELDS.map(lambda fields: json.dumps(fields).encode()), st.integers(0, 60), st.binary(max_size=2)).map(
        lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] + 1 :]
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(TEXTS, max_size=6))
def test_block_at_once_is_as_one_by_one(values: list[bytes]) -> None:
    """The same rows and rejects, whatever is beside a record."""
    records = block(values)
    decoded = JsonDecoder().decode(records, WANTED)
    check_decoded(decoded, len(records))
    together = [(_texts(row), code) for row, code in by_record(decoded, len(values))]
    kind = pa.struct(list(WANTED))
    alone = []
    for value in values:
        try:
            row = json_fallback.convert(json_fallback.parse_object(value), kind, "value")
            alone.append((_texts(pa.array([row], json_records._texts(kind))[0].as_py()), ""))
        except json_fallback.RefusedRecord as refused:
            alone.append((None, refused.code))
    assert together == alone


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=30), TEXTS, st.none()), max_size=8))
def test_every_record_of_garbage_ends_once(values: list[bytes | None]) -> None:
    records = block(values)
    check_decoded(JsonDecoder(wire="auto").decode(records, WANTED), len(records))


def _texts(row: Any) -> Any:
    """A row with times as numbers where they are, whatever they were read as; NaN equals itself."""
    if isinstance(row, dict):
        return {name: _time(value) if name in ("at", "t") else _texts(value) for name, value in row.items()}
    return str(row) if isinstance(row, float) else row


def _time(value: Any) -> Any:
    try:
        return None if value is None else str(Decimal(str(value)).normalize() + 0)
    except ArithmeticError:
        return value


def test_a_text_without_an_end_is_told_by_one_sentence() -> None:
    with pytest.raises(json_fallback.RefusedRecord, match=r"not JSON: Unterminated string starting at character 7$"):
        json_fallback.parse_object(b'{"s": "x')
