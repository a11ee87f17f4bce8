"""Rows on their way from a table into its copy under another number of buckets.

- A row is stored as it is in the source, in the newest version: no merge engine looks at it again.
- All rows of a key are in one bucket of the source and in one of the copy, so their order is kept.
- A log table without a bucket key keeps the order of each source bucket: bucket b becomes bucket b modulo N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Conflict
from lakestore.limits import WIDEST, Limits
from lakestore.model.table import Table
from lakestore.rows import keys
from lakestore_server.commit.build import store_as_is
from lakestore_server.commit.draft import Draft, TableDraft
from lakestore_server.commit.request import TableChange, index_keys
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import NO_KEYS
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.rescale import Rescale
from lakestore_server.state.view import TableState, View, stored_schema


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one bucket of the source, as stored."""

    bucket: int
    end: int
    """The offset after which the next rows begin."""
    batches: Sequence[tuple[pa.RecordBatch, int]]
    """Each with its schema version."""


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows of the source in the layout of the copy."""

    ends: Mapping[int, int]
    """Bucket of the source to the offset below which everything is in the copy after these rows."""
    change: TableChange | None
    """None if no row is to be copied."""
    deletes: npt.NDArray[np.bool_]

    @property
    def nbytes(self) -> int:
        """The weight of the rows."""
        return self.change.nbytes if self.change else 0


def copied_rows(source: TableState, copy: Table, several: Sequence[StoredRows]) -> CopiedRows:
    """Stored rows in the layout of the copy."""
    ends = {rows.bucket: rows.end for rows in several}
    shown, homes = [], []
    for rows in several:
        for stored, version in rows.batches:
            batch = source.versions.projection(version, source.table).batch(stored)
            shown.append(pa.RecordBatch.from_arrays(batch.columns, schema=stored_schema(copy)))
            homes.append(np.full(batch.num_rows, rows.bucket % copy.buckets, dtype=np.int32))
    if not sum(map(len, homes)):
        return CopiedRows(ends, None, np.zeros(0, dtype=np.bool_))
    batch = pa.concat_batches(shown) if len(shown) > 1 else shown[0]
    deletes = np.zeros(batch.num_rows, dtype=np.bool_)
    if copy.keyed:
        deletes = batch.column(CHANGE).to_numpy() == DELETE
        batch = batch.select(copy.storage_schema.names)
    buckets = np.concatenate(homes)
    if copy.bucket_key:
        buckets = keys.buckets([batch.column(name) for name in copy.bucket_key], copy.buckets)
    order = np.argsort(buckets, kind="stable")
    batch, buckets, deletes = batch.take(pa.array(order)), buckets[order], deletes[order]
    coded = index_keys(copy, batch, WIDEST.key_bytes) if copy.keyed else NO_KEYS
    given = frozenset(column.id for column in copy.columns)
    return CopiedRows(ends, TableChange(copy, batch, buckets, coded, delete=False, given=given), deletes)


def store(view: View, record: CommitRecord, expected: Rescale, rows: CopiedRows, index: Index, limits: Limits) -> Draft:
    """Add rows to a commit of the copy, and the copy's new position; the draft has the index entries. `Conflict` if the
    rescale, the copy or its definition is another one by now."""
    if view.rescales.get(expected.source) != expected:
        raise Conflict("the rescale has ended or moved")
    copy = view.tables[expected.copy]
    draft = Draft(record, limits.batch_memory_bytes, limits.message_bytes)
    if rows.change is not None:
        known = rows.change.table
        if (known.schema_id, known.number) != (copy.table.schema_id, copy.table.number):
            raise Conflict(f"table {copy.table.name} was altered meanwhile")
        if copy.table.keyed:
            index.check(table_prefix(copy.table.number))
        store_as_is(TableDraft(draft, copy), replace(rows.change, table=copy.table), rows.deletes, index)
    done = tuple(rows.ends.get(bucket, offset) for bucket, offset in enumerate(expected.done))
    record.rescale.append(replace(expected, done=done))
    return draft
