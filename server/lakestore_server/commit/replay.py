"""A record of the journal, applied again: by recovery, and by a server that follows the one that leads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.model.table import Table
from lakestore_server.files.journal import check_known, decode, raw_of
from lakestore_server.index.collisions import Entries, KeyQuery, hashed, replayed, resolved
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import IndexKeys, encoded, joined
from lakestore_server.state.chunk import CHANGE, DELETE, Ints
from lakestore_server.state.commit_record import CommitRecord, Entry, RowsPart
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a keyed table in one commit."""

    lsn: int
    table: Table
    """In the version in which the rows are stored."""
    part: RowsPart

    def columns(self) -> list[pa.Array]:
        return [self.part.batch.column(name) for name in self.table.primary_key]

    def keys(self) -> IndexKeys:
        return encoded(self.columns(), table_prefix(self.table.number))

    def offsets(self) -> Ints:
        return np.arange(self.part.start, self.part.end, dtype=np.int64)

    def deletes(self) -> npt.NDArray[np.bool_]:
        deletes: npt.NDArray[np.bool_] = self.part.batch.column(CHANGE).to_numpy() == DELETE
        return deletes

    @property
    def remembers(self) -> bool:
        return self.table.merge.engine == "versioned"

    def entries(self) -> Entries:
        """The entries of the server that made the commit."""
        part = self.part
        about = part.bucket, part.slots
        return replayed(self.keys(), self.offsets(), self.deletes(), *about, remembers=self.remembers)


def record_of(entry: Entry, view: View) -> tuple[CommitRecord, list[KeyedRows]]:
    """The record of an entry that follows a view, and its rows of keyed tables. `NewerFormat` if this release does not
    know all of it: a server that skipped a part would have another state than its leader."""
    raw = raw_of(entry.lsn, entry.record)
    check_known(raw)
    versions = {rows.table: view.tables[rows.table].versions for rows in raw.rows()}
    record = decode(raw, lambda uuid, schema_id: versions[uuid].stored(schema_id))
    stored = ((versions[part.table].numbered(part.schema_id), part) for part in record.rows)
    return record, [KeyedRows(raw.lsn, table, part) for table, part in stored if table.keyed]


def own_entries(rows: Sequence[KeyedRows], view: View, index: Index) -> Iterator[tuple[IndexKeys, Ints]]:
    """The entries of one commit in this server's index. The server that made the commit may have given a long key
    another slot, because its index was rebuilt at another time. `view` is a state after which the commit's rows are
    numbered."""
    for uuid, group in groupby(sorted(rows, key=lambda each: each.part.table), key=lambda each: each.part.table):
        parts = list(group)
        state = view.kept.get(uuid)
        try:
            entries = _entries(parts, state, index)
        except Corrupt:  # a table whose rows are damaged here has no index, and look-ups say so
            continue
        yield entries.keys, entries.values


def _entries(parts: Sequence[KeyedRows], state: TableState | None, index: Index) -> Entries:
    keys, deletes = joined([each.keys() for each in parts]), np.concatenate([each.deletes() for each in parts])
    offsets = np.concatenate([each.offsets() for each in parts])
    buckets = np.concatenate([np.full(len(each.part.batch), each.part.bucket, dtype=np.int32) for each in parts])
    remembers = parts[0].remembers
    if state is None or not hashed(keys):
        return Entries.of(keys, offsets, deletes, buckets, remembers=remembers)

    def columns() -> list[pa.Array]:
        return [pa.concat_arrays(arrays) for arrays in zip(*(each.columns() for each in parts), strict=True)]

    found = resolved(state, KeyQuery(keys, columns), index.find, deletes & (not remembers))
    return Entries.of(found.keys, offsets, deletes, buckets, found.links, remembers=remembers)
