"""The journal's rows put back into the index, before anything is served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lakestore.model.table import Table
from lakestore_server.index.collisions import Entries, replayed
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import NumberKeys, encoded
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.commit_record import RowsPart


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a primary-key table in one commit of the journal."""

    lsn: int
    table: Table
    """The version that the rows are in."""
    part: RowsPart

    def entries(self) -> Entries:
        """The index entries that the commit made."""
        part, table = self.part, self.table
        columns = [part.batch.column(name) for name in table.primary_key]
        offsets = np.arange(part.start, part.end, dtype=np.int64)
        deletes = part.batch.column(CHANGE).to_numpy() == DELETE
        keys = encoded(columns, table_prefix(table.number))
        remembers = table.merge.engine == "versioned"
        return replayed(keys, offsets, deletes, part.bucket, part.slots, remembers=remembers)


def load(index: Index, rows: Iterable[KeyedRows], live: Mapping[bytes, int], *, checkpoint_lsn: int, lsn: int) -> None:
    """Put the journal's rows over runs and LMDB, or have the index rebuilt beside serving.

    `lsn` is the newest commit; `live` has the live rows of each table as of the index's entries. An entry of keys of
    bytes that is held stays: a rebuild may have given a key another slot than the frame says.
    """
    if index.ready and index.lsn < 0 and lsn == 0:
        index.finish_rebuild(0, {})
    elif index.ready and not checkpoint_lsn <= index.lsn <= max(index.lsn, index.entries_lsn) <= lsn:
        what = (
            "there is no whole one, as after a restore or a damaged block"
            if index.lsn < 0
            else f"it stands at {index.lsn}, the checkpoint at {checkpoint_lsn}"
        )
        index.found_problem(what, damaged=False)
    index.compare(live)
    if not index.ready:
        return
    held_lsn = index.held_lsn
    for part in rows:
        entries = part.entries()
        if part.lsn > held_lsn or isinstance(entries.keys, NumberKeys):  # the same entries again do no harm
            with index.lock:
                index.put(entries.keys, entries.values)
