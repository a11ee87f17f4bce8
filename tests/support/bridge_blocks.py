"""Blocks of Kafka records for the bridge's tests, and the invariant of their ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lakestore.kafka.bridge.outcome import DecodedBlock, MappedBlock
from lakestore.kafka.bridge.records import Headers, Records

FIRST_OFFSET, FIRST_MS = 100, 1_700_000_000_000


def block(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    topic: str = "orders",
    partitions: Sequence[int] | None = None,
) -> Records:
    """Records with these values, one behind the other."""
    count = len(values)
    return Records(
        topic,
        "Tid",
        np.zeros(count, np.int64) if partitions is None else np.array(partitions, np.int64),
        np.arange(FIRST_OFFSET, FIRST_OFFSET + count),
        np.arange(FIRST_MS, FIRST_MS + count),
        pa.array(keys if keys is not None else [None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        headers,
    )


def check_ends(records: Records, mapped: MappedBlock) -> None:
    """Each record of the block is in rows, among the rejects, or passed: exactly once."""
    in_rows = {int(number) for rows in mapped.tables for number in rows.record}
    refused = [reject.record for rejects in mapped.rejects.values() for reject in rejects]
    passed = [int(number) for numbers in mapped.passed.values() for number in numbers]
    assert sorted([*in_rows, *refused, *passed]) == list(range(len(records)))
    for rows in mapped.tables:
        assert rows.batch.num_rows == len(rows.record) == len(rows.op)
        assert (np.diff(rows.record) >= 0).all()
        rows.batch.validate(full=True)


def check_decoded(decoded: DecodedBlock, count: int) -> None:
    """Each of so many records is in rows, a reject, or passed: exactly once, at the end of a decoder."""
    refused = [reject.record for reject in decoded.rejects]
    passed = [int(number) for numbers in decoded.passed.values() for number in numbers]
    assert sorted([*set(decoded.record.tolist()), *refused, *passed]) == list(range(count))
    assert (np.diff(decoded.record) >= 0).all()
    parts = [decoded.values, decoded.keys, decoded.op, decoded.origin, decoded.envelope, decoded.atomic]
    assert {len(part) for part in [*parts, *decoded.kept.values()] if part is not None} <= {len(decoded.record)}
    decoded.values.validate(full=True)
