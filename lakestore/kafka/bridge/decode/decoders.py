"""Builds the decoders of a topic's values and keys from its entry in bridge.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode.avro_records import AvroRecords
from lakestore.kafka.bridge.decode.debezium.change_events import JsonKeys, Keys, Policy
from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.decode.debezium.debezium_avro import AvroKeys, DebeziumAvro
from lakestore.kafka.bridge.decode.decoding import Decoder
from lakestore.kafka.bridge.decode.framing import Part
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.kafka.bridge.decode.protobuf_records import ProtobufRecords
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import RegistrySpec, SchemaSpec, SourceSpec, TopicSpec
from lakestore.limits import DEFAULT, Limits
from lakestore.model.types import arrow_type, type_name
from lakestore.rows import ipc
from lakestore.rows.casting import Budget, refuse

if TYPE_CHECKING:
    from lakestore.kafka.bridge.decode.registry import Registry

EMPTY = "empty"


class ArrowDecoder:
    """Decodes Arrow IPC streams."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._seen: tuple[pa.Schema, list[pa.Field]] | None = None

    def schema(self) -> pa.Schema | None:
        return self._schema

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        batches: list[tuple[int, pa.RecordBatch]] = []
        rejects: list[Reject] = []
        passed: dict[str, list[int]] = {TOMBSTONE: [], EMPTY: []}
        for number, value in enumerate(records.values.to_pylist()):
            if value is None:
                passed[TOMBSTONE].append(number)
                continue
            try:
                batch = self._rows(value)
            except Invalid as error:
                say = f"the record is not a readable Arrow IPC stream: {error.message}"
                rejects.append(Reject(number, Stage.DECODE, "bad-arrow", say))
                continue
            if batch.num_rows:
                batches.append((number, batch))
            else:
                passed[EMPTY].append(number)
        left = {reason: np.array(rows, np.int64) for reason, rows in passed.items() if rows}
        return self._together(batches, rejects, left)

    def _rows(self, value: bytes) -> pa.RecordBatch:
        batch = ipc.decode(value, limits=self._limits)
        names = batch.schema.names
        if len(set(names)) != len(names):
            raise Invalid("it has a column twice")
        if self._seen is None or not batch.schema.equals(self._seen[0]):
            self._seen = (batch.schema, [pa.field(part.name, _plain(part)) for part in batch.schema])
        fields = self._seen[1]
        budget = Budget("", self._limits)
        arrays = [refuse(array, field, budget=budget) for array, field in zip(batch.columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _together(
        self, batches: list[tuple[int, pa.RecordBatch]], rejects: list[Reject], passed: dict[str, Ints]
    ) -> DecodedBlock:
        schema = self._schema or pa.schema([])
        taken: list[tuple[int, pa.RecordBatch]] = []
        for number, batch in batches:
            if batch.schema.equals(schema):
                taken.append((number, batch))
                continue
            try:
                schema = pa.unify_schemas([schema, batch.schema], promote_options="permissive")
                taken.append((number, batch))
            except pa.ArrowException as error:
                say = f"the types of its rows contradict the types of the records before it: {error}"
                rejects.append(Reject(number, Stage.DECODE, "other-types", say))
        self._schema = schema
        table, taken = _one_table(schema, taken, rejects)
        if not taken:
            return DecodedBlock(
                pa.array([], pa.struct(list(schema))), np.zeros(0, np.int64), rejects=rejects, passed=passed
            )
        columns = [column.combine_chunks() for column in table.columns]
        record = np.repeat([number for number, _ in taken], [batch.num_rows for _, batch in taken])
        rows = pa.StructArray.from_arrays(columns, fields=list(table.schema))
        return DecodedBlock(rows, record.astype(np.int64), rejects=rejects, passed=passed)


def _one_table(
    schema: pa.Schema, taken: list[tuple[int, pa.RecordBatch]], rejects: list[Reject]
) -> tuple[pa.Table, list[tuple[int, pa.RecordBatch]]]:
    """The rows of all records in the common types, and their records.

    A record with a value that the common type does not hold is refused, such as 2**53 + 1 beside floats.
    """
    empty = schema.empty_table()
    try:
        return _concatenated(empty, taken), taken
    except pa.ArrowException:
        fit: list[tuple[int, pa.RecordBatch]] = []
    for number, batch in taken:
        try:
            _concatenated(empty, [(number, batch)])
            fit.append((number, batch))
        except pa.ArrowException as error:
            say = f"the types of other records do not hold its rows: {error}"
            rejects.append(Reject(number, Stage.DECODE, "other-types", say))
    return _concatenated(empty, fit), fit


def _concatenated(empty: pa.Table, taken: list[tuple[int, pa.RecordBatch]]) -> pa.Table:
    tables = [empty, *(pa.Table.from_batches([batch]) for _, batch in taken)]
    return pa.concat_tables(tables, promote_options="permissive").select(empty.schema.names)


def _plain(part: pa.Field) -> pa.DataType:
    return part.type if pa.types.is_uint64(part.type) else arrow_type(type_name(part.type, part.name))


_SCHEMA = pa.schema([pa.field("value", pa.binary())])


class RawDecoder:
    """Returns bytes unread."""

    def schema(self) -> pa.Schema | None:
        return _SCHEMA

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        there = np.flatnonzero(records.values.is_valid().to_numpy(zero_copy_only=False))
        if len(there) == len(records):
            return DecodedBlock(pa.StructArray.from_arrays([records.values], fields=list(_SCHEMA)), there)
        rows = pa.StructArray.from_arrays([records.values.take(pa.array(there))], fields=list(_SCHEMA))
        return DecodedBlock(rows, there, passed={TOMBSTONE: np.setdiff1d(np.arange(len(records)), there)})


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
"""Format to decoder factory."""
KEYS: dict[str, Factory] = {
    "json": lambda topic, source: JsonDecoder("key", topic.wire),
    "avro": lambda topic, source: _avro(topic, source, "key"),
    "protobuf": lambda topic, source: _protobuf(topic, source, "key"),
}
"""Key format to decoder factory. `string` and `raw` have none, because their keys stay bytes."""


def decoder(topic: TopicSpec, source: SourceSpec) -> Decoder:
    """The decoder of a topic's values."""
    if topic.format not in VALUES:
        raise Invalid(f"format {topic.format!r} is not known; known are {', '.join(VALUES)}")
    return VALUES[topic.format](topic, source)


def marks_decoder(topic: TopicSpec, source: SourceSpec) -> Decoder | None:
    """The decoder of a topic of BEGINs and ENDs. None if they are JSON."""
    return _avro(replace(topic, schema=SchemaSpec()), source, "value") if topic.format == "debezium-avro" else None


def key_decoder(topic: TopicSpec, source: SourceSpec, *, reads_fields: bool) -> Decoder | None:
    """The decoder of a topic's keys; None if keys stay bytes. Default: the values' format if a field is read."""
    said = topic.key_format or (topic.format if reads_fields else "raw")
    return KEYS[said](topic, source) if said in KEYS else None


def registry(source: SourceSpec) -> Registry | None:
    """The registry client of a source, shared by its topics. None without a registry."""
    if source.registry is None:
        return None
    return _client(source.registry.url, tuple(sorted(source.registry.options.items())))


@lru_cache(maxsize=64)
def _client(url: str, options: tuple[tuple[str, str], ...]) -> Registry:
    from lakestore.kafka.bridge.decode.registry import Registry  # imports 300 modules: only for bridges that use one

    return Registry(RegistrySpec(url, dict(options)))


def _avro(topic: TopicSpec, source: SourceSpec, part: Part) -> AvroRecords:
    declared = topic.schema if part == "value" else topic.key_schema
    return AvroRecords(wire=topic.wire, part=part, declared=declared, registry=registry(source), topic=topic.topic)


def _protobuf(topic: TopicSpec, source: SourceSpec, part: Part) -> ProtobufRecords:
    declared = topic.schema if part == "value" else topic.key_schema
    return ProtobufRecords(wire=topic.wire, part=part, declared=declared, registry=registry(source), topic=topic.topic)
