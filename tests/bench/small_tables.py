"""Figures of `lakestore tier --once` with many small tables, half of them keyed, half of them logs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

import lakestore
from tests.bench.bed import timed
from tests.bench.report import Figure
from tests.support.process import ServerProcess

ROWS = 1_000
BARS = {40: 60.0, 200: 240.0}
"""Number of tables to the seconds that the command may take, with the start and the end of its Spark."""
_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def measure(folder: Path) -> Iterator[Figure]:
    """The first round of all tables, and the second one, in which half of the rows of keyed tables are updates."""
    for count, bar in BARS.items():
        with ServerProcess(folder / str(count)) as server, lakestore.connect(server.address) as lake:
            tables = [
                lake.create_table(f"small.t{i}", _SCHEMA, primary_key=[] if i % 2 else ["id"], buckets=1)
                for i in range(count)
            ]
            command = [sys.executable, "-m", "lakestore", "tier", "--once", "--server", server.address]
            for number, name in enumerate(("first", "second")):
                first = number * ROWS // 2
                rows = pa.table({"id": range(first, first + ROWS), "v": [f"{name}{i}" for i in range(ROWS)]}, _SCHEMA)
                for i, table in enumerate(tables):
                    (table.append if i % 2 else table.upsert)(rows)
                seconds = timed(partial(subprocess.run, command, check=True, capture_output=True))
                what = f"`lakestore tier --once`, {name} round of {count} tables of {ROWS:,} rows"
                yield Figure(what, f"{seconds:.0f} s", f"{bar:.0f} s", seconds <= bar)
