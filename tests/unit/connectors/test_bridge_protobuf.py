"""Protobuf records as whole columns: what the library reads one by one, and no record disturbs its neighbour."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode.protobuf_records import ProtobufRecords
from lakestore.kafka.bridge.decode.protobuf_schema import build_message, compile_proto, message
from lakestore.kafka.bridge.outcome import DecodedBlock, Stage
from lakestore.kafka.bridge.spec import SchemaSpec
from tests.support.avro_cases import records

ALL = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/empty.proto";
message Order {
  message Line { string sku = 1; sint32 count = 2; repeated fixed32 marks = 3; Line inner = 4; }
  enum State { NEW = 0; SENT = 1; GONE = -5; }
  int64 id = 1; int32 small = 2; uint32 u = 3; uint64 big = 4; sint64 z = 5; bool yes = 6; double d = 7; float f = 8;
  fixed64 x = 9; sfixed32 y = 10; string text = 11; bytes raw = 12; State state = 13;
  optional int32 maybe = 14; Line line = 15; repeated Line lines = 16; repeated int32 numbers = 17;
  repeated string tags = 18; map<string, int64> counts = 19; map<int32, Line> by = 20;
  oneof pay { string card = 21; int64 cash = 22; Line barter = 23; }
  google.protobuf.Timestamp at = 24; google.protobuf.Duration took = 25; google.protobuf.Int32Value wrapped = 26;
  google.protobuf.Struct any = 27; google.protobuf.Empty empty = 28; repeated double loose = 29 [packed = false];
  repeated State states = 30;
}
"""


@cache
def kind(text: str, path: tuple[int, ...] = (0,)) -> type[Message]:
    """The library's class of a message."""
    return GetMessageClass(message(*compile_proto(text, {}), path))


def decoded(text: str, bodies: Sequence[bytes | None]) -> DecodedBlock:
    """A block of records of an inline schema."""
    return decoder(text).decode(records(bodies))


@cache
def decoder(text: str) -> ProtobufRecords:
    """The decoder of an inline schema: protoc runs once."""
    return ProtobufRecords(wire="plain", declared=SchemaSpec(text))


_LINE = st.fixed_dictionaries(
    {},
    optional={
        "sku": st.text(max_size=5),
        "count": st.integers(-(2**31), 2**31 - 1),
        "marks": st.lists(st.integers(0, 2**32 - 1), max_size=4),
    },
)
_I32, _I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_ORDER = st.fixed_dictionaries(
    {},
    optional={
        "id": _I64, "small": _I32, "u": st.integers(0, 2**32 - 1), "big": st.integers(0, 2**64 - 1), "z": _I64,
        "yes": st.booleans(), "d": st.floats(allow_nan=False), "f": st.floats(width=32, allow_nan=False),
        "x": st.integers(0, 2**64 - 1), "y": _I32, "text": st.text(max_size=9), "raw": st.binary(max_size=9),
        "state": st.sampled_from([0, 1, -5, 77]), "maybe": _I32, "line": _LINE, "lines": st.lists(_LINE, max_size=3),
        "numbers": st.lists(_I32, max_size=5), "tags": st.lists(st.text(max_size=3), max_size=4),
        "counts": st.dictionaries(st.text(max_size=2), _I64, max_size=3),
        "by": st.dictionaries(_I32, _LINE, max_size=2), "card": st.text(max_size=3), "cash": _I64, "barter": _LINE,
        "wrapped": _I32.map(lambda value: {"value": value}), "loose": st.lists(st.floats(allow_nan=False), max_size=3),
        "states": st.lists(st.sampled_from([0, 1, -5, 9]), max_size=3),
    },
)  # fmt: skip


def filled(target: Message, values: dict[str, Any]) -> Message:
    """The message with these values."""
    for name, value in values.items():
        field = target.DESCRIPTOR.fields_by_name[name]
        place = getattr(target, name)
        if isinstance(value, dict) and field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key, item in value.items():
                if isinstance(item, dict):
                    filled(place[key], item).SetInParent()
                else:
                    place[key] = item
        elif isinstance(value, dict):
            place.SetInParent()
            filled(place, value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    filled(place.add(), item)
                else:
                    place.append(item)
        else:
            setattr(target, name, value)
    return target


def shown(value: Message) -> dict[str, Any]:
    """What the library holds, as rows of the decoder show it."""
    told: dict[str, Any] = {}
    for field in value.DESCRIPTOR.fields:
        held = getattr(value, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            pairs = {key: one(item, each) for key, each in held.items()}
            told[field.name] = dict(sorted(pairs.items()))
        elif field.is_repeated:
            told[field.name] = [one(field, each) for each in held]
        else:
            told[field.name] = None if field.has_presence and not value.HasField(field.name) else one(field, held)
    return told


def one(field: Any, value: Any) -> Any:
    """One value as the decoder shows it."""
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named else str(value)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return Decimal(value)
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name == "google.protobuf.Int32Value":
        return value.value
    if name == "google.protobuf.Empty":
        return True
    if name == "google.protobuf.Timestamp":
        return value.ToDatetime(UTC)
    if name == "google.protobuf.Duration":
        return value.ToMicroseconds()
    if name == "google.protobuf.Struct":
        return MessageToDict(value)
    if field.message_type is field.containing_type:
        return MessageToDict(value, preserving_proto_field_name=True)
    return shown(value)


def told(row: Any) -> Any:
    """A row with its maps as dicts, and JSON read."""
    if isinstance(row, list):
        if row and isinstance(row[0], tuple):
            return {key: told(value) for key, value in sorted(row)}
        return [told(each) for each in row]
    if isinstance(row, dict):
        return {
            name: json.loads(value) if name in ("any", "inner") and value is not None
            else {} if name in ("counts", "by") and not value else told(value)
            for name, value in row.items()
        }  # fmt: skip
    return row


@given(data=st.data())
def test_columns_are_what_the_library_reads_one_by_one(data: st.DataObject) -> None:
    order = kind(ALL)
    bodies = []
    for values in data.draw(st.lists(_ORDER, min_size=1, max_size=5)):
        body = filled(order(), values).SerializeToString()
        for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 2]))):  # several messages in one: later fields win
            body += filled(order(), data.draw(_ORDER)).SerializeToString()
        if body and data.draw(st.integers(0, 4)) == 0:
            at = data.draw(st.integers(0, len(body) - 1))
            body = body[:at] if data.draw(st.booleans()) else body[:at] + b"\xff" + body[at + 1 :]
        bodies.append(body)
    found = decoded(ALL, bodies)
    rows = dict(zip(found.record.tolist(), found.values.to_pylist(), strict=True))
    rejected = {reject.record: reject for reject in found.rejects}
    assert sorted([*rows, *rejected]) == list(range(len(bodies)))
    for at, body in enumerate(bodies):
        try:
            expected = shown(order.FromString(body))
        except (DecodeError, UnicodeDecodeError):
            assert at in rejected
            continue
        if at in rejected:
            assert rejected[at].code in {"bad-wire-type", "bad-tag", "out-of-range"}, rejected[at]
        else:
            assert repr(told(rows[at])) == repr(expected)


def _piece(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2, len(body)]) + body


_BAD, _X, _Y = _piece(1, b"\xff"), _piece(1, b"x"), _piece(2, b"y")
_REPLACED = {
    "a text": _piece(9, b"\xff") + _piece(9, b"x"),
    "a text of a oneof": _piece(2, b"\xff") + _piece(1, _X),
    "a text in a piece of a message": _piece(4, _BAD) + _piece(4, _X),
    "a text in a message of a oneof": _piece(1, _BAD) + _piece(2, b"s"),
    "a text below a message of a oneof": _piece(1, _piece(4, _BAD)) + _piece(2, b"s"),
    "a text that a map's entry has twice": _piece(6, _BAD + _X + _piece(2, _X)),
    "an item of an entry that has it twice": _piece(6, _X + _piece(2, _BAD) + _piece(2, _X)),
    "a piece that ends too early": _piece(4, b"\x0a\x05") + _piece(4, b"abcde"),
    "a message of a oneof that ends too early": _piece(1, b"\x0a\x05") + _piece(2, b"s"),
    "packed values that end too early": _piece(1, _piece(3, b"\x80")) + _piece(2, b"s"),
    "a oneof's member that comes again": _piece(1, _X) + _piece(2, b"s") + _piece(1, _Y),
    "a oneof's member around another message": _piece(1, _X) + _piece(3, _Y) + _piece(1, _Y) + _piece(1, _X),
    "an empty message that is broken": _piece(8, b"\x08") + _piece(2, b"s"),
    "JSON that is broken": _piece(7, b"\x0a") + _piece(7, b""),
    "JSON with a text": _piece(7, _piece(1, _BAD)) + _piece(7, b""),
    "a number that an enum does not have": _piece(2, b"s") + b"\x50\x09",
    "a number that an enum has": _piece(2, b"s") + b"\x50\x01",
}


@pytest.mark.parametrize("syntax", ['syntax = "proto2"', 'syntax = "proto3"', 'edition = "2023"'])
@pytest.mark.parametrize("of", _REPLACED)
def test_values_that_others_replace_are_judged_as_the_library_does(syntax: str, of: str) -> None:
    """A body that the library refuses is a dead letter, although all that a row would show can be read."""
    o = "optional " if "proto2" in syntax else ""
    text = f"""{syntax};
    import "google/protobuf/struct.proto"; import "google/protobuf/empty.proto";
    message M {{
      oneof o {{ L l = 1; string s = 2; L k = 3; E e = 10; google.protobuf.Empty none = 8; }}
      {o}L p = 4; map<string, L> by = 6; {o}google.protobuf.Struct any = 7; {o}string t = 9;
    }}
    message L {{ {o}string a = 1; {o}string b = 2; repeated int32 n = 3; {o}I i = 4; }}
    message I {{ {o}string a = 1; }}
    enum E {{ ZERO = 0; ONE = 1; }}"""
    if "2023" in syntax:
        text = text.replace("enum E {", "enum E { option features.enum_type = CLOSED; ")
    body = _REPLACED[of]
    found = decoded(text, [b"", body, b""])
    try:
        expected = [repr(shown(kind(text).FromString(each))) for each in (b"", body, b"")]
    except DecodeError:
        assert [reject.record for reject in found.rejects] == [1]
        return
    assert [repr(told(row)) for row in found.values.to_pylist()] == expected, found.rejects


def test_known_messages_are_values_of_their_meaning() -> None:
    order = kind(ALL)()
    order.at.FromDatetime(datetime(2026, 5, 4, 3, 2, 1, 5, UTC))  # type: ignore[attr-defined]
    order.took.FromMicroseconds(-1_500_001)  # type: ignore[attr-defined]
    order.any.update({"a": [1, None, "x"]})  # type: ignore[attr-defined]
    order.empty.SetInParent()  # type: ignore[attr-defined]
    row = decoded(ALL, [order.SerializeToString(), b""]).values.to_pylist()
    assert (row[0]["at"], row[0]["took"]) == (datetime(2026, 5, 4, 3, 2, 1, 5, UTC), -1_500_001)
    assert (json.loads(row[0]["any"]), row[0]["empty"]) == ({"a": [1, None, "x"]}, True)
    assert [row[1][name] for name in ("at", "took", "any", "empty", "wrapped", "maybe")] == [None] * 6
    assert (row[1]["id"], row[1]["text"], row[1]["state"], row[1]["line"]) == (0, "", "NEW", None)


def test_a_message_with_far_more_fields_is_looked_through_by_itself() -> None:
    order = kind(ALL)
    small = filled(order(), {"id": 1, "tags": ["a"]}).SerializeToString()
    large = filled(order(), {"id": 2, "tags": ["t"] * 3000, "text": "end"}).SerializeToString()
    unordered = large + small + large
    found = decoded(ALL, [small, large, small, unordered, large[:-1], None])
    assert found.record.tolist() == [0, 1, 2, 3]
    assert [len(tags) for tags in found.values.field("tags").to_pylist()] == [1, 3000, 1, 6001]
    assert found.values.field("text").to_pylist() == ["", "end", "", "end"]
    assert [(each.record, each.code) for each in found.rejects] == [(4, "short-payload")]
    assert found.passed["tombstone"].tolist() == [5]


def test_proto2_has_presence_required_fields_and_closed_enums() -> None:
    text = """syntax = "proto2"; enum E { A = 1; B = 2; }
    message M { required int32 id = 1; optional string s = 2; optional E e = 3; repeated E es = 4; }"""
    m = kind(text)
    body = filled(m(), {"id": 1, "e": 2, "es": [1]}).SerializeToString()
    found = decoded(text, [body, body + b"\x18\x09\x20\x09", b"\x12\x01x", b"\x08\x01"])
    assert found.values.to_pylist() == [
        {"id": 1, "s": None, "e": "B", "es": ["A"]},
        {"id": 1, "s": None, "e": "B", "es": ["A"]},
        {"id": 1, "s": None, "e": None, "es": []},
    ]
    assert [(each.record, each.stage, each.code, each.path) for each in found.rejects] == [
        (2, Stage.DECODE, "missing-field", "id")
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('syntax = "proto3"; message M { strin x = 1; }', "not a .proto file.*strin"),
        ('syntax = "proto3"; import "../../etc/passwd"; message M { }', "not a .proto file"),
        ('syntax = "proto2"; message M { optional group G = 1 { } }', "group"),
        ('syntax = "proto3";', "no message"),
    ],
)
def test_a_schema_that_is_none_is_refused_by_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        build_message(message(*compile_proto(text, {}), (0,)))
    assert decoded(text, [b""]).rejects[0].code == "bad-schema"


def test_an_import_stays_in_its_folder() -> None:
    with pytest.raises(Invalid, match="no name in a registry"):
        compile_proto('syntax = "proto3"; message M {}', {"../evil.proto": ""})


def test_packed_values_that_end_inside_one_shift_no_neighbour() -> None:
    text = 'syntax = "proto3"; message M { repeated int32 a = 1; repeated fixed32 b = 2; }'
    found = decoded(text, [b"\x0a\x02\x01\x80", b"\x0a\x02\x01\x02", b"\x12\x03abc", b"\x12\x04\1\0\0\0"])
    assert found.values.to_pylist() == [{"a": [1, 2], "b": []}, {"a": [], "b": [1]}]
    assert [(each.record, each.code) for each in found.rejects] == [(0, "short-payload"), (2, "short-payload")]
