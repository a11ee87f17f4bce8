"""A first bridge.yaml for a topic, from its records and a registry: format, columns, and keys that might do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakestore.connectors.bridge.assembly import Told, storable
from lakestore.connectors.bridge.formats.decoders import decoder
from lakestore.connectors.bridge.formats.decoders import registry as registry_of
from lakestore.connectors.bridge.formats.json.inference import inferred
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.schemas.registry import Registry
from lakestore.connectors.bridge.spec import CHANGES, BridgeSpec, Format, SourceSpec, TableSpec, TopicSpec
from lakestore.connectors.bridge.survey.key_advice import EventKeys, full_rows
from lakestore.errors import Invalid, NotFound
from lakestore.model.table_file import WantedColumn, column_text
from lakestore.model.types import type_name

LOOKED_AT = 200
"""Records by which a format is told."""
MOST = 0.9
"""The share of records that must look so."""
NAME_CHARS_MAX = 200
"""Characters of a bridge's name, of which bridge.yaml takes no more; topics have up to 249."""
Choose = Callable[[str, str, int, int], bool]
"""Whether a field has a type that some samples do not fit: field, type, number of these samples, of all."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMATS: dict[str, Format] = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json"}
_ENVELOPE = {"op", "source", "before", "after"}


def format_of(records: Records, registry: Registry | None) -> Format:
    """The format that most records have; raw where nothing is told. `Invalid` where a registry is needed."""
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
    """The object that a value is; None for anything else."""
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
    """A table's name for a topic: its own if it is one, else in the database `kafka`."""
    parts = topic.split(".")
    if len(parts) == 2 and all(_IDENTIFIER.fullmatch(part) for part in parts):
        return topic
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return f"kafka.{name if _IDENTIFIER.fullmatch(name) else f'_{name}'}"


def first_file(source: SourceSpec, records: Records, *, table: str = "", choose: Choose = lambda *_: False) -> str:
    """The text of a bridge.yaml for the records' topic; its source is said without options, which may be secrets.

    `choose` decides about a field that has one type in most samples and another in too many to leave them out.
    """
    form = format_of(records, registry_of(source))
    topic = TopicSpec(source.name, records.topic, target=TableSpec(table or table_of(records.topic)), format=form)
    spec = BridgeSpec(re.sub(r"[^A-Za-z0-9._-]", "-", records.topic)[:NAME_CHARS_MAX], {source.name: source}, (topic,))
    told = Told.of(topic, spec, records.topic, records)
    lines = [
        f"name: {quoted(spec.name)}",
        source_line(source),
        "topics:",
        f"  - topic: {quoted(records.topic)}",
        f"    table: {topic.tables[0].table}",
        f"    format: {form}",
        *_key(topic, records, told, source),
        *_columns(told, form, records, choose),
        "    start: earliest",
        "    on_error: dlq",
    ]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A text as YAML takes it, whatever it holds."""
    return json.dumps(text)


def source_line(source: SourceSpec) -> str:
    """The line of a source, without options, which may be secrets."""
    registry = f", registry: {quoted(source.registry.url)}" if source.registry else ""
    return f"source: {{bootstrap: {quoted(source.bootstrap)}{registry}}}     # and sasl, tls: docs/bridge.md"


def _without_key(topic: TopicSpec, records: Records, source: SourceSpec) -> list[str]:
    """Lines about change events that have no key, with one that might do as theirs."""
    facts = EventKeys.of(decoder(topic, source).decode(records, None), records)
    key = ", ".join(facts.unique[:1] or facts.whole) or "..."
    why = f"different in all {facts.rows:,} sampled rows" if facts.unique else "no two rows may be the same"
    return [
        "    # the change events have no key: each is a row of a log with its op, and none replaces another",
        f"    # for a table of current rows: {full_rows(facts)}, and",
        f"    # primary_key: [{key}]     # {why}; or give the source table a primary key",
    ]


def _key(topic: TopicSpec, records: Records, told: Told, source: SourceSpec) -> list[str]:
    if topic.format in CHANGES:
        if told.key or not told.has_rows:
            key = ", ".join(told.key)
            return [f"    # the key is that of the change events{f': {key}' if key else ''}"]
        return _without_key(topic, records, source)
    found = inferred(records).keys if topic.format == "json" and len(records) > 1 else ()
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


def _columns(told: Told, form: Format, records: Records, choose: Choose) -> list[str]:
    if form == "raw":
        return ["    columns:", *(f"      - {{name: {name}, type: binary, from: {name}}}" for name in ("key", "value"))]
    if told.schema is None:
        return ["    # columns:       # the topic is empty: name them, or they will be those of the first records"]
    if form != "json":
        why = "left out, so they are those of the schema, and follow it"
        return [f"    # columns:       # {why}:", *_listed(told.schema, "    #   ")]
    found = inferred(records)
    schema, odd = told.schema, {}
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
    """The comment of a column that some samples do not fit."""
    whose = f" for {path}" if path else ""
    return f"     # {many:,} of {count:,} samples would be dead letters{whose}; type: string takes all"


def _listed(schema: pa.Schema, before: str, behind: Mapping[str, str] | None = None) -> list[str]:
    said = behind or {}
    fields: Sequence[pa.Field] = list(storable(schema))
    lines = [column_text(WantedColumn(each.name, type_name(each.type, each.name))) for each in fields]
    return [f"{before}- {line}{said.get(each.name, '')}" for each, line in zip(fields, lines, strict=True)]
