"""Offsets and prevs for the keyed rows of one table in one commit: pure arithmetic on arrays.

Rows come in order; a key may come several times: each version supersedes the one before it. A delete of a
key that is not there is dropped and takes no offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from lakestore.server.bucket import DELETE, INSERT, UPDATE

Ints = npt.NDArray[np.int64]
ABSENT = -1


@dataclass(frozen=True, slots=True)
class Assigned:
    """What became of each row."""

    kept: npt.NDArray[np.bool_]
    change: npt.NDArray[np.int8]
    prev: Ints
    """-1 for none."""
    offset: Ints
    """Meaningless where not kept."""


def assign(
    keys: Sequence[bytes],
    deletes: npt.NDArray[np.bool_],
    buckets: npt.NDArray[np.int32],
    live: Ints,
    heads: Sequence[int],
) -> Assigned:
    """Number the rows: `live` is each key's live offset before the commit, `heads` each bucket's next offset."""
    before = _previous(keys)
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


def _previous(keys: Sequence[bytes]) -> Ints | None:
    """For each row, the row before it with the same key, or -1; None when no key comes twice."""
    if len(set(keys)) == len(keys):
        return None
    first: dict[bytes, int] = {}
    ids = np.fromiter(map(first.setdefault, keys, count()), dtype=np.int64, count=len(keys))
    order = np.argsort(ids, kind="stable")
    same = ids[order][1:] == ids[order][:-1]
    before = np.full(len(keys), -1, dtype=np.int64)
    before[order[1:][same]] = order[:-1][same]
    return before


def _offsets(buckets: npt.NDArray[np.int32], kept: npt.NDArray[np.bool_], heads: Sequence[int]) -> Ints:
    offset = np.full(len(buckets), ABSENT, dtype=np.int64)
    for bucket in np.unique(buckets):
        rows = np.flatnonzero((buckets == bucket) & kept)
        offset[rows] = heads[int(bucket)] + np.arange(len(rows))
    return offset
