"""bridge.yaml: what a file says, what is refused with its line, and secrets that nobody sees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.spec import BatchBounds, BridgeSpec, RouteSpec
from lakestore.kafka.bridge.tables import wanted_definition, wanted_table
from lakestore.model import table_file
from lakestore.model.dead_letter_table import definition as dead_letter_table
from tests.support.seeds import examples

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "bridge"
ENVIRONMENT = {"REGISTRY_PASSWORD": "hush-registry", "KAFKA_PASSWORD": "hush-kafka"}
ORDERS, EVERYTHING = ((EXAMPLES / name).read_text() for name in ("orders.yaml", "everything.yaml"))
SMALL = "name: b\nsource: {bootstrap: 'h:1'}\ntopics:\n  - topic: t\n    table: d.t\n"


def parsed(text: str, folder: Path = EXAMPLES) -> BridgeSpec:
    return spec_file.parse(text, "bridge.yaml", folder, ENVIRONMENT.get)


def refused(text: str, folder: Path = EXAMPLES) -> str:
    with pytest.raises(Invalid) as caught:
        parsed(text, folder)
    return caught.value.message


def test_the_first_file_of_the_documents_is_the_bridge_that_it_says() -> None:
    spec = parsed(ORDERS)
    assert (spec.name, spec.batch) == ("shop", BatchBounds(10_000, 8_000_000, 0.2))
    assert spec.sources[""].bootstrap == "localhost:9092"
    assert spec.sources[""].group == "shop", "the bridge's name"
    [topic] = spec.topics
    assert (topic.topic, topic.format, topic.wire, topic.start, topic.line) == ("orders", "json", "auto", "earliest", 5)
    [table] = topic.tables
    assert [column.source for column in table.columns] == ["", "value.meta.ts", "headers.user", ""]
    assert (table.primary_key, table.coordinates, table.on_error) == (("order_id",), True, "dlq")


def test_every_key_reaches_its_field() -> None:
    spec = parsed(EVERYTHING)
    shop = spec.sources["shop"]
    assert shop.bootstrap == "broker-1:9093,broker-2:9093"
    assert dict(shop.options) == {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "lakestore",
        "sasl.password": "hush-kafka",
        "security.protocol": "SASL_SSL",
        "fetch.max.bytes": "52428800",
        "client.id": "lakestore",
    }
    assert shop.registry
    assert shop.registry.options == {"basic.auth.user.info": "lakestore:hush-registry"}
    orders, changes, audit, metrics = spec.topics
    assert isinstance(orders.target, RouteSpec)
    first, second = orders.tables
    assert (first.primary_key, second.primary_key, second.on_error) == (("order_id",), ("refund_id",), "fail")
    assert (orders.start, orders.target.otherwise, first.drift) == ("2026-11-20T10:00Z", "skip", "propose")
    assert (changes.pattern, changes.topic, changes.transactions) == (r"shop\.public\..*", "", "shop.transaction")
    assert [(each.events, each.event_columns) for each in (*changes.tables, *audit.tables)] == [
        (None, ("source.lsn",)),
        ("log", ()),
    ]
    assert (metrics.start, metrics.start_offsets) == ("offsets", {0: 1200, 1: 900})
    [table] = metrics.tables
    assert table.options == {
        "buckets": 8,
        "lake": {"partition_by": ["day(at)"]},
        "retention": {"age": "7d", "bytes": "10GB"},
    }
    machine, at, local, celsius, source = table.columns
    assert (machine.source, machine.required, at.unit, local.zone) == ("key", True, "s", "Europe/Berlin")
    assert (celsius.expression, source.default) == ("(value.fahrenheit - 32) / 1.8", "unknown")


def test_no_secret_is_in_the_text_of_a_bridge() -> None:
    assert "hush" not in repr(parsed(EVERYTHING))
    with_url = parsed(SMALL.replace("'h:1'}", "'h:1', registry: 'http://me:hush%21@r:1/x/'}"))
    registry = with_url.sources[""].registry
    assert registry
    assert (registry.url, registry.options["basic.auth.user.info"]) == ("http://r:1/x", "me:hush!")
    assert "hush" not in repr(with_url)


SOURCE = SMALL.replace("{bootstrap: 'h:1'}", "{{bootstrap: 'h:1', {}}}")


@pytest.mark.parametrize(
    "part",
    [
        "sasl: hush",
        "sasl: {mechanism: PLAIN, username: u, passwort: hush}",
        "sasl: {mechanism: PLAIN, username: u, password: [hush]}",
        "sasl: {mechanism: GSSAPI, password: hush}",
        "sasl: {mechanism: OAUTHBEARER, client_id: a, client_secret: hush}",
        "tls: hush",
        "tls: {key: hush}",
        "tls: {ca: x, key_password: {a: hush}}",
        "options: [hush]",
        "options: {sasl.password: [hush]}",
        "options: {group.id: hush}",
        "registry: 'ftp://me:hush@r:1'",
        "registry: 'http://me:hush@r:port'",
        "registry: {url: 'http://me:hush@r', username: a, password: hush}",
        "registry: {url: 'http://r', password: hush}",
        "registry: {url: 'http://r', token: {a: hush}}",
        "bootstrap2: hush",
    ],
)
def test_a_refusal_in_a_source_shows_no_value(part: str) -> None:
    message = refused(SOURCE.format(part))
    assert message.startswith("bridge.yaml, line 2: source")
    assert "hush" not in message


def test_secrets_come_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from file\n")
    part = "sasl: {mechanism: PLAIN, username: 'u-${KAFKA_PASSWORD}-$${x}', password: 'file:password'}"
    options = parsed(SOURCE.format(part), tmp_path).sources[""].options
    assert (options["sasl.username"], options["sasl.password"]) == ("u-hush-kafka-${x}", "from file")
    assert options["security.protocol"] == "SASL_PLAINTEXT"
    part = "sasl: {mechanism: PLAIN, username: u, password: '${NOT_SET}'}"
    assert "the variable NOT_SET, which is not set" in refused(SOURCE.format(part))
    part = "sasl: {mechanism: PLAIN, username: u, password: 'file:nowhere'}"
    assert "cannot be read: No such file" in refused(SOURCE.format(part), tmp_path)
    (tmp_path / "password").write_bytes(b"\xff")
    part = "sasl: {mechanism: PLAIN, username: u, password: 'file:password'}"
    assert "no text in UTF-8" in refused(SOURCE.format(part), tmp_path)


def test_certificates_are_files_that_are_there(tmp_path: Path) -> None:
    for name in ("ca.pem", "c.pem", "k.pem"):
        (tmp_path / name).write_text(name)
    part = "tls: {ca: ca.pem, cert: c.pem, key: k.pem, verify_hostname: false}"
    options = parsed(SOURCE.format(part), tmp_path).sources[""].options
    assert options["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert (options["security.protocol"], options["ssl.endpoint.identification.algorithm"]) == ("SSL", "none")
    assert "which is not there" in refused(SOURCE.format("tls: {ca: x.pem}"), tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 0, "is empty"),
        ("a: [", 0, "is not YAML"),
        ("- 1", 1, "takes keys with values, not a list"),
        (SMALL + "colour: red\n", 6, "has 'colour', which is not known: known are name, source"),
        (SMALL.replace("table:", "tabel:"), 5, "did you mean table?"),
        (SMALL.replace("name: b", "name: b\nname: c"), 2, "says 'name' twice"),
        (SMALL.replace("name: b", "name: 'a b'"), 1, "letters, digits"),
        (SMALL.replace("h:1", "h:99999"), 2, "HOST:PORT"),
        (SMALL.replace("topic: t", "topic: a b"), 4, "249 letters"),
        (SMALL.replace("topic: t", "pattern: '('"), 4, "not a regular expression"),
        (SMALL.replace("topic: t", "topic: t\n    pattern: t"), 4, "names a topic, or topics by a pattern"),
        (SMALL.replace("    table: d.t\n", ""), 4, "names a table, or tables by a route"),
        (SMALL.replace("d.t", "nodot"), 5, "nodot"),
        (SMALL.replace("d.t", "'d.{colour}'"), 5, "and not {colour}"),
        (SMALL.replace("d.t", "'d.{schema}'"), 5, "which only change events tell"),
        (SMALL + "    format: xml\n", 6, "is one of json, avro"),
        (SMALL + "    format: avro\n", 4, "there is no schema"),
        (SMALL + "    key_format: protobuf\n", 6, "no schema of keys"),
        (SMALL + "    format: debezium-json\n    key_format: string\n", 7, "is json or avro for change events"),
        (SMALL + "    wire: confluent\n", 6, "name it by registry"),
        (SMALL + "    schema: {subject: s}\n", 6, "name the registry"),
        (SMALL + "    schema: {text: a, file: b}\n", 6, "text or file, not both"),
        (SMALL + "    on_error: retry\n", 6, "is one of dlq, fail, skip, not 'retry'"),
        (SMALL + "    tombstone: {}\n", 6, "is one of delete, ignore, dlq"),
        (SMALL + "    start: tomorrow\n", 6, "is earliest, latest, a time"),
        (SMALL + "    start: {a: 1}\n", 6, "partitions with their offsets"),
        (SMALL + "    start: {0: -1}\n", 6, "whole number"),
        (SMALL + "    coordinates: 1\n", 6, "is true or false"),
        (SMALL + "    where:\n", 6, "has no value"),
        (SMALL + "    buckets: many\n", 5, "buckets"),
        (SMALL + "    lake: 5\n", 6, "lake"),
        (SMALL + "    format: debezium-avro\n    schema: '{}'\n    transactions: x\n", 8, "schemas in a registry"),
        (SMALL + "    format: debezium-avro\n    schema: '{}'\n", 4, "whose keys are Avro, too"),
        (SMALL + "    transactions: x\n", 6, "say a debezium format"),
        (SMALL + "    format: debezium-json\n    transactions: t\n", 4, "BEGINs and ENDs are read"),
        (SMALL + "    version: v\n", 6, "name a primary_key"),
        (SMALL + "    primary_key: id\n", 6, "takes a list"),
        (SMALL + "    primary_key: [id, id]\n", 6, "names 'id' twice"),
        (SMALL + "    columns: []\n", 6, "names no column"),
        (SMALL + "    columns: [{name: a}]\n", 6, "lacks 'type'"),
        (SMALL + "    columns: [{name: a, type: int65}]\n", 6, "'int65' is not known"),
        (SMALL + "    columns:\n      - {name: a, type: int64}\n      - {name: a, type: int64}\n", 7, "'a' twice"),
        (SMALL + "    columns: [{name: a, type: int64, from: val.x}]\n", 6, "is value.FIELD"),
        (SMALL + "    columns: [{name: a, type: int64, from: value.x, expression: '1'}]\n", 6, "not both"),
        (SMALL + "    columns: [{name: a, type: int64, default: x}]\n", 6, "default"),
        (SMALL + "    columns: [{name: a, type: timestamptz, unit: h}]\n", 6, "is one of s, ms, us, ns"),
        (SMALL + "    columns: [{name: a, type: timestamptz, zone: Mars}]\n", 6, "time zone"),
        (SMALL + "    primary_key: [id]\n    columns: [{name: a, type: int64}]\n", 5, "names column 'id'"),
        (SMALL + "    primary_key: [a]\n    columns: [{name: a, type: int64}, {name: kafka_source, type: int64}]\n", 5,
         "source positions needs that name"),
        (SMALL + "  - {topic: t, table: d.u}\n", 6, "stands at line 4"),
        (SMALL + "    source: x\n", 6, "but the file has no sources:"),
        (SMALL + "batch: {bytes: lots}\n", 6, "8MB or 512KB"),
        (SMALL + "batch: {time: 5}\n", 6, "200ms or 2s"),
        (SMALL + "batch: {rows: 0}\n", 6, "from 1 to 1,000,000"),
        ("a: &a [*a]\n", 1, "nests deeper"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, says: str) -> None:
    message = refused(text)
    assert message.startswith(f"bridge.yaml, line {line}: " if line else "bridge.yaml ")
    assert says in message


def test_merge_keys_and_aliases_are_followed() -> None:
    text = "name: b\nsource: {bootstrap: 'h:1'}\ntopics:\n  - &a {topic: t, table: d.t, on_error: fail}\n"
    second = parsed(text + "  - {<<: *a, topic: u, table: d.u}\n").topics[1]
    assert (second.topic, second.tables[0].table, second.tables[0].on_error) == ("u", "d.u", "fail")


def test_a_keyed_table_keeps_source_positions_unless_it_says_an_order_of_its_own() -> None:
    [table] = parsed(ORDERS).topics[0].tables
    made = wanted_table(table)
    names = [column.name for column in made.columns]
    assert names[4:] == ["kafka_source", "kafka_offset", "kafka_topic", "kafka_partition", "kafka_timestamp"]
    assert made.merge.engine == "versioned"
    assert made.column("order_id").required
    columns = "    primary_key: [a]\n    columns: [{name: a, type: int64}, {name: v, type: int64}]\n"
    [other] = parsed(SMALL + columns + "    version: v\n").topics[0].tables
    assert (str(wanted_table(other).merge), wanted_table(other).column("v").required) == ("versioned(v)", True)
    [other] = parsed(SMALL + columns + "    merge: partial\n").topics[0].tables
    assert [column.name for column in wanted_table(other).columns] == ["a", "v"]


def test_tables_of_a_bridge_are_a_file_that_apply_takes() -> None:
    for topic in parsed(EVERYTHING).topics:
        for spec in topic.tables:
            if spec.columns:
                table = wanted_definition(spec)
                [again] = table_file.parse(table_file.yaml_of([table]), "tables.yaml")
                assert again.definition() == table.definition()
    assert dead_letter_table("shop.orders").primary_key == ("kafka_source", "kafka_offset")


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.text(max_size=8)
    | st.sampled_from(["earliest", "json", "versioned(a)", "d.t", "{topic}", "file:x", "${A}", "value.a", "8MB", "1s"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


SIGNS = "{}[]:,-&*!|>'\"#%@`? \n\tab1\0é\ud800"


def _places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, part in inner for place in _places(part, (*way, key)))]


def _put(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    if not way:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = _put(copy[way[0]], way[1:], new)
    return copy


def one_sentence_or_a_bridge(text: str) -> None:
    try:
        assert isinstance(parsed(text), BridgeSpec)
    except Invalid as error:
        assert error.message.startswith("bridge.yaml")
        assert "\n" not in error.message or "\n" in text
        assert not re.search(r"Traceback|object at 0x", error.message)
        assert "hush" not in error.message


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_value_anywhere_is_a_bridge_or_one_sentence(data: st.DataObject) -> None:
    whole = yaml.safe_load(data.draw(st.sampled_from([ORDERS, EVERYTHING])))
    for _ in range(data.draw(st.integers(1, 2))):
        whole = _put(whole, data.draw(st.sampled_from(_places(whole))), data.draw(VALUES))
    one_sentence_or_a_bridge(yaml.safe_dump(whole, allow_unicode=True))


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_text_is_a_bridge_or_one_sentence(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([ORDERS, EVERYTHING]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        until = data.draw(st.integers(at, min(at + 30, len(text))))
        text = text[:at] + data.draw(st.text(alphabet=SIGNS, max_size=4)) + text[until:]
    one_sentence_or_a_bridge(text)


def test_the_page_of_the_bridge_has_a_file_that_is_one_and_names_every_key() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "bridge.md").read_text()
    [text] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert parsed(text).topics[0].tables[0].primary_key == ("order_id",)
    named = {name for spoken in re.findall(r"`([^`]*)`", page) for name in re.findall(r"\w+", spoken)}
    keys = {
        *spec_file.KEYS,
        *spec_file.BATCH_KEYS,
        *spec_file.TOPIC_KEYS,
        *spec_file.SCHEMA_KEYS,
        *spec_file.ROUTE_KEYS,
        *spec_file.COLUMN_KEYS,
        *spec_file.SOURCE_KEYS,
        *spec_file.SASL_KEYS,
        *spec_file.TLS_KEYS,
        *spec_file.REGISTRY_KEYS,
        *(value for known in spec_file.POLICIES.values() for value in known),
    }
    assert not keys - named
