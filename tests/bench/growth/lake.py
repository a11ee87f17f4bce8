"""The lake's own growth: planning and presenting tables of very many files, and rounds upon ever larger tables.

Planning and presenting run in this process upon manifests without data files, but for those in which rows die; times
are seconds of its processor. Rounds are those of a tierer with Spark, by stage: rows staged, dead rows found and their
deletes written, the commit, and what comes behind it. The table below them is made as a bulk load makes one: new rows
are written while those before are tiered.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.rows import condition_text
from lakestore.union import lake_files, lake_snapshot
from lakestore.union.explanation import Figures
from lakestore.union.plan import TableScan
from lakestore_server.snapshots.messages import Base
from tests.bench.growth import measured
from tests.bench.growth.accounts import disk_bytes, resident_bytes
from tests.bench.report import Figure
from tests.support.many_files import LAKE, SCHEMA, ManyFiles
from tests.support.presenting import Presenting
from tests.support.served import Served

FILES = 1_000, 10_000, 100_000
PARTITIONS, FILES_PER_MANIFEST, FILE_ROWS = 10_000, 1_000, 2
DEAD = 100
CHANGED, ROUNDS, BULK = 100_000, 3, 5_000_000
ROW_DISK_BYTES, DISK_LEFT = 150, 2 << 30
"""Disk that a row takes for a time, journal, segment, spool and data file; and what stays free."""
_WIDE = pa.schema([("id", pa.int64()), ("value", pa.int64())])


def files(folder: Path) -> Iterator[Figure]:
    """Planning and presenting at each number of files."""
    for count in FILES:
        yield from _planned(folder / f"plan-{count}", count)
        yield from _presented(folder / f"present-{count}", count)
        yield _vectors(folder / f"vectors-{count}", count)


def _spent(work: Callable[[], object]) -> float:
    """Seconds of this process's processor time."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _planned(folder: Path, count: int) -> Iterator[Figure]:
    many = ManyFiles.of(_table(), f"file://{folder}", count, min(PARTITIONS, count // 10), files_per_manifest=1_000)
    listed = many.snapshot(7)
    scan = many.scan(listed, 7)
    more = many.next_snapshot(listed, 8, [replace(many.file(0), path=f"{many.folder}/data/new.parquet")])
    later = many.scan(more, 8)
    before = resident_bytes()

    def plan(text: str, of: TableScan = scan) -> None:
        condition = condition_text.parse(text, many.table) if text else None
        lake_files.LakeRead.of(of, condition, Figures())

    plan("part = -1", many.scan(many.listed([], 9, 1), 9))  # the parser is imported by its first use
    lake_snapshot.forget()
    asked = {
        "a partition, nothing known": lambda: plan("part = 7"),
        "a sorted column, nothing known of most": lambda: plan("sorted = 77"),
        "a sorted column": lambda: plan("sorted BETWEEN 70 AND 90"),
        "a partition, after one commit more": lambda: plan("part = 7", later),
        "all files": lambda: plan("", later),
    }
    took = {name: _spent(work) for name, work in asked.items()}
    lake_snapshot.forget()
    took["all files, nothing known"] = _spent(lambda: plan("", later))
    shown = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in took.items())
    memory = (resident_bytes() - before) / 1e6
    yield Figure(f"plan of {count:,} files, processor time", f"{shown}; {memory:,.0f} MB more", "", None)


def _table() -> Any:
    from lakestore.model.table import define

    return define("bench.big", SCHEMA, lake=LAKE)


def _presented(folder: Path, count: int) -> Iterator[Figure]:
    (folder / "lake").mkdir(parents=True)
    with Served(folder / "data") as served:
        presenting = Presenting(served, folder / "lake")
        table = served.lake.create_table("bench.big", SCHEMA, primary_key=["id"], buckets=1, lake=LAKE)
        table.upsert(_rows(np.arange(count * FILE_ROWS)))
        many = _small_files(served, folder, count)
        listed = many.snapshot(7)
        number = served.tier("bench.big")
        presenting.bases[number] = Base(listed, number, 2, 1)
        chosen = np.random.default_rng(1).choice(count, 3 * DEAD, replace=False)
        for each in chosen.tolist():
            many.write(each)
        took, before = [], resident_bytes()
        for run in range(2):
            table.upsert(_rows(chosen[run * DEAD : (run + 1) * DEAD] * FILE_ROWS))
            took.append(_spent(lambda: presenting.present("bench.big")))
        gone = many.manifests((many.delete_of(each) for each in chosen[: 2 * DEAD].tolist()), 8, 2)
        hot = replace(many.file(count), rows=2 * DEAD)
        number = served.tier("bench.big")
        presenting.bases[number] = Base(many.next_snapshot(listed, 8, [hot], also=gone), number, 2, 2)
        table.upsert(_rows(chosen[2 * DEAD :] * FILE_ROWS))
        took.append(_spent(lambda: presenting.present("bench.big")))
        memory = (resident_bytes() - before) / 1e6
        presenting.presenter.close()
    shown = f"first {_ms(took[0])}, then {_ms(took[1])}, after a round's commit {_ms(took[2])}; {memory:,.0f} MB more"
    name = f"{DEAD} rows that died in {count:,} files presented, processor time"
    yield Figure(name, shown, "", None)


def _vectors(folder: Path, count: int) -> Figure:
    """Rows that die in files which all have a vector: those that change are replaced, the others stay."""
    (folder / "lake").mkdir(parents=True)
    with Served(folder / "data") as served:
        presenting = Presenting(served, folder / "lake")
        table = served.lake.create_table("bench.big", SCHEMA, primary_key=["id"], buckets=1, lake=LAKE)
        table.upsert(_rows(np.arange(count * FILE_ROWS)))
        table.delete(pa.table({"id": np.arange(count) * FILE_ROWS + FILE_ROWS - 1}))
        number = served.tier("bench.big")
        many = _small_files(served, folder, count, format=3)
        data = many.manifests(map(many.file, range(count)), 7, 1)
        runs = [range(begin, min(begin + FILES_PER_MANIFEST, count)) for begin in range(0, count, FILES_PER_MANIFEST)]
        gone = many.manifests((each for run in runs for each in many.vectors(run, f"gone-{run.start}")), 7, 1)
        presenting.bases[number] = Base(many.listed([*data, *gone], 7, 1), number, 3, 1, count * FILE_ROWS)
        chosen = np.random.default_rng(1).choice(count, 2 * DEAD, replace=False)
        for each in chosen.tolist():
            many.write(each)
        took, before = [], resident_bytes()
        for run in range(2):
            table.upsert(_rows(chosen[run * DEAD : (run + 1) * DEAD] * FILE_ROWS))
            took.append(_spent(lambda: presenting.present("bench.big", form=3)))
        memory = (resident_bytes() - before) / 1e6
        presenting.presenter.close()
    shown = f"first {_ms(took[0])}, then {_ms(took[1])}; {memory:,.0f} MB more"
    return Figure(f"{DEAD} rows that died in {count:,} files with a vector each, processor time", shown, "", None)


def _small_files(served: Served, folder: Path, count: int, **said: Any) -> ManyFiles:
    sizes = {"rows": FILE_ROWS, "files_per_manifest": FILES_PER_MANIFEST}
    definition = served.state("bench.big").table
    return ManyFiles.of(definition, f"file://{folder}/lake", count, min(PARTITIONS, count // 10), **sizes, **said)


def _rows(ids: np.ndarray) -> pa.Table:
    columns = [pa.array(ids), pa.array(np.zeros(len(ids), np.int32)), pa.array(ids), pa.array(np.zeros(len(ids)))]
    return pa.table(columns, schema=SCHEMA)


def rounds(folder: Path, sizes: Sequence[int], seconds: float) -> Iterator[Figure]:
    """Rounds of changed keys, uniform over ever more of them, by stage; no further size begins after these seconds."""
    from pyspark.sql import SparkSession  # half a second that other measures need not wait

    from lakestore_spark.session import session
    from lakestore_tiering.service import Tierer
    from tests.bench.bed import CONF
    from tests.support.process import ServerProcess

    stamps: list[tuple[str, float]] = []
    end, held = time.monotonic() + seconds, 0
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        spark: SparkSession = session(server.address, conf=CONF)
        table = lake.create_table("bench.grown", _WIDE, primary_key=["id"])
        noted = lambda point: stamps.append((point, time.monotonic()))  # noqa: E731
        with Tierer(lake, spark, crash=noted) as tierer:
            for size in sizes:
                began, before = time.monotonic(), held
                held = _grown(table, tierer, range(held, size), end, folder)
                if held < size:
                    name = f"round of {CHANGED:,} changed keys upon {measured.count_of(size)}"
                    yield Figure(name, f"left out: time or disk ended at {measured.count_of(held)}", "", None)
                    break
                took = time.monotonic() - began
                yield _round_of(table, tierer, stamps, size, _loaded(folder, held - before, took))
        spark.stop()


def _grown(table: lakestore.Table, tierer: Any, ids: range, end: float, folder: Path) -> int:
    """Rows of the table after those of these ids are written and tiered, as far as time and disk allow."""
    at, bulk = ids.start, 0
    with ThreadPoolExecutor(1) as writing:
        while at < ids.stop or bulk:
            has_room = shutil.disk_usage(folder).free > DISK_LEFT + ROW_DISK_BYTES * BULK
            more = min(BULK, ids.stop - at) if has_room and time.monotonic() < end else 0
            written = writing.submit(_upsert, table, np.arange(at, at + more)) if more else None
            if bulk:
                tierer.run_once("bench.grown", compaction=False)
            if written is not None:
                written.result()
            at, bulk = at + more, more
            if not more and not bulk:
                break
    tierer.run_once("bench.grown", compaction=False)
    return at


def _loaded(folder: Path, rows: int, seconds: float) -> str:
    """The pace of the load, and what all of it takes on disk."""
    pace = f"loaded and tiered at {rows / seconds:,.0f} rows/s, " if rows else ""
    return f"; {pace}{disk_bytes(folder) / 1e9:.1f} GB on disk"


def _round_of(table: lakestore.Table, tierer: Any, stamps: list[tuple[str, float]], size: int, load: str) -> Figure:
    rng, took = np.random.default_rng(2), []
    for _ in range(ROUNDS):
        _upsert(table, rng.choice(size, min(CHANGED, size), replace=False))
        stamps.clear()
        began = time.monotonic()
        tierer.run_once("bench.grown", compaction=False)
        took.append((time.monotonic() - began, _stages(began, stamps)))
    whole, stages = min(took, key=lambda each: each[0])
    read = tierer.tools.indexes.figures
    shown = f"{whole:.1f} s: {', '.join(f'{name} {spent:.1f}' for name, spent in stages.items())}"
    said = f"; offset indexes {read.disk_bytes / 1e6:,.0f} MB mapped, {read.memory_bytes / 1e6:,.0f} MB in memory"
    return Figure(f"round of {CHANGED:,} changed keys upon {measured.count_of(size)}", shown + said + load, "", None)


def _stages(began: float, stamps: Sequence[tuple[str, float]]) -> dict[str, float]:
    names = {"staged": "rows staged", "deaths-written": "deaths", "before-commit": "sums", "after-commit": "commit"}
    found, last = {}, began
    for point, at in stamps:
        if point in names:
            found[names[point]] = at - last
            last = at
    return found


def _upsert(table: lakestore.Table, ids: np.ndarray) -> None:
    values = np.random.default_rng(len(ids)).integers(0, 1 << 40, len(ids))
    with table.writer() as out:
        for begin in range(0, len(ids), 100_000):
            part = slice(begin, begin + 100_000)
            out.upsert(pa.record_batch([pa.array(ids[part]), pa.array(values[part])], schema=_WIDE))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
