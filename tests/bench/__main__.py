"""`python -m tests.bench [GROUP …]`: measure and write docs/benchmarks.md; all of `GROUPS` by default.

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
    peer,
    reading,
    replicas,
    report,
    streaming,
)
from tests.bench.orders import IS_SMALL
from tests.bench.report import Figure


def _late(name: str) -> Callable[[Path], Iterator[Figure]]:
    """The figures of a module that is imported when its group runs, because it needs Spark or drivers."""

    def measure(folder: Path) -> Iterator[Figure]:
        found: Iterator[Figure] = import_module(f"tests.bench.{name}").measure(folder)
        return found

    return measure


GROUPS: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "writes": streaming.measure,
    "keyed": keyed.measure,
    "reads": reading.measure,
    "life": life.measure,
    "loading": loading.measure,
    "kafka": peer.measure,
    "bridge": bridge.measure,
    "replicas": replicas.measure,
    "bucket": bucket.measure,
    "console": console.measure,
    "contract": contract.measure,
    "sql": _late("sql"),
    "lake": _late("lake"),
    "stores": _late("stores"),
    "small-tables": _late("small_tables"),
    "freshness": _late("freshness"),
    "erase": _late("erasing"),
}


def main(names: list[str]) -> None:
    """Run the named groups, all by default."""
    figures = list(report.measured(GROUPS, names or GROUPS, (45, 60, 25)))
    if not IS_SMALL:
        report.write(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
