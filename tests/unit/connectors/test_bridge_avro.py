"""Avro records as whole columns: what fastavro reads one by one, and no record disturbs its neighbour."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode import avro_columns, avro_records
from lakestore.kafka.bridge.decode.avro_records import AvroRecords
from lakestore.kafka.bridge.decode.avro_schema import crc64, schema_tree
from lakestore.kafka.bridge.decode.framing import Cursors
from lakestore.kafka.bridge.outcome import DecodedBlock, Stage
from lakestore.kafka.bridge.spec import SchemaSpec
from tests.support import avro_cases
from tests.support.avro_cases import Json, as_dicts, records, written

STRICTER = {"out-of-range", "bad-boolean", "bad-number", "bad-enum", "bad-union", "short-payload"}


def decoded(schema: Json, bodies: Sequence[bytes | None]) -> DecodedBlock:
    """A block of records of an inline schema."""
    return AvroRecords(wire="plain", declared=SchemaSpec(json.dumps(schema))).decode(records(bodies))


def record(**fields: Json) -> Json:
    """A schema of one record."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def damaged(body: bytes, how: int, at: int) -> bytes:
    """A body that may not be read any more."""
    at %= max(len(body), 1)
    if how == 0:
        return body[:at]
    if how == 1:
        return body + b"\0" * (at + 1)
    return body[:at] + bytes([body[at] ^ (1 << how % 8)]) + body[at + 1 :] if body else b"\xff"


@given(data=st.data())
def test_columns_are_what_fastavro_reads_one_by_one(data: st.DataObject) -> None:
    schema = data.draw(avro_cases.schemas())
    values = data.draw(st.lists(avro_cases.values_of(schema), min_size=1, max_size=8))
    bodies = [written(schema, value) for value in values]
    for at in range(len(bodies)):
        if data.draw(st.integers(0, 3)) == 0:
            bodies[at] = damaged(bodies[at], data.draw(st.integers(0, 9)), data.draw(st.integers(0, 60)))
    found = decoded(schema, list(bodies))
    rows = dict(zip(found.record.tolist(), found.values.to_pylist(), strict=True))
    rejected = {reject.record: reject for reject in found.rejects}
    assert sorted([*rows, *rejected]) == list(range(len(bodies)))
    for at, body in enumerate(bodies):
        told = avro_cases.read(schema, body)
        if isinstance(told, Exception):
            assert at in rejected, (body, told)
        elif at in rejected:  # fastavro takes some bodies that are none of the schema
            assert rejected[at].code in {
                "out-of-range",
                "bad-boolean",
                "bad-number",
                "bad-enum",
                "bad-union",
                "short-payload",
            }
            assert damage_is_known(rejected[at].code, body, schema), (body, told, rejected[at])
        else:
            assert repr(as_dicts(schema, rows[at])) == repr(avro_cases.plain(schema, told))


def damage_is_known(code: str, body: bytes, schema: Json) -> bool:
    """Whether reading value by value finds the same."""
    with pytest.raises(avro_records.Unreadable) as error:
        avro_records.array(schema_tree(json.dumps(schema)), body)
    return error.value.fault.code == code


@given(data=st.data())
def test_reading_value_by_value_agrees(data: st.DataObject) -> None:
    schema = data.draw(avro_cases.schemas())
    body = written(schema, data.draw(avro_cases.values_of(schema)))
    if data.draw(st.booleans()):
        body = damaged(body, data.draw(st.integers(0, 9)), data.draw(st.integers(0, 60)))
    node, cursors = schema_tree(json.dumps(schema)), Cursors.of(pa.array([b"", body, b"\2"], pa.binary()))
    column = avro_columns.columns(node, cursors)
    try:
        alone = avro_records.array(node, body)
    except avro_records.Unreadable as error:
        assert cursors.faults[1] == error.fault
    else:
        assert not cursors.bad[1]
        assert repr(alone[0].as_py()) == repr(column[1].as_py())


def test_logical_types_are_columns_of_their_meaning() -> None:
    utc = datetime.UTC
    moment = datetime.datetime(2026, 5, 4, 3, 2, 1, 123000, tzinfo=utc)
    logical: dict[str, tuple[Json, Any, Any]] = {
        "dec": ({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, Decimal("-123.45"), None),
        "wide": ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 0}, Decimal(-(10**45)), None),
        "fix": ({"type": "fixed", "name": "F", "size": 6, "logicalType": "decimal", "precision": 9, "scale": 3},
                Decimal("1.250"), None),
        "day": ({"type": "int", "logicalType": "date"}, datetime.date(1969, 7, 20), None),
        "t3": ({"type": "int", "logicalType": "time-millis"}, datetime.time(1, 2, 3, 4000), None),
        "t6": ({"type": "long", "logicalType": "time-micros"}, datetime.time(1, 2, 3, 4), None),
        "ts3": ({"type": "long", "logicalType": "timestamp-millis"}, moment, None),
        "ts6": ({"type": "long", "logicalType": "timestamp-micros"}, moment, None),
        "loc": ({"type": "long", "logicalType": "local-timestamp-micros"}, moment.replace(tzinfo=None), None),
        "id": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), str(uuid.UUID(int=7))),
        "fid": ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, uuid.UUID(int=1 << 120).bytes,
                str(uuid.UUID(int=1 << 120))),
        "dur": ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
                b"\1\0\0\0\2\0\0\0\3\0\0\0", {"months": 1, "days": 2, "milliseconds": 3}),
    }  # fmt: skip
    schema = record(**{name: kind for name, (kind, _, _) in logical.items()})
    plain_schema = json.loads(json.dumps(schema))
    for field in plain_schema["fields"]:  # fastavro writes bytes of these as they are
        if field["name"] in ("fid", "dur"):
            del field["type"]["logicalType"]
    body = written(plain_schema, {name: value for name, (_, value, _) in logical.items()})
    found = decoded(schema, [body])
    assert not found.rejects
    shown = found.values.to_pylist()[0]
    assert shown == {name: value if shows is None else shows for name, (_, value, shows) in logical.items()}


def test_a_decimal_too_long_is_rejected_alone() -> None:
    schema = record(d={"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, n="long")
    plain = record(d="bytes", n="long")
    numbers = [b"\x03\xe7", b"\x03\xe8", b"", b"\xfc\x19", b"\x01" * 20]
    found = decoded(schema, [written(plain, {"d": number, "n": at}) for at, number in enumerate(numbers)])
    assert found.values.to_pylist() == [
        {"d": Decimal("99.9"), "n": 0},
        {"d": Decimal("0.0"), "n": 2},
        {"d": Decimal("-99.9"), "n": 3},
    ]
    assert [(reject.record, reject.code, reject.path) for reject in found.rejects] == [
        (1, "out-of-range", "d"),
        (4, "out-of-range", "d"),
    ]


def test_a_union_of_several_has_a_field_for_each() -> None:
    schema = record(
        u=["null", "long", "string", {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}]
    )
    values = [None, 5, "five", {"x": 5}]
    found = decoded(schema, [written(schema, {"u": value}) for value in values] + [b"\x08"])
    none = {"long": None, "string": None, "P": None}
    assert found.values.field("u").to_pylist() == [
        None,
        none | {"long": 5},
        none | {"string": "five"},
        none | {"P": {"x": 5}},
    ]
    assert [(reject.record, reject.code) for reject in found.rejects] == [(4, "bad-union")]


def test_broken_text_is_rejected_alone() -> None:
    schema, raw = record(s="string", n="int"), record(s="bytes", n="int")
    found = decoded(schema, [written(raw, {"s": text, "n": 1}) for text in (b"a", b"\xff\xfe", "ü".encode())])
    assert found.values.field("s").to_pylist() == ["a", "ü"]
    assert [(reject.record, reject.code, reject.path) for reject in found.rejects] == [(1, "bad-utf8", "s")]


def test_an_array_far_longer_than_others_is_read_by_itself() -> None:
    schema = record(n="long", a={"type": "array", "items": "string"}, m={"type": "map", "values": "long"})
    values: list[Any] = [{"n": at, "a": ["x"] * at, "m": {"k": at}} for at in range(5)]
    values.insert(2, {"n": 9, "a": [str(at) for at in range(3000)], "m": {"k": 1}})
    bodies: list[bytes | None] = [written(schema, value) for value in values]
    bodies += [None, (bodies[2] or b"")[:-1]]
    found = decoded(schema, bodies)
    assert [as_dicts(schema, row) for row in found.values.to_pylist()] == values
    assert (found.passed["tombstone"].tolist(), [each.code for each in found.rejects]) == ([6], ["short-payload"])


def test_more_items_than_bytes_are_no_memory() -> None:
    schema = record(a={"type": "array", "items": "int"}, m={"type": "map", "values": "int"})
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1"
    found = decoded(schema, [huge, b"\0" + huge, b"\xff" * 9 + b"\1" + huge, written(schema, {"a": [1], "m": {}})])
    assert [(reject.record, reject.code) for reject in found.rejects] == [(at, "short-payload") for at in range(3)]
    assert found.record.tolist() == [3]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ('{"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}', "T holds itself"),
        ('{"type": "array", "items": "null"}', "without any bytes"),
        ('{"type": "wrong"}', "not an Avro schema"),
        ("nothing", "not an Avro schema"),
        ("[" * 300 + "]" * 300, "not an Avro schema|nested"),
    ],
)
def test_a_schema_that_no_column_holds_is_refused_by_a_sentence(schema: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        schema_tree(schema)


def test_the_fingerprint_in_front_names_the_declared_schema() -> None:
    schema = json.dumps(record(n="long"))
    body = b"\xc3\1" + bytes.fromhex(crc64(schema)) + b"\4"
    found = AvroRecords(declared=SchemaSpec(schema)).decode(records([body, b"\xc3\1" + b"wrong---" + b"\4", b"\6"]))
    assert found.values.to_pylist() == [{"n": 2}, {"n": 3}]
    assert [(each.record, each.stage, each.code) for each in found.rejects] == [(1, Stage.WIRE, "unknown-schema")]


def test_values_that_are_no_records_have_one_field() -> None:
    assert decoded("string", [b"\2a"]).values.to_pylist() == [{"value": "a"}]


def test_no_schema_at_all_is_a_reject_of_each() -> None:
    found = AvroRecords(wire="plain").decode(records([b"\2", None]))
    assert ([each.code for each in found.rejects], found.passed["tombstone"].tolist()) == (["no-schema"], [1])
