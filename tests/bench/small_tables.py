"""Figures of rounds of many small tables: half of them keyed, half of them logs, a thousand rows each and round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.bench import bed
from tests.bench.bed import GROUP, timed
from tests.bench.report import Figure

ROWS = 1_000
BARS = {40: 60.0, 200: 240.0}
"""Number of tables to the seconds that a round of all may take."""
_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def measure(folder: Path) -> Iterator[Figure]:
    """The first round of all tables, and the second one, in which half of the rows of keyed tables are updates."""
    for count, bar in BARS.items():
        with bed.made(folder / str(count)) as made:
            tables = [
                made.lake.create_table(f"small.t{i}", _SCHEMA, primary_key=[] if i % 2 else ["id"], buckets=1)
                for i in range(count)
            ]
            for number, name in enumerate(("first", "second")):
                first = number * ROWS // 2
                rows = pa.table({"id": range(first, first + ROWS), "v": [f"{name}{i}" for i in range(ROWS)]}, _SCHEMA)
                for i, table in enumerate(tables):
                    (table.append if i % 2 else table.upsert)(rows)
                seconds = timed(made.tierer.run_once)
                what = f"{name} round of {count} tables of {ROWS:,} rows"
                yield Figure(GROUP, what, f"{seconds:.0f} s", f"{bar:.0f} s", seconds <= bar)
