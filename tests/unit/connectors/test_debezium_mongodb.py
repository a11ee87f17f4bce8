"""MongoDB's change events as rows: documents as one column, or as columns of their fields."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.decode.debezium.documents import plain_json
from lakestore.kafka.bridge.outcome import Op
from tests.support.bridge_blocks import check_decoded
from tests.support.debezium_events import block, event, with_schema

SOURCE = {"version": "3.0", "connector": "mongodb", "name": "shop", "ts_ms": 1_700_000_000_000, "snapshot": "false",
          "db": "sales", "rs": "rs0", "collection": "orders", "ord": 31}  # fmt: skip
DOC = {"_id": {"$numberLong": "7"}, "who": "Ann",
       "at": {"$date": {"$numberLong": "5"}}, "sum": {"$numberDecimal": "1.50"},
       "n": {"$numberInt": "3"}, "ref": {"$oid": "5f00"}, "tags": ["a"], "in": {"city": "Ulm"}}  # fmt: skip
SCHEMA = {"type": "struct", "name": "a.Envelope", "fields": [
    {"field": "before", "type": "string", "name": "io.debezium.data.Json"},
    {"field": "after", "type": "string", "name": "io.debezium.data.Json"},
    {"field": "source", "type": "struct", "fields": [{"field": "connector", "type": "string"}]},
    {"field": "op", "type": "string"},
]}  # fmt: skip
PAIRS: list[tuple[Any, Any]] = [
    ({"id": "7"}, event("c", None, json.dumps(DOC), source=SOURCE)),
    ({"id": '{"$oid": "5f00"}'}, event("u", None, json.dumps(DOC | {"who": None}), source=SOURCE)),
    ({"id": '"abc"'}, event("u", None, None, source=SOURCE, updateDescription={"updatedFields": "{}"})),
    ({"id": "7"}, event("d", None, None, source=SOURCE)),
    ({"id": "7"}, None),
    ({"id": "8"}, event("c", None, "broken", source=SOURCE)),
]


@pytest.mark.parametrize("schema", [False, True])
def test_a_document_is_its_id_and_its_text(*, schema: bool) -> None:
    pairs = [(key, with_schema(SCHEMA, value) if value and schema else value) for key, value in PAIRS]
    decoded = DebeziumJson().decode(block(pairs), None)
    check_decoded(decoded, len(pairs))
    assert [row["id"] for row in decoded.values.to_pylist()] == ["7", "5f00", "7", "8"]
    assert json.loads(decoded.values.field("document")[0].as_py()) == DOC
    assert decoded.op is not None
    assert decoded.op.tolist() == [Op.PUT, Op.PUT, Op.DELETE, Op.PUT]
    assert [reject.code for reject in decoded.rejects] == ["no-after"]
    assert decoded.key_names == ("id",)


def test_fields_of_documents_are_columns_where_these_are_declared() -> None:
    wanted = pa.schema(
        [("_id", pa.int64()), ("who", pa.string()), ("at", pa.int64()), ("sum", pa.decimal128(9, 2)), ("n", pa.int32()),
         ("ref", pa.string()), ("tags", pa.list_(pa.string())), ("in", pa.struct([("city", pa.string())]))]
    )  # fmt: skip
    decoded = DebeziumJson().decode(block([PAIRS[0], PAIRS[3], PAIRS[4], PAIRS[5]]), wanted)
    check_decoded(decoded, 4)
    assert [reject.record for reject in decoded.rejects] == [3]
    row, gone = decoded.values.to_pylist()
    assert row["_id"] == gone["_id"] == 7
    assert row["who"] == "Ann"
    assert str(row["sum"]) == "1.50"
    assert (row["at"], row["n"], row["ref"], row["tags"], row["in"]) == (5, 3, "5f00", ["a"], {"city": "Ulm"})
    assert decoded.envelope is not None
    assert decoded.envelope.field("position").to_pylist() == [1_700_000_000 << 31 | 31] * 2
    assert decoded.origin is not None
    assert decoded.origin.to_pylist()[0] == {"database": "sales", "schema": None, "table": "orders"}


def test_wrappers_are_taken_off_outside_of_texts_alone() -> None:
    inner = json.dumps({"a": {"$oid": "x"}})
    plain = json.loads(
        plain_json(pa.array([json.dumps({"t": inner, "u": {"$uuid": "y"}, "d": {"$date": "2020-01-01"}})]))[0].as_py()
    )
    assert plain == {"t": inner, "u": "y", "d": "2020-01-01"}
    assert dt.date.fromisoformat(plain["d"]).year == 2020
