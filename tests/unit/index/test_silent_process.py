"""A process that merges and is stopped, stuck or gone hangs nothing, and costs the index nothing but the merge."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Unavailable
from lakestore_server.duties.index_rebuild import IndexMerger
from lakestore_server.host import child
from lakestore_server.host.child import BoundedPipe, Silent
from lakestore_server.index import merge_apart, run_store
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def test_a_stopped_process_fails_one_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "APART_MIN", 1)
    monkeypatch.setattr(IndexMerger, "wake", lambda self: None)
    begun = child.module_process

    def stopped(module: str, **how: Any) -> subprocess.Popen[bytes]:
        process = begun(module, **how)
        os.kill(process.pid, signal.SIGSTOP)
        return process

    with Served(tmp_path) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        for first in range(4):
            table.upsert(pa.table({"id": range(first, 300), "v": [first] * (300 - first)}, SCHEMA))
            served.checkpoint()
        index = served.engine.index
        with monkeypatch.context() as patch:
            patch.setattr(child, "module_process", stopped)
            patch.setattr(merge_apart, "SILENCE_SECONDS", 0.2)
            with pytest.raises(Unavailable, match=r"gave no answer for 0\.2 s"):
                served.server.upkeep.merge_index()
        assert index.ready
        assert len(index.runs) == len(list((tmp_path / "index").glob("*.run"))) == 4, "nothing is left of the merge"
        served.server.upkeep.merge_index()
        assert len(index.runs) == 1


def test_large_messages_go_through_a_full_pipe_and_a_stuck_one_is_silent() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipe = BoundedPipe(process.stdin, process.stdout, 60.0)
        pipe.write(b"x" * 50_000)
        found = b""
        while len(found) < 50_000:
            found += pipe.read(7_000)
        assert found == b"x" * 50_000
        pipe = BoundedPipe(process.stdin, process.stdout, 0.2)
        with pytest.raises(Silent):
            pipe.read(1)
        with pytest.raises(Silent):  # nobody reads what comes back
            pipe.write(b"x" * 4_000_000)
        process.kill()
