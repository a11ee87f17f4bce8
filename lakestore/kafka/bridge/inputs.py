"""Rows of a block as columns by path: fields of values and keys, headers, and source positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.outcome import DecodedBlock, Op
from lakestore.kafka.bridge.paths import EVENT_ROOTS, Path
from lakestore.kafka.bridge.records import Ints, Records

_HEADERS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))
_HEADER_MAP = pa.map_(pa.string(), pa.binary())
_NO_TIME = -1
KINDS: dict[tuple[str, bool], pa.DataType] = {
    ("value", False): pa.binary(),
    ("key", False): pa.string(),
    ("headers", False): _HEADERS,
    ("headers", True): pa.string(),
    ("topic", False): pa.string(),
    ("partition", False): pa.int64(),
    ("offset", False): pa.int64(),
    ("timestamp", False): pa.timestamp("ms", tz="UTC"),
}
"""Type in an expression by root and by whether a part of the root is named. Only parts that every record has."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows with the records that they came from."""

    records: Records
    record: Ints
    """The record of each row, ascending."""
    values: pa.StructArray | None
    """None: tombstones, which have no values."""
    keys: pa.StructArray | None
    """Decoded keys; None: keys are bytes."""
    op: npt.NDArray[np.int8]
    kept: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    origin: pa.StructArray | None = None
    atomic: Ints | None = None
    envelope: pa.StructArray | None = None
    unread: Mapping[str, Ints] = field(default_factory=dict)
    """The `unread` of `DecodedBlock`."""

    @staticmethod
    def of(records: Records, decoded: DecodedBlock) -> Inputs:
        count = len(decoded.record)
        op = np.zeros(count, dtype=np.int8) if decoded.op is None else decoded.op
        kept = {name: mask.to_numpy(zero_copy_only=False).astype(np.bool_) for name, mask in decoded.kept.items()}
        record, origin, atomic = decoded.record, decoded.origin, decoded.atomic
        values, envelope, unread = decoded.values, decoded.envelope, decoded.unread
        return Inputs(records, record, values, decoded.keys, op, kept, origin, atomic, envelope, unread)

    @staticmethod
    def tombstones(records: Records, record: Ints, keys: pa.StructArray | None) -> Inputs:
        return Inputs(records, record, None, keys, np.full(len(record), Op.DELETE, dtype=np.int8))

    def __len__(self) -> int:
        return len(self.record)

    def take(self, rows: Ints) -> Inputs:
        if len(rows) == len(self):
            return self
        at = pa.array(rows)
        return Inputs(
            self.records,
            self.record[rows],
            None if self.values is None else self.values.take(at),
            None if self.keys is None else self.keys.take(at),
            self.op[rows],
            {name: mask[rows] for name, mask in self.kept.items()},
            None if self.origin is None else self.origin.take(at),
            None if self.atomic is None else self.atomic[rows],
            None if self.envelope is None else self.envelope.take(at),
            self.unread,
        )

    def as_events(self, deletes: npt.NDArray[np.bool_]) -> Inputs:
        """Turn deletes into rows with the operation `d`. The source may invent a deleted row's values outside the
        key (PostgreSQL without REPLICA IDENTITY FULL: 1970-01-01, 0), so they become null if the record has a
        key.
        """
        values, envelope = self.values, self.envelope
        if values is not None and self.keys is not None:
            hidden = pc.and_(pa.array(deletes), self.keys.is_valid())
            values = _hidden(values, hidden, {part.name for part in self.keys.type})
        if envelope is not None:
            at = envelope.type.get_field_index("op")
            columns = envelope.flatten()
            columns[at] = pc.if_else(pa.array(deletes), "d", columns[at])
            envelope = pa.StructArray.from_arrays(columns, fields=list(envelope.type))
        return replace(self, values=values, envelope=envelope, op=np.full(len(self), Op.PUT, dtype=np.int8))

    def read(self, path: Path) -> pa.Array:
        if path.root == "headers":
            return self._header(path.parts[0]) if path.parts else self._headers()
        if path.root == "value" and path.parts:
            return _at(self.values, path.parts, len(self))
        if path.root == "key" and path.parts:
            return _at(self.keys, path.parts, len(self))
        if path.root in EVENT_ROOTS:
            return _at(self.envelope, (path.root, *path.parts), len(self))
        return self._whole(path.root)

    def header_map(self) -> pa.Array:
        held = self.records.headers
        if held is None:
            return pa.nulls(len(self), _HEADER_MAP)
        found = [held[row] for row in self.record.tolist()]
        return pa.array([None if row is None else list(dict(row).items()) for row in found], _HEADER_MAP)

    def source(self) -> pa.Array:
        """Topic, topic id and partition of each row, as in `POSITION`."""
        partitions, at = np.unique(self.records.partition[self.record], return_inverse=True)
        names = [f"{self.records.topic}/{self.records.topic_id}/{partition}" for partition in partitions.tolist()]
        return pa.array(names, pa.string()).take(pa.array(at))

    def _whole(self, root: str) -> pa.Array:
        records, rows = self.records, self.record
        if root == "value":
            return self._taken(records.values)
        if root == "key":
            return self._taken(records.keys)
        if root == "topic":
            return pa.repeat(records.topic, len(self))
        if root == "partition":
            return pa.array(records.partition[rows], pa.int64())
        if root == "offset":
            return pa.array(records.offset[rows], pa.int64())
        stamps = records.timestamp_ms[rows]
        return pa.array(stamps, pa.timestamp("ms", tz="UTC"), mask=stamps == _NO_TIME)

    def _taken(self, array: pa.Array) -> pa.Array:
        every = len(self) == len(self.records) and bool((np.diff(self.record) == 1).all())
        return array if every else array.take(pa.array(self.record))

    def _header(self, name: str) -> pa.Array:
        held = self.records.headers
        if held is None:
            return pa.nulls(len(self), pa.binary())
        return pa.array([_last(held[row], name) for row in self.record.tolist()], pa.binary())

    def _headers(self) -> pa.Array:
        held = self.records.headers
        if held is None:
            return pa.nulls(len(self), _HEADERS)
        found = [held[row] for row in self.record.tolist()]
        rows = [None if row is None else [{"name": name, "value": value} for name, value in row] for row in found]
        return pa.array(rows, _HEADERS)


def _hidden(values: pa.StructArray, hidden: pa.BooleanArray, but: Collection[str]) -> pa.StructArray:
    columns = [
        column if part.name in but else pc.if_else(hidden, pa.scalar(None, part.type), column)
        for part, column in zip(values.type, values.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=[part.with_nullable(True) for part in values.type])


def _last(headers: Any, name: str) -> bytes | None:
    found = None
    for key, value in headers or ():
        if key == name:
            found = value
    return found


def _at(array: pa.Array | None, parts: tuple[str, ...], count: int) -> pa.Array:
    for part in parts:
        if array is None:
            break
        kind = array.type
        if pa.types.is_struct(kind):
            at = kind.get_field_index(part)
            array = pc.struct_field(array, [at]) if at >= 0 else None
        elif pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            array = pc.map_lookup(array, pa.scalar(part), "last")
        else:
            array = None
    return pa.nulls(count) if array is None else array
