"""Debezium's JSON as rows: operations, tombstones, keys, records that are no events, and broken ones."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from lakestore.kafka.bridge.decode.debezium.change_events import Policy
from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.outcome import Op
from lakestore.kafka.bridge.spec import Tombstone
from tests.support.bridge_blocks import check_decoded
from tests.support.debezium_events import block, event, text, with_schema

WANTED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("big", pa.string())])
ROW = {"id": 1, "name": "a", "big": "x"}
FIELDS = [{"field": "id", "type": "int64"}, {"field": "name", "type": "string"}, {"field": "big", "type": "string"}]
SCHEMA = {
    "type": "struct",
    "name": "shop.public.orders.Envelope",
    "fields": [
        {"field": "before", "type": "struct", "fields": FIELDS},
        {"field": "after", "type": "struct", "fields": FIELDS},
        {"field": "source", "type": "struct", "fields": [{"field": "lsn", "type": "int64"}]},
        {"field": "op", "type": "string"},
    ],
}
KEY = {"type": "struct", "name": "shop.public.orders.Key", "fields": FIELDS[:1]}


def key(number: int) -> dict[str, int]:
    """A key without its schema."""
    return {"id": number}


@pytest.mark.parametrize("wanted", [WANTED, None])
def test_operations_are_puts_and_deletes(wanted: pa.Schema | None) -> None:
    pairs = [
        (key(1), event("c", None, ROW)),
        (key(1), event("u", ROW, ROW | {"name": "b"})),
        (key(2), event("r", None, ROW | {"id": 2})),
        (key(1), event("d", ROW | {"name": "b"})),
    ]
    decoded = DebeziumJson().decode(block(pairs), wanted)
    check_decoded(decoded, 4)
    assert [row["name"] for row in decoded.values.to_pylist()] == ["a", "b", "a", "b"]
    assert decoded.op is not None
    assert decoded.op.tolist() == [Op.PUT, Op.PUT, Op.PUT, Op.DELETE]
    assert decoded.key_names == ("id",)
    assert decoded.origin is not None
    assert decoded.origin[0].as_py() == {
        "database": "shop", "schema": "public", "table": "orders",
    }  # fmt: skip
    assert decoded.envelope is not None
    assert decoded.envelope.field("position").to_pylist() == [24] * 4


def test_a_delete_needs_its_key_alone() -> None:
    decoded = DebeziumJson().decode(block([(key(4), event("d")), (None, event("d"))]), WANTED)
    check_decoded(decoded, 2)
    assert decoded.values.to_pylist() == [{"id": 4, "name": None, "big": None}]
    assert [reject.code for reject in decoded.rejects] == ["no-key"]


def test_the_tombstone_behind_a_delete_is_passed_and_one_alone_deletes() -> None:
    decoder = DebeziumJson()
    decoded = decoder.decode(block([(key(1), event("d", ROW)), (key(1), None), (key(2), None)]), WANTED)
    check_decoded(decoded, 3)
    assert decoded.passed["tombstone"].tolist() == [1]
    assert decoded.record.tolist() == [0, 2]
    assert decoded.values.to_pylist()[1]["id"] == 2


def test_a_tombstone_is_known_over_the_edge_of_a_block_in_its_partition() -> None:
    decoder = DebeziumJson()
    decoder.decode(block([(key(1), event("d", ROW)), (key(2), event("d", ROW))], partition=[0, 1]), WANTED)
    decoded = decoder.decode(
        block([(key(2), None), (key(1), None), (key(1), None)], partition=[1, 0, 0], first=2), WANTED
    )
    assert decoded.passed["tombstone"].tolist() == [0, 1]
    assert decoded.record.tolist() == [2]
    put_between = [(key(1), event("d", ROW)), (key(1), event("c", None, ROW)), (key(1), None)]
    assert decoder.decode(block(put_between), WANTED).record.tolist() == [0, 1, 2]


def test_records_beside_events_are_passed_by_name() -> None:
    others = [
        (None, {"ts_ms": 5}),
        (None, {"status": "BEGIN", "id": "7:24", "ts_ms": 1}),
        (None, {"source": {"connector": "mysql"}, "ts_ms": 1, "databaseName": "shop", "ddl": "DROP TABLE a"}),
        (None, event("m", message={"prefix": "p", "content": "AA=="})),
        (key(1), event("t")),
        (key(1), {"id": 1, "name": "a"}),
        (key(1), event("x")),
    ]
    decoded = DebeziumJson(policy=Policy(truncate="ignore")).decode(block(others), WANTED)
    check_decoded(decoded, len(others))
    assert {reason: rows.tolist() for reason, rows in decoded.passed.items()} == {
        "heartbeat": [0], "transaction-marker": [1], "schema-change": [2], "message": [3], "truncate": [4],
    }  # fmt: skip
    assert [(reject.record, reject.code) for reject in decoded.rejects] == [(5, "not-an-event"), (6, "unknown-op")]
    refused = DebeziumJson().decode(block(others), WANTED).rejects
    assert refused[0].code == "truncate"


def test_unavailable_values_are_kept() -> None:
    pairs = [(key(1), event("u", None, ROW | {"big": marker})) for marker in ("__debezium_unavailable_value", "gone")]
    decoded = DebeziumJson(unavailable=["gone"]).decode(block([*pairs, (key(1), event("u", None, ROW))]), WANTED)
    assert decoded.kept["big"].to_pylist() == [True, True, False]
    assert [row["big"] for row in decoded.values.to_pylist()] == [None, None, "x"]


def test_schema_parts_make_columns_and_may_change_within_a_block() -> None:
    wider = [*FIELDS, {"field": "age", "type": "int32"}]
    changed = SCHEMA | {"fields": [{"field": "after", "type": "struct", "fields": wider}, *SCHEMA["fields"][2:]]}
    pairs = [
        (with_schema(KEY, key(1)), with_schema(SCHEMA, event("c", None, ROW))),
        (with_schema(KEY, key(2)), with_schema(changed, event("c", None, ROW | {"age": 3}))),
        (with_schema(KEY, key(1)), with_schema(SCHEMA, event("d", ROW))),
        (key(1), event("u", None, ROW)),
        (with_schema(KEY, key(1)), b'{"payload": ' + (text(event("c", None, ROW)) or b"") + b', "schema": null}'),
        (with_schema(KEY, key(1)), with_schema(SCHEMA, event("c", None, ROW)) + b"\n"),
    ]
    decoder = DebeziumJson()
    decoded = decoder.decode(block(pairs), None)
    check_decoded(decoded, len(pairs))
    assert not decoded.rejects
    assert [row["age"] for row in decoded.values.to_pylist()] == [None, 3, None, None, None, None]
    assert decoded.key_names == ("id",)
    assert decoder.schema() is not None


def test_flattened_events_are_rows_by_their_marks() -> None:
    pairs = [
        (key(1), ROW | {"__op": "c", "__table": "orders", "__deleted": "false"}),
        (key(1), ROW | {"__op": "d", "__table": "orders", "__deleted": "true"}),
    ]
    decoded = DebeziumJson().decode(block(pairs), WANTED)
    check_decoded(decoded, 2)
    assert decoded.op is not None
    assert decoded.op.tolist() == [Op.PUT, Op.DELETE]
    assert decoded.values.to_pylist() == [ROW, ROW]


def test_both_records_of_a_key_change_have_one_number() -> None:
    headers = [[("__debezium.newkey", b"2")], None, [("__debezium.oldkey", b"1")], None]
    pairs = [(key(1), event("d", ROW)), (key(1), None), (key(2), event("c", None, ROW | {"id": 2})), (key(3), None)]
    decoded = DebeziumJson().decode(block(pairs, headers=headers), WANTED)
    assert decoded.record.tolist() == [0, 2, 3]
    assert decoded.atomic is not None
    assert decoded.atomic.tolist() == [0, 0, -1]


BROKEN = (
    b"", b"{", b"null", b"[]", b"1", b'"x"', b"{}", b"{}{}", b'{"a":1}\n{"b":2}', b'{"op":"c"}', b"\xff\xfe{}", b"\x00",
    b'{"op":"c","after":{"id":1,"id":2}}', b'{"op":"c","after":[1]}', b'{"op":1,"after":{"id":1}}', b'{"op":null}',
    b'{"op":"c","after":{"id":"x"}}', b'{"op":"c","after":{"id":9223372036854775808}}', b'{"op":"d","before":7}',
    b'{"op":"c","after":{"name":"\\ud800"}}', b'{"schema":', b'{"schema":{},"payload":', b'{"schema":1,"payload":{}}',
    b'{"schema":{"type":"struct"},"payload":{"op":"c"}}', b'{"schema":{"fields":[1]},"payload":null}', b'{"payload":1}',
    b'{"op":"c","after":{"id":1},"source":{"lsn":"x"}}', b'{"op":"c","after":{"id":1},"source":7}', b"[" * 5000, b"\n",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_every_record_of_a_fuzzed_block_is_accounted_for(seed: int) -> None:
    dice, decoder = random.Random(seed), DebeziumJson()
    for _ in range(12):
        pairs = []
        for number in range(dice.randrange(1, 60)):
            value = dice.choice(
                [event("c", None, ROW), event("d", ROW), None, with_schema(SCHEMA, event("u", None, ROW))]
            )
            if dice.random() < 0.3:
                value = dice.choice(BROKEN)
            elif isinstance(value, (dict, bytes)) and dice.random() < 0.2:
                raw = text(value) or b""
                at = dice.randrange(len(raw))
                value = raw[:at] + bytes([dice.randrange(256)]) + raw[at + dice.randrange(3) :]
            pairs.append((dice.choice([key(number % 5), None, with_schema(KEY, key(1)), b"\xff", b"7", b"{}"]), value))
        records = block(pairs, partition=[dice.randrange(3) for _ in pairs])
        check_decoded(decoder.decode(records, dice.choice([WANTED, None])), len(pairs))


def test_forms_of_other_versions_and_converters_are_the_same_events() -> None:
    transaction = {"id": 7, "total_order": "1", "data_collection_order": "2"}
    odd = event("c", None, ROW, source={"connector": "postgresql", "snapshot": True, "lsn": "24", "txId": 5})
    plain = text(event("c", None, ROW)) or b""
    pairs = [
        (b'\x00\x00\x00\x00\x07{"id":1}', b"\x00\x00\x00\x00\x07" + plain),
        (b'  {"id": 1}\n', b"\n " + plain + b"\r\n"),
        (key(1), odd | {"ts_ms": "5", "transaction": transaction}),
        (b'"bare"', plain),
        (b"7", event("d", ROW)),
        (b"7", None),
        (b"8", None),
    ]
    decoded = DebeziumJson().decode(block(pairs), WANTED)
    check_decoded(decoded, len(pairs))
    assert [row["id"] for row in decoded.values.to_pylist()] == [1] * 5
    assert decoded.passed["tombstone"].tolist() == [5]
    assert [(reject.record, reject.code) for reject in decoded.rejects] == [(6, "no-key")]
    assert decoded.envelope is not None
    odd_one = decoded.envelope[2].as_py()
    assert (odd_one["position"], odd_one["ts_ms"], odd_one["source"]["snapshot"]) == (24, 5, "true")
    assert odd_one["transaction"] == {"id": "7", "total_order": 1, "data_collection_order": 2}


@pytest.mark.parametrize(("policy", "passed", "rejected"), [("ignore", [0], []), ("dlq", [], [0]), ("delete", [], [])])
def test_a_tombstone_alone_follows_the_policy(policy: Tombstone, passed: list[int], rejected: list[int]) -> None:
    decoded = DebeziumJson(policy=Policy(tombstone=policy)).decode(block([(key(1), None)]), WANTED)
    check_decoded(decoded, 1)
    assert decoded.passed.get("tombstone", np.array([])).tolist() == passed
    assert [reject.record for reject in decoded.rejects] == rejected


def test_many_schemas_in_one_block_keep_their_order() -> None:
    pairs = []
    for number in range(60):
        schema = SCHEMA | {"name": f"t{number % 7}.Envelope"}
        pairs.append((key(number), with_schema(schema, event("c", None, ROW | {"id": number}))))
    decoded = DebeziumJson().decode(block(pairs), WANTED)
    check_decoded(decoded, 60)
    assert [row["id"] for row in decoded.values.to_pylist()] == list(range(60))
