"""Checkpoints: a failed one leaves the last one valid, and small quiet tables keep neither journal nor files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Corrupt
from lakestore_server.files.data_folder import SEGMENTS
from lakestore_server.host.clock import RealClock
from lakestore_server.host.uncached_file import BLOCK
from lakestore_server.main import Server
from lakestore_server.segments.cut import segment_runs
from lakestore_server.settings import Settings
from tests.support.served import Served
from tests.support.waiting import until
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def names(table: ls.Table) -> dict[int, str]:
    """Key to name, by look-up."""
    found = table.lookup(pa.table({"id": range(100)}))
    return dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))


def test_what_a_failed_checkpoint_froze_is_merged_by_the_next(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "data")
    with Served(tmp_path / "data", disk=disk) as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert([{"id": i, "name": "first"} for i in range(50)])
        disk.refuse("create *.seg")
        with pytest.raises(OSError, match="No space"):
            served.checkpoint()
        disk.refuse()
        table.upsert([{"id": i, "name": "second"} for i in range(25, 75)])
        served.checkpoint()
        expected = {i: "first" for i in range(25)} | {i: "second" for i in range(25, 75)}
        assert names(table) == expected
    with Served(tmp_path / "data") as served:
        lake = served.lake
        assert names(lake.table("a.b")) == expected


def test_a_lost_index_is_rebuilt(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert([{"id": i, "name": "x"} for i in range(60)])
        table.delete([{"id": i} for i in range(30)])
    for file in (tmp_path / "data" / "index").iterdir():
        file.unlink()
    with Served(tmp_path / "data") as served:
        lake = served.lake
        until(lambda: served.engine.index.ready, "the rebuilt index")
        assert names(lake.table("a.b")) == {i: "x" for i in range(30, 60)}
        table = lake.table("a.b")
        table.upsert([{"id": 30, "name": "y"}])
        assert table.last_result is not None
        assert table.last_result.updated == 1
        assert lake.table("a.b").scan().count() == 30


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    with ls.open(tmp_path / "data") as lake:
        lake.create_table("a.b", SCHEMA)
    (path,) = (tmp_path / "data").glob("checkpoint-*")
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 4
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match=path.name):
        ls.open(tmp_path / "data")


def test_many_quiet_tables_keep_no_journal_and_few_files(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        lake = served.lake
        tables = [lake.create_table(f"quiet.t{i}", SCHEMA, buckets=1) for i in range(40)]
        for _ in range(6):
            for table in tables:
                table.append([{"id": 1, "name": "x"}])
            served.checkpoint()
        journals = list((tmp_path / "data").glob("journal-*"))
        assert sum(path.stat().st_size for path in journals) == BLOCK, "one file without frames"
        files = list((tmp_path / "data" / SEGMENTS).glob("*/*.seg"))
        assert len(files) <= 40 * 3, "small segments are merged"
        assert all(table.scan().count() == 6 for table in tables)


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    class Run:
        index = batches = None
        size = 1
        schema_id = 0

        def __init__(self, start: int, end: int) -> None:
            self.start, self.end = start, end

    chunks: Sequence[Any] = [Run(i, i + 1) for i in range(5)]
    kept, runs = segment_runs(chunks)
    assert not kept
    assert [(run[0].start, run[-1].end) for run in runs] == [(0, 5)]


def test_a_second_server_on_a_folder_is_refused(tmp_path: Path) -> None:
    server = Server(Settings(tmp_path / "data"), clock=RealClock())
    with pytest.raises(ls.Conflict, match="in use by another server"):
        Server(Settings(tmp_path / "data"))
    server.close()
    Server(Settings(tmp_path / "data")).close()
