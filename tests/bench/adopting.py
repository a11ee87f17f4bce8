"""`python -m tests.bench.adopting [ROWS]`: rows per second and memory of an adoption; 10 million rows by default."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

import lakestore as ls
from tests.support.process import ServerProcess

ROWS, FILE_ROWS = 10_000_000, 1_000_000
BAR_ROWS, BAR_SECONDS = 100_000_000, 180
SOURCE, NAME = "old.orders", "bench.adopted"
SCHEMA = pa.schema(
    [("order_id", pa.int64()), ("customer", pa.int32()), ("status", pa.string()), ("price", pa.float64())]
)


def _part(begin: int, end: int) -> pa.Table:
    ids = np.random.default_rng(begin).permutation(np.arange(begin, end))
    status = pa.array(["new", "paid", "sent"]).take(pa.array(ids % 3))
    columns = [pa.array(ids), pa.array((ids % 100_000).astype(np.int32)), status, pa.array(ids * 0.25)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _server_mb(pid: int) -> int:
    """The most memory of the server so far."""
    said = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in said.splitlines() if line.startswith("VmHWM")) >> 10


def main(rows: int) -> None:
    """Make the table, adopt it, print the figures."""
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data") as server:
        catalog = RestCatalog("lake", uri=f"http://{server.host}:{server.http_port}/iceberg")
        catalog.create_namespace("old")
        table = catalog.create_table(SOURCE, SCHEMA)
        for begin in range(0, rows, FILE_ROWS):
            table.append(_part(begin, min(begin + FILE_ROWS, rows)))
        ends: dict[str, float] = {}
        with ls.connect(server.address) as lake:
            began = time.perf_counter()
            lake.adopt(
                SOURCE,
                NAME,
                primary_key=["order_id"],
                tell=lambda stage, done, total: ends.update({stage: time.perf_counter() - began}),
            )
            whole = time.perf_counter() - began
            assert lake.table(NAME).scan().count() == rows
        print(
            f"{rows:,} rows in {whole:.1f} s: rows {ends['rows']:.1f} s, numbers {ends['numbers'] - ends['rows']:.1f} s"
            f"; {rows / whole:,.0f} rows/s (bar {BAR_ROWS / BAR_SECONDS:,.0f})"
        )
        client = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"memory: server {_server_mb(server.pid)} MB, client {client} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROWS)
