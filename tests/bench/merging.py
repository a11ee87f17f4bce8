"""The peer of a round: Spark's MERGE INTO on a plain Iceberg table, set up as its users tune it.

Merge-on-read with deletes by file, no redistribution of what is written, as many shuffle partitions as cores, and
adaptive joins that build a hash table of the small side in place of sorting all keys of the table. Spark broadcasts
no side of a merge that inserts: the source is the outer one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.bed import BIG, Bed, timed
from tests.bench.orders import IS_SMALL, ROWS, SCHEMA, orders, scaled, told
from tests.bench.report import Figure

_PROPERTIES = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.delete.granularity": "file",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
_CONF = {
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64MB",
    "spark.sql.autoBroadcastJoinThreshold": "64MB",
}
_MERGE = (
    "MERGE INTO lake.plain.orders t USING changed c ON t.order_id = c.order_id"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
RUNS = 2 if IS_SMALL else 4


def measure(bed: Bed, ours: float) -> Iterator[Figure]:
    """The same change as a round's, and both compared; a first merge of the session is not counted."""
    spark = bed.spark
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.plain")
    properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
    create = f"CREATE TABLE lake.plain.orders USING iceberg TBLPROPERTIES ({properties})"
    spark.sql(f"{create} AS SELECT {', '.join(SCHEMA.names)} FROM lake.{BIG}")
    for key, value in _CONF.items():
        spark.conf.set(key, value)
    rng = np.random.default_rng(4)
    took = []
    for run in range(RUNS):
        changed = orders(rng.choice(ROWS, scaled(100_000), replace=False), 200 + run)
        path = str(bed.folder / f"changed-{run}.parquet")
        pq.write_table(pa.Table.from_batches([changed]), path)
        spark.read.parquet(path).createOrReplaceTempView("changed")
        took.append(timed(lambda: spark.sql(_MERGE)))
    for key in _CONF:
        spark.conf.unset(key)
    spark.sql("DROP TABLE lake.plain.orders PURGE")
    median = statistics.median(took[1:])
    size = told(ROWS)
    shown = f"{median:.2f} s (first {took[0]:.2f})"
    yield Figure(f"the same change on {size} by MERGE INTO", shown, "", None)
    yield Figure(f"round over MERGE INTO, {size}", f"{ours / median:.2f}x", "≤ 0.5x", ours / median <= 0.5)
