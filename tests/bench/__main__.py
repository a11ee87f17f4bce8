"""`python -m tests.bench [GROUP …]`: measure and write docs/benchmarks.md; all of `GROUPS` by default.

Each group is one table, which the run replaces.

With `LAKESTORE_BENCH_ROWS=200000` the groups `lake`, `stores` and `freshness` do all that they do with so few rows, and
nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from tests.bench import (
    bridge,
    bucket,
    console,
    contract,
    keyed,
    life,
    loading,
    reading,
    replicas,
    report,
    streaming,
)
from tests.bench.orders import IS_SMALL
from tests.bench.report import Figure, Part


def _late(name: str) -> Callable[[Path], Iterator[Figure]]:
    """The figures of a module that is imported when its group runs, because it needs Spark or drivers."""

    def measure(folder: Path) -> Iterator[Figure]:
        found: Iterator[Figure] = import_module(f"tests.bench.{name}").measure(folder)
        return found

    return measure


GROUPS = {
    "writes": Part("Server: writes", streaming.measure),
    "keyed": Part("Server: tables with keys", keyed.measure),
    "reads": Part("Server: reads", reading.measure),
    "life": Part("Server: start, recovery, memory", life.measure),
    "loading": Part("Server: loads of files", loading.measure),
    "bridge": Part("Kafka bridge", bridge.measure),
    "replicas": Part("Replicas", replicas.measure),
    "bucket": Part("Journal in a bucket", bucket.measure),
    "console": Part("Console, 1,000 tables", console.measure),
    "contract": Part("Contract", contract.measure),
    "sql": Part("SQL door", _late("sql")),
    "lake": Part("Lake", _late("lake")),
    "stores": Part("Lake on an S3 server", _late("stores")),
    "small-tables": Part("Lake: many small tables", _late("small_tables")),
    "freshness": Part("Freshness", _late("freshness")),
    "erase": Part("Erasure", _late("erasing")),
}


def main(names: list[str]) -> None:
    """Run the named groups, all by default."""
    report.measure(GROUPS, names or GROUPS, (45, 60, 25), "make bench ARGS={}", is_dry=IS_SMALL)


if __name__ == "__main__":
    main(sys.argv[1:])
