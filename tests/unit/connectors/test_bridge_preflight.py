"""Checks as text, advice about keys of change events, and the file of a whole Debezium server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.kafka.bridge import preflight, spec_file
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.first_file import Topic, first_file, server_file
from lakestore.kafka.bridge.preflight import Finding, Level, event_keys
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import SourceSpec, TopicSpec
from tests.support.debezium_events import Pair, block, event

SOURCE = SourceSpec("", "h:1", "g")
ROWS = [{"k": number, "v": "x", "at": 9, "note": None if number else "y"} for number in range(5)]
KEYLESS: list[Pair] = [(None, event("c", None, row)) for row in ROWS]
KEYED: list[Pair] = [({"k": row["k"]}, event("c", None, row)) for row in ROWS]
TOPIC = "topic: shop.public.orders, format: debezium-json, table: '{schema}.{table}'"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


def advice(lake: ls.Lake, pairs: Sequence[Pair], more: str = "", partitions: int = 1) -> list[Finding]:
    """The findings about the keys of a topic's events."""
    spec = spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{{{TOPIC}{more}}}]", "bridge.yaml")
    records = block(pairs)
    facts = event_keys(spec.topics[0], records.topic, records, spec)
    assert facts is not None
    [planned] = Assembly(spec, lake, writes=False).plan(spec.topics[0], records.topic, records)
    return list(preflight.findings(planned, facts, records.topic, partitions))


def kinds(found: Sequence[Finding]) -> list[str]:
    assert all(each.level is Level.WARNS and each.mend for each in found)
    return [each.kind for each in found]


def test_a_table_without_a_key_is_told_with_a_key_to_take(lake: ls.Lake) -> None:
    [found] = advice(lake, KEYLESS)
    assert found.about == "table public.orders"
    assert "have no key, so it is a log" in found.sentence
    assert "ALTER TABLE public.orders REPLICA IDENTITY FULL" in found.mend
    assert "primary_key: [k]  (different in all 5 sampled rows)" in found.mend
    [found] = advice(lake, [(None, event("c", None, {"a": 1, "b": 2, "n": None}))] * 3)
    assert "primary_key: [a, b]  (all columns that are never null" in found.mend


@pytest.mark.parametrize(
    ("pairs", "more", "partitions", "expected"),
    [
        (KEYED, "", 3, []),
        (KEYLESS, ", events: log", 3, []),
        (KEYLESS, ", primary_key: [k]", 1, ["other-key"]),
        (KEYLESS, ", primary_key: [k]", 3, ["other-key", "order"]),
        ([*KEYLESS, (None, event("u", ROWS[0], ROWS[1]))], ", primary_key: [k]", 1, []),
        ([*KEYLESS, (None, event("u", None, ROWS[1]))], ", primary_key: [k]", 1, ["other-key"]),
        (KEYED, ", version: at", 1, ["version"]),
        ([*KEYED, ({"k": 1}, event("u", ROWS[1], ROWS[1]))], ", version: at", 1, []),
    ],
)
def test_keys_that_lose_rows_are_told(
    lake: ls.Lake, pairs: Sequence[Pair], more: str, partitions: int, expected: list[str]
) -> None:
    assert kinds(advice(lake, pairs, more, partitions)) == expected


@pytest.mark.parametrize(("count", "kinds"), [(50, ["number"]), (500, []), (4, [])])
def test_a_field_that_odd_samples_make_text_is_told(count: int, kinds: list[str]) -> None:
    values: list[Any] = [*range(count), "many"]
    records = block([(None, event("c", None, {"qty": value})) for value in values])
    plain = block([(None, {"qty": value}) for value in values])
    for topic, of_topic, names in (
        (TopicSpec("", "t", format="debezium-json"), records, kinds),
        (TopicSpec("", "t"), plain, ["int64" for _ in kinds]),
    ):
        said = [each.sentence for each in preflight.mixed_fields(topic, "t", of_topic)]
        assert said == [f"qty is text, for 1 of {count + 1} sampled values are no {name}" for name in names]


def test_a_first_file_says_that_change_events_have_no_key() -> None:
    text = first_file(SOURCE, block(KEYLESS))
    assert "# the change events have no key" in text
    assert "# primary_key: [k]     # different in all 5 sampled rows" in text
    assert "# the key is that of the change events: k" in first_file(SOURCE, block(KEYED))


def test_a_check_says_what_matters_first_and_equal_findings_once() -> None:
    many = [Finding(Level.OK, f"table d.t{number}", "will be made", "made") for number in range(40)]
    lacks = [Finding(Level.NOTE, "table d.t0", f"{number} records lack c{number}", "lacks") for number in range(1, 40)]
    warns = [Finding(Level.WARNS, f"table d.w{number}", "is a log", "keyless", "say\nthis") for number in range(2)]
    stops = Finding(Level.STOPS, "topic x", "is gone")
    found = [*many[:20], *lacks, *many[20:], *warns, stops]
    assert list(preflight.lines(found)) == [
        "stops  topic x: is gone",
        "warns  2 tables (d.w0, d.w1), as table d.w0: is a log",
        "         mend: say",
        "               this",
        "note   table d.t0 and 38 more findings like this: 1 records lack c1",
        "ok     40 tables (d.t0, d.t1, d.t2, d.t3, d.t4, d.t5 and 34 more), as table d.t0: will be made",
    ]
    assert len([line for line in preflight.lines(found, whole=True) if line[:6].strip()]) == 82
    assert preflight.summary(found) == "1 of 82 findings would stop the bridge, 2 warnings, 39 notes"
    assert preflight.summary(many) == "nothing stops the bridge"


def samples(topic: str, pairs: Sequence[Pair]) -> Records:
    return replace(block(pairs), topic=topic)


def of_table(pairs: Sequence[Pair], schema: str, table: str) -> list[Pair]:
    """The events with another origin."""
    return [(key, value | {"source": value["source"] | {"schema": schema, "table": table}}) for key, value in pairs]


MARK = {"status": "BEGIN", "id": "7:1", "event_count": None, "ts_ms": 1}
SERVER: dict[str, list[Pair]] = {
    "shop": [(None, {"ddl": "CREATE", "databaseName": "d", "ts_ms": 1})],
    "shop.app.a": of_table(KEYED, "app", "a"),
    "shop.app.b": of_table(KEYED, "app", "b"),
    "shop.app.beat": [(None, {"ts_ms": 1})],
    "shop.app.empty": [],
    "shop.app.nopk": of_table(KEYLESS, "app", "nopk"),
    "shop.transaction": [({"id": "7:1"}, MARK), ({"id": "7:1"}, MARK | {"status": "END"})],
}


def test_a_server_has_one_file_for_all_its_topics(lake: ls.Lake) -> None:
    topics = [Topic.of(samples(name, pairs), SOURCE) for name, pairs in SERVER.items()]
    text = server_file(SOURCE, "shop", topics)
    spec = spec_file.parse(text, "bridge.yaml")
    assert spec.name == "shop"
    shared, alone = spec.topics
    read = {name: entry for name in [*SERVER, "shop.app.later"] if (entry := spec.entry(name)) is not None}
    assert read == {
        "shop.app.a": shared,
        "shop.app.b": shared,
        "shop.app.empty": shared,
        "shop.app.later": shared,
        "shop.app.nopk": alone,
    }
    assert {each.transactions for each in spec.topics} == {"shop.transaction"}
    assert (
        "# Left out: shop (schema-change)\n# Left out: shop.app.beat (heartbeat)\n# Empty yet: shop.app.empty" in text
    )
    assert "  #   app.a (k)\n  #   app.b (k)\n" in text
    assert "# primary_key: [k]     # different in all 5 sampled rows" in text
    plain = spec_file.parse(text.replace("transactions:", "# transactions:"), "bridge.yaml")
    assembly = Assembly(plain, lake)
    for name, pairs in SERVER.items():
        if (entry := plain.entry(name)) is not None and pairs:
            mapped = assembly.pipeline(entry, name).process(samples(name, pairs))
            assert (len(mapped.tables), mapped.rejects) == (1, {})
    made = {table.name: table.definition.primary_key for table in lake.tables()}
    assert made == {"app.a": ("k",), "app.b": ("k",), "app.nopk": ()}


def test_a_server_without_schemas_is_named_by_its_databases_and_one_without_events_is_refused() -> None:
    mysql: dict[str, Any] = {"connector": "mysql", "name": "m", "db": "inv", "table": "t", "file": "b.000001", "pos": 4}
    pairs: list[Pair] = [({"k": row["k"]}, event("c", None, row, source=mysql)) for row in ROWS]
    text = server_file(SOURCE, "m", [Topic.of(samples("m.inv.t", pairs), SOURCE)])
    [entry] = spec_file.parse(text, "bridge.yaml").topics
    assert entry.tables[0].table == "{database}.{table}"
    with pytest.raises(Invalid, match=r"begins with m\. has change events: there are m\.x \(no records\)"):
        server_file(SOURCE, "m", [Topic.of(samples("m.x", []), SOURCE)])


def test_samples_without_a_row_tell_no_keys() -> None:
    spec = spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{{{TOPIC}}}]", "bridge.yaml")
    records = block([(None, {"ts_ms": 1})])
    assert event_keys(spec.topics[0], records.topic, records, spec) is None
    assert event_keys(spec.topics[0], records.topic, records.take(np.array([], np.int64)), spec) is None
