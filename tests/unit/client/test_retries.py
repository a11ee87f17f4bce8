"""Calls whose outcome is unknown are sent again: by single writes and by writers that were idle."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client import retry, writer
from lakestore.client.grpc import GrpcWire
from lakestore.errors import LakestoreError, Stopped, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_refusal_after_an_unknown_outcome_does_not_give_the_sequence_away(served: Served) -> None:
    served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    answers: list[LakestoreError] = [
        Unavailable("lost", applied="unknown"),
        Stopped("the server is shutting down"),
    ]
    transport: Any = served.lake.transport
    call = transport.wire.call

    def flaky(method: rpc.Method, request: Any, seconds: float) -> Any:
        answer = call(method, request, seconds)
        if method.name == "Commit" and answers:
            raise answers.pop(0)
        return answer

    transport.wire.call = flaky
    table = served.lake.table("a.b")
    with pytest.raises(Unavailable) as caught:
        table.upsert([{"id": 1, "v": "a"}])
    assert caught.value.applied == "unknown"
    table.upsert([{"id": 2, "v": "b"}])
    assert table.lookup(pa.table({"id": [2]})).num_rows == 1


def test_a_writer_that_was_idle_tries_again_as_long_as_a_busy_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(writer, "Backoff", lambda: retry.Backoff(clock=lambda: now[0]))
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    answered, broken = writer.Writer._answered, [False]

    def once_broken(self: writer.Writer, answer: pb.CommitAnswer) -> None:
        if now[0] and not broken[0]:
            broken[0] = True
            raise Unavailable("restarted", applied="unknown")
        answered(self, answer)

    monkeypatch.setattr(writer.Writer, "_answered", once_broken)
    with table.writer() as opened:
        opened.upsert([{"id": 1, "v": "a"}])
        opened.flush()
        now[0] = 1000.0
        opened.upsert([{"id": 2, "v": "b"}])
        opened.flush()
    assert broken[0]
    assert table.lookup(pa.table({"id": [1, 2]})).num_rows == 2


def test_a_call_that_found_no_server_was_not_applied() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with closing(GrpcWire(f"127.0.0.1:{unused.getsockname()[1]}")) as wire:
            wire._greeted = True  # the connection was lost since, which no call has noticed
            with pytest.raises(Unavailable, match="is it running there") as refused:
                wire.call(rpc.METHODS["CreateDatabase"], pb.DatabaseRequest(database="b"), 5.0)
    assert refused.value.applied == "no"
