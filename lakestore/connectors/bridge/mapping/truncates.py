"""TRUNCATEs that tables follow: the rows of a table that come before one in a block are deletes.

Rows that are in the table already are deleted by the commit stage, see `lane/truncation.py`. Both deletes have the
source position of a record, so a row that came behind the TRUNCATE stays, however often that is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.mapping.routing import origins, table_name
from lakestore.connectors.bridge.outcome import Decoded, Mapped, Op, TableRows
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import TopicSpec
from lakestore.connectors.bridge.tables import POSITION_MERGE
from lakestore.model.table import Table


def truncated(
    mapped: Mapped, decoded: Decoded, topic: TopicSpec, records: Records, tables: Mapping[str, Table]
) -> Mapped:
    """The ends of a block, with the tables that it empties, also ones without a row in it. A log keeps its rows."""
    last: dict[str, int] = {}
    for table, record in _tables(decoded, topic, records.topic):
        last[table] = max(record, last.get(table, -1))
    emptied = [
        _emptied(rows, records, last[rows.table])
        if rows.table in last and tables[rows.table].merge == POSITION_MERGE
        else rows
        for rows in mapped.tables
    ]
    return replace(mapped, tables=emptied, truncates=last)


def _tables(decoded: Decoded, topic: TopicSpec, name: str) -> Iterator[tuple[str, int]]:
    for records, origin in decoded.truncates:
        for found, at in origins(origin):
            for spec in topic.tables:
                if spec.truncate == "follow":
                    yield table_name(spec.table, name, found), int(records[at].max())


def _emptied(rows: TableRows, records: Records, record: int) -> TableRows:
    """The rows, those before the record in its partition as deletes."""
    gone = records.offset[rows.record] < records.offset[record]
    gone &= records.partition[rows.record] == records.partition[record]
    if not gone.any():
        return rows
    kept = {name: pa.array(mask.to_numpy(zero_copy_only=False) & ~gone) for name, mask in rows.kept.items()}
    return replace(rows, op=np.where(gone, Op.DELETE, rows.op).astype(np.int8), kept=kept)
