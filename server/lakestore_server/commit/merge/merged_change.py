"""Merged changes of one table: one after the other, each into the rows that the changes before it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid, LakestoreError
from lakestore_server.arrays.grouping import Groups
from lakestore_server.commit import row_limit
from lakestore_server.commit.draft import RequestRefused, TableDraft
from lakestore_server.commit.merge.current_rows import CurrentRows, RowSource, runs
from lakestore_server.commit.merge.engines import Merged, merged
from lakestore_server.commit.merge.kept import baseless
from lakestore_server.commit.numbering import ABSENT
from lakestore_server.commit.request import Change
from lakestore_server.host.stages import stage
from lakestore_server.index.collisions import Entries, FoundKeys
from lakestore_server.index.entry import FLAG, is_live
from lakestore_server.index.key_index import Index
from lakestore_server.state.chunk import DELETE, Ints
from lakestore_server.state.table_versions import stored_schema


class MergedChanges:
    """The changes of one table, each merged into what is there."""

    def __init__(self, table: TableDraft) -> None:
        self._draft, self._table = table, table.table
        self._remembers = self._table.merge.engine == "versioned"
        record = table.draft.record
        self._old = RowSource(table.state, record.lsn, record.time_us, self._claim)

    def _claim(self, nbytes: int) -> None:
        self._draft.draft.claim(nbytes, self._table.name)

    def run(self, changes: Sequence[Change], index: Index) -> None:
        """Merge and number them in their order."""
        whole = self._draft.found(changes, index)
        places_of, values = whole.keys.places(), whole.values
        at = 0
        for sent in changes:
            part = slice(at, at + len(sent.keys))
            at = part.stop
            stage()
            change, mine, known = self._based(sent, places_of[part], whole.part(part), values)
            groups = Groups.by(mine)
            places = mine[groups.first]
            found = self._found(groups, change.buckets[groups.first], values[places])
            try:
                made = merged(change, self._table, found)
            except LakestoreError as error:
                raise RequestRefused(change, error) from error
            except pa.ArrowException as error:
                problem = Invalid(f"table {self._table.name}: the rows cannot be merged: {error}")
                raise RequestRefused(change, problem) from error
            stage()
            try:
                row_limit.check(made.batch, self._table, self._draft.draft.message_bytes, merged=True)
            except Invalid as error:
                raise RequestRefused(change, error) from error
            after = self._numbered(change, groups, made, values[places], known)
            values[places[made.keys]] = after

    def _based(self, change: Change, mine: Ints, known: FoundKeys, values: Ints) -> tuple[Change, Ints, FoundKeys]:
        """(change, places of its keys, keys) less the rows that have nothing to keep, which refuse the commit in the
        end: what comes behind them is judged as if they had not been sent."""
        if not change.marks.kept:
            return change, mine, known
        groups = Groups.by(mine)
        found = self._found(groups, change.buckets[groups.first], values[mine[groups.first]])
        rows = baseless(change, self._table, found)
        if not len(rows):
            return change, mine, known
        self._draft.draft.baseless.append((change, rows))
        left = np.delete(np.arange(len(mine)), rows)
        return change.taken(left), mine[left], known.taken(left)

    def _found(self, groups: Groups, buckets: npt.NDArray[np.int32], values: Ints) -> CurrentRows:
        """The rows that the index names for these keys."""
        alive, offsets = is_live(values), values & ~FLAG
        remembered = np.zeros(len(values), dtype=np.bool_)
        if self._remembers and (flagged := np.flatnonzero(values >= FLAG)).size:
            remembered[flagged] = self._old.holds(buckets[flagged], offsets[flagged])

        def rows(keys: Ints, names: Sequence[str]) -> dict[str, pa.Array]:
            return self._old.take(buckets[keys], offsets[keys], names)

        def times(keys: Ints) -> Ints:
            return self._old.times(buckets[keys], offsets[keys])

        return CurrentRows(groups, alive, remembered, rows, times, self._claim)

    def _numbered(self, change: Change, groups: Groups, made: Merged, values: Ints, known: FoundKeys) -> Ints:
        """Store the records; each one's value for the index."""
        rows = groups.first[made.keys]
        buckets = change.buckets[rows]
        offset = np.empty(len(rows), dtype=np.int64)
        for bucket, first, last in runs(buckets):
            offset[first:last] = self._draft.next[bucket] + np.arange(last - first)
        prev = np.where(is_live(values), values, ABSENT)[made.keys]
        before = Groups.by(made.keys).before
        prev = np.where(before >= 0, offset[before], prev)
        stored = pa.RecordBatch.from_arrays(
            [pa.array(made.change), pa.array(prev), *made.batch.columns], schema=stored_schema(self._table)
        )
        deletes = made.change == DELETE
        whole = len(rows) == len(known.keys) and groups.distinct
        keys = known.keys if whole else known.keys.take(rows)
        entries = Entries.of(keys, offset, deletes, buckets, known.links, remembers=self._remembers)
        for bucket, first, last in runs(buckets):
            superseded = prev[first:last]
            born, died = offset[first:last][~deletes[first:last]], superseded[superseded != ABSENT]
            batch, slots = stored.slice(first, last - first), entries.named(first, last)
            self._old.add(self._draft.add(bucket, batch, born, died, slots))
        shown = ~deletes | (prev != ABSENT)
        self._draft.draft.results[id(change)] = replace(
            self._draft.counted(made.change[shown], not_found=made.not_found),
            ignored=made.ignored,
            unchanged=made.unchanged,
            folded=made.folded,
        )
        if len(keys):
            self._draft.draft.entries.append((keys, entries.values))
        return np.where(deletes, offset | FLAG if self._remembers else ABSENT, offset)
