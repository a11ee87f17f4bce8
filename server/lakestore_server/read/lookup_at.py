"""The offsets that were live at a cut, for look-ups of the past.

A key that was live at the cut and changed since is named by exactly one later record whose `prev` lies below the cut.
Every other key is as the index says now, or did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.limits import DEFAULT
from lakestore.rows import keys
from lakestore_server.index.entry import ABSENT
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CHANGE, DELETE, PREV
from lakestore_server.state.view import TableState

Ints = npt.NDArray[np.int64]
WALK_STEPS_MAX = 8
"""Versions of a key that are followed back; for older ones the range after the cut is searched."""
Matching = Callable[[Sequence[pa.Array]], pa.Array]
"""Key columns to a mask of the keys that may be wanted."""


def offsets_at(
    state: TableState, lsn: int, columns: Sequence[pa.Array], buckets: npt.NDArray[np.int32], now: Ints
) -> Ints:
    """The offsets that were live at a cut, of keys with known present live offsets; ABSENT for none."""
    found = now.copy()
    for bucket in np.unique(buckets):
        log = state.logs[int(bucket)]
        end = log.at_lsn(lsn).end
        if end == log.head:
            continue
        here = np.flatnonzero(buckets == bucket)
        found[here], unresolved = _walked_back(log, end, found[here])
        if len(unresolved):
            places = here[unresolved]
            wanted = [column.take(pa.array(places)) for column in columns]
            found[places] = _searched(state, int(bucket), end, wanted)
        found[here] = without_deletes(log, found[here])
    return found


def _walked_back(log: BucketLog, end: int, now: Ints) -> tuple[Ints, Ints]:
    """(offsets below `end`, places of keys still unknown) after following `prev`s back from the live offsets."""
    found = now.copy()
    pending = np.flatnonzero(found >= end)
    for _ in range(WALK_STEPS_MAX):
        if not len(pending):
            break
        found[pending] = log.values(PREV, found[pending])
        pending = pending[found[pending] >= end]
    found[pending] = ABSENT
    return found, np.flatnonzero(found == ABSENT)


def _searched(state: TableState, bucket: int, end: int, wanted: Sequence[pa.Array]) -> Ints:
    """The offsets below `end` that later records supersede, for wanted keys."""

    def matching(columns: Sequence[pa.Array]) -> pa.Array:
        return _all_of([pc.is_in(c, value_set=w) for c, w in zip(columns, wanted, strict=True)])

    superseded: dict[bytes, int] = {}
    for columns, prevs in superseded_behind(state, bucket, end, matching):
        superseded.update(zip(keys.whole(columns), prevs.tolist(), strict=True))
    found = [superseded.get(key, ABSENT) for key in keys.whole(wanted)] if superseded else [ABSENT] * len(wanted[0])
    return np.array(found, dtype=np.int64)


def superseded_behind(
    state: TableState, bucket: int, end: int, matching: Matching
) -> Iterator[tuple[list[pa.Array], Ints]]:
    """(key columns, offset below `end`) of the matching keys that were live there and are superseded since."""
    log = state.logs[bucket]

    def needed(schema_id: int) -> list[str]:
        return [CHANGE, PREV, *state.versions.numbered(schema_id).primary_key]

    for _, batch, schema_id in log.rows(end, log.head, DEFAULT.fetch_batch_rows, needed):
        prevs = batch.column(PREV).to_numpy()
        died = np.flatnonzero((prevs >= 0) & (prevs < end))
        if not len(died):
            continue
        columns = [batch.column(name) for name in state.versions.numbered(schema_id).primary_key]
        if len(died) < batch.num_rows:
            columns = [column.take(pa.array(died)) for column in columns]
        mask = matching(columns)
        if pc.any(mask).as_py():
            chosen = mask.to_numpy(zero_copy_only=False)
            yield [column.filter(mask) for column in columns], prevs[died[chosen]]


def _all_of(masks: Sequence[pa.Array]) -> pa.Array:
    mask = masks[0]
    for more in masks[1:]:
        mask = pc.and_(mask, more)
    return mask


def without_deletes(log: BucketLog, offsets: Ints) -> Ints:
    """Offsets of rows; a tombstone is ABSENT."""
    live = np.flatnonzero(offsets >= 0)
    deletes = log.values(CHANGE, offsets[live]) == DELETE
    if not deletes.any():
        return offsets
    kept = offsets.copy()
    kept[live[deletes]] = ABSENT
    return kept
