"""The verb of producers: a defect in it is told to its client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.client.writer import change
from lakestore.errors import Exhausted, Invalid, LakestoreError
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.queue import CommitQueue, Work
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_defect_in_a_write_stream_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])

    def broken(*_: object) -> None:
        raise ValueError("boom")

    monkeypatch.setattr("lakestore_server.commit.producers.change_of", broken)
    opened = table.writer()
    opened.upsert([{"id": 1, "v": "a"}])
    with pytest.raises(LakestoreError, match="boom"):
        opened.flush()


def upserts(count: int, rows: int, table: str = "a.b") -> list[pb.CommitRequest]:
    """Requests of one stream, each with keys of its own."""
    schema, found = pa.schema([("id", pa.int64()), ("v", pa.string())]), []
    for number in range(count):
        ids = np.arange(number * rows, (number + 1) * rows)
        batch = pa.record_batch([pa.array(ids), pa.array(["x" * 50] * rows)], schema=schema)
        found.append(pb.CommitRequest(changes=[change(table, pb.UPSERT, [batch], 0)], sequence=number))
    return found


def queued_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests that are queued at once, each time."""
    turns: list[int] = []
    put = CommitQueue.put

    def told(queue: CommitQueue, *several: Work) -> None:
        turns.append(len(several))
        put(queue, *several)

    monkeypatch.setattr(CommitQueue, "put", told)
    return turns


def drained(answers: Iterator[Future[Any]]) -> list[Any]:
    return [answer.result(30) for answer in answers]


def test_requests_that_came_together_are_queued_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    turns = queued_together(monkeypatch)
    assert len(drained(served.verbs("Write")._submitted(upserts(5, 300)))) == 5
    assert turns == [5]
    assert table.scan().count() == 1_500


def test_those_before_a_refused_one_are_taken_and_none_behind_it(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    requests = upserts(4, 300)
    requests[2].changes[0].rows = b"no rows"
    answers = served.verbs("Write")._submitted(requests)
    assert next(answers).result(30)
    assert next(answers).result(30)
    with pytest.raises(Invalid):
        next(answers)
    assert table.scan().count() == 600


def test_who_holds_memory_of_decoding_waits_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path / "a", limits=Limits(in_flight_bytes=1 << 20, queue_wait_ms=20_000)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        turns = queued_together(monkeypatch)
        began = time.monotonic()
        assert len(drained(served.verbs("Write")._submitted(upserts(5, 2_000)))) == 5
        assert time.monotonic() - began < 20
        assert turns == [2, 2, 1]
        assert table.scan().count() == 10_000
        assert served.verbs("Write")._decoding.held == 0


def test_what_cannot_be_queued_lets_go_of_its_parts(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    writes = served.verbs("Write")
    (whole,) = upserts(1, 300)
    part = writes.upload_part(pb.UploadPartRequest(change=whole.changes[0])).part
    crc = whole.changes[0].crc32c
    named = pb.CommitRequest(changes=[pb.Change(table="a.b", kind=pb.UPSERT, crc32c=crc, part=part)])

    def full(*_: object) -> None:
        raise Exhausted("the commit queue is full", retry_after=1.0)

    monkeypatch.setattr(CommitQueue, "put", full)
    with pytest.raises(Exhausted):
        drained(writes._submitted([named]))
    monkeypatch.undo()
    assert served.engine.parts.drop([part], "") == 1, "nobody holds it"
