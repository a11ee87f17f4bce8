"""Dead letters: records that could not be taken, in an ordinary table beside the one that they were for.

A dead letter is stored in the commit that moves progress past its record, and goes in the commit that replays it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.outcome import Reject
from lakestore.connectors.bridge.records import Headers, Records

SUFFIX = "__dlq"
_LETTER_BYTES, _HEADER_BYTES = 1_024, 16
"""About the bytes of a letter, and of a header, besides those of their texts."""
KEY = ("kafka_source", "kafka_offset")
"""The source is `topic/topic id/partition`, so that a topic made anew is another one."""
SCHEMA = pa.schema(
    [
        pa.field("kafka_source", pa.string(), nullable=False),
        pa.field("kafka_offset", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))),
        pa.field("value_bytes", pa.int64(), nullable=False),
        pa.field("bridge", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("sentence", pa.string(), nullable=False),
        pa.field("path", pa.string()),
    ]
)
"""A value larger than a row may be is cut; `value_bytes` is its whole length, and the broker still has it for a while.
"""


def table_of(table: str) -> str:
    """The name of the dead letters' table."""
    return table + SUFFIX


def sources_of(records: Records) -> pa.Array:
    """The source of each record, as tables with a key keep it."""
    partitions = pa.array(records.partition).cast(pa.string())
    return pc.binary_join_element_wise(f"{records.topic}/{records.topic_id}/", partitions, "")


def rows_of(records: Records, rejects: Sequence[Reject], bridge: str, value_bytes_max: int) -> pa.RecordBatch:
    """Records that were rejected, as rows of a dead letters' table; the first reject of a record counts.

    Values beyond the bytes given are cut, and keys and headers beyond the half of them.
    """
    first: dict[int, Reject] = {}
    for each in rejects:
        first.setdefault(each.record, each)
    order = sorted(first)
    found = records.take(np.array(order, np.int64))
    told = [first[row] for row in order]
    columns = [
        sources_of(found),
        pa.array(found.offset),
        pa.array([found.topic] * len(found), pa.string()),
        pa.array(found.partition).cast(pa.int32()),
        _times(found),
        _cut(found.keys, value_bytes_max // 2),
        _cut(found.values, value_bytes_max),
        pa.array(_headers(found, value_bytes_max // 2), SCHEMA.field("headers").type),
        pc.fill_null(pc.binary_length(found.values), 0).cast(pa.int64()),
        pa.array([bridge] * len(found), pa.string()),
        pa.array([str(each.stage) for each in told], pa.string()),
        pa.array([each.code for each in told], pa.string()),
        pa.array([each.sentence for each in told], pa.string()),
        pa.array([each.path or None for each in told], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def bytes_of(records: Records, rows: Sequence[int], value_bytes_max: int) -> int:
    """About the bytes that records have as letters; at most twice the bytes given, and a little, for each."""
    numbers = sorted(set(rows))
    found = records.take(np.array(numbers, np.int64))
    headers = [0] * len(found)
    if found.headers is not None:
        headers = [
            sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in each or ()) for each in found.headers
        ]
    return len(found) * _LETTER_BYTES + sum(
        sum(min(size or 0, most) for size in sizes)
        for sizes, most in (
            (pc.binary_length(found.values).to_pylist(), value_bytes_max),
            (pc.binary_length(found.keys).to_pylist(), value_bytes_max // 2),
            (headers, value_bytes_max // 2),
        )
    )


def _times(records: Records) -> pa.Array:
    known = records.timestamp_ms >= 0
    return pa.array(records.timestamp_ms * 1_000, mask=~known).cast(pa.timestamp("us", tz="UTC"))


def _cut(values: pa.BinaryArray, most: int) -> pa.BinaryArray:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    return values if longest <= most else pc.binary_slice(values, 0, most)


def _headers(records: Records, most: int) -> list[list[dict[str, object]] | None]:
    if records.headers is None:
        return [None] * len(records)
    return [None if each is None else _header_list(each, most) for each in records.headers]


def _header_list(headers: Headers, most: int) -> list[dict[str, object]]:
    """Headers from the first on, as many as have room."""
    kept: list[dict[str, object]] = []
    for name, value in headers:
        most -= len(name) + len(value or b"") + _HEADER_BYTES
        if most < 0:
            break
        kept.append({"name": name, "value": value})
    return kept
