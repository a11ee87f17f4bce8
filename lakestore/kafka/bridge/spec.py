"""The values of bridge.yaml: sources, topics, tables and their policies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["json", "avro", "protobuf", "debezium-json", "debezium-avro", "raw", "arrow"]
CHANGES: tuple[Format, ...] = ("debezium-json", "debezium-avro")
"""Formats of change events. Their decoders read keys and null values themselves."""
Wire = Literal["auto", "plain", "confluent"]
OnError = Literal["dlq", "fail", "skip"]
Tombstone = Literal["delete", "ignore", "dlq"]
Truncate = Literal["refuse", "ignore", "follow"]
Drift = Literal["follow", "propose", "ignore"]
Events = Literal["apply", "log"]
POSITION = ("kafka_source", "kafka_offset")
"""Columns of a keyed table that store each row's source position: topic id and partition, and offset."""
COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")
"""Columns added by `coordinates: true`. `kafka_key` and `kafka_headers` need `from: key` and `from: headers`."""


@dataclass(frozen=True, slots=True)
class RegistrySpec:
    """A schema registry with Confluent's protocol."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A Kafka cluster."""

    name: str
    """Key under `sources`; empty if the file has a single `source`."""
    bootstrap: str
    group: str
    """Consumer group whose members share the topics. Default: the bridge's name."""
    registry: RegistrySpec | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """A commit is sent when it reaches one of the bounds."""

    rows: int = 10_000
    bytes: int = 8 << 20
    """Bytes of record keys and values as received."""
    seconds: float = 0.2
    """Age of the oldest waiting record."""


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """Schema of values or keys for records that name none."""

    text: str = ""
    """An Avro schema or a .proto file, inline or from a file."""
    subject: str = ""
    """Subject in the registry. Default: by the topic name strategy."""
    version: int | None = None
    """None: the newest."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column of a table."""

    name: str
    type: str
    source: str = ""
    expression: str = ""
    """Pure SQL over `value`, `key`, `headers` and the metadata."""
    required: bool = False
    default: Any = None
    unit: str = ""
    """Unit of numeric times: s, ms (default), us or ns. For decimals sent as text by change events without a schema:
    base64 (of the unscaled value) or text, if a value could be both.
    """
    zone: str = ""
    """Time zone of times without one, for timestamptz."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that records are written to."""

    table: str
    """Name; may hold `{topic}`, `{database}`, `{schema}` and `{table}`. The last three come from a change event's
    source.
    """
    primary_key: tuple[str, ...] = ()
    """Column names. Empty: a log table, or the key columns of change events."""
    columns: tuple[ColumnSpec, ...] = ()
    """Empty: from the records' schema."""
    where: str = ""
    """Condition on the table's columns. Other rows are counted and left out."""
    coordinates: bool = False
    version: str = ""
    """Version column, if the topic is not in the order of the changes. Empty: the source position."""
    on_error: OnError = "dlq"
    tombstone: Tombstone = "delete"
    """Treatment of null values outside change events. `delete` deletes by key and needs a table with a key."""
    truncate: Truncate = "refuse"
    drift: Drift = "follow"
    """`follow` applies additive changes and widenings and proposes other changes. `propose` proposes all."""
    events: Events | None = None
    """`rows`: change events change rows by key. `log`: every event is a row, deletes too. None: a log if the events
    have no key.
    """
    event_columns: tuple[str, ...] = ()
    """Parts of change events outside the row that become columns: `op`, `source.lsn`, `transaction.id` and the like."""
    options: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """Chooses the table by a field, a header or metadata of the record."""

    by: str
    tables: Mapping[str, TableSpec]
    otherwise: Literal["dlq", "skip"] = "dlq"
    """Treatment of records whose value names no table."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic, or a pattern of topics, with its tables."""

    source: str
    topic: str = ""
    pattern: str = ""
    """Regular expression for the whole name; used if `topic` is empty."""
    target: TableSpec | RouteSpec = field(default_factory=lambda: TableSpec(""))
    format: Format = "json"
    wire: Wire = "auto"
    key_format: Literal["", "json", "avro", "protobuf", "string", "raw"] = ""
    """Empty: by the wire format and the value format."""
    schema: SchemaSpec = SchemaSpec()
    key_schema: SchemaSpec = SchemaSpec()
    start: str = "earliest"
    """For partitions without progress: earliest, latest, an ISO 8601 time, or `offsets` with `start_offsets`."""
    start_offsets: Mapping[int, int] = field(default_factory=dict)
    transactions: str = ""
    """Topic with the source's transaction metadata. Every source transaction is committed whole."""
    unavailable: tuple[str, ...] = ()
    """Markers of missing values in addition to Debezium's own. A marker after `hex:` is bytes."""
    line: int = 0

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.target,) if isinstance(self.target, TableSpec) else tuple(self.target.tables.values())

    def matches(self, name: str) -> bool:
        """True if the entry reads the topic. Kafka's internal topics need their name or a pattern with their prefix."""
        if self.topic:
            return name == self.topic
        hidden = name.startswith("__") and not self.pattern.startswith("__")
        return not hidden and re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    """A whole bridge."""

    name: str
    """Bridges of the same name fence each other, partition by partition."""
    sources: Mapping[str, SourceSpec]
    topics: tuple[TopicSpec, ...]
    batch: BatchBounds = BatchBounds()

    def entry(self, topic: str, source: str | None = None) -> TopicSpec | None:
        """The entry that reads a topic: the one with its name, otherwise the first matching pattern."""
        found = [each for each in self.topics if source in (None, each.source) and each.matches(topic)]
        return min(found, key=lambda each: not each.topic, default=None)
