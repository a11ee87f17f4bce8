"""Figures of a server's life: start, recovery of 10 M rows, memory over 10 GB."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA, rows
from tests.support.process import ServerProcess

RECOVERED_ROWS = 10_000_000
WRITTEN_BYTES = 10_000_000_000
ROW_BYTES = 1_000


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    yield _start(folder / "start")
    yield _recovery(folder / "recovery")
    yield _memory(folder / "memory")


def _start(folder: Path) -> Figure:
    runs = []
    for run in range(3):
        began = time.perf_counter()
        with ServerProcess(folder / str(run)) as server, lakestore.connect(server.address) as lake:
            lake.tables()
            runs.append(time.perf_counter() - began)
    median = statistics.median(runs)
    return Figure("start-up to first answer", f"{median:.2f} s", "< 1.5 s", median < 1.5)


def _recovery(folder: Path) -> Figure:
    server = ServerProcess(folder)
    with lakestore.connect(server.address) as lake:
        table = lake.create_table("bench.keyed", SCHEMA, primary_key=["id"])
        with table.writer() as out:
            for start in range(0, RECOVERED_ROWS, 10_000):
                out.upsert(rows(np.arange(start, start + 10_000, dtype=np.int64)))
    server.kill()
    began = time.perf_counter()
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        found = lake.table("bench.keyed").lookup([{"id": RECOVERED_ROWS - 1}])
        seconds = time.perf_counter() - began
        if len(found) != 1 or lake.table("bench.keyed").scan().count() != RECOVERED_ROWS:
            raise AssertionError("rows are missing after recovery")
    return Figure("kill -9 to first look-up, 10 M rows", f"{seconds:.1f} s", "< 5 s", seconds < 5)


def _memory(folder: Path) -> Figure:
    """The most anonymous memory that the server and its index processes held while 10 GB went in and out again."""
    most = 0
    batch = pa.record_batch([pa.array([b"x" * ROW_BYTES] * 10_000)], names=["value"])
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        table = lake.create_table("bench.memory", pa.schema([("value", pa.binary())]), buckets=4)
        with table.writer() as out:
            for number in range(WRITTEN_BYTES // (ROW_BYTES * 10_000)):
                out.append(batch)
                if number % 20 == 0:
                    most = max(most, _anonymous(server.pid))
        found = 0
        for part in table.scan().to_batches():
            found += part.num_rows
            if found % 1_000_000 < part.num_rows:
                most = max(most, _anonymous(server.pid))
    if found != WRITTEN_BYTES // ROW_BYTES:
        raise AssertionError("rows are missing")
    name = "anonymous memory while 10 GB are written and read"
    return Figure(name, f"{most / 1e9:.2f} GB at most", "< 1.5 GB", most < 1.5e9)


def _anonymous(pid: int) -> int:
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return sum(_anonymous_of(Path(f"/proc/{each}/status")) for each in (pid, *children))


def _anonymous_of(status: Path) -> int:
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
