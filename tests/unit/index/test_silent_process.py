"""An index process that is stopped, stuck or gone hangs nothing: not look-ups, commits, checkpoints, nor the end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Unavailable
from lakestore.limits import Limits
from lakestore_server.host.bounded_pipe import BoundedPipe, Silent
from lakestore_server.index import worker_client
from lakestore_server.index.pipe import Op
from lakestore_server.index.worker_client import DamagedIndex, IndexProcess, IndexWorker
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("v", pa.int64())])
ROWS = pa.table({"id": [str(i) for i in range(100)], "v": range(100)})


def stop(process: IndexWorker) -> None:
    assert process.pid
    os.kill(process.pid, signal.SIGSTOP)


@pytest.fixture
def _stopped_from_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process is stopped as soon as it is begun."""
    begin = subprocess.Popen

    def begun(*args: object, **options: object) -> object:
        process = begin(*args, **options)  # type: ignore[call-overload]
        os.kill(process.pid, signal.SIGSTOP)
        return process

    monkeypatch.setattr(subprocess, "Popen", begun)


def test_a_stopped_process_is_ended_and_the_look_up_asked_again(tmp_path: Path) -> None:
    with Served(tmp_path, limits=Limits(index_silence_seconds=2, index_cache_keys=0)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert(ROWS)
        served.checkpoint()
        stop(served.engine.index._merged._lmdb.finder)
        assert table.lookup([{"id": "7"}, {"id": "not in a run"}])["v"].to_pylist() == [7]
        table.upsert([{"id": "8", "v": 0}])
        assert table.lookup([{"id": "8"}])["v"].to_pylist() == [0]
        assert served.engine.index.ready


def test_a_stopped_merge_fails_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.index.lmdb_keys.MERGE_TIMES", 1)
    with Served(tmp_path, limits=Limits(index_silence_seconds=2)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert([{"id": "1", "v": 1}])
        served.checkpoint()
        table.upsert([{"id": "2", "v": 2}])
        stop(served.engine.index._merged._lmdb.merger)
        with pytest.raises(Unavailable, match="gave no answer for 2 s"):
            served.checkpoint()
        served.checkpoint()
        assert served.engine.index.size.entries == 2


@pytest.mark.usefixtures("_stopped_from_birth")
def test_the_second_silence_in_a_row_is_the_loss_of_the_index(tmp_path: Path) -> None:
    process = IndexProcess(tmp_path, silence_seconds=0.05)
    with pytest.raises(DamagedIndex, match=r"no answer .* twice"):
        process.ask(Op.LSN, again=True)
    process.close()


def test_an_index_that_is_lost_so_is_rebuilt_beside_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path, limits=Limits(index_cache_keys=0)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert(ROWS)
        served.checkpoint()

        def silent(*_: object, **__: object) -> tuple[int, bytes]:
            raise DamagedIndex("its process gave no answer for 1 s twice")

        monkeypatch.setattr(served.engine.index._merged._lmdb.finder, "ask", silent)
        monkeypatch.setattr(served.engine.index._merged._lmdb, "_highest", {})
        until(lambda: table.lookup([{"id": "7"}, {"id": "not in a run"}]).num_rows == 1, "the rebuilt index")
        served.until_indexed()
        assert list(tmp_path.glob("index-damaged-*")), "set aside: nobody knows what the process was at"


def test_close_waits_neither_for_a_stopped_process_nor_for_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "END_SECONDS", 0.2)
    for is_asked in (False, True):
        process = IndexProcess(tmp_path, silence_seconds=600)
        assert process.ask(Op.LSN)[0] == -1
        stop(process)
        errors: list[Unavailable] = []

        def ask(process: IndexProcess = process, errors: list[Unavailable] = errors) -> None:
            with pytest.raises(Unavailable) as refused:
                process.ask(Op.LSN, again=True)
            errors.append(refused.value)

        asking = threading.Thread(target=ask)
        if is_asked:
            asking.start()
            until(process._lock.locked, "the request")
        process.close()
        if is_asked:
            asking.join()
            assert len(errors) == 1
        with pytest.raises(Unavailable, match="closed"):
            process.ask(Op.LSN)


def test_large_messages_go_through_a_full_pipe_and_a_stuck_one_is_silent() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipe = BoundedPipe(process.stdin, process.stdout, 0.2)
        pipe.write(b"x" * 50_000)
        found = b""
        while len(found) < 50_000:
            found += pipe.read(7_000)
        assert found == b"x" * 50_000
        with pytest.raises(Silent):
            pipe.read(1)
        with pytest.raises(Silent):  # nobody reads what comes back
            pipe.write(b"x" * 2_000_000)
        process.kill()
