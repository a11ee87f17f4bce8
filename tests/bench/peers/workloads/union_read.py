"""Spark and DuckDB scan a table in which no row, 1 % or 10 % of the rows were changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow.parquet as pq

from tests.bench.orders import MILLION, told
from tests.bench.peers.contest import LESS, Contestant, Failed, Measure, Missing, Workload
from tests.bench.peers.contestants import lakestore_lake, spark_iceberg
from tests.bench.peers.order_changes import Sums, change_file, order_file

ROWS, PERCENTS, ENGINES = 5 * MILLION, (0, 1, 10), ("Spark", "DuckDB")
CAUSES = {
    "Spark": (
        "Spark asks a REST catalog for the table, 3 ms; Iceberg's tables lie in a folder that it reads itself. Another"
        " 10 to 20 ms go by in the execution, also of small tables, and why is not known yet."
    ),
    "DuckDB": (
        "DuckDB asks a REST catalog for the table, about 5 ms; Iceberg's tables lie in a folder that it reads itself."
    ),
}


class UnionLake(Protocol):
    """The methods that this workload calls on a system."""

    def fill(self, name: str, file: Path) -> None:
        """Make a table with the key `order_id` of a file's orders, all in the lake."""

    def make_hot(self, name: str, file: Path) -> None:
        """Upsert a file's orders. Lakestore keeps them hot; the others write them and their deletes into the lake."""

    def read(self, name: str, engine: str) -> Sums:
        """Scan the table as it is now with one of `ENGINES`."""


class Stage(NamedTuple):
    """A filled system, and what a scan of each table must give."""

    system: UnionLake
    right: Mapping[int, Sums]


def _table(percent: int) -> str:
    return f"union_{percent}"


def _measure(percent: int, engine: str) -> str:
    return f"{percent} % changed, {engine}"


def prepare(system: UnionLake, scale: float) -> Stage:
    """Fill and change the tables, and read each once."""
    rows, right = int(ROWS * scale), dict[int, Sums]()
    for percent in PERCENTS:
        system.fill(_table(percent), order_file(rows))
        quantities = pq.read_table(order_file(rows), columns=["quantity"]).column(0).to_numpy().copy()
        if percent:
            file = change_file(rows, rows * percent // 100, 0)
            system.make_hot(_table(percent), file)
            changed = pq.read_table(file, columns=["order_id", "quantity"])
            quantities[changed.column(0).to_numpy()] = changed.column(1).to_numpy()
        right[percent] = Sums(rows, int(quantities.sum(dtype="int64")))
    stage = Stage(system, right)
    turn(stage, 0)
    return stage


def turn(stage: Stage, _: int) -> Mapping[str, float]:
    """Seconds of each scan. Raises `Failed` if one is wrong."""
    seconds = {}
    for percent in PERCENTS:
        for engine in ENGINES:
            began = time.perf_counter()
            sums = stage.system.read(_table(percent), engine)
            seconds[_measure(percent, engine)] = time.perf_counter() - began
            if sums != stage.right[percent]:
                raise Failed(f"{engine} has {sums} instead of {stage.right[percent]} with {percent} % changed")
    return seconds


def _no_fluss(_: Path) -> None:
    raise Missing(
        "its union read needs rows in Paimon or Iceberg, which a Flink job (fluss-flink-tiering) writes, and Flink or"
        " Spark with Fluss's connector; no Flink is set up here"
    )


FLUSS = Contestant("Apache Fluss union read", "0.9.1-incubating", _no_fluss, "")  # type: ignore[arg-type]
OTHERS: Sequence[Contestant] = (spark_iceberg.contestant(2), spark_iceberg.contestant(3), FLUSS)
WORKLOAD = Workload(
    title="Union reads",
    what=(
        f"Three sums and the count are read from a table of {told(ROWS)} orders. There are three such tables: in one"
        " no row was changed, in one 1 % of the rows, in one 10 %. The changed rows were chosen uniformly. In"
        " Lakestore they are hot: none of them is in the lake. Spark reads them in warehouse `now`, DuckDB in"
        " `now-v3`. In Iceberg a MERGE has written the changed rows into the lake, and as many deletes. Nothing"
        " changes between the rounds, so an engine or Lakestore may keep what it has read of a table. DuckDB's cache"
        " of files is switched off: with it DuckDB 1.5 may take one deletion vector for another."
    ),
    measures=tuple(
        Measure(_measure(percent, engine), "s", LESS, 3, CAUSES[engine]) for engine in ENGINES for percent in PERCENTS
    ),
    contestants=(lakestore_lake.CONTESTANT, *OTHERS),
    prepare=prepare,
    turn=turn,
)
