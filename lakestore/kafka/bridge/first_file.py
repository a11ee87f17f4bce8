"""Writes a first bridge.yaml for a topic from sampled records and a registry: format, columns, candidates for keys."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid, NotFound
from lakestore.kafka.bridge.assembly import TableFacts
from lakestore.kafka.bridge.decode.debezium.debezium import reason_of
from lakestore.kafka.bridge.decode.decoders import decoder
from lakestore.kafka.bridge.decode.decoders import registry as registry_of
from lakestore.kafka.bridge.decode.inference import infer_schema, storable
from lakestore.kafka.bridge.decode.registry import Registry
from lakestore.kafka.bridge.expressions import origins
from lakestore.kafka.bridge.outcome import DecodedBlock
from lakestore.kafka.bridge.preflight import EventKeys, full_rows
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import CHANGES, BridgeSpec, Format, SourceSpec, TableSpec, TopicSpec
from lakestore.model.table_file import WantedColumn, column_text
from lakestore.model.types import type_name

LOOKED_AT = 200
"""Records that decide the format."""
MOST = 0.9
"""The share of records that must have the format."""
NAME_CHARS_MAX = 200
"""Longest name of a bridge in bridge.yaml; topic names have up to 249 characters."""
Choose = Callable[[str, str, int, int], bool]
"""Callback (field, type, misfits, samples): true if the field gets this type although some samples do not fit."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMATS: dict[str, Format] = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json"}
_ENVELOPE = {"op", "source", "before", "after"}


def format_of(records: Records, registry: Registry | None) -> Format:
    """The format of most records; raw if it is unclear. Raises `Invalid` if a registry is needed."""
    values = records.values.drop_null().slice(0, LOOKED_AT).to_pylist()
    if not values:
        return "raw"
    framed = [value for value in values if len(value) > 5 and value[0] == 0]
    if len(framed) >= MOST * len(values):
        return _registered(int.from_bytes(framed[-1][1:5], "big"), registry)
    objects = [found for value in values if (found := json_object(value)) is not None]
    if len(objects) >= MOST * len(values):
        events = [each for each in objects if _is_event(each)]
        return "debezium-json" if len(events) >= MOST * len(objects) else "json"
    arrow = [value for value in values if value[:4] == b"\xff\xff\xff\xff" or value[:6] == b"ARROW1"]
    return "arrow" if len(arrow) >= MOST * len(values) else "raw"


def json_object(value: bytes) -> dict[str, Any] | None:
    """The JSON object in a value; None for other values."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_event(value: dict[str, Any]) -> bool:
    payload = value.get("payload", value)
    return isinstance(payload, dict) and len(_ENVELOPE & set(payload)) >= 3 and "op" in payload


def _registered(number: int, registry: Registry | None) -> Format:
    if registry is None:
        raise Invalid(
            f"the records name schemas of a registry (the newest has number {number}): say --registry http://HOST:8081"
        )
    try:
        found = registry.by_id(number)
    except NotFound as error:
        raise Invalid(f"the newest record names schema {number}, which the registry does not have") from error
    form = _FORMATS.get(found.kind)
    if form is None:
        raise Invalid(f"schema {number} is of the kind {found.kind}, which the bridge does not read: say format: raw")
    if form == "avro" and all(f'"{name}"' in found.text for name in _ENVELOPE):
        return "debezium-avro"
    return form


def table_of(topic: str) -> str:
    """Table name for a topic: the topic's name if it is a full table name, otherwise a table in database `kafka`."""
    parts = topic.split(".")
    if len(parts) == 2 and all(_IDENTIFIER.fullmatch(part) for part in parts):
        return topic
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return f"kafka.{name if _IDENTIFIER.fullmatch(name) else f'_{name}'}"


def first_file(source: SourceSpec, records: Records, *, table: str = "", choose: Choose = lambda *_: False) -> str:
    """The text of a bridge.yaml for the records' topic. Options of the source are left out, because they may be
    secrets.

    `choose` decides about a field with one type in most samples but too many exceptions to ignore.
    """
    form = format_of(records, registry_of(source))
    topic = TopicSpec(source.name, records.topic, target=TableSpec(table or table_of(records.topic)), format=form)
    spec = BridgeSpec(re.sub(r"[^A-Za-z0-9._-]", "-", records.topic)[:NAME_CHARS_MAX], {source.name: source}, (topic,))
    told = TableFacts.of(topic, spec, records.topic, records)
    lines = [
        f"name: {quote_yaml(spec.name)}",
        source_line(source),
        "topics:",
        f"  - topic: {quote_yaml(records.topic)}",
        f"    table: {topic.tables[0].table}",
        f"    format: {form}",
        *_key(topic, records, told, source),
        *_columns(told, form, records, choose),
        "    start: earliest",
        "    on_error: dlq",
    ]
    return "\n".join(lines) + "\n"


def quote_yaml(text: str) -> str:
    """Quote a text for YAML."""
    return json.dumps(text)


def source_line(source: SourceSpec) -> str:
    """The YAML line of a source, without options, which may be secrets."""
    registry = f", registry: {quote_yaml(source.registry.url)}" if source.registry else ""
    return f"source: {{bootstrap: {quote_yaml(source.bootstrap)}{registry}}}     # and sasl, tls: docs/bridge.md"


def _without_key(topic: TopicSpec, records: Records, source: SourceSpec) -> list[str]:
    facts = EventKeys.of(decoder(topic, source).decode(records, None), records)
    key = ", ".join(facts.unique[:1] or facts.whole) or "..."
    why = f"different in all {facts.rows:,} sampled rows" if facts.unique else "no two rows may be the same"
    return [
        "    # the change events have no key: each is a row of a log with its op, and none replaces another",
        f"    # for a table of current rows: {full_rows(facts)}, and",
        f"    # primary_key: [{key}]     # {why}; or give the source table a primary key",
    ]


def _key(topic: TopicSpec, records: Records, facts: TableFacts, source: SourceSpec) -> list[str]:
    if topic.format in CHANGES:
        if facts.key or not facts.has_rows:
            key = ", ".join(facts.key)
            return [f"    # the key is that of the change events{f': {key}' if key else ''}"]
        return _without_key(topic, records, source)
    found = infer_schema(records).keys if topic.format == "json" and len(records) > 1 else ()
    first = next((each.field for each in found if each.is_kafka_key), None)
    if first:
        return [f"    # primary_key: [{first}]     # the key of every sample; left out: a log table"]
    unique = [each.field for each in found if not each.repeats][:3]
    if not unique:
        return ["    # primary_key: [...]             # left out: a log table"]
    first, *others = unique
    also = f"; so are {', '.join(others)}" if others else ""
    return [
        f"    # primary_key: [{first}]     # different in all {len(records):,} samples{also}; left out: a log table"
    ]


def _columns(facts: TableFacts, form: Format, records: Records, choose: Choose) -> list[str]:
    if form == "raw":
        return ["    columns:", *(f"      - {{name: {name}, type: binary, from: {name}}}" for name in ("key", "value"))]
    if facts.schema is None:
        return ["    # columns:       # the topic is empty: name the columns, or the first records decide them"]
    if form != "json":
        why = "left out: the table takes the schema's columns, and follows the schema"
        return [f"    # columns:       # {why}:", *_listed(facts.schema, "    #   ")]
    found = infer_schema(records)
    schema, odd = facts.schema, {}
    for path, (_, many) in found.odd.items():
        name = path.split(".")[0]
        odd[name] = _lost(many, found.records, "" if path == name else path)
    for name, (kind, many) in found.mixed.items():
        text = type_name(kind, name)
        if choose(name, text, many, found.records):
            at = schema.get_field_index(name)
            schema = schema.set(at, schema.field(at).with_type(kind))
            odd[name] = _lost(many, found.records, "")
        else:
            odd[name] = f"     # {text} would make dead letters of {many:,} of {found.records:,} samples"
    return [f"    columns:         # as in {len(records):,} samples", *_listed(schema, "      ", odd)]


def _lost(many: int, count: int, path: str) -> str:
    whose = f" for {path}" if path else ""
    return f"     # {many:,} of {count:,} samples would be dead letters{whose}; type: string takes all"


def _listed(schema: pa.Schema, before: str, behind: Mapping[str, str] | None = None) -> list[str]:
    said = behind or {}
    fields: Sequence[pa.Field] = list(storable(schema))
    lines = [column_text(WantedColumn(each.name, type_name(each.type, each.name))) for each in fields]
    return [f"{before}- {line}{said.get(each.name, '')}" for each, line in zip(fields, lines, strict=True)]


EVENTS, TRANSACTIONS, EMPTY, OTHER = "change events", "transaction-marker", "no records", "other records"
TABLES_SHOWN = 40
"""Most tables that a comment lists."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and a summary of its newest records."""

    name: str
    kind: str
    """EVENTS, TRANSACTIONS, EMPTY, OTHER, or another reason why its records are not change events."""
    format: Format = "raw"
    keys: EventKeys | None = None
    template: str = ""
    """The table's name in bridge.yaml."""

    @staticmethod
    def of(records: Records, source: SourceSpec) -> Topic:
        if not len(records) or records.values.null_count == len(records):
            return Topic(records.topic, EMPTY)
        form = format_of(records, registry_of(source))
        if form not in CHANGES:
            return Topic(records.topic, _reason(records, form, source) or OTHER, form)
        decoded = decoder(_spec(records.topic, form, source), source).decode(records, None)
        if not len(decoded.record):
            reasons = Counter({reason: len(rows) for reason, rows in decoded.passed.items()})
            return Topic(records.topic, reasons.most_common(1)[0][0] if reasons else OTHER, form)
        return Topic(records.topic, EVENTS, form, EventKeys.of(decoded, records), _template(decoded))


def _spec(topic: str, form: Format, source: SourceSpec) -> TopicSpec:
    return TopicSpec(source.name, topic, target=TableSpec("x.x"), format=form)


def _reason(records: Records, form: Format, source: SourceSpec) -> str:
    if form == "json":
        value = json_object(records.values.drop_null()[-1].as_py()) or {}
        payload = value.get("payload", value)
        return reason_of(set(payload)) if isinstance(payload, dict) else ""
    if form == "avro":
        return reason_of(
            {
                part.name
                for part in decoder(_spec(records.topic, form, source), source).decode(records, None).values.type
            }
        )
    return ""


def _template(decoded: DecodedBlock) -> str:
    first = next(origins(decoded.origin))[0] if decoded.origin is not None and len(decoded.origin) else {}
    if not first.get("table"):
        return "kafka.{topic}"
    return "{schema}.{table}" if first.get("schema") else "{database}.{table}"


def server_file(source: SourceSpec, prefix: str, topics: Sequence[Topic]) -> str:
    """The text of a bridge.yaml for a Debezium server's topics. Raises `Invalid` if no topic has change events."""
    events = [each for each in topics if each.kind == EVENTS]
    if not events:
        there = ", ".join(f"{each.name} ({each.kind})" for each in topics)
        raise Invalid(f"no topic that begins with {prefix}. has change events: there are {there or 'none'}")
    pattern = rf"{re.escape(prefix)}\.[^.]+\..+"
    usual = Counter((each.format, each.template) for each in events).most_common(1)[0][0]
    shared = [
        each for each in events
        if (each.format, each.template) == usual and each.keys and each.keys.key and re.fullmatch(pattern, each.name)
    ]  # fmt: skip
    marks = next((each.name for each in topics if each.kind == TRANSACTIONS), "")
    left = [each for each in topics if each.kind not in (EVENTS, TRANSACTIONS, EMPTY)]
    hidden = [re.escape(each.name.removeprefix(f"{prefix}.")) for each in left if re.fullmatch(pattern, each.name)]
    if hidden:
        pattern = rf"{re.escape(prefix)}\.(?!(?:{'|'.join(hidden)})$)[^.]+\..+"
    lines = [
        f"# The Debezium server {quote_yaml(prefix)}: {len(events):,} topics with change events.",
        *(f"# Left out: {each.name} ({each.kind})" for each in left),
        *(f"# Empty yet: {each.name}" for each in topics if each.kind == EMPTY),
        f"name: {quote_yaml(re.sub(r'[^A-Za-z0-9._-]', '-', prefix))}",
        source_line(source),
        "topics:",
    ]
    if shared:
        lines += [*_tables(shared), *_entry(replace(shared[0], name=""), pattern, marks)]
    for each in events:
        if each not in shared:
            lines += [*_alone(each), *_entry(each, "", marks)]
    return "\n".join(lines) + "\n"


def _tables(shared: Sequence[Topic]) -> Iterator[str]:
    yield f"  # {len(shared):,} tables, each with the key of its events; tables that are added later are read too:"
    for each in shared[:TABLES_SHOWN]:
        assert each.keys is not None, "shared topics have keys"
        yield f"  #   {each.keys.source or each.name} ({', '.join(each.keys.key)})"
    if len(shared) > TABLES_SHOWN:
        yield f"  #   and {len(shared) - TABLES_SHOWN:,} more"


def _alone(topic: Topic) -> Iterator[str]:
    facts = topic.keys
    if facts is None or facts.key:
        return
    key = ", ".join(facts.unique[:1] or facts.whole) or "..."
    why = f"different in all {facts.rows:,} sampled rows" if facts.unique else "no two rows may be the same"
    yield f"  # {facts.source or topic.name} has no key: each change event is a row of a log with its op."
    yield f"  # For a table of current rows: {full_rows(facts)}, and"
    yield f"  # primary_key: [{key}]     # {why}; or give the source table a primary key"


def _entry(topic: Topic, pattern: str, marks: str) -> list[str]:
    return [
        f"  - pattern: {_single(pattern)}" if pattern else f"  - topic: {quote_yaml(topic.name)}",
        f"    table: {quote_yaml(topic.template)}",
        f"    format: {topic.format}",
        *([f"    transactions: {quote_yaml(marks)}     # source transactions are whole commits"] if marks else []),
        "    start: earliest",
        "    on_error: dlq",
    ]


def _single(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
