"""What look-ups will want is asked of the disk at a start: runs and keyed segments, up to a part of the memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore_server.duties import read_ahead
from lakestore_server.duties.read_ahead import MEMORY_PART, ReadAhead
from lakestore_server.files.segment import Segment
from tests.support.page_cache import forget, pages_in_memory
from tests.support.served import Served
from tests.support.waiting import until

KEYS = 60_000
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyed table in segments and runs, and a log; nothing compares them at a start."""
    monkeypatch.setattr("lakestore_server.main.verify_ahead", lambda *_: None)
    with Served(tmp_path / "data") as served:
        rows = pa.table({"id": range(KEYS), "text": [os.urandom(20).hex() for _ in range(KEYS)]})
        served.lake.create_table("a.keyed", SCHEMA, primary_key=["id"], buckets=1).upsert(rows)
        served.lake.create_table("a.log", SCHEMA, buckets=1).append(rows)
        served.checkpoint()
    forget(*(path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.suffix != ".mdb"))
    return tmp_path / "data"


def body(served: Served, table: str) -> pa.Buffer:
    (segment,) = [each for each in served.state(table).logs[0].chunks if isinstance(each, Segment)]
    return segment.body


def test_runs_and_rows_of_keyed_tables_are_read_at_a_start(folder: Path) -> None:
    with Served(folder) as served:
        wanted = [body(served, "a.keyed"), *(run.data for run in served.engine.index.runs)]
        assert len(wanted) == 2
        until(lambda: all(pages_in_memory(data) >= data.size // mmap.PAGESIZE for data in wanted), "all of them")
        log = body(served, "a.log")
        assert pages_in_memory(log) < log.size // mmap.PAGESIZE // 2


def test_no_more_is_read_than_a_part_of_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    with Served(folder) as served:
        runs = tuple(served.engine.index.runs)
        room = sum(run.data.size for run in runs) + 1_000
        monkeypatch.setattr(read_ahead, "will_need", lambda data: asked.append(data.size))
        ReadAhead(served.engine.supervisor, served.engine.view, runs, MEMORY_PART * room)._thread.join()
    assert sum(asked) == room


def test_it_ends_with_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PIECE_BYTES", 16)
    with Served(folder) as served:
        ahead = served.server._read_ahead
    assert not ahead._thread.is_alive()
