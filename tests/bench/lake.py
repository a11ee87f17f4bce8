"""Figures of tiering and union reads in Spark, on tables of eight columns like the peers' orders."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import lakestore
from lakestore.client import writer
from lakestore_spark.session import attach, session
from lakestore_spark.spark_lake import SparkLake
from lakestore_tiering.service import Tierer
from tests.bench.report import Figure
from tests.support.process import ServerProcess

GROUP = "Lake"
MILLION = 1_000_000
BIG, SMALL, CHANGED = 10 * MILLION, MILLION, 100_000
SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("status", pa.string()),
        ("amount", pa.float64()),
        ("quantity", pa.int32()),
        ("price", pa.float64()),
        ("created_at", pa.timestamp("us")),
        ("note", pa.string()),
    ]
)
AGGREGATE = "SELECT sum(amount), sum(quantity), sum(price) FROM {}"
_STATUS = pa.array(["new", "paid", "sent", "done"])


def orders(ids: npt.NDArray[np.int64], seed: int) -> pa.RecordBatch:
    """Orders with these ids; the values depend on the seed."""
    rng = np.random.default_rng(seed)
    count = len(ids)
    customers = pa.array(rng.integers(0, 100_000, count)).cast(pa.string())
    return pa.record_batch(
        [
            pa.array(ids),
            customers,
            _STATUS.take(pa.array(rng.integers(0, 4, count))),
            pa.array(rng.random(count) * 100),
            pa.array(rng.integers(1, 9, count).astype(np.int32)),
            pa.array(rng.random(count) * 50),
            pa.array(rng.integers(0, 10**15, count), pa.timestamp("us")),
            pa.array(rng.integers(0, 1_000, count)).cast(pa.string()),
        ],
        schema=SCHEMA,
    )


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with ServerProcess(folder / "lake") as server, lakestore.connect(server.address) as lake:
        spark = session(server.address)
        spark_lake = attach(spark, server.address)
        with Tierer(lake, spark) as tierer:
            yield from _flush(lake, tierer)
            small = yield from _rounds(lake, tierer, "bench.small", SMALL)
            big = yield from _rounds(lake, tierer, "bench.big", BIG)
            yield Figure(GROUP, "round at 10 M over round at 1 M", f"{big / small:.2f}x", "flat later", None)
            yield from _merge(spark, big, folder)
            tierer.run_once("bench.big", compaction=True)
            yield from _reads(lake, spark, spark_lake)
        spark_lake.close()
        spark.stop()


def _load(table: lakestore.Table, ids: npt.NDArray[np.int64], seed: int) -> None:
    with table.writer() as out:
        for at in range(0, len(ids), writer.COMMIT_ROWS_MAX):
            out.upsert(orders(ids[at : at + writer.COMMIT_ROWS_MAX], seed + at))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _flush(lake: lakestore.Lake, tierer: Tierer) -> Iterator[Figure]:
    rates = []
    for run in range(4):
        table = lake.create_table(f"bench.flush_{run}", SCHEMA, primary_key=["order_id"])
        _load(table, np.arange(MILLION), run)
        rates.append(MILLION / _timed(lambda name=table.name: tierer.run_once(name, compaction=False)))  # type: ignore[misc]
    median = statistics.median(rates[1:])
    shown = f"{median:,.0f} rows/s (first in the session {rates[0]:,.0f})"
    yield Figure(GROUP, "flush of 1 M new rows", shown, "≥ 300,000", median >= 300_000)


def _rounds(lake: lakestore.Lake, tierer: Tierer, name: str, size: int) -> Generator[Figure, None, float]:
    """The median round of 100,000 uniform updates; the generator's value."""
    table = lake.create_table(name, SCHEMA, primary_key=["order_id"])
    _load(table, np.arange(size), 1)
    tierer.run_once(name, compaction=False)
    rng = np.random.default_rng(3)
    took = []
    for run in range(4):
        _load(table, rng.choice(size, CHANGED, replace=False), 100 + run)
        took.append(_timed(lambda: tierer.run_once(name, compaction=False)))
    median = statistics.median(took[1:])
    shown = f"{median:.2f} s (first {took[0]:.2f})"
    yield Figure(GROUP, f"round of 100 k uniform updates on {size // MILLION} M rows", shown, "", None)
    return median


def _merge(spark: SparkSession, ours: float, folder: Path) -> Iterator[Figure]:
    """The same change by Spark's MERGE INTO on a plain Iceberg table."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.plain")
    properties = "'write.merge.mode'='merge-on-read', 'format-version'='2'"
    names = ", ".join(SCHEMA.names)
    create = f"CREATE TABLE lake.plain.orders USING iceberg TBLPROPERTIES ({properties})"
    spark.sql(f"{create} AS SELECT {names} FROM lake.bench.big")
    rng = np.random.default_rng(4)
    took = []
    for run in range(3):
        changed = orders(rng.choice(BIG, CHANGED, replace=False), 200 + run)
        path = str(folder / f"changed-{run}.parquet")
        pq.write_table(pa.Table.from_batches([changed]), path)
        spark.read.parquet(path).createOrReplaceTempView("changed")
        merge = "MERGE INTO lake.plain.orders t USING changed c ON t.order_id = c.order_id"
        took.append(_timed(lambda: spark.sql(f"{merge} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")))  # noqa: B023
    median = statistics.median(took)
    yield Figure(GROUP, "the same change on 10 M by MERGE INTO", f"{median:.2f} s", "", None)
    yield Figure(GROUP, "round over MERGE INTO, 10 M", f"{ours / median:.2f}x", "≤ 0.5x", ours / median <= 0.5)


def _reads(lake: lakestore.Lake, spark: SparkSession, spark_lake: SparkLake) -> Iterator[Figure]:
    """Union reads with hot changes against the plain scan of the compacted lake table."""
    table = lake.table("bench.big")
    rng = np.random.default_rng(5)
    shapes: list[tuple[str, Callable[[], object], Callable[[], object], dict[int, float]]] = [
        (
            "three-column aggregate",
            lambda: spark.sql(AGGREGATE.format("lake.bench.big")).collect(),
            lambda: spark_lake.sql(AGGREGATE.format("bench.big")).collect(),
            {1: 1.8, 10: 2.0},
        ),
        (
            "all columns",
            lambda: spark.table("lake.bench.big").select(*SCHEMA.names).write.format("noop").mode("overwrite").save(),
            lambda: spark_lake.table("bench.big").write.format("noop").mode("overwrite").save(),
            {1: 1.3, 10: 1.4},
        ),
    ]
    hot = 0
    for percent in (1, 10):
        count = BIG * percent // 100 - hot
        hot += count
        _load(table, rng.choice(BIG, count, replace=False), 300 + percent)
        for name, plain, union, bars in shapes:
            pairs = [(_timed(plain), _timed(union)) for _ in range(6)][1:]
            ratio = statistics.median(b / a for a, b in pairs)
            times = f"{statistics.median(a for a, _ in pairs):.2f} → {statistics.median(b for _, b in pairs):.2f} s"
            label = f"union read, {percent} % hot, {name}"
            yield Figure(GROUP, label, f"{ratio:.2f}x ({times})", f"≤ {bars[percent]}x", ratio <= bars[percent])
