"""Reads of lake files: partitions and bytes that are spared, memory, threads, restarts and what a reader holds."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import PlanExpired
from lakestore.iceberg.manifests import DATA, File
from lakestore.iceberg.transforms import transformed
from lakestore.limits import Limits
from lakestore.model.table import define
from lakestore.rows import condition_text
from lakestore.rows.ranges import Range, may_meet
from lakestore.union import lake_files, side_by_side
from lakestore.union.cut import Cut
from lakestore.union.lake_pruning import Partitions
from lakestore.union.scan import Scan
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.log_tierer import LogTierer
from tests.support.served import Served
from tests.support.waiting import until


def test_the_end_of_the_interpreter_waits_for_threads_that_read() -> None:
    code = (
        "import time\n"
        "from lakestore.union.side_by_side import merged\n"
        "def source():\n"
        "    yield 1\n"
        "    time.sleep(0.3)\n"  # within Arrow's code, to which a thread must not come back without an interpreter
        "    print('left')\n"
        "found = merged([source], threads=1, ahead=1, tick=lambda: None)\n"
        "next(found)\n"
        "found.close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left\n", "")


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lakestore-read-")]


@pytest.mark.parametrize("transform", ["identity", "bucket[8]", "truncate[2]", "void"])
@pytest.mark.parametrize(("kind", "values"), [("string", ["ab", "abc", "xy", "é"]), ("int64", [-3, 0, 5, 1_000])])
def test_partitions_leave_room_for_every_row(transform: str, kind: str, values: list[object]) -> None:
    arrow = pa.string() if kind == "string" else pa.int64()
    table = define("t.t", pa.schema([("id", pa.int32()), ("c", arrow)]))
    spec = {"spec-id": 3, "fields": [{"source-id": 2, "field-id": 1_000, "name": "p", "transform": transform}]}
    made = transformed(pa.array(values, arrow), transform, "string" if kind == "string" else "long").to_pylist()
    files = [
        File(content=DATA, path=str(value), format="PARQUET", spec_id=3, partition={"p": part}, rows=1, bytes=1)
        for value, part in zip(values, made, strict=True)
    ]
    spared = 0
    for wanted in values:
        skip = condition_text.parse(f"c = {wanted!r}", table).skip
        partitions = Partitions.of({3: spec}, table, skip)
        for value, part, file in zip(values, made, files, strict=True):
            may = may_meet(skip, lambda _: Range(), partial(partitions.may_hold, file))
            same = part == made[values.index(wanted)]
            assert may == (same or transform == "void"), (wanted, value)
            spared += not may
    assert spared or transform == "void"


def test_a_slow_taker_stops_the_threads_and_one_that_goes_ends_them() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(1_000):
            made.append(number)
            yield number

    taken = side_by_side.merged([source] * 4, threads=2, ahead=3, tick=lambda: None)
    assert next(taken) == 0
    until(lambda: len(made) >= 6, "the threads read ahead")
    assert not threading.Event().wait(0.05)
    assert len(made) <= 1 + 3 + 2 + 1
    taken.close()
    until(lambda: not _threads(), "the threads end")


def test_items_of_all_sources_come_once_and_an_error_comes_to_the_taker() -> None:
    sources = [lambda base=base: iter(range(base, base + 50)) for base in range(0, 500, 50)]
    assert sorted(side_by_side.merged(sources, threads=3, ahead=2, tick=lambda: None)) == list(range(500))

    def failing() -> Iterator[int]:
        yield 1
        raise PlanExpired("the file is gone")

    with pytest.raises(PlanExpired):
        list(side_by_side.merged([failing, lambda: iter(range(10))], threads=2, ahead=100, tick=lambda: None))
    until(lambda: not _threads(), "the threads end")


def test_a_lease_is_renewed_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "TICK_SECONDS", 0.01)
    ticks, go = [], threading.Event()

    def slow() -> Iterator[int]:
        go.wait(10)
        yield 1

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            go.set()

    assert list(side_by_side.merged([slow, lambda: iter(())], threads=2, ahead=1, tick=tick)) == [1]
    assert len(ticks) >= 3


COLUMNS = pa.schema([("id", pa.int64()), *((f"c{i}", pa.int64()) for i in range(49))])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A log table of eight files with fifty columns in the lake, and a few rows behind them."""
    with Served(tmp_path_factory.mktemp("reads"), ports=True) as found:
        table = found.lake.create_table("r.wide", COLUMNS, buckets=1)
        tierer = LogTierer(found.server, found.lake.transport)
        for part in range(8):
            numbers = pa.array(range(part * 20_000, part * 20_000 + 20_000))
            table.append(pa.table([numbers] * 50, schema=COLUMNS))
            tierer.flush("r.wide")
        table.append(pa.table([[160_000 + i for i in range(10)]] * 50, schema=COLUMNS))
        yield found


def test_one_column_of_fifty_is_a_fiftieth_of_the_bytes(served: Served) -> None:
    table = served.lake.table("r.wide")
    one, whole = (table.scan(columns=names).explain().figures for names in (["c7"], None))
    assert one.lake_bytes <= 0.06 * whole.lake_bytes
    assert one.hot_bytes < whole.hot_bytes
    assert (one.files, one.row_groups, one.lake_rows, one.hot_rows) == (8, 8, 160_000, 10)
    through = served.lake.sql("SELECT sum(c7) AS s FROM r.wide").reads[0].figures
    assert through.lake_bytes == one.lake_bytes


def test_small_files_are_read_together_and_large_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rows, large = 40, 3, 5_000
    with Served(tmp_path, ports=True) as own:
        table = own.lake.create_table("r.t", pa.schema([("v", pa.int64())]), buckets=1)
        tierer = LogTierer(own.server, own.lake.transport)
        for number in range(files):
            first = number * rows
            table.append(pa.table({"v": range(first, first + rows)}))
            tierer.flush("r.t")
        table.append(pa.table({"v": range(files * rows, files * rows + large)}))
        tierer.flush("r.t")
        with Cut(own.lake.transport, ["r.t"]) as cut:
            sizes = sorted(size for _, size in lake_files.planned(cut.plan.scan("r.t"), None))
        monkeypatch.setattr(lake_files, "SMALL_BYTES", sizes[-1] - 1)
        monkeypatch.setattr(lake_files, "THREADS_MAX", 1)
        batches = list(own.lake.table("r.t").scan().to_batches())
        assert sorted(v for each in batches for v in each.column(0).to_pylist()) == list(range(files * rows + large))
        together = (files + 1) // 8
        assert sorted(each.num_rows for each in batches) == [rows * together] * (files // together) + [large]
        assert own.lake.table("r.t").scan(columns=[], where="v >= 7").count() == files * rows + large - 7
        monkeypatch.setattr(lake_files, "GATHERED_ROWS", 1)
        assert len(list(own.lake.table("r.t").scan().to_batches())) == files + 1


def test_a_stream_is_left_in_the_middle(served: Served) -> None:
    stream = served.lake.table("r.wide").scan(columns=["id"]).to_batches()
    assert isinstance(stream, Generator)
    assert next(stream).num_rows
    stream.close()
    until(lambda: not _threads(), "the threads end")


def test_a_lease_that_is_lost_in_the_middle_of_a_filtered_read(tmp_path: Path) -> None:
    """A server that starts anew has no leases: the same rows are leased again, and each comes once."""
    with Served(tmp_path, limits=Limits(fetch_batch_rows=100, read_batch_bytes=2_000), ports=True) as own:
        table = own.lake.create_table("r.t", pa.schema([("v", pa.int64())]), buckets=1)
        tierer = LogTierer(own.server, own.lake.transport)
        for part in range(3):
            table.append(pa.table({"v": range(part * 1_000, part * 1_000 + 1_000)}))
            tierer.flush("r.t")
        table.append(pa.table({"v": range(3_000, 5_000)}))
        with Cut(own.lake.transport, ["r.t"]) as cut:
            found: list[int] = []
            for batch in Scan(cut, "r.t", where="v >= 500 AND v <> 4000").to_batches():
                found += batch.column(0).to_pylist()
                if len(found) in range(3_000, 3_500):
                    own.lake.transport.release_lease(pb.LeaseRequest(lease=cut.plan.lease))
        assert sorted(found) == [v for v in range(500, 5_000) if v != 4_000]


def test_a_stream_takes_memory_for_what_is_ahead_and_no_more(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_files, "BATCH_BYTES", 400_000)
    monkeypatch.setattr(lake_files, "THREADS_MAX", 1)
    before, most, sizes = pa.total_allocated_bytes(), 0, set()
    for batch in served.lake.table("r.wide").scan().to_batches():
        most = max(most, pa.total_allocated_bytes() - before)
        sizes.add(batch.num_rows)
    whole = 160_000 * 50 * 8
    assert max(sizes) < 2_100
    assert most < whole * 0.5
