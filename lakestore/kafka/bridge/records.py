"""Kafka records as columns: a block holds consecutive records of one topic in arrival order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Records:
    """A block of records. Row numbers of the block identify records everywhere downstream."""

    topic: str
    topic_id: str
    """Kafka's topic id. A topic that was created again has another id."""
    partition: Ints
    offset: Ints
    timestamp_ms: Ints
    """-1: none."""
    keys: pa.BinaryArray
    """Null: no key."""
    values: pa.BinaryArray
    """Null: a tombstone."""
    headers: Sequence[Headers | None] | None = None
    """None: no record has any."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    def take(self, rows: Ints) -> Records:
        """Some of the records, in the given order."""
        at = pa.array(rows)
        headers = None if self.headers is None else [self.headers[row] for row in rows.tolist()]
        return Records(
            self.topic,
            self.topic_id,
            self.partition[rows],
            self.offset[rows],
            self.timestamp_ms[rows],
            self.keys.take(at),
            self.values.take(at),
            headers,
        )
