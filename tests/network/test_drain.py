"""SIGTERM under load: what was acknowledged is there, and no client sees an error that it may not try again."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.errors import Exhausted, LakestoreError, Unavailable
from tests.support.process import ServerProcess
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
RETRIABLE = (Unavailable, Exhausted)
ROUNDS = 2
PATIENT = {"LAKESTORE_DRAIN_SECONDS": "120"}
"""Calls have half of it, longer than a slow disk keeps a process from its end."""


class Client:
    """Repeats a piece of work; tries again after what may be tried again, and keeps anything else."""

    def __init__(self, address: str, work: Callable[[ls.Lake, Client], None]) -> None:
        self._address, self._work = address, work
        self.stop = threading.Event()
        self.done = 0
        self.retried = 0
        self.wrong: LakestoreError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with ls.connect(self._address) as lake:
            while not self.stop.is_set() and self.wrong is None:
                try:
                    self._work(lake, self)
                except RETRIABLE:
                    self.retried += 1
                    time.sleep(0.05)
                except LakestoreError as error:
                    self.wrong = error

    def end(self) -> None:
        """Wait for it and raise what it saw."""
        self.stop.set()
        self._thread.join()
        if self.wrong is not None:
            raise self.wrong


def committer(table: str) -> Callable[[ls.Lake, Client], None]:
    """One row per commit, numbered without gaps by what was acknowledged."""

    def work(lake: ls.Lake, client: Client) -> None:
        lake.table(table).append(pa.table({"id": [client.done], "value": [client.done]}, schema=SCHEMA))
        client.done += 1

    return work


def streamer(lake: ls.Lake, client: Client) -> None:
    """A pipelined writer; what it flushed is acknowledged."""
    with lake.table("d.streamed").writer() as writer:
        while not client.stop.is_set():
            for _ in range(20):
                writer.append(pa.table({"id": [client.done], "value": [0]}, schema=SCHEMA))
                client.done += 1
            writer.flush()


def follower(lake: ls.Lake, client: Client) -> None:
    """A change stream, gone on with from its token after each end."""
    token = getattr(client, "token", "earliest")
    seen = getattr(client, "seen", [])
    client.__dict__["seen"] = seen
    for batch in lake.table("d.log0").changes(token):
        seen.extend(batch.to_arrow()["id"].to_pylist())
        client.__dict__["token"] = batch.token
        if client.stop.is_set() and len(seen) >= client.done:
            return
    raise AssertionError("a stream that follows has no end")


def looker(lake: ls.Lake, client: Client) -> None:
    """Look-ups all the time."""
    assert lake.table("d.keyed").lookup([{"id": 1}]).num_rows == 1
    client.done += 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", port=free_port(), environment=PATIENT) as running:
        with ls.connect(running.address) as lake:
            for name in ("d.log0", "d.log1", "d.streamed"):
                lake.create_table(name, SCHEMA)
            lake.create_table("d.keyed", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "value": 1}])
        yield running


def test_a_drain_under_load_loses_nothing_and_fails_nobody(server: ServerProcess) -> None:
    address, data, port = server.address, server.data, server.port
    logs = [Client(address, committer("d.log0")), Client(address, committer("d.log1"))]
    stream, follow, look = Client(address, streamer), Client(address, follower), Client(address, looker)
    clients = [*logs, stream, follow, look]
    for _ in range(ROUNDS):
        before = [client.done for client in (*logs, stream, look)]
        working = list(zip((*logs, stream, look), before, strict=True))
        until(lambda: all(now.done > then for now, then in working), "progress of every client")  # noqa: B023
        assert server.stop() == 0
        assert list(data.glob("checkpoint-*"))
        assert not [file for file in data.glob("journal-*") if file.stat().st_size > 4096], "a last checkpoint was made"
        server = ServerProcess(data, port=port)
    with server:
        for client in (*logs, stream, look):
            client.end()
        follow.done = logs[0].done
        until(lambda: len(follow.__dict__["seen"]) >= follow.done, "the follower")
        follow.stop.set()
        with ls.connect(address) as lake:
            for client, name in zip(logs, ("d.log0", "d.log1"), strict=True):
                found = lake.table(name).scan().to_arrow()["id"].to_pylist()
                assert found == list(range(client.done)), "every acknowledged row once, in order"
            streamed = lake.table("d.streamed").scan().to_arrow()["id"].to_pylist()
            assert streamed == list(range(stream.done))
            lake.table("d.log0").append(pa.table({"id": [-1], "value": [0]}, schema=SCHEMA))
        follow.end()
    assert follow.__dict__["seen"][: logs[0].done] == list(range(logs[0].done))
    assert [client.wrong for client in clients] == [None] * len(clients)


def test_health_says_so_before_the_port_closes_and_a_second_signal_ends_at_once(server: ServerProcess) -> None:
    """A call that hangs keeps the drain going: a scan whose reader does not read."""
    with ls.connect(server.address) as lake, grpc.insecure_channel(server.address) as channel:
        rows = pa.table({"id": range(400_000), "value": range(400_000)}, schema=SCHEMA)
        for _ in range(8):
            lake.table("d.log0").append(rows)
        unread = iter(lake.table("d.log0").changes("earliest"))
        next(unread)
        scan = lake.table("d.log0").scan().to_batches()
        next(iter(scan))
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="lakestore.v1.Lakestore")
        assert health.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING
        os.kill(server.pid, signal.SIGTERM)
        serving = health_pb2.HealthCheckResponse.SERVING
        until(lambda: health.Check(request, timeout=60).status != serving, "the health that says so")
        with lake.within(0.3), pytest.raises(Unavailable):
            lake.table("d.keyed").lookup([{"id": 1}])
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(50) == 128 + signal.SIGTERM


def test_the_log_is_one_schema_and_the_end_is_bounded(tmp_path: Path) -> None:
    """With no time for anything the server still ends in order, and nothing acknowledged is lost."""
    data = tmp_path / "data"
    flags = ["--log-format", "json"]
    environment = {"LAKESTORE_DRAIN_SECONDS": "0.01"}
    server = ServerProcess(data, arguments=flags, environment=environment)
    with ls.connect(server.address) as lake:
        lake.create_table("a.b", SCHEMA).append(pa.table({"id": [1], "value": [1]}, schema=SCHEMA))
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.errors.splitlines()]
    assert all(set(line) == {"time", "level", "logger", "event", "fields"} for line in lines)
    events = [line["event"] for line in lines]
    assert events[0] == "started"
    assert "draining" in events
    assert {"release", "formats", "data", "recovery_seconds", "grpc", "http"} <= set(lines[0]["fields"])
    with ls.open(data) as lake:
        assert lake.table("a.b").scan().count() == 1
