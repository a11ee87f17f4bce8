"""The duty that writes checkpoints: what fails is made again and leaves nothing behind; segments end at a size."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Exhausted
from lakestore.limits import Limits
from lakestore_server.segments.cut import SegmentCut, segment_runs
from lakestore_server.state.chunk import CommitIndex, MemoryChunk
from tests.support.served import Served
from tests.support.waiting import until
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_failed_checkpoint_is_made_again_at_the_same_lsn_and_leaves_no_files(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "data")
    with Served(tmp_path / "data", disk=disk) as served:
        lake = served.lake
        lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
        disk.refuse("rename *")
        with pytest.raises(Exhausted, match="No space"):
            served.checkpoint()
        assert not list((tmp_path / "data" / "segments").rglob("*.seg"))
        disk.refuse()
        served.checkpoint()
        assert list((tmp_path / "data" / "segments").rglob("*.seg"))


def test_a_failed_last_checkpoint_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "data")
    lake = ls.open(tmp_path / "data", disk=disk)
    lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
    disk.refuse("rename *")
    lake.close()
    with ls.open(tmp_path / "data") as again:
        assert again.table("a.b").lookup(pa.table({"id": [1]})).num_rows == 1


def test_the_checkpoint_thread_tries_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.host.worker.RETRY_SECONDS", 0.01)
    disk = SimDisk(tmp_path / "data")
    with Served(tmp_path / "data", disk=disk) as served:
        lake = served.lake
        lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
        checkpointer = served.server.upkeep.checkpointer
        run_once = checkpointer.run_once
        runs: list[int] = []

        def counted() -> None:
            disk.refuse(*(() if runs else ("rename *",)))
            runs.append(1)
            run_once()

        monkeypatch.setattr(checkpointer._duty, "_work", counted)
        checkpointer.wake()
        until(lambda: len(runs) > 1, "a second try")


def test_segments_end_at_a_size() -> None:
    batch = pa.record_batch({"v": ["x" * 100] * 10})
    chunks = [MemoryChunk(i * 10, batch, CommitIndex.one(i + 1, 0, i * 10 + 10, 0, 0)) for i in range(8)]
    _, runs = segment_runs(chunks, Limits(segment_bytes=3000))
    assert [len(run) for run in runs] == [2, 2, 2, 2]


def test_a_checkpoint_lets_go_of_the_rows_it_wrote_without_the_collector(tmp_path: Path) -> None:
    """A cycle among its parts held up to a gigabyte of them until a full collection."""
    with Served(tmp_path / "data") as served:
        table = served.lake.create_table("a.log", SCHEMA, buckets=1)
        served.checkpoint()
        gc.collect()
        gc.freeze()  # a test before may still hold rows, and a full process has a million objects
        gc.disable()
        try:
            for _ in range(3):
                table.append([{"id": 1, "v": "x" * 100_000}])
                served.checkpoint()
            left = [each for each in gc.get_objects() if isinstance(each, SegmentCut | MemoryChunk)]
        finally:
            gc.enable()
    assert not left
