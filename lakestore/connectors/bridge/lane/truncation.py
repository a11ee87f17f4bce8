"""Rows that a TRUNCATE of the source removes, deleted before the commit that moves progress past it.

- Each delete has the position of the TRUNCATE in its topic. A row with a later position stays, so it does no harm that
  these deletes are commits of their own, and are repeated after a crash.
- Rows of other partitions have no such order: the topic is to have one partition.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from lakestore.client.lake import Lake
from lakestore.connectors.bridge.dead_letters import sources_of
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import POSITION
from lakestore.connectors.bridge.tables import POSITION_MERGE
from lakestore.errors import NotFound

ROWS = 50_000
"""Keys of one commit."""
_LOG = logging.getLogger("lakestore.bridge")


def empty(lake: Lake, table: str, records: Records, record: int) -> None:
    """Delete the rows that a table has now, as of a record's position. A log keeps its rows."""
    try:
        target = lake.table(table)
    except NotFound:
        return
    key = target.definition.primary_key
    if target.definition.merge != POSITION_MERGE:
        if key:
            _LOG.warning("table %s keeps its rows at a TRUNCATE of its source: it has no source positions", table)
        return
    place = records.take(np.array([record], np.int64))
    source, offset = sources_of(place)[0], pa.scalar(int(records.offset[record]), pa.int64())
    done = 0
    for batch in target.scan(list(key)).to_batches():
        for low in range(0, batch.num_rows, ROWS):
            some = batch.slice(low, ROWS)
            places = [pa.repeat(source, some.num_rows), pa.repeat(offset, some.num_rows)]
            with lake.commit() as commit:
                commit.delete(table, pa.RecordBatch.from_arrays([*some.columns, *places], [*key, *POSITION]))
            done += some.num_rows
    _LOG.info("table %s follows a TRUNCATE of its source: %d rows are deleted", table, done)
