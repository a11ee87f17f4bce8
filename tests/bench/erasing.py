"""Figures of an erasure: 1,000 of 10 M keys, its time and the bytes that server and tierer write."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakestore.client.erasure import Erasure
from tests.bench.bed import Bed, made
from tests.bench.orders import IS_SMALL
from tests.bench.report import Figure

NAME = "bench.people"
ROWS = int(os.environ["LAKESTORE_BENCH_ROWS"]) if IS_SMALL else 10_000_000
ERASED = 1_000
PART = 250_000
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("note", pa.string()),
    ]
)


def _part(begin: int) -> pa.Table:
    ids = np.arange(begin, min(begin + PART, ROWS), dtype=np.int64)
    names = pa.array([f"customer-{number}" for number in range(ROWS // ERASED)])
    customers = names.take(pa.array(ids % (ROWS // ERASED)))
    notes = pa.array([f"note {number:x}" for number in (ids * 2_654_435_761 % (1 << 32)).tolist()])
    return pa.Table.from_arrays([pa.array(ids), customers, pa.array(ids * 0.25), notes], schema=SCHEMA)


def measure(folder: Path) -> Iterator[Figure]:
    """All figures."""
    with made(folder) as bed:
        table = bed.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=4, lake={"freshness": "2s"})
        with table.writer() as out:
            for begin in range(0, ROWS, PART):
                out.upsert(_part(begin))
        bed.tier(NAME)
        yield from _erased(bed)


def _erased(bed: Bed) -> Iterator[Figure]:
    table, stop = bed.lake.table(NAME), threading.Event()
    steps: dict[str, float] = {}
    before, lake = _written(bed.server.pid), {path: path.stat().st_size for path in _files(bed)}

    def note(now: Erasure) -> None:
        steps.setdefault(now.step, time.perf_counter() - began)

    tierer = threading.Thread(target=bed.tierer.run_forever, args=(stop,))
    tierer.start()
    began = time.perf_counter()
    try:
        done = table.erase(
            where="customer = 'customer-7'",
            wait=True,
            within=0,
            on_progress=note,
        )
    finally:
        stop.set()
        tierer.join()
    took = time.perf_counter() - began
    if (done.keys, table.scan().count()) != (ERASED, ROWS - ERASED):
        raise AssertionError(f"{done.keys} keys were erased, and {table.scan().count()} rows are left")
    server = _written(bed.server.pid) - before
    new = sum(path.stat().st_size for path in _files(bed) if path not in lake)
    title = f"{ERASED:,} of {ROWS:,} keys erased, with certificate"
    yield Figure(title, f"{took:.1f} s", "", None)
    parts = ", ".join(f"{step} from {begin:.1f} s" for step, begin in steps.items() if step != "done")
    yield Figure("  its steps", parts, "", None)
    written = f"{server / 1e6:,.0f} MB of {_size(bed) / 1e6:,.0f} MB stored"
    yield Figure("  written by the server", written, "", None)
    yield Figure("  written to the lake", f"{new / 1e6:,.0f} MB of {sum(lake.values()) / 1e6:,.0f} MB", "", None)
    check = time.perf_counter()
    assert done.certificate is not None
    if found := bed.lake.verify_erased(done.certificate).findings:
        raise AssertionError(found)
    seconds = time.perf_counter() - check
    yield Figure(f"verify --erased, {done.certificate['files']} files", f"{seconds:.1f} s", "", None)


def _files(bed: Bed) -> list[Path]:
    return [path for path in (bed.folder / "lake" / "warehouse").rglob("*") if path.is_file()]


def _size(bed: Bed) -> int:
    warehouse = bed.folder / "lake" / "warehouse"
    found = (path for path in (bed.folder / "lake").rglob("*") if path.is_file() and warehouse not in path.parents)
    return sum(path.stat().st_size for path in found)


def _written(pid: int) -> int:
    """Bytes that a process has written so far."""
    said = Path(f"/proc/{pid}/io").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in said.splitlines() if line.startswith("wchar"))
