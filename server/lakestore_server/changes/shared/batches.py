"""The changes of a member's buckets, each from its own position, cut into messages.

Whole commits of each bucket, in LSN order. Buckets that are further on wait until the others have come up to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore_server.changes.batches import Shape, reach_of, table_batch
from lakestore_server.changes.shared.assignment import Bucket
from lakestore_server.read.rows import bounded, sent_bytes
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.commit_index import CommitIndex
from lakestore_server.state.view import View


@dataclass(frozen=True, slots=True)
class MemberBatch:
    """Rows of one table that go out as one message."""

    table: Table
    batch: pa.RecordBatch
    ends: Mapping[Bucket, int]
    """For each bucket in the message, the end of the last commit that is whole with it."""


@dataclass(frozen=True, slots=True)
class MemberRun:
    """The next messages of a member."""

    pieces: tuple[MemberBatch, ...]
    ends: Mapping[Bucket, int]
    """The offset that every bucket has reached behind the messages, also buckets without rows to show."""
    first: int
    """LSN of the first commit in the messages; all have the tables' versions of that commit."""


def member_run(view: View, shape: Shape, at: Mapping[Bucket, int], limit: int, limits: Limits) -> MemberRun | None:
    """The messages behind the positions, none beyond the LSN `limit`: about a batch of rows from each bucket.

    None if there are no commits.
    """
    first = _first_lsn(view, at)
    if first is None or first > limit:
        return None
    upto = _upto(view, shape, at, first, limit, limits)
    ends = {(uuid, bucket): _end(_log(view, uuid, bucket), start, upto) for (uuid, bucket), start in at.items()}
    pieces: list[MemberBatch] = []
    for uuid in shape.tables:
        state = view.by_uuid(uuid)
        here = {bucket: at[owner, bucket] for owner, bucket in at if owner == uuid}
        ranges = [(here[b], ends[uuid, b]) if b in here else (0, 0) for b in range(len(state.logs))]
        table = state.versions.at(first)
        batch = table_batch(state, table, shape, ranges)
        if batch is not None:
            pieces += _messages(view, table, batch, at, ends, sent_bytes(limits))
    return MemberRun(tuple(pieces), ends, first)


def _log(view: View, uuid: str, bucket: int) -> BucketLog:
    return view.by_uuid(uuid).logs[bucket]


def _first_lsn(view: View, at: Mapping[Bucket, int]) -> int | None:
    """The first commit behind any of the positions."""
    lsns = [_log(view, *bucket).lsn_beyond(start) for bucket, start in at.items()]
    return min((lsn for lsn in lsns if lsn is not None), default=None)


def _upto(view: View, shape: Shape, at: Mapping[Bucket, int], first: int, limit: int, limits: Limits) -> int:
    """The LSN up to which one run reaches: one schema version of each table, about as much as fits into a message."""
    upto, nbytes = limit, sent_bytes(limits) // 2 // len(at)
    for uuid in {uuid for uuid, _ in at}:
        upto = view.by_uuid(uuid).versions.until(first - 1, upto)
    for bucket, start in at.items():
        log = _log(view, *bucket)
        if start < log.head:
            reach = reach_of(log, shape, start, limits.changes_batch_rows, nbytes)
            upto = min(upto, log.lsn_reaching(start, reach)) if reach < log.head else upto
    return upto


def _end(log: BucketLog, start: int, upto: int) -> int:
    return start if upto < log.base.lsn else max(log.at_lsn(upto).end, start)


def _messages(
    view: View, table: Table, batch: pa.RecordBatch, at: Mapping[Bucket, int], ends: Mapping[Bucket, int], nbytes: int
) -> Iterator[MemberBatch]:
    """The batch in pieces that fit into a message, each with the offsets to which it brings its buckets.

    A commit that is cut between two pieces is acknowledged by the second one only: its rows come again if the
    consumer breaks off in between.
    """
    buckets, offsets = batch.column("__bucket").to_numpy(), batch.column("__offset").to_numpy()
    stop = 0
    for piece in bounded(batch, nbytes):
        stop += piece.num_rows
        reached = {}
        for number in np.unique(buckets[stop - piece.num_rows : stop]).tolist():
            bucket = table.uuid, number
            later = offsets[stop:][buckets[stop:] == number]
            commits = _log(view, *bucket).commits(at[bucket], ends[bucket]) if len(later) else None
            reached[bucket] = _whole(commits, at[bucket], int(later[0])) if commits else ends[bucket]
        yield MemberBatch(table, piece, reached)


def _whole(commits: CommitIndex, start: int, offset: int) -> int:
    """The end of the last commit that lies below an offset."""
    count = int(np.searchsorted(commits.end, offset, side="right"))
    return int(commits.end[count - 1]) if count else start
