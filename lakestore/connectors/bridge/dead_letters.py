"""Dead letters: records that could not be taken, in an ordinary table beside the one that they were for.

A dead letter is stored in the commit that moves progress past its record, and goes in the commit that replays it.
"""

from __future__ import annotations

import pyarrow as pa

SUFFIX = "__dlq"
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
