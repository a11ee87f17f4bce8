"""bridge.yaml: text to a `BridgeSpec`, or `Invalid` that names the file, the line, the place and the rule."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from lakestore.connectors.bridge import spec as said
from lakestore.connectors.bridge.config.spec_sources import Secrets, sources
from lakestore.connectors.bridge.config.spec_tables import TABLE_PART_KEYS, target
from lakestore.connectors.bridge.config.yaml_place import Place, document
from lakestore.connectors.bridge.spec import BatchBounds, BridgeSpec, SchemaSpec, SourceSpec, TopicSpec
from lakestore.errors import Invalid
from lakestore.model.retention import byte_count
from lakestore.model.times import micros_of
from lakestore.model.typed import INT64_MAX

KEYS = ("name", "source", "sources", "batch", "topics")
BATCH_KEYS = ("rows", "bytes", "time")
TOPIC_KEYS = (
    "topic", "pattern", "source", "table", "route", "format", "wire", "key_format", "schema", "key_schema", "start",
    "transactions", "unavailable", *TABLE_PART_KEYS,
)  # fmt: skip
SCHEMA_KEYS = ("text", "file", "subject", "version", "message")
KEY_FORMATS = ("json", "avro", "protobuf", "string", "raw")
EVENT_KEY_FORMATS = ("json", "avro")
ROWS_MAX, BYTES_MAX, SECONDS_MAX = 1_000_000, 1 << 30, 3600.0
"""Bounds of a batch, which memory holds a few times over."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_HEX = re.compile(r"hex:([0-9A-Fa-f]{2})+")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|min)")
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0}
_WITH_SCHEMA = ("avro", "protobuf", "debezium-avro")


def read(path: Path, variable: Callable[[str], str | None] = os.environ.get) -> BridgeSpec:
    """The bridge that a file says; files that it names lie beside it."""
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise Invalid(f"{path.name} is no text in UTF-8") from error
    return parse(text, path.name, path.parent, variable)


def parse(
    text: str, file: str, folder: Path = Path(), variable: Callable[[str], str | None] = os.environ.get
) -> BridgeSpec:
    """The bridge that a text says. `variable` is the environment, for `${NAME}`."""
    secrets = Secrets(folder, variable)
    place = document(text, file)
    keys = place.keys(KEYS, ("name", "topics"))
    if "source" not in keys and "sources" not in keys:
        raise place.refused("the file lacks 'source': the cluster that topics are read from")
    name = secrets.text(keys["name"])
    if not _NAME.fullmatch(name):
        raise keys["name"].refused(f"has 1 to 200 letters, digits, '.', '_' and '-', unlike {keys['name'].shown}")
    known = sources(keys, name, secrets)
    topics = tuple(_topic(entry, known, secrets) for entry in keys["topics"].items())
    if not topics:
        raise keys["topics"].refused("names no topic")
    _check_once(keys["topics"], topics)
    return BridgeSpec(name, known, topics, _batch(keys["batch"]) if "batch" in keys else BatchBounds())


def _check_once(place: Place, topics: tuple[TopicSpec, ...]) -> None:
    seen: dict[tuple[str, str, str], int] = {}
    for each, entry in zip(topics, place.items(), strict=True):
        name = (each.source, each.topic, each.pattern)
        if name in seen:
            what = f"topic {each.topic!r}" if each.topic else f"pattern {each.pattern!r}"
            raise entry.refused(f"says {what} again, which stands at line {seen[name]}: one entry has all its tables")
        seen[name] = each.line
    marks = {(each.source, each.transactions): each.line for each in topics if each.transactions}
    for each, entry in zip(topics, place.items(), strict=True):
        if each.topic and (each.source, each.topic) in marks:
            line = marks[each.source, each.topic]
            raise entry.refused(
                f"says topic {each.topic!r}, whose BEGINs and ENDs are read for the entry of line {line}"
            )


def _batch(place: Place) -> BatchBounds:
    keys = place.keys(BATCH_KEYS)
    found = BatchBounds()
    if "rows" in keys:
        found = replace(found, rows=keys["rows"].whole(1, ROWS_MAX))
    if "bytes" in keys:
        found = replace(found, bytes=_bytes(keys["bytes"]))
    if "time" in keys:
        found = replace(found, seconds=_seconds(keys["time"]))
    return found


def _bytes(place: Place) -> int:
    try:
        found = byte_count(place.value())
    except Invalid as error:
        raise place.refused(f"is an amount such as 8MB or 512KB, not {place.shown}") from error
    if not 1 <= found <= BYTES_MAX:
        raise place.refused(f"is 1B to {BYTES_MAX >> 20}MB, not {place.shown}")
    return found


def _seconds(place: Place) -> float:
    match = _TIME.fullmatch(place.text().strip())
    if not match:
        raise place.refused(f"is a span of time such as 200ms or 2s, not {place.shown}")
    found = float(match[1]) * _TIME_UNITS[match[2]]
    if not 0.001 <= found <= SECONDS_MAX:
        raise place.refused(f"is 1ms to {SECONDS_MAX / 60:.0f}m, not {place.shown}")
    return found


def _topic(place: Place, known: Mapping[str, SourceSpec], secrets: Secrets) -> TopicSpec:
    keys = place.keys(TOPIC_KEYS)
    topic, pattern = _named(place, keys)
    source = _source(place, keys, known)
    form: Any = keys["format"].one_of(get_args(said.Format)) if "format" in keys else "json"
    to = target(place, keys, form)
    wire: Any = keys["wire"].one_of(get_args(said.Wire)) if "wire" in keys else "auto"
    start, offsets = _start(keys["start"]) if "start" in keys else ("earliest", {})
    found = TopicSpec(
        source,
        topic,
        pattern,
        to,
        form,
        wire,
        key_format=_key_format(keys, form),
        schema=_schema(keys["schema"], secrets) if "schema" in keys else SchemaSpec(),
        key_schema=_schema(keys["key_schema"], secrets) if "key_schema" in keys else SchemaSpec(),
        start=start,
        start_offsets=offsets,
        transactions=_transactions(keys, form),
        unavailable=_unavailable(keys, form),
        line=place.line,
    )
    if found.transactions and any(table.truncate == "follow" for table in found.tables):
        raise place.refused(
            "follows TRUNCATEs, which takes commits of its own, and has whole transactions: say one of them"
        )
    _check_schema(place, keys, found, known[source])
    return found


def _named(place: Place, keys: Mapping[str, Place]) -> tuple[str, str]:
    if ("topic" in keys) == ("pattern" in keys):
        raise place.refused("names a topic, or topics by a pattern: one of the two keys")
    if "topic" in keys:
        topic = keys["topic"].text()
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            shown = keys["topic"].shown
            raise keys["topic"].refused(
                f"has 1 to 249 letters, digits, '.', '_' and '-', unlike {shown}: say pattern:?"
            )
        return topic, ""
    pattern = keys["pattern"].text()
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise keys["pattern"].refused(f"is no regular expression: {error}") from error
    return "", pattern


def _source(place: Place, keys: Mapping[str, Place], known: Mapping[str, SourceSpec]) -> str:
    if "source" in keys:
        if "" in known:
            raise keys["source"].refused("names one of sources:, of which the file has none")
        return keys["source"].one_of(tuple(known))
    if len(known) > 1:
        raise place.refused(f"lacks 'source': one of {', '.join(known)}")
    return next(iter(known))


def _key_format(keys: Mapping[str, Place], form: str) -> Any:
    if "key_format" not in keys:
        return ""
    found = keys["key_format"].one_of(KEY_FORMATS)
    if form in said.CHANGES and found not in EVENT_KEY_FORMATS:
        raise keys["key_format"].refused(
            f"is {' or '.join(EVENT_KEY_FORMATS)} for change events, whose keys have fields, not {found!r}"
        )
    return found


def _start(place: Place) -> tuple[str, dict[int, int]]:
    if not place.is_text:
        offsets = {}
        for key, (entry, at) in place.entries().items():
            if not key.isascii() or not key.isdecimal() or len(key) > 6:
                raise place.refused("takes earliest, latest, a time, or partitions with their offsets", at)
            offsets[int(key)] = entry.whole(0, INT64_MAX)
        if not offsets:
            raise place.refused("names no partition")
        return "offsets", offsets
    text = place.text()
    if text not in ("earliest", "latest") and micros_of(text) is None:
        raise place.refused(
            f"is earliest, latest, a time such as 2026-11-20T10:00Z, or {{partition: offset}}, not {place.shown}"
        )
    return text, {}


def _schema(place: Place, secrets: Secrets) -> SchemaSpec:
    if place.is_text:
        return SchemaSpec(text=secrets.held(place) if place.text().startswith("file:") else place.text())
    keys = place.keys(SCHEMA_KEYS)
    ways = [key for key in ("text", "file", "subject") if key in keys]
    if len(ways) > 1:
        raise place.refused(f"takes {ways[0]} or {ways[1]}, not both")
    if "version" in keys and "subject" not in keys and ways:
        raise keys["version"].refused("is of a subject in the registry: name the subject")
    text = keys["text"].text() if "text" in keys else secrets.held(keys["file"]) if "file" in keys else ""
    return SchemaSpec(
        text,
        keys["subject"].text() if "subject" in keys else "",
        keys["version"].whole(1, (1 << 31) - 1) if "version" in keys else None,
        keys["message"].text() if "message" in keys else "",
    )


def _unavailable(keys: Mapping[str, Place], form: str) -> tuple[str, ...]:
    if "unavailable" not in keys:
        return ()
    place = keys["unavailable"]
    if form not in said.CHANGES:
        raise place.refused("is the connector's unavailable.value.placeholder: say a debezium format")
    for text in place.texts():
        if text.startswith("hex:") and not _HEX.fullmatch(text):
            raise place.refused(f"is a text, or hex: and an even number of hexadecimal digits, unlike {text!r}")
    return tuple(place.texts())


def _transactions(keys: Mapping[str, Place], form: str) -> str:
    if "transactions" not in keys:
        return ""
    if form not in said.CHANGES:
        raise keys["transactions"].refused("is the topic of Debezium's transaction metadata: say a debezium format")
    text = keys["transactions"].text()
    if not _TOPIC.fullmatch(text):
        raise keys["transactions"].refused(f"is the name of a topic, unlike {keys['transactions'].shown}")
    return text


def _check_schema(place: Place, keys: Mapping[str, Place], topic: TopicSpec, source: SourceSpec) -> None:
    """Refuse formats whose schemas nobody could find."""
    if source.registry is not None:
        return
    if topic.transactions and topic.format == "debezium-avro":
        raise keys["transactions"].refused("is in Avro like the events, and has its schemas in a registry: name that")
    if topic.format in _WITH_SCHEMA and not topic.schema.text:
        raise place.refused(f"is {topic.format} and there is no schema: say registry: in the source, or schema:")
    if topic.format == "debezium-avro" and not topic.key_format and not topic.key_schema.text:
        raise place.refused("is debezium-avro, whose keys are Avro, too: say registry: in the source, or key_schema:")
    if topic.key_format in _WITH_SCHEMA and not topic.key_schema.text:
        raise keys["key_format"].refused(
            f"is {topic.key_format} and there is no schema of keys: say registry: in the source, or key_schema:"
        )
    if topic.wire == "confluent":
        raise keys["wire"].refused("has schema ids of a registry: name it by registry: in the source")
    for key, schema in (("schema", topic.schema), ("key_schema", topic.key_schema)):
        if schema.subject or schema.version:
            raise keys[key].refused("names a subject or version of a registry: name the registry in the source")
