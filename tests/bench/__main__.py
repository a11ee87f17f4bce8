"""`python -m tests.bench [GROUP …]`: measure and write docs/benchmarks.md; all of `GROUPS` by default.

With `LAKESTORE_BENCH_ROWS=200000` the groups `lake` and `freshness` do all that they do with so few rows, and nothing
is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import bridge, bucket, console, keyed, life, loading, peer, reading, replicas, report, streaming
from tests.bench.orders import IS_SMALL
from tests.bench.report import Figure


def _lake(folder: Path) -> Iterator[Figure]:
    from tests.bench.lake import measure

    return measure(folder)


def _freshness(folder: Path) -> Iterator[Figure]:
    from tests.bench.freshness import measure

    return measure(folder)


def _small_tables(folder: Path) -> Iterator[Figure]:
    from tests.bench.small_tables import measure

    return measure(folder)


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
    "lake": _lake,
    "small-tables": _small_tables,
    "freshness": _freshness,
}


def main(names: list[str]) -> None:
    """Run the named groups, all by default."""
    figures = list(report.measured(GROUPS, names or GROUPS, (45, 60, 25)))
    if not IS_SMALL:
        report.write(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
