"""A bridge put together: tables come with the records that tell them, grow with the file, and are not made anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid, NotFound
from lakestore.kafka.bridge import assembly, spec_file
from lakestore.kafka.bridge.assembly import Assembly, TopicPipeline
from lakestore.kafka.bridge.decode.registry import Registry
from lakestore.kafka.bridge.decode.schemas import RegistrySchema
from lakestore.kafka.bridge.first_file import first_file, format_of, table_of
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import SourceSpec


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


def records(values: Sequence[Any], topic: str = "t", keys: Sequence[Any] | None = None) -> Records:
    def raw(value: Any) -> bytes | None:
        return value if isinstance(value, bytes | None) else json.dumps(value).encode()

    count = len(values)
    return Records(
        topic,
        "ID",
        np.zeros(count, np.int64),
        np.arange(count),
        np.full(count, 1_790_000_000_000),
        pa.array([raw(key) for key in keys or [None] * count], pa.binary()),
        pa.array([raw(value) for value in values], pa.binary()),
    )


def pipeline(lake: ls.Lake, text: str, name: str = "t") -> TopicPipeline:
    spec = spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{{{text}}}]", "bridge.yaml")
    return Assembly(spec, lake).pipeline(spec.topics[0], name)


def event(op: str, after: Any, table: str = "products") -> dict[str, Any]:
    source = {"db": "inv", "schema": "public", "table": table, "connector": "postgresql", "lsn": 1}
    return {"op": op, "before": None, "after": after, "source": source, "ts_ms": 1}


def test_columns_of_samples_make_the_table_and_bad_records_wait_for_good_ones(lake: ls.Lake) -> None:
    way = pipeline(lake, "topic: t, table: 'd.{topic}', primary_key: [id]")
    assert list(way.process(records([b"{"])).rejects) == ["d.t"]
    assert lake.tables() == []
    [rows] = way.process(records([{"id": 1, "a": {"b": 2.5}}, b"{"])).tables
    assert rows.batch.num_rows == 1
    made = lake.table("d.t").definition
    assert [(c.name, c.required) for c in made.columns] == [
        ("id", True), ("a", False), ("kafka_source", True), ("kafka_offset", True),
    ]  # fmt: skip
    assert str(made.merge) == "versioned(kafka_offset, within kafka_source)"


def test_columns_that_the_file_gained_are_added(lake: ls.Lake) -> None:
    pipeline(lake, "topic: t, table: d.t, columns: [{name: a, type: int64}]").process(records([{"a": 1}]))
    grown = "topic: t, table: d.t, columns: [{name: a, type: int64}, {name: b, type: string, required: true}]"
    [rows] = pipeline(lake, grown).process(records([{"a": 1, "b": "x"}])).tables
    assert rows.batch.to_pylist() == [{"a": 1, "b": "x"}]
    assert not lake.table("d.t").definition.column("b").required
    with pytest.raises(Invalid, match=r"has the key \(\), and the bridge writes by \(a\)"):
        pipeline(lake, f"{grown}, primary_key: [a]").process(records([{"a": 1}]))


def test_a_table_that_is_dropped_is_not_made_anew(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    way = pipeline(lake, "topic: t, table: d.t, columns: [{name: a, type: int64}]")
    way.process(records([{"a": 1}]))
    lake.drop_table("d.t")
    monkeypatch.setattr(assembly, "REFRESH_SECONDS", 0.0)
    with pytest.raises(NotFound, match=r"d\.t was dropped while the bridge writes to it"):
        way.process(records([{"a": 1}]))


def test_tables_of_change_events_have_the_names_and_keys_of_their_source(lake: ls.Lake) -> None:
    way = pipeline(lake, "topic: t, format: debezium-json, table: '{schema}.{table}'")
    way.process(records([{"heartbeat": 1}]))
    assert lake.tables() == [], "nothing tells a table yet"
    events = [event("c", {"id": 1, "n": "a"}), event("c", {"id": 2, "n": "b"}, "orders")]
    way.process(records(events, keys=[{"id": 1}, {"id": 2}]))
    assert {table.name: table.definition.primary_key for table in lake.tables()} == {
        "public.products": ("id",),
        "public.orders": ("id",),
    }
    again = pipeline(lake, "topic: t, format: debezium-json, table: public.orders")
    again.process(records([{"heartbeat": 1}]))


def test_one_odd_record_in_a_thousand_does_not_make_a_column_text(lake: ls.Lake) -> None:
    values: list[Any] = [{"qty": number} for number in range(1_001)] + [{"qty": "many"}]
    assert "- {name: qty, type: int64}     # 1 of 1,002 samples would be dead letters" in first_file(
        SourceSpec("", "h:1", "g"), records(values, "orders")
    )
    mapped = pipeline(lake, "topic: t, table: d.t").process(records(values))
    assert lake.table("d.t").definition.column("qty").type == "int64"
    assert [each.record for each in mapped.rejects["d.t"]] == [1_001]


@pytest.mark.parametrize(
    ("topic", "template", "dead"),
    [
        ("t", "{schema}.{table}", ["public.orders", "public.products"]),
        ("shop.app.kitchen", "n_{schema}.{table}", ["n_public.orders", "n_public.products"]),
        ("t", "d.all", ["d.all"]),
    ],
)
def test_dead_letters_of_a_table_lie_in_one_place(lake: ls.Lake, topic: str, template: str, dead: list[str]) -> None:
    text = f"pattern: '.*', format: debezium-json, table: '{template}'"
    events = [event("c", {"id": 1}), event("c", None), event("t", None, "orders"), event("c", {"id": 1}, "orders")]
    mapped = pipeline(lake, text, topic).process(records(events, topic, keys=[{"id": 1}] * 4))
    assert sorted(mapped.rejects) == dead
    assert sum(map(len, mapped.rejects.values())) == 2


def test_a_record_that_tells_no_origin_is_a_dead_letter_of_the_one_table_of_its_topic(lake: ls.Lake) -> None:
    text = "pattern: '.*', format: debezium-json, table: '{schema}.{table}'"
    way = pipeline(lake, text, "shop.app.kitchen")
    assert list(way.process(records([b"{"], "shop.app.kitchen")).rejects) == ["app.kitchen"], "by the topic's name"
    way.process(records([event("c", {"id": 1})], "shop.app.kitchen", keys=[{"id": 1}]))
    assert list(way.process(records([b"{"], "shop.app.kitchen")).rejects) == ["public.products"], "by its rows"


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([{"a": 1}, {"a": 2}], "json"),
        ([event("c", {"id": 1})], "debezium-json"),
        ([{"schema": {}, "payload": event("c", {"id": 1})}], "debezium-json"),
        ([b"\xff\xff\xff\xff\x10\x00"], "arrow"),
        ([b"line 1"], "raw"),
        ([[1, 2]], "raw"),
        ([], "raw"),
        ([None], "raw"),
    ],
)
def test_a_format_is_told_by_most_records(values: list[Any], form: str) -> None:
    assert format_of(records(values), None) == form


def test_records_that_name_schemas_need_their_registry() -> None:
    with pytest.raises(Invalid, match="say --registry"):
        format_of(records([b"\x00\x00\x00\x00\x07abc"]), None)


@pytest.mark.parametrize(
    ("topic", "table"),
    [("shop.orders", "shop.orders"), ("orders", "kafka.orders"), ("a-b.c.d", "kafka.a_b_c_d"), ("1", "kafka._1")],
)
def test_a_topic_has_a_table(topic: str, table: str) -> None:
    assert table_of(topic) == table


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b"\x00\xff"],
        [{"id": 1, "we ird: #name": {"x": [1]}, "e": [], "n": None, "d": "2026-01-01"}, {"id": 2}],
        [event("c", {"id": 1, "n": "a"}), event("d", None)],
    ],
)
def test_a_first_file_is_a_bridge_that_takes_its_samples(lake: ls.Lake, values: list[Any]) -> None:
    for topic in ("orders", "odd-Topic.x.y", "1"):
        samples = records(values, topic)
        spec = spec_file.parse(first_file(SourceSpec("", "h:1", "g"), samples), "bridge.yaml")
        mapped = Assembly(spec, lake).pipeline(spec.topics[0], topic).process(samples)
        assert len(mapped.tables) == (1 if values else 0)


def test_a_first_file_of_a_topic_with_a_long_name_is_a_bridge() -> None:
    text = first_file(SourceSpec("", "h:1", "g"), records([{"a": 1}], "t" * 249), table="d.t")
    assert spec_file.parse(text, "bridge.yaml").topics[0].topic == "t" * 249


def test_a_first_file_tells_of_odd_samples_and_of_the_records_key() -> None:
    values: list[Any] = [{"id": n % 15, "n": n / 2, "s": "x"} for n in range(19)] + [{"id": 3, "n": "many", "s": "y"}]
    samples = records(values, "orders", [value["id"] for value in values])
    text = first_file(SourceSpec("", "h:1", "g"), samples)
    assert "    # primary_key: [id]     # the key of every sample" in text
    assert "- {name: n, type: string}     # float64 would make dead letters of 1 of 20 samples" in text
    asked: list[tuple[Any, ...]] = []

    def choose(*question: Any) -> bool:
        asked.append(question)
        return True

    chosen = first_file(SourceSpec("", "h:1", "g"), samples, choose=choose)
    assert asked == [("n", "float64", 1, 20)]
    assert "- {name: n, type: float64}     # 1 of 20 samples would be dead letters; type: string takes all" in chosen
    assert "- {name: s, type: string}\n" in text
    assert spec_file.parse(text, "bridge.yaml").topics[0].tables[0].primary_key == ()


@pytest.mark.parametrize(
    ("kind", "text", "form"),
    [
        ("AVRO", '{"type": "record", "name": "Order", "fields": []}', "avro"),
        ("AVRO", '["op", "source", "before", "after"]', "debezium-avro"),
        ("PROTOBUF", "message A {}", "protobuf"),
        ("JSON", "{}", "json"),
    ],
)
def test_a_registry_tells_the_format_of_records_that_name_schemas(kind: str, text: str, form: str) -> None:
    class Known(Registry):
        def __init__(self) -> None:
            pass

        def by_id(self, name: int | str) -> RegistrySchema:
            assert name == 7
            return RegistrySchema(kind, text)

    assert format_of(records([b"\x00\x00\x00\x00\x07abc"]), Known()) == form
