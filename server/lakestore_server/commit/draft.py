"""A commit while it is built: its record so far, and each bucket's position inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid, LakestoreError
from lakestore.rows.live_sum import moved
from lakestore_server.commit.request import Request, TableChange
from lakestore_server.index.collisions import FoundKeys, KeyQuery, resolved
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import IndexKeys, joined
from lakestore_server.state.chunk import DELETE, INSERT, UPDATE, Ints
from lakestore_server.state.commit_record import ChangeResult, CommitRecord, KeySlot, RowsMessage, RowsPart
from lakestore_server.state.view import TableState

ABSENT = -1


@dataclass(frozen=True, slots=True)
class RowOutcomes:
    """The outcome for each row."""

    kept: npt.NDArray[np.bool_]
    change: npt.NDArray[np.int8]
    prev: Ints
    """-1 for none."""
    offset: Ints
    """Meaningless for rows that are not kept."""


def assign(
    keys: IndexKeys,
    deletes: npt.NDArray[np.bool_],
    buckets: npt.NDArray[np.int32],
    live: Ints,
    heads: Sequence[int],
) -> RowOutcomes:
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
    return RowOutcomes(kept, change, prev, offset)


def _offsets(buckets: npt.NDArray[np.int32], kept: npt.NDArray[np.bool_], heads: Sequence[int]) -> Ints:
    offset = np.full(len(buckets), ABSENT, dtype=np.int64)
    for bucket in np.flatnonzero(np.bincount(buckets)).tolist():
        rows = np.flatnonzero((buckets == bucket) & kept)
        offset[rows] = np.arange(heads[bucket], heads[bucket] + len(rows))
    return offset


class RequestRefused(Exception):
    """A request whose rows cannot be merged; nothing of its group is written yet."""

    def __init__(self, change: TableChange, error: LakestoreError) -> None:
        super().__init__(error.message)
        self.change, self.error = change, error

    def among(self, group: Sequence[Request]) -> Request:
        return next(request for request in group if any(change is self.change for change in request.changes))


class GroupTooLarge(Exception):
    """A group that needs too much memory of existing rows: a commit with fewer requests is tried."""

    def __init__(self, error: Invalid) -> None:
        super().__init__(error.message)
        self.error = error
        """The error for a request that is alone."""


@dataclass(slots=True)
class Draft:
    """A commit's record, results and index entries so far."""

    record: CommitRecord
    current_bytes_max: int
    """The most memory of existing rows."""
    message_bytes: int
    """The message size into which a merged row must fit."""
    current_bytes: int = 0
    results: dict[int, ChangeResult] = field(default_factory=dict)
    """By the id of the change object."""
    entries: list[tuple[IndexKeys, Ints]] = field(default_factory=list)
    baseless: list[tuple[TableChange, Ints]] = field(default_factory=list)
    """Rows of changes that have nothing to keep: the draft becomes no commit."""

    def claim(self, nbytes: int, table: str) -> None:
        """Count existing rows of a table before they are copied; `GroupTooLarge` beyond the limit."""
        self.current_bytes += nbytes
        if self.current_bytes > self.current_bytes_max:
            raise GroupTooLarge(
                Invalid(
                    f"table {table}: with the existing rows, this commit takes more than"
                    f" {self.current_bytes_max} bytes: send fewer rows at once"
                )
            )


class TableDraft:
    """One table in a draft: each bucket's next offset, live sum and live rows inside the commit."""

    def __init__(self, draft: Draft, state: TableState) -> None:
        self.draft, self.state, self.table = draft, state, state.table
        self.next = state.heads()
        """Each bucket's next offset."""
        self._sums = [log.at_head.live_sum for log in state.logs]
        self._rows = [log.at_head.live_rows for log in state.logs]

    def add(
        self,
        bucket: int,
        batch: pa.RecordBatch,
        born: Ints,
        died: Ints,
        slots: Sequence[KeySlot] = (),
        message: RowsMessage | None = None,
    ) -> RowsPart:
        """Add rows to a bucket. `born` are the offsets of its new live rows, `died` the superseded ones; `message` is
        the batch as an Arrow message, if there is one."""
        self._sums[bucket] = moved(self._sums[bucket], born, died)
        self._rows[bucket] += len(born) - len(died)
        start = self.next[bucket]
        self.next[bucket] += batch.num_rows
        sums, rows = self._sums[bucket], self._rows[bucket]
        part = RowsPart(self.table.uuid, bucket, start, batch, sums, rows, self.table.schema_id, slots, message=message)
        self.draft.record.rows.append(part)
        return part

    def follow(self, parts: Sequence[RowsPart]) -> None:
        """Continue after rows that the commit has already."""
        for part in parts:
            if part.table == self.table.uuid:
                self.next[part.bucket] = part.end
                self._sums[part.bucket], self._rows[part.bucket] = part.live_sum, part.live_rows

    def counted(self, kinds: npt.NDArray[np.int8], *, not_found: int) -> ChangeResult:
        counts = np.bincount(kinds, minlength=3)
        inserted, updated, deleted = int(counts[INSERT]), int(counts[UPDATE]), int(counts[DELETE])
        return ChangeResult(self.table.name, inserted, updated, deleted, not_found, self.table.schema_id)

    def found(self, changes: Sequence[TableChange], index: Index) -> FoundKeys:
        keys = joined([c.keys for c in changes])
        deletes = np.concatenate([np.full(len(c.keys), c.delete and not c.is_remembered) for c in changes])

        def columns() -> list[pa.Array]:
            return [pa.concat_arrays([c.batch.column(name) for c in changes]) for name in self.table.primary_key]

        hints = [(len(c.keys), c.hint if c.hint is not None and c.hint.keys is c.keys else None) for c in changes]
        hinted = hints if any(hint for _, hint in hints) else ()
        return resolved(self.state, KeyQuery(keys, columns), partial(index.find, hints=hinted), deletes)
