"""Work upon a table of 100,000 small files that are there: what a server, a tierer and other engines do with it.

Processor time is that of all processes that do the work; memory is the most that the one which does it held beyond what
it had before. Changed rows are drawn from the whole table, so nearly each dies in another file.
"""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyiceberg.catalog import load_catalog

import lakestore
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.doctor import visit
from tests.bench.growth.accounts import pids
from tests.bench.report import Figure
from tests.support.engines import DuckDb
from tests.support.landed_files import LandedFiles
from tests.support.process import ServerProcess

FILES, PARTITIONS = 100_000, 10_000
CHANGED, ROUNDS, ORPHANS = 1_000, 2, 100
NAME = "bench.big"
_TICK = 1 / os.sysconf("SC_CLK_TCK")


BARS = {
    f"first round of {CHANGED:,} changed rows": (10.0, 400),
    f"round of {CHANGED:,} changed rows": (4.0, None),
    "verify": (30.0, None),
    "backup": (15.0, None),
}
"""The most seconds and MB."""


@dataclass(frozen=True)
class Spent:
    """Seconds, processor seconds and memory of a piece of work."""

    seconds: float
    processor_seconds: float
    bytes: int

    def __str__(self) -> str:
        memory = f"{self.bytes / 1e6:,.0f} MB"
        return f"{_short(self.seconds)}, {_short(self.processor_seconds)} of processors, {memory}"


@dataclass(frozen=True)
class Bed:
    """A server with the table."""

    folder: Path
    server: ServerProcess
    lake: lakestore.Lake
    landed: LandedFiles

    @property
    def catalog(self) -> str:
        """The URL of the catalog."""
        return f"http://{self.server.host}:{self.server.http_port}/iceberg"

    def measured(self, work: Callable[[], object], *more: int) -> Spent:
        """Seconds, processor time and memory of a piece of work, in which other processes may take part."""
        known = [os.getpid(), *pids(self.server), *more]
        for pid in known:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        held, spent, began = [_memory(pid, "VmRSS") for pid in known], sum(map(_seconds, known)), time.perf_counter()
        work()
        took, spent = time.perf_counter() - began, sum(map(_seconds, known)) - spent
        grown = max(_memory(pid, "VmHWM") - before for pid, before in zip(known, held, strict=True))
        return Spent(took, spent, max(grown, 0))

    def change(self) -> None:
        """Write rows anew in nearly as many files."""
        many = self.landed.many
        self.landed.changed(np.random.default_rng(time.monotonic_ns()).choice(many.count * many.rows, CHANGED))


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK  # its own, and that of processes that it waited for


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


@contextmanager
def _bed(folder: Path) -> Iterator[Bed]:
    with ServerProcess(folder / "data") as server, lakestore.connect(server.address) as lake:
        landed = LandedFiles.of(lake, f"{server.host}:{server.http_port}", FILES, PARTITIONS)
        yield Bed(folder, server, lake, landed)


def _figures(shown: dict[str, Spent]) -> Iterator[Figure]:
    for name, spent in shown.items():
        bar, is_met = "", None
        if name in BARS:
            seconds, megabytes = BARS[name]
            bar = f"≤ {seconds:g} s" + (f", {megabytes} MB" if megabytes else "")
            is_met = spent.seconds <= seconds and (megabytes is None or spent.bytes <= megabytes * 1e6)
        yield Figure(f"{name} of a table of {FILES:,} files", str(spent), bar, is_met)


def server(folder: Path) -> Iterator[Figure]:
    """Status, metrics, the doctor's visit and a backup."""
    with _bed(folder) as bed:
        base = bed.catalog.removesuffix("/iceberg")
        uri = f"file://{bed.server.data}/warehouse"
        asked: dict[str, Callable[[], object]] = {
            "status": lambda: bed.lake.transport.status(pb.StatusRequest()),
            "metrics": lambda: urllib.request.urlopen(f"{base}/metrics").read(),
            "doctor's visit to the warehouse": lambda: list(visit.takes(uri)),
            "backup": lambda: bed.lake.transport.backup(pb.BackupRequest(folder=str(folder / "backup"))),
        }
        for name, work in asked.items():
            yield from _figures({name: bed.measured(work)})
        shutil.rmtree(folder / "backup", ignore_errors=True)


def exact(folder: Path) -> Iterator[Figure]:
    """An exact verification, which reads every file."""
    with _bed(folder) as bed:
        yield from _figures({"verify": bed.measured(lambda: _verified(bed))})


def _verified(bed: Bed) -> None:
    found = verify(bed.lake.transport, NAME)
    if not found.same:
        raise AssertionError(f"the table differs: {found.problems()}")


def upkeep(folder: Path) -> Iterator[Figure]:
    """A tierer's rounds, its choice of files to compact, expiry and removal of orphans."""
    from lakestore_spark.session import session
    from lakestore_tiering import compact, orphans
    from lakestore_tiering.service import Tierer
    from tests.bench.bed import CONF

    with ExitStack() as stack:
        bed = stack.enter_context(_bed(folder))
        spark = session(bed.server.address, conf=CONF)
        stack.callback(spark.stop)
        tierer = stack.enter_context(Tierer(bed.lake, spark))
        java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        tools = tierer.tools
        named = [f"first round of {CHANGED:,} changed rows", *[f"round of {CHANGED:,} changed rows"] * ROUNDS]
        for name in named:
            bed.change()
            yield from _figures({name: bed.measured(lambda: tierer.run_once(NAME, compaction=False), java)})
        table = bed.landed.many.table
        main = tools.main_files(table, tools.standing(table)[0])
        due = lambda: compact.due(main.columns(), table.lake.target_file_bytes)  # noqa: E731
        yield from _figures({"choice of files to compact": bed.measured(due)})
        place = Path(bed.landed.many.folder.removeprefix("file://")) / "data"
        for number in range(ORPHANS):
            (place / f"orphan-{number}.parquet").write_bytes(b"orphan")
        keep: dict[str, Any] = {"keep_last": 1, "keep_seconds": 0.0}
        expired = bed.measured(lambda: orphans.expire(tools, table, **keep), java)
        removed = bed.measured(lambda: _removed(lambda: orphans.remove(tools, table, keep_seconds=-1.0)), java)
        yield from _figures({"expiry of snapshots": expired, f"removal of {ORPHANS} orphans": removed})


def _removed(remove: Callable[[], int]) -> None:
    count = remove()
    if count != ORPHANS:
        raise AssertionError(f"{count} orphans were removed")


def readers(folder: Path) -> Iterator[Figure]:
    """Other engines' planning of presented cuts, some rows after the base."""
    with _bed(folder) as bed:
        for name in ("now", "now-v3"):
            bed.change()
            catalog = load_catalog(name, type="rest", uri=bed.catalog, warehouse=name)
            held: list[Any] = []
            loaded = bed.measured(partial(_load, catalog, held))
            yield from _figures({f"first load of `{name}`": loaded})
            table = held[0]
            duck = DuckDb(bed.catalog)
            at = duck.attach(name)
            asked: dict[str, Callable[[], object]] = {
                f"PyIceberg's plan of a partition in `{name}`": partial(_planned, table, "part = 7"),
                f"PyIceberg's plan of `{name}`": partial(_planned, table),
                f"DuckDB's count of a partition in `{name}`": partial(_counted, duck, at),
            }
            yield from _figures({what: bed.measured(work) for what, work in asked.items()})
        yield from _spark(bed)


def _load(catalog: Any, held: list[Any]) -> None:
    held.append(catalog.load_table(NAME))


def _planned(table: Any, *condition: str) -> Sequence[Any]:
    return list(table.scan(*condition).plan_files())


def _counted(duck: DuckDb, at: str) -> object:
    return duck._connection.execute(f"SELECT count(*) FROM {at}.{NAME} WHERE part = 7").fetchall()


def _spark(bed: Bed) -> Iterator[Figure]:
    from lakestore_spark.session import session
    from tests.bench.bed import CONF

    spark = session(bed.server.address, conf=CONF)
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    for part in (7, 8):
        count = lambda part=part: spark.sql(f"SELECT count(*) FROM now.{NAME} WHERE part = {part}").collect()  # noqa: E731
        which = "first count" if part == 7 else "count"
        yield from _figures({f"Spark's {which} of a partition in `now`": bed.measured(count, java)})
    spark.stop()
