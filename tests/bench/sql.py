"""The SQL door: key queries and scans through the ports of Postgres and Flight SQL, and the same by a PostgreSQL.

Orders of eight columns, keyed, in the server's log and index, as after a load. Clients, server and query processes
share the machine. The clients are those that users have: psycopg with its C part, psql, ADBC's driver for Flight SQL.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import psycopg
import pyarrow.csv

import lakestore
from jepsen.system.server import free_port
from tests.bench.orders import ROWS, orders, told, write
from tests.bench.report import Figure
from tests.support import postgres
from tests.support.process import ServerProcess

QUERIES, CONNECTIONS, SECONDS, SCANS, WARM = 1_000, 20, 10.0, 3, 50
P50_MS, PER_SECOND, COPY_ROWS, FLIGHT_ROWS, GROWTH = 2.0, 3_000.0, 1e6, 10e6, 1.1
KEY_QUERY = "SELECT order_id, customer, amount FROM bench.orders WHERE order_id = %s"
SCAN = "SELECT order_id, customer, amount FROM bench.orders"
CHUNK = 500_000
SAMPLE_SECONDS = 0.1
_PEER = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "jit": "off"}
_TABLE = """
CREATE SCHEMA bench;
CREATE TABLE bench.orders (order_id bigint, customer text, status text, amount float8, quantity int, price float8,
    created_at timestamp, note text);
"""


def measure(folder: Path) -> Iterator[Figure]:
    """Figures of Lakestore, then of PostgreSQL with the same rows, if the machine has one."""
    port, flight = free_port(), free_port()
    settings = folder / "server.yaml"
    settings.write_text(f"postgres: {{port: {port}}}\nflight: {{port: {flight}}}\n")
    with ServerProcess(folder / "data", arguments=["-c", str(settings)]) as server:
        with lakestore.connect(server.address) as lake:
            schema = orders(np.arange(1), 0).schema
            lake.create_table("bench.orders", schema, primary_key=["order_id"], buckets=4)
            write(lake.table("bench.orders"), np.arange(ROWS, dtype=np.int64), 1)
        where = f"host=127.0.0.1 port={port} user=bench dbname=bench"
        memory = Memory(server.pid)
        yield from _key_queries("", where, barred=True)
        yield from _scans(memory, "COPY by psql", COPY_ROWS, lambda: _copied(where))
        yield from _scans(memory, "COPY by psycopg", None, lambda: _received(where))
        yield from _scans(memory, "Flight SQL by ADBC", FLIGHT_ROWS, lambda: _flown(flight))
    if postgres.programs() is not None:
        with postgres.Postgres(_PEER) as peer:
            where = f"host=127.0.0.1 port={peer.port} user={postgres.USER} dbname={postgres.DATABASE}"
            _fill(where)
            yield from _key_queries("PostgreSQL: ", where, barred=False)
            for name, copy in (("psql", _copied), ("psycopg", _received)):
                rate = statistics.median(_rate(partial(copy, where)) for _ in range(SCANS))
                yield Figure(f"PostgreSQL: COPY by {name}", f"{rate:,.0f} rows/s", "", None)


def _key_queries(who: str, where: str, *, barred: bool) -> Iterator[Figure]:
    keys = np.random.default_rng(2).integers(0, ROWS, WARM + QUERIES).tolist()
    times = []
    with psycopg.connect(where, autocommit=True) as connection:
        for key in keys:
            began = time.perf_counter()
            found = connection.execute(KEY_QUERY, (key,)).fetchone()
            times.append(1e3 * (time.perf_counter() - began))
            assert found is not None
            assert found[0] == key
    p50, p99 = np.percentile(times[WARM:], (50, 99))
    bar, met = (f"p50 ≤ {P50_MS:.0f} ms", bool(p50 <= P50_MS)) if barred else ("", None)
    yield Figure(f"{who}{QUERIES:,} key queries, one connection", f"p50 {p50:.2f}, p99 {p99:.2f} ms", bar, met)
    rate = _together(where)
    bar, met = (f"≥ {PER_SECOND:,.0f}/s", rate >= PER_SECOND) if barred else ("", None)
    yield Figure(f"{who}key queries, {CONNECTIONS} connections", f"{rate:,.0f}/s", bar, met)


def _together(where: str) -> float:
    """Key queries a second of many connections, in a process of their own."""
    said = json.dumps({"where": where, "rows": ROWS, "seconds": SECONDS})
    done = subprocess.run([sys.executable, "-m", "tests.bench.sql", said], capture_output=True, text=True, check=True)
    return float(done.stdout)


async def _asked_together(where: str, rows: int, seconds: float) -> float:
    counts = [0] * CONNECTIONS

    async def ask(place: int, ends: asyncio.Event) -> None:
        keys = np.random.default_rng(place).integers(0, rows, 100_000).tolist()
        async with await psycopg.AsyncConnection.connect(where, autocommit=True) as connection:
            for key in keys:
                if ends.is_set():
                    return
                found = await (await connection.execute(KEY_QUERY, (key,))).fetchone()
                assert found is not None
                assert found[0] == key
                counts[place] += 1

    ends = asyncio.Event()
    tasks = [asyncio.create_task(ask(place, ends)) for place in range(CONNECTIONS)]
    await asyncio.sleep(1)
    before, began = sum(counts), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(counts) - before) / (time.perf_counter() - began)
    ends.set()
    await asyncio.gather(*tasks)
    return rate


def _copied(where: str) -> int:
    """Rows that psql writes into a pipe."""
    programs = postgres.programs()
    assert programs is not None
    psql = [str(programs / "psql"), where, "-X", "-q", "-c", f"COPY ({SCAN}) TO STDOUT"]
    with subprocess.Popen(psql, stdout=subprocess.PIPE) as copy:
        counted = subprocess.run(["wc", "-l"], stdin=copy.stdout, capture_output=True, text=True, check=True)
    assert copy.returncode == 0
    return int(counted.stdout)


def _received(where: str) -> int:
    """Messages that psycopg receives, one for each row. It makes no Python values of them."""
    with psycopg.connect(where) as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY ({SCAN}) TO STDOUT") as copy:
            return sum(1 for _ in copy)


def _flown(port: int) -> int:
    """Rows of Arrow batches."""
    flight = import_module("adbc_driver_flightsql.dbapi")
    with flight.connect(f"grpc://127.0.0.1:{port}") as connection, connection.cursor() as cursor:
        cursor.execute(SCAN)
        return sum(batch.num_rows for batch in cursor.fetch_record_batch())


def _rate(scan: Callable[[], int]) -> float:
    began = time.perf_counter()
    rows = scan()
    assert rows == ROWS
    return rows / (time.perf_counter() - began)


def _scans(memory: Memory, name: str, bar: float | None, scan: Callable[[], int]) -> Iterator[Figure]:
    rates, peaks = [], []
    for _ in range(SCANS):
        with memory.sampled() as peak:
            rates.append(_rate(scan))
        peaks.append(peak())
    rate = statistics.median(rates)
    what = f"{told(ROWS)} rows × 3 columns"
    said, met = "" if bar is None else f"≥ {bar:,.0f}", None if bar is None else rate >= bar
    yield Figure(f"{what}, {name}", f"{rate:,.0f} rows/s", said, met)
    ratio = peaks[-1] / peaks[0]
    shown = f"{ratio:.2f}x, {peaks[-1] / 1e6:,.0f} MB"
    yield Figure(f"{name}: memory of scan {SCANS} over the first", shown, f"≤ {GROWTH}x", ratio <= GROWTH)


class Memory:
    """The private memory of a process and of its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @contextmanager
    def sampled(self) -> Iterator[Callable[[], int]]:
        """Yields a function that returns the most bytes in the block so far."""
        peak, ends = 0, threading.Event()

        def sample() -> None:
            nonlocal peak
            while not ends.wait(SAMPLE_SECONDS):
                peak = max(peak, self._now())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield lambda: peak
        finally:
            ends.set()
            thread.join()

    def _now(self) -> int:
        listed = subprocess.run(["pgrep", "-P", str(self._pid)], capture_output=True, text=True, check=False)
        return sum(map(_private, [self._pid, *map(int, listed.stdout.split())]))


def _private(pid: int) -> int:
    """Anonymous memory: pages of mapped files belong to the system's cache."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def _fill(where: str) -> None:
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute(_TABLE)
        with connection.cursor() as cursor, cursor.copy("COPY bench.orders FROM STDIN (FORMAT csv)") as copy:
            options = pyarrow.csv.WriteOptions(include_header=False)
            for begin in range(0, ROWS, CHUNK):
                text = pyarrow.BufferOutputStream()
                ids = np.arange(begin, min(begin + CHUNK, ROWS), dtype=np.int64)
                pyarrow.csv.write_csv(pyarrow.Table.from_batches([orders(ids, 1 + begin)]), text, options)
                copy.write(text.getvalue().to_pybytes())
        connection.execute("ALTER TABLE bench.orders ADD PRIMARY KEY (order_id)")
        connection.execute("VACUUM (ANALYZE, FREEZE) bench.orders")


if __name__ == "__main__":
    sys.stdout.write(str(asyncio.run(_asked_together(**json.loads(sys.argv[1])))))
