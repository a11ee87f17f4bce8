"""Decoders by format: what bridge.yaml says of a topic, made into the decoders of its values and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from lakestore.connectors.bridge.formats.arrow import ArrowDecoder
from lakestore.connectors.bridge.formats.avro.avro_records import AvroRecords
from lakestore.connectors.bridge.formats.debezium.debezium import DebeziumJson
from lakestore.connectors.bridge.formats.debezium.debezium_avro import AvroKeys, DebeziumAvro
from lakestore.connectors.bridge.formats.debezium.event_keys import JsonKeys, Keys
from lakestore.connectors.bridge.formats.debezium.event_policy import Policy
from lakestore.connectors.bridge.formats.decoding import Decoder
from lakestore.connectors.bridge.formats.json.json_records import JsonDecoder
from lakestore.connectors.bridge.formats.protobuf.protobuf_records import ProtobufRecords
from lakestore.connectors.bridge.formats.raw import RawDecoder
from lakestore.connectors.bridge.framing.wire import Part
from lakestore.connectors.bridge.schemas.registry import Registry
from lakestore.connectors.bridge.spec import RegistrySpec, SchemaSpec, SourceSpec, TopicSpec
from lakestore.errors import Invalid

Factory = Callable[[TopicSpec, SourceSpec], Decoder]


def _debezium_json(topic: TopicSpec, source: SourceSpec) -> Decoder:
    columns = [column for table in topic.tables for column in table.columns]
    units = {(column.source or column.name).removeprefix("value."): column.unit for column in columns if column.unit}
    policy = Policy.of(topic)
    keys = AvroKeys(_avro(topic, source, "key")) if topic.key_format == "avro" else None
    return DebeziumJson(wire=topic.wire, policy=policy, unavailable=topic.unavailable, units=units, keys=keys)


def _debezium_avro(topic: TopicSpec, source: SourceSpec) -> Decoder:
    keys: Keys = JsonKeys(topic.wire) if topic.key_format == "json" else AvroKeys(_avro(topic, source, "key"))
    return DebeziumAvro(_avro(topic, source, "value"), keys, policy=Policy.of(topic), unavailable=topic.unavailable)


VALUES: dict[str, Factory] = {
    "json": lambda topic, source: JsonDecoder(wire=topic.wire),
    "raw": lambda topic, source: RawDecoder(),
    "debezium-json": _debezium_json,
    "debezium-avro": _debezium_avro,
    "arrow": lambda topic, source: ArrowDecoder(),
    "avro": lambda topic, source: _avro(topic, source, "value"),
    "protobuf": lambda topic, source: _protobuf(topic, source, "value"),
}
"""Format to the maker of its decoder."""
KEYS: dict[str, Factory] = {
    "json": lambda topic, source: JsonDecoder("key", topic.wire),
    "avro": lambda topic, source: _avro(topic, source, "key"),
    "protobuf": lambda topic, source: _protobuf(topic, source, "key"),
}
"""Format of keys to the maker of its decoder; `string` and `raw` need none, for such keys are bytes."""


def decoder(topic: TopicSpec, source: SourceSpec) -> Decoder:
    """The decoder of a topic's values."""
    if topic.format not in VALUES:
        raise Invalid(f"format {topic.format!r} is not known; known are {', '.join(VALUES)}")
    return VALUES[topic.format](topic, source)


def marks_decoder(topic: TopicSpec, source: SourceSpec) -> Decoder | None:
    """The decoder of a topic of BEGINs and ENDs; None where these are JSON."""
    return _avro(replace(topic, schema=SchemaSpec()), source, "value") if topic.format == "debezium-avro" else None


def key_decoder(topic: TopicSpec, source: SourceSpec, *, reads_fields: bool) -> Decoder | None:
    """The decoder of a topic's keys; None where keys are bytes.

    Where the file names no format, keys are decoded if something reads their fields: by the values' format.
    """
    said = topic.key_format or (topic.format if reads_fields else "raw")
    return KEYS[said](topic, source) if said in KEYS else None


def registry(source: SourceSpec) -> Registry | None:
    """The client of a source's registry, one for all its topics; None if there is no registry."""
    if source.registry is None:
        return None
    return _client(source.registry.url, tuple(sorted(source.registry.options.items())))


@lru_cache(maxsize=64)
def _client(url: str, options: tuple[tuple[str, str], ...]) -> Registry:
    return Registry(RegistrySpec(url, dict(options)))


def _avro(topic: TopicSpec, source: SourceSpec, part: Part) -> AvroRecords:
    declared = topic.schema if part == "value" else topic.key_schema
    return AvroRecords(wire=topic.wire, part=part, declared=declared, registry=registry(source), topic=topic.topic)


def _protobuf(topic: TopicSpec, source: SourceSpec, part: Part) -> ProtobufRecords:
    declared = topic.schema if part == "value" else topic.key_schema
    return ProtobufRecords(wire=topic.wire, part=part, declared=declared, registry=registry(source), topic=topic.topic)
