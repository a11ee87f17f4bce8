"""The bridge as bridge.yaml says it: sources, topics, tables and their policies. Values only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["json", "avro", "protobuf", "debezium-json", "debezium-avro", "raw", "arrow"]
CHANGES: tuple[Format, ...] = ("debezium-json", "debezium-avro")
"""Formats of change events, whose decoders know keys and the meaning of null values themselves."""
Wire = Literal["auto", "plain", "confluent"]
OnError = Literal["dlq", "fail", "skip"]
Tombstone = Literal["delete", "ignore", "dlq"]
Truncate = Literal["refuse", "ignore", "follow"]
Drift = Literal["follow", "propose", "ignore"]
Events = Literal["apply", "log"]
POSITION = ("kafka_source", "kafka_offset")
"""Columns of bridged tables with a key that keep each row's source position: topic, its id and partition; offset."""
COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")
"""Columns that `coordinates: true` adds; `kafka_key` and `kafka_headers` come by `from: key` and `from: headers`."""


@dataclass(frozen=True, slots=True)
class RegistrySpec:
    """A schema registry that speaks Confluent's protocol."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the client: credentials, certificates. May hold secrets."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A Kafka cluster."""

    name: str
    """The key under `sources`; empty for the only one."""
    bootstrap: str
    group: str
    """The consumer group whose members share the topics; the bridge's name unless said."""
    registry: RegistrySpec | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of librdkafka from `sasl`, `tls` and `options`. May hold secrets."""


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """A commit goes out when one of the bounds is reached."""

    rows: int = 10_000
    bytes: int = 8 << 20
    """Bytes of record keys and values as they came."""
    seconds: float = 0.2
    """Age of the oldest record that waits."""


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """Schema of values or keys that is not named by the records themselves."""

    text: str = ""
    """Inline or from a file: an Avro schema, or a .proto file."""
    subject: str = ""
    """In the registry; by default by the topic name strategy."""
    version: int | None = None
    """The newest unless said."""
    message: str = ""
    """The message's full name in a .proto file of several."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column of a table."""

    name: str
    type: str
    """The type as in tables.yaml."""
    source: str = ""
    """A path: `value.a.b`, `key.a`, `headers.h`, `value`, `key`, `headers`, `topic`, `partition`, `offset`,
    `timestamp`; of change events, whose value is the row, also `source.lsn` and the like, `transaction.id`, `op`,
    `ts_ms`, `position`; empty: `value.<name>`, unless there is an expression."""
    expression: str = ""
    """SQL over `value`, `key`, `headers` and the metadata; pure."""
    required: bool = False
    default: Any = None
    unit: str = ""
    """The unit of times that come as numbers: s, ms, us or ns; without one, milliseconds. Of decimals that come as
    texts in change events without a schema: base64 of the unscaled value, or text, where a value could be both."""
    zone: str = ""
    """The zone of times that have none, for timestamptz."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that records go to."""

    table: str
    """May hold `{topic}`, `{database}`, `{schema}` and `{table}`; the last three are of a change event's source."""
    primary_key: tuple[str, ...] = ()
    """Names of columns; empty: a log table, but for change events, whose key columns are taken."""
    columns: tuple[ColumnSpec, ...] = ()
    """Empty: from the schema of the records."""
    where: str = ""
    """A condition on the table's columns; other rows are counted and left out."""
    coordinates: bool = False
    version: str = ""
    """The version column, where the order of the topic is not that of the changes; empty: the source position."""
    on_error: OnError = "dlq"
    tombstone: Tombstone = "delete"
    """A null value that is no part of a change event: delete by key, only for tables with a key."""
    truncate: Truncate = "refuse"
    drift: Drift = "follow"
    """Additive changes and widenings are followed; the rest waits as a proposal. `propose`: all of it waits."""
    events: Events | None = None
    """Change events change rows by key, or are rows of a log each, deletes too. None: a log if they have no key."""
    event_columns: tuple[str, ...] = ()
    """Parts of change events beside the row that are columns too: `op`, `source.lsn`, `transaction.id` and the like."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other options of the table, as in tables.yaml."""
    line: int = 0
    """In the file, for messages."""


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """Tables by a field, a header or metadata of each record."""

    by: str
    """A path, as `ColumnSpec.source`."""
    tables: Mapping[str, TableSpec]
    otherwise: Literal["dlq", "skip"] = "dlq"
    """The end of records whose value names no table."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic, or a pattern of topics, and the tables that its records go to."""

    source: str
    """`SourceSpec.name`."""
    topic: str = ""
    pattern: str = ""
    """A regular expression that matches whole names, when `topic` is empty."""
    target: TableSpec | RouteSpec = field(default_factory=lambda: TableSpec(""))
    format: Format = "json"
    wire: Wire = "auto"
    key_format: Literal["", "json", "avro", "protobuf", "string", "raw"] = ""
    """Empty: as the wire and the format say."""
    schema: SchemaSpec = SchemaSpec()
    key_schema: SchemaSpec = SchemaSpec()
    start: str = "earliest"
    """earliest, latest, a time as ISO 8601, or `offsets` with `start_offsets`; for partitions without progress."""
    start_offsets: Mapping[int, int] = field(default_factory=dict)
    transactions: str = ""
    """The topic with the source's transaction metadata; its transactions are whole commits."""
    unavailable: tuple[str, ...] = ()
    """Markers of values that a change event does not bring, beside Debezium's own; `hex:` ones are bytes."""
    line: int = 0
    """In the file, for messages."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All tables that records may go to."""
        return (self.target,) if isinstance(self.target, TableSpec) else tuple(self.target.tables.values())

    def matches(self, name: str) -> bool:
        """Whether a topic is meant; Kafka's own topics only by their name or a pattern that begins like them."""
        if self.topic:
            return name == self.topic
        hidden = name.startswith("__") and not self.pattern.startswith("__")
        return not hidden and re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    """A whole bridge."""

    name: str
    """Two bridges of one name fence each other, partition by partition."""
    sources: Mapping[str, SourceSpec]
    topics: tuple[TopicSpec, ...]
    batch: BatchBounds = BatchBounds()

    def entry(self, topic: str, source: str | None = None) -> TopicSpec | None:
        """The entry that a topic is read by, of one source or any: its own, else the first whose pattern it matches."""
        found = [each for each in self.topics if source in (None, each.source) and each.matches(topic)]
        return min(found, key=lambda each: not each.topic, default=None)
