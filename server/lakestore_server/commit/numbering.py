"""Offsets and prevs for the keyed rows of one table in one commit: pure arithmetic on arrays.

Rows come in order; a key may come several times: each version supersedes the one before it. A delete of a
key that is not there is dropped and takes no offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestore_server.index.keys import IndexKeys
from lakestore_server.state.chunk import DELETE, INSERT, UPDATE

Ints = npt.NDArray[np.int64]
ABSENT = -1


@dataclass(frozen=True, slots=True)
class Assigned:
    """The outcome for each row."""

    kept: npt.NDArray[np.bool_]
    change: npt.NDArray[np.int8]
    prev: Ints
    """-1 for none."""
    offset: Ints
    """Meaningless where not kept."""


def assign(
    keys: IndexKeys,
    deletes: npt.NDArray[np.bool_],
    buckets: npt.NDArray[np.int32],
    live: Ints,
    heads: Sequence[int],
) -> Assigned:
    """Number the rows: `live` is each key's live offset before the commit, `heads` each bucket's next offset."""
    before = keys.previous()
    alive = live != ABSENT
    if before is not None:
        repeated = before >= 0
        alive = np.where(repeated, ~deletes[np.where(repeated, before, 0)], alive)
    kept = alive | ~deletes
    offset = _offsets(buckets, kept, heads)
    prev = live
    if before is not None:
        prev = np.where(repeated, offset[np.where(repeated, before, 0)], live)
    prev = np.where(alive, prev, ABSENT)
    change = np.where(deletes, DELETE, np.where(alive, UPDATE, INSERT)).astype(np.int8)
    return Assigned(kept, change, prev, offset)


def _offsets(buckets: npt.NDArray[np.int32], kept: npt.NDArray[np.bool_], heads: Sequence[int]) -> Ints:
    offset = np.full(len(buckets), ABSENT, dtype=np.int64)
    for bucket in np.flatnonzero(np.bincount(buckets)).tolist():
        rows = np.flatnonzero((buckets == bucket) & kept)
        offset[rows] = np.arange(heads[bucket], heads[bucket] + len(rows))
    return offset
