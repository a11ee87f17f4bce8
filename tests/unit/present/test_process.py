"""The presenter's process: its dialog, and its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import PlanExpired, Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.snapshots.messages import Room
from lakestore_server.snapshots.worker_client import SnapshotBuilderProcess
from tests.support.presenting import Presenting, read, with_snapshot
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def presenting(tmp_path: Path) -> Iterator[Presenting]:
    (tmp_path / "lake").mkdir()
    with Served(tmp_path / "data") as served:
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
        table.upsert(pa.table({"id": pa.array(range(100), pa.int64()), "v": ["a"] * 100}))
        yield Presenting(served, tmp_path / "lake")


@pytest.fixture
def process() -> Iterator[SnapshotBuilderProcess]:
    process = SnapshotBuilderProcess(silence_seconds=120)
    yield process
    process.close()


def count(presenting: Presenting, process: SnapshotBuilderProcess) -> int:
    """Rows of the head that the process presents."""
    request, _, document = presenting.request("a.t")
    answer = process.present(request, presenting.served.verbs("Fetch").fetch)
    return int(read(with_snapshot(document, request, answer), presenting.folder).num_rows)


def test_a_process_that_is_killed_starts_again_and_leaves_its_run(
    presenting: Presenting, process: SnapshotBuilderProcess
) -> None:
    process.start()
    assert count(presenting, process) == 100
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    assert count(presenting, process) == 100
    runs = list((presenting.folder / "__presented").glob("*/*"))
    assert sorted(run.name for run in runs) == sorted(process.runs)
    assert len(runs) == 2


def test_indexes_are_kept_in_the_data_folder_as_far_as_limits_allow(presenting: Presenting, tmp_path: Path) -> None:
    table = presenting.served.lake.table("a.t")
    table.upsert(pa.table({"id": pa.array(range(5_000), pa.int64()), "v": ["b"] * 5_000}))
    presenting.tier("a.t")
    table.upsert(pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["c"] * 2}))
    least = Limits(lake_manifests_bytes=1 << 20, lake_offsets_bytes=1 << 20, lake_offsets_disk_bytes=1_000)
    for limits, files in ((least, False), (Limits(), True)):
        room = Room.of(tmp_path / "offsets", limits)
        assert Room.decode(room.encode()) == room
        assert room.manifests_memory == limits.lake_manifests_bytes
        assert room.offsets_memory == limits.lake_offsets_bytes
        process = SnapshotBuilderProcess(room)
        try:
            assert count(presenting, process) == 5_000
        finally:
            process.close()
        assert bool(list((tmp_path / "offsets").rglob("*.value"))) == files
    process.keep_tables([])
    assert not list((tmp_path / "offsets").iterdir())


def test_a_process_killed_in_the_middle_is_asked_once_more(
    presenting: Presenting, process: SnapshotBuilderProcess
) -> None:
    killed: list[int] = []

    def fetch(request: pb.FetchRequest) -> Iterator[RowMessage]:
        if not killed:
            assert process.pid
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        yield from presenting.served.verbs("Fetch").fetch(request)

    request, _, _ = presenting.request("a.t")
    assert process.present(request, fetch).rows == 100
    presenting.served.lake.table("a.t").upsert(pa.table({"id": pa.array([7], pa.int64()), "v": ["b"]}))
    again, _, _ = presenting.request("a.t")

    def always(fetched: pb.FetchRequest) -> Iterator[RowMessage]:
        killed.clear()
        return fetch(fetched)

    with pytest.raises(Unavailable, match="was ended by SIGKILL: try again"):
        process.present(again, always)
    assert (
        process.present(again, presenting.served.verbs("Fetch").fetch).rows == 100
    )  # live ones alone, of a first step


def test_nobody_waits_for_a_start_while_a_table_is_presented(
    presenting: Presenting, process: SnapshotBuilderProcess
) -> None:
    waited: list[bool] = []

    def fetch(request: pb.FetchRequest) -> Iterator[RowMessage]:
        starting = threading.Thread(target=process.start, daemon=True)
        starting.start()
        starting.join(60)
        waited.append(starting.is_alive())
        yield from presenting.served.verbs("Fetch").fetch(request)

    request, _, _ = presenting.request("a.t")
    assert process.present(request, fetch).rows == 100
    assert not any(waited)
    assert len(process.runs) == 1


def test_an_error_of_the_fetch_is_the_answer(presenting: Presenting, process: SnapshotBuilderProcess) -> None:
    def fetch(request: pb.FetchRequest) -> Iterator[RowMessage]:
        yield from list(presenting.served.verbs("Fetch").fetch(request))
        raise PlanExpired("the lease is over")

    request, _, _ = presenting.request("a.t")
    process.start()
    pid = process.pid
    with pytest.raises(PlanExpired, match="the lease is over"):
        process.present(request, fetch)
    assert not list((presenting.folder / "__presented").rglob("*.parquet"))
    assert count(presenting, process) == 100
    assert process.pid == pid


def test_the_process_ends_with_its_pipe_and_a_silent_one_is_ended(
    presenting: Presenting, process: SnapshotBuilderProcess
) -> None:
    assert count(presenting, process) == 100
    child = process._child._process
    assert child is not None
    process.close()
    assert child.wait(60) == 0
    with pytest.raises(Unavailable, match="closing"):
        count(presenting, process)
    stopped = SnapshotBuilderProcess(silence_seconds=0.2)
    stopped.start()
    assert stopped.pid
    os.kill(stopped.pid, signal.SIGSTOP)
    request, _, _ = presenting.request("a.t")

    def stop(fetched: pb.FetchRequest) -> Iterator[RowMessage]:
        assert stopped.pid
        os.kill(stopped.pid, signal.SIGSTOP)
        yield from presenting.served.verbs("Fetch").fetch(fetched)

    with pytest.raises(Unavailable, match="gave no answer"):
        stopped.present(request, stop)
    stopped.close()
