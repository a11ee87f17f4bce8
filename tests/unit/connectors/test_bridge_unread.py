"""No field of a record is dropped in silence: fields seen are fields stored, refused or counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.outcome import MappedBlock, Op
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import BridgeSpec, ColumnSpec, SourceSpec, TableSpec, TopicSpec
from tests.support import debezium_events
from tests.support.bridge_blocks import block
from tests.support.debezium_events import event, with_schema

POLICIES: Mapping[str, dict[str, Any]] = {
    "follow": {},
    "propose": {"drift": "propose"},
    "ignore": {"drift": "ignore"},
    "named": {"columns": (ColumnSpec("id", "int64"), ColumnSpec("deep", "int64", "value.inner.a"))},
}
WIRES = {"id": "int64", "qty": "int32", "name": "string", "flag": "boolean", "price": "double"}


@pytest.fixture
def lake(tmp_path: Any) -> Iterator[ls.Lake]:
    with ls.open(tmp_path / "lake") as opened:
        yield opened


def _values(chance: random.Random, names: Sequence[str]) -> dict[str, Any]:
    made = {"qty": chance.randrange(9), "name": f"n{chance.randrange(9)}", "flag": True, "price": 0.5}
    return {name: None if chance.random() < 0.2 else made[name] for name in names}


def _rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows whose fields come, go and are called otherwise, each set for a while; with objects in some."""
    rows, names = [], ["qty"]
    for number in range(count):
        if chance.random() < 0.2:
            names = chance.sample(["qty", "name", "flag", "price"], chance.randrange(4))
        rows.append({"id": number, **_values(chance, names)})
    return rows


def _plain(rows: Sequence[Mapping[str, Any]]) -> Records:
    return block([json.dumps(row).encode() for row in rows])


def _events(rows: Sequence[Mapping[str, Any]], *, schema: bool) -> Records:
    """Change events, with the schema of each row's own fields or without."""
    pairs = []
    for row in rows:
        value: Any = event("c", None, row)
        if schema:
            fields = [{"field": name, "type": WIRES[name], "optional": True} for name in row]
            image = {"type": "struct", "optional": True, "fields": fields}
            parts = [{**image, "field": name} for name in ("before", "after")]
            source = {"field": "source", "type": "struct", "fields": [
                {"field": name, "type": "string", "optional": True} for name in ("connector", "db", "schema", "table")
            ]}  # fmt: skip
            op = {"field": "op", "type": "string"}
            value = with_schema({"type": "struct", "fields": [*parts, source, op]}, value)
        pairs.append(({"id": row["id"]}, value))
    return debezium_events.block(pairs)


def _seen(row: Mapping[str, Any], front: str = "") -> Iterator[str]:
    """The fields of a record that have a value."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _seen(value, f"{front}{name}.")
        elif value is not None:
            yield front + name


def _stored(mapped: MappedBlock, sources: Mapping[str, str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for rows in mapped.tables:
        for name in rows.batch.schema.names:
            if name.startswith("kafka_"):
                continue
            column = rows.batch.column(name)
            found[sources.get(name, name)] += len(column) - column.null_count
    return found


def _check(mapped: MappedBlock, rows: Sequence[Mapping[str, Any]], sources: Mapping[str, str]) -> None:
    refused = {reject.record for rejects in mapped.rejects.values() for reject in rejects}
    seen = Counter(name for number, row in enumerate(rows) if number not in refused for name in _seen(row))
    counted = Counter({field: len(records) for (_, field), records in mapped.unread.items()})
    assert _stored(mapped, sources) + counted == seen
    assert all(rows.op.tolist() == [Op.PUT] * len(rows.op) for rows in mapped.tables)


def _topic(form: str, policy: str, table: str) -> TopicSpec:
    said = POLICIES[policy]
    key = ("id",)
    if policy == "named" and form != "json":
        said = {"columns": (ColumnSpec("id", "int64"), ColumnSpec("amount", "int64", "value.qty"))}
    return TopicSpec(
        "", "orders", target=TableSpec(table, key, **said), format="json" if form == "json" else "debezium-json"
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["json", "typed", "plain"])
@pytest.mark.parametrize("table", ["shop.orders", "{schema}.{table}"])
def test_fields_seen_are_fields_stored_or_counted(lake: ls.Lake, form: str, policy: str, table: str) -> None:
    if form == "json" and "{" in table:
        table = "shop.{topic}"
    topic = _topic(form, policy, table)
    spec = BridgeSpec("b", {"": SourceSpec("", "", "b")}, (topic,))
    assembly, chance = Assembly(spec, lake), random.Random(f"{form} {policy}")
    pipeline = assembly.pipeline(topic, "orders")
    sources = {"deep": "inner.a", "amount": "qty"}
    for _ in range(6):
        rows = _rows(chance, 80)
        if form == "json":
            for row in rows[::3]:
                row["inner"] = {"a": 1, "b": chance.choice((None, 2)), "c": [1]}
            if policy != "named":
                rows = [{name: value for name, value in row.items() if name != "inner"} for row in rows]
        mapped = pipeline.process(_plain(rows) if form == "json" else _events(rows, schema=form == "typed"))
        _check(mapped, rows, sources)
        if policy == "follow":
            assert mapped.unread == {}


def test_a_field_of_several_types_that_nothing_reads_is_counted(lake: ls.Lake) -> None:
    topic = replace(_topic("json", "named", "shop.orders"))
    spec = BridgeSpec("b", {"": SourceSpec("", "", "b")}, (topic,))
    pipeline = Assembly(spec, lake).pipeline(topic, "orders")
    rows: list[dict[str, Any]] = [{"id": number, "odd": (1, "x", [2], None)[number % 4]} for number in range(400)]
    mapped = pipeline.process(_plain(rows))
    _check(mapped, rows, {})
    assert len(mapped.unread["shop.orders", "odd"]) == 300


def test_fields_inside_lists_are_counted(lake: ls.Lake) -> None:
    items = ColumnSpec("items", "list<struct<a: int64>>")
    topic = TopicSpec("", "orders", target=TableSpec("shop.orders", ("id",), (ColumnSpec("id", "int64"), items)))
    spec = BridgeSpec("b", {"": SourceSpec("", "", "b")}, (topic,))
    pipeline = Assembly(spec, lake).pipeline(topic, "orders")
    for odd in (2, "x"):  # the second block is read by another way, for its values are of several types
        rows = [{"id": number, "items": [{"a": 1}, {"a": 2, "b": odd if number else 1}]} for number in range(3)]
        mapped = pipeline.process(_plain([*rows, {"id": 9, "items": [{"a": 1, "b": None}]}]))
        assert {name: len(records) for name, records in mapped.unread.items()} == {("shop.orders", "items.b"): 3}


@pytest.mark.parametrize("odd", ["x", 7])
def test_fields_that_come_later_inside_objects_of_change_events_are_counted(lake: ls.Lake, odd: object) -> None:
    topic = _topic("plain", "follow", "{schema}.{table}")
    spec = BridgeSpec("b", {"": SourceSpec("", "", "b")}, (topic,))
    pipeline = Assembly(spec, lake).pipeline(topic, "orders")
    first = {"id": 0, "inner": {"a": 1, "deep": {"b": 2}}, "items": [{"a": 1}]}
    assert pipeline.process(_events([first], schema=False)).unread == {}
    later = {"id": 1, "inner": {"a": 1, "c": "c", "deep": {"b": 2, "d": 3, "e": None}}, "items": [{"a": 1, "f": 4}]}
    mapped = pipeline.process(_events([first, later, {**later, "id": odd}], schema=False))
    refused = sum(map(len, mapped.rejects.values()))
    counted = {field: len(records) for (_, field), records in mapped.unread.items()}
    assert counted == dict.fromkeys(("inner.c", "inner.deep.d", "items.f"), 2 - refused)


def test_fields_of_older_records_are_columns_of_a_table_that_is_made(lake: ls.Lake) -> None:
    topic = _topic("typed", "follow", "{schema}.{table}")
    spec = BridgeSpec("b", {"": SourceSpec("", "", "b")}, (topic,))
    rows: list[dict[str, Any]] = [{"id": 1, "qty": 3}, {"id": 2, "name": "new"}, {"id": 3, "name": "x", "price": 0.5}]
    mapped = Assembly(spec, lake).pipeline(topic, "orders").process(_events(rows, schema=True))
    assert {"qty", "name", "price"} <= set(lake.table("public.orders").schema.names)
    _check(mapped, rows, {})


def test_a_block_of_several_tables_gives_each_its_fields(lake: ls.Lake) -> None:
    topic = _topic("plain", "follow", "{schema}.{table}")
    spec = BridgeSpec("b", {"": SourceSpec("", "", "b")}, (topic,))
    pipeline = Assembly(spec, lake).pipeline(topic, "orders")

    def one(table: str, row: dict[str, Any]) -> tuple[Any, Any]:
        made = event("c", None, row)
        return {"id": row["id"]}, made | {"source": made["source"] | {"table": table}}

    pipeline.process(debezium_events.block([one("a", {"id": 1}), one("b", {"id": 1})]))
    mapped = pipeline.process(debezium_events.block([one("a", {"id": 2, "x": 1}), one("b", {"id": 2, "y": "t"})]))
    assert mapped.unread == {}
    assert pa.types.is_int64(lake.table("public.a").schema.field("x").type)
    assert "y" not in lake.table("public.a").schema.names
    assert pa.types.is_string(lake.table("public.b").schema.field("y").type)
