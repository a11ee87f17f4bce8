"""What a commit takes of the rows that are there is bounded, however few bytes ask for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.client.writer import change
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit import request as prepare
from tests.support.served import Served

NAME = "t.wide"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("blob", pa.string())])
ROWS = 30


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, limits=Limits(batch_memory_bytes=1 << 20))
    table = served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, merge="partial")
    for i in range(ROWS):
        table.upsert([{"id": i, "n": 0, "blob": "x" * 100_000}])
    yield served
    served.close()


def upsert(served: Served, first: int, count: int) -> prepare.Request:
    engine = served.engine
    rows = [{"id": i, "n": i} for i in range(first, first + count)]
    message = change(
        NAME, pb.UPSERT, [pa.RecordBatch.from_pylist(rows, pa.schema([SCHEMA.field(0), SCHEMA.field(1)]))], 0
    )
    return prepare.Request((prepare.change_of(served.state(NAME).versions, message, "", engine.limits),))


def test_a_small_request_that_would_merge_with_too_much_is_refused(served: Served) -> None:
    table = served.lake.table(NAME)
    with pytest.raises(Invalid, match=r"with the existing rows.*more than 1048576 bytes.*fewer rows"):
        table.upsert([{"id": i, "n": 1} for i in range(ROWS)])
    assert set(table.scan(columns=["n"]).to_arrow().column("n").to_pylist()) == {0}
    for i in range(0, ROWS, 3):
        table.upsert([{"id": i + j, "n": 1} for j in range(3)])
    assert set(table.scan(columns=["n"]).to_arrow().column("n").to_pylist()) == {1}


def test_requests_that_together_would_merge_with_too_much_go_into_several_commits(served: Served) -> None:
    engine, wait = served.engine, threading.Event()
    holding = threading.Thread(target=engine.loop.run, args=(wait.wait,))
    holding.start()
    requests = [upsert(served, at, 3) for at in range(0, ROWS, 3)] + [upsert(served, 0, ROWS)]
    for request in requests:
        engine.submit(request)
    frames = engine.totals.frames
    wait.set()
    holding.join()
    for request in requests[:-1]:
        (result,) = request.answer.result(30).results
        assert astuple(result)[:5] == (NAME, 0, 3, 0, 0)
    with pytest.raises(Invalid):
        requests[-1].answer.result(30)
    assert 2 <= engine.totals.frames - frames <= 8
    assert sorted(served.lake.table(NAME).scan(columns=["n"]).to_arrow().column("n").to_pylist()) == list(range(ROWS))
