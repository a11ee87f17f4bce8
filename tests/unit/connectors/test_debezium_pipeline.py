"""Change events on their whole way into the columns of tables, as bridge.yaml declares them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakestore.errors import Invalid
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.decode.decoders import decoder, key_decoder
from lakestore.kafka.bridge.map import reads_key_fields
from lakestore.kafka.bridge.outcome import MappedBlock, Op
from lakestore.kafka.bridge.pipeline import Pipeline
from lakestore.kafka.bridge.spec import SourceSpec
from lakestore.kafka.bridge.tables import wanted_table
from tests.support.bridge_blocks import check_ends
from tests.support.debezium_events import Pair, block, event, with_schema

TOPIC = """
name: shop
source: {bootstrap: "localhost:9092"}
topics:
  - topic: shop.public.orders
    table: shop.orders
    format: debezium-json
    primary_key: [id]
    version: at
    columns:
      - {name: id, type: int64}
      - {name: amount, type: "decimal(10, 2)", unit: base64}
      - {name: placed, type: timestamp, unit: us}
      - {name: day, type: date}
      - {name: raw, type: binary}
      - {name: note, type: string}
      - {name: at, type: int64, from: position}
      - {name: op, type: string, from: op}
      - {name: tx, type: string, from: transaction.id}
      - {name: changed, type: timestamptz, from: source.ts_ms}
"""
ROW = {"id": 1, "amount": "ME==", "placed": 1_700_000_000_000_000, "day": 1, "raw": "AAE=", "note": "n"}
PLACED = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
FIELDS = [
    {"field": "id", "type": "int64"},
    {"field": "amount", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    {"field": "placed", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
    {"field": "raw", "type": "bytes"}, {"field": "note", "type": "string"},
]  # fmt: skip
SCHEMA = {"type": "struct", "fields": [
    {"field": "before", "type": "struct", "fields": FIELDS}, {"field": "after", "type": "struct", "fields": FIELDS},
    {"field": "op", "type": "string"}, {"field": "source", "type": "struct", "fields": [
        *({"field": name, "type": "string"} for name in ("connector", "db", "schema", "table")),
        {"field": "ts_ms", "type": "int64"}, {"field": "lsn", "type": "int64"},
    ]},
    {"field": "transaction", "type": "struct", "fields": [{"field": "id", "type": "string"}]},
]}  # fmt: skip


def mapped(pairs: list[Pair], text: str = TOPIC) -> MappedBlock:
    """The ends of records by a bridge.yaml."""
    (topic,) = spec_file.parse(text, "bridge.yaml", Path(), lambda name: None).topics
    source = spec_file.parse(text, "bridge.yaml", Path(), lambda name: None).sources[topic.source]
    tables = {table.table: wanted_table(table) for table in topic.tables}
    records = block(pairs)
    made = Pipeline(
        topic=topic,
        tables=tables,
        decoder=decoder(topic, source),
        keys=key_decoder(topic, source, reads_fields=reads_key_fields(topic)),
    ).process(records)
    check_ends(records, made)
    return made


@pytest.mark.parametrize("schema", [False, True])
def test_events_are_rows_of_declared_columns(*, schema: bool) -> None:
    transaction = {"id": "7:24", "total_order": 1, "data_collection_order": 1}
    values: list[Any] = [
        event("c", None, ROW, transaction=transaction),
        event("u", None, ROW | {"note": "__debezium_unavailable_value"}),
        event("d", {"id": 1}),
        None,
        event("t"),
    ]
    pairs: list[Pair] = [
        ({"id": 1}, with_schema(SCHEMA, value) if schema and value is not None else value) for value in values
    ]
    made = mapped(pairs)
    (orders,) = made.tables
    assert orders.op.tolist() == [Op.PUT, Op.PUT, Op.DELETE]
    put, kept, gone = orders.batch.to_pylist()
    assert put == {
        "id": 1, "amount": Decimal("0.48"), "placed": PLACED.replace(tzinfo=None),
        "day": dt.date(1970, 1, 2), "raw": b"\0\1", "note": "n",
        "at": 24, "op": "c", "tx": "7:24", "changed": PLACED,
    }  # fmt: skip
    assert kept["note"] is None
    assert orders.kept["note"].to_pylist() == [False, True, False]
    assert (gone["id"], gone["at"], gone["note"]) == (1, 24, None)
    assert made.passed["tombstone"].tolist() == [3]
    assert [(reject.record, reject.code) for reject in made.rejects["shop.orders"]] == [(4, "truncate")]


def test_tables_are_named_by_the_origin_of_events() -> None:
    text = TOPIC.replace("table: shop.orders", 'table: "lake.{schema}_{table}"')
    (topic,) = spec_file.parse(text, "bridge.yaml", Path(), lambda name: None).topics
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "lsn": 1}
    records = block([({"id": 1}, event("c", None, ROW, source=source | {"table": name})) for name in ("a", "b")])
    tables = {name: wanted_table(topic.tables[0], name=name) for name in ("lake.public_a", "lake.public_b")}
    made = Pipeline(topic=topic, tables=tables, decoder=decoder(topic, SourceSpec("", "", ""))).process(records)
    check_ends(records, made)
    assert {part.table: part.record.tolist() for part in made.tables} == {"lake.public_a": [0], "lake.public_b": [1]}
    assert [part.batch.column("note").to_pylist() for part in made.tables] == [["n"], ["n"]]


def test_a_null_value_behind_a_delete_of_an_earlier_process_says_nothing() -> None:
    """Nothing else tells the table of a null value, so it was a dead letter when a bridge was killed before it."""
    text = TOPIC.replace("table: shop.orders", 'table: "lake.{schema}_{table}"')
    (topic,) = spec_file.parse(text, "bridge.yaml", Path(), lambda name: None).topics
    tables = {"lake.public_orders": wanted_table(topic.tables[0], name="lake.public_orders")}
    killed, again = (
        Pipeline(topic=topic, tables=tables, decoder=decoder(topic, SourceSpec("", "", ""))) for _ in range(2)
    )
    delete, null = block([({"id": 1}, event("d", ROW))]), block([({"id": 1}, None)], first=1)
    check_ends(delete, killed.process(delete))
    again.learn(delete)
    made = again.process(null)
    check_ends(null, made)
    assert (made.passed["tombstone"].tolist(), made.rejects, list(made.tables)) == ([0], {}, [])


@pytest.mark.parametrize(
    ("said", "instead", "word"),
    [
        ("debezium-json", "json", "only change events have"),
        ("unit: base64", "unit: us", "base64, text"),
        ("format: debezium-json", 'format: debezium-json\n    unavailable: ["hex:0"]', "hexadecimal"),
        ("type: timestamp, unit: us", "type: timestamp, unit: text", "s, ms, us, ns"),
    ],
)
def test_words_for_change_events_are_refused_elsewhere(said: str, instead: str, word: str) -> None:
    with pytest.raises(Invalid, match=word):
        mapped([], TOPIC.replace(said, instead))
