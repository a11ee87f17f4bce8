"""Results of records on their way: decoded rows, rejects, skipped records. Record numbers are rows of the block.

A decoder and the mapping return rows and rejects together. Every other record is in `passed` with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.kafka.bridge.records import Ints
from lakestore.kafka.bridge.spec import TableSpec

TOMBSTONE = "tombstone"
"""The reason of records with a null value, in `passed`."""


class Stage(StrEnum):
    """The step at which a record was rejected."""

    WIRE = "wire"
    """Framing, schema id, registry."""
    DECODE = "decode"
    """Bytes that are not the format, or not the schema."""
    ROUTE = "route"
    CONVERT = "convert"
    """A value that does not fit its column's type."""
    CONSTRAINT = "constraint"
    """A value that does not fit its column's type."""
    SCHEMA = "schema"
    """Fields that wait for a decision on a proposal."""
    CHANGE = "change"
    """A change event that cannot be applied: truncate, nothing to keep, no key."""
    CONTRACT = "contract"
    """A rule of the table's contract that the row breaks."""
    APPLY = "apply"
    """Refused by the server."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected record."""

    record: int
    stage: Stage
    code: str
    """Short and stable, as in bad-json, unknown-schema, short-payload, not-a-number, null-key, too-large."""
    sentence: str
    """One sentence: what is wrong, where, what to do."""
    path: str = ""


def half_a_change(record: int) -> Reject:
    """The reject of a record whose companion is rejected: half a key change would lose a row."""
    say = "it is one change with another record that is refused: mend the other one, and both are replayed"
    return Reject(record, Stage.CHANGE, "half-a-change", say)


class Op(IntEnum):
    """The change that a row means."""

    PUT = 0
    """Append, or upsert by key."""
    DELETE = 1


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """The rows of a block as their format describes them, before they become columns of a table."""

    values: pa.StructArray
    """Rows; children by field name, nested as in the record. For `raw`, one binary child `value`."""
    record: Ints
    keys: pa.StructArray | None = None
    """Decoded keys of the same rows; None: keys are opaque bytes."""
    op: npt.NDArray[np.int8] | None = None
    kept: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
    """Field of `values` to the rows for which the source did not send it: the live value stays."""
    origin: pa.StructArray | None = None
    """The origins of change events, for routing by placeholders: struct of database, schema, table; as long as rows."""
    key_names: tuple[str, ...] = ()
    """The fields of a change event's key, when the table's key is not declared."""
    atomic: Ints | None = None
    rejects: Sequence[Reject] = ()
    passed: Mapping[str, Ints] = field(default_factory=dict)
    """Reason to the records that are neither rows nor rejects, for example tombstone, heartbeat, schema-change."""
    envelope: pa.StructArray | None = None
    """Parts of change events outside of the row: op, ts_ms, ts_us, ts_ns, source, transaction, and `position`, the
    place in the source as a number. One entry a row; null for a tombstone.
    """
    truncates: Sequence[tuple[Ints, pa.StructArray]] = ()
    """Records that truncate their source table, with their origins."""
    extra: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Unread fields, as `a.b`, with a guessed type. Only for formats without a schema, from samples."""
    unread: Mapping[str, Ints] = field(default_factory=dict)
    """Unread fields, as `a.b`, to the records that have a value there."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for one table, in its columns and types."""

    table: str
    spec: TableSpec
    batch: pa.RecordBatch
    """Deletes have values only for key, position and version; other columns are null."""
    record: Ints
    op: npt.NDArray[np.int8]
    kept: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
    """Column to the rows that keep the live value."""
    atomic: Ints | None = None


@dataclass(frozen=True, slots=True)
class MappedBlock:
    """The results of a block: rows of tables, rejects, skipped records."""

    tables: Sequence[TableRows]
    rejects: Mapping[str, Sequence[Reject]]
    """Table to the records for its dead letters. A record without a route counts for the topic's first table."""
    passed: Mapping[str, Ints]
    """Reason to records, as in `DecodedBlock`; the mapping adds filtered and not-routed."""
    extra: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Unread fields with a guessed type."""
    truncates: Mapping[str, int] = field(default_factory=dict)
    """Table to the last record that truncates it. The table may be a log, or not exist."""
    unread: Mapping[tuple[str, str], Ints] = field(default_factory=dict)
    """Table and unread field, as `a.b`, to the records with a row in the table and a value in the field."""
