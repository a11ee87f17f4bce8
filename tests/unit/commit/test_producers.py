"""The verb of producers: a defect in it is told to its client."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.client.writer import change
from lakestore.errors import Exhausted, Invalid, LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import Sent
from lakestore_server.commit.commit_verbs import WriteStream
from lakestore_server.commit.durable import Pause
from lakestore_server.commit.queue import SMALL_BYTES_MAX, CommitQueue
from lakestore_server.commit.request import Work
from lakestore_server.index.hints import Hint
from lakestore_server.index.keys import IndexKeys
from lakestore_server.state.commit_record import Answer
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_defect_in_a_write_stream_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])

    def broken(*_: object) -> None:
        raise ValueError("boom")

    monkeypatch.setattr("lakestore_server.commit.commit_verbs.change_of", broken)
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
    return [answer.result(60) for answer in answers]


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
    assert next(answers).result(60)
    assert next(answers).result(60)
    with pytest.raises(Invalid):
        next(answers)
    assert table.scan().count() == 600


def test_who_holds_memory_of_decoding_waits_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path / "a", limits=Limits(in_flight_bytes=1 << 20, queue_wait_ms=20_000)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        turns = queued_together(monkeypatch)
        assert len(drained(served.verbs("Write")._submitted(upserts(5, 2_000)))) == 5
        assert turns == [2, 2, 1]
        assert table.scan().count() == 10_000
        assert served.verbs("Write")._decoding.held == 0


def test_a_small_commit_does_not_wait_for_the_memory_of_large_ones(tmp_path: Path) -> None:
    with Served(tmp_path / "a", limits=Limits(in_flight_bytes=1 << 20, queue_wait_ms=100)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        with served.verbs("Write")._decoding.taken(1 << 20):
            assert table.upsert([{"id": 1}]).result.inserted == 1
            with pytest.raises(Exhausted):
                next(served.verbs("Write")._submitted(upserts(1, 10_000)))


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


def test_small_requests_that_come_together_have_the_room_of_small_ones(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk load fills the queue, and leaves what is for small requests."""
    served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    requests = upserts(4, 400)
    assert requests[0].ByteSize() < SMALL_BYTES_MAX < sum(request.ByteSize() for request in requests)
    monkeypatch.setattr(served.engine.loop.pace, "is_full", lambda stretch=1.0: stretch == 1.0)
    assert len(drained(served.verbs("Write")._submitted(requests))) == 4


def test_a_server_that_goes_tells_of_what_is_being_taken_before_it_ends_the_stream() -> None:
    begun, taken, drains = threading.Event(), threading.Event(), threading.Event()
    answer = Future[Answer]()

    def submit(requests: Sequence[Sent]) -> Iterator[Future[Answer]]:
        begun.set()
        taken.wait(30)
        yield answer

    def refuse() -> None:
        if drains.is_set():
            raise Unavailable("the server is being stopped")

    def answered(future: Future[Answer], sequence: int) -> pb.CommitAnswer:
        return pb.CommitAnswer(sequence=sequence)

    stream = WriteStream(submit, answered, refuse, 10)
    answers = stream.answers()
    taking = threading.Thread(target=stream.take, args=([pb.CommitRequest(sequence=7)],))
    taking.start()
    begun.wait(30)
    drains.set()
    assert isinstance(next(answers), Pause), "whether it will be taken is not known yet"
    assert not stream.bell.is_set()
    taken.set()
    taking.join()
    assert stream.bell.is_set(), "else nobody looks again"
    answer.set_result(Answer(1, ()))
    told = [each for each in answers if not isinstance(each, Pause)]
    assert [(each.sequence, each.error.kind) for each in told] == [(7, ""), (0, "Unavailable")]
    stream.take([pb.CommitRequest(sequence=8)])
    assert not stream.takes


def named_parts(served: Served, requests: Sequence[pb.CommitRequest]) -> list[pb.CommitRequest]:
    """The same requests with their rows uploaded before."""
    found = []
    for request in requests:
        (sent,) = request.changes
        part = served.verbs("Write").upload_part(pb.UploadPartRequest(change=sent)).part
        named = pb.Change(table=sent.table, kind=sent.kind, crc32c=sent.crc32c, part=part)
        found.append(pb.CommitRequest(changes=[named], sequence=request.sequence))
    return found


@pytest.mark.parametrize("where", ["read", "looked up", "queued"])
def test_an_error_that_nobody_foresaw_holds_no_part_and_nothing_before_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    requests = named_parts(served, upserts(3, 300))
    parts = [request.changes[0].part for request in requests]

    def fails(*_: object) -> None:
        raise OSError("it cannot be done")

    if where == "read":
        (served.engine.folder / "parts" / f"{parts[1]}.part").unlink()
    else:
        owner: Any = served.engine if where == "looked up" else served.engine.loop.queue
        monkeypatch.setattr(owner, "foreseen" if where == "looked up" else "put", fails)
    answers = served.verbs("Write")._submitted(requests)
    if where == "read":
        assert next(answers).result(60)
    with pytest.raises(OSError):
        next(answers)
    monkeypatch.undo()
    assert table.scan().count() == 300 * (where == "read")
    assert not served.engine.parts._taken, "nobody holds any"


@pytest.mark.parametrize("before", ["decoding", "queueing"])
def test_small_requests_wait_for_no_room_of_a_large_one_behind_them(
    served: Served, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    requests = [*upserts(2, 300), *upserts(1, 5_000)]
    served.engine.limits = replace(served.engine.limits, queue_wait_ms=20_000)
    turns = queued_together(monkeypatch)
    is_full, fills = threading.Event(), served.engine.foreseen
    if before == "decoding":
        is_full.set()

    def foreseen(several: Sequence[IndexKeys]) -> list[Hint | None]:
        is_full.set()
        return fills(several)

    monkeypatch.setattr(served.engine, "foreseen", foreseen)
    monkeypatch.setattr(served.engine.loop.pace, "is_full", lambda stretch=1.0: is_full.is_set() and stretch == 1.0)
    answers = served.verbs("Write")._submitted(requests)
    assert next(answers).result(60)
    assert next(answers).result(60)
    assert table.scan().count() == 600
    assert turns == [2]
    monkeypatch.setattr(served.engine, "foreseen", fills)
    is_full.clear()
    assert next(answers).result(60)
    assert table.scan().count() == 5_000


def test_a_request_that_waits_for_room_while_the_server_begins_to_go_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    queue = served.engine.loop.queue
    await_room, waits = queue.await_room, list[int]()

    def drained_meanwhile(*arguments: Any, **named: Any) -> None:
        waits.append(1)
        if len(waits) == 2:  # it is decoded, and about to be queued
            served.engine.drain()
        await_room(*arguments, **named)

    monkeypatch.setattr(queue, "await_room", drained_meanwhile)
    with pytest.raises(Unavailable) as refused:
        drained(served.verbs("Write")._submitted(upserts(1, 10)))
    assert refused.value.applied == "no"
    monkeypatch.undo()
    assert table.scan().count() == 0
