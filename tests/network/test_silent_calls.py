"""Calls that say nothing, streams that wait, bytes that are no message: they cost their sender, and nobody else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2

import lakestore as ls
from lakestore.client.writer import change as wire_change
from lakestore.errors import LakestoreError, NotAuthenticated, Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors
from lakestore_server.access.admission import Admission
from lakestore_server.commit.commit_verbs import WriteStream
from lakestore_server.edge.arrivals import Arrivals
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

THREADS, STREAMS, WAITING, FIRST_SECONDS = 8, 48, 12, 2.0
LIMITS = Limits(
    threads=THREADS,
    streams=4 * STREAMS,
    waiting_calls=WAITING,
    first_message_ms=int(FIRST_SECONDS * 1_000),
    connection_streams=64,
    receiving_bytes=64 << 20,
)
PRINCIPALS = {"root": {"*": ["admin"]}, "report": {"shop.orders": ["read"]}, "guest": {"shop.orders": ["read"]}}
SCHEMA = pa.schema([("id", pa.int64())])
PREFIX, HEALTH = "/lakestore.v1.Lakestore/", "/grpc.health.v1.Health/"
WAIT_SECONDS = 60.0


class World:
    """A server with rights and small limits."""

    def __init__(self, folder: Path) -> None:
        self.auth = write_auth(folder / "auth.yaml", PRINCIPALS)
        settings = Settings(folder / "data", port=0, http_port=0, auth=str(self.auth), limits=LIMITS)
        self.server = Server(settings)
        self.server.start()
        with self.lake("root") as lake:
            lake.create_table("shop.orders", SCHEMA).append([{"id": 1}])

    def lake(self, name: str) -> ls.Lake:
        return ls.connect(self.server.about["grpc"], token=token_of(name))

    def channel(self, stack: ExitStack) -> Any:
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return stack.enter_context(grpc.insecure_channel(self.server.about["grpc"], options=options))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("silent"))
    yield made
    made.server.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def shown(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token_of(name)}"),)


def silent(channel: Any, stack: ExitStack, path: str, name: str = "") -> Any:
    """A call whose message does not come while the test runs."""
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield from ()

    call = channel.stream_unary(path).future(never(), metadata=shown(name) if name else ())
    stack.callback(over.set)
    stack.callback(call.cancel)
    return call


def error_of(call: Callable[[], Any]) -> LakestoreError:
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    told: Any = refusal.value
    return errors.unpack_error(dict(told.trailing_metadata()), told.code().name, told.details())


def check(channel: Any) -> int:
    data = channel.unary_unary(f"{HEALTH}Check")(b"", timeout=WAIT_SECONDS)
    return int(health_pb2.HealthCheckResponse.FromString(data).status)


@pytest.mark.parametrize("name", ["", "report"])
def test_who_may_not_call_is_told_so_before_the_message_comes(world: World, stack: ExitStack, name: str) -> None:
    call = silent(world.channel(stack), stack, f"{PREFIX}Commit", name)
    assert error_of(lambda: call.result(WAIT_SECONDS)).kind == ("Denied" if name else "NotAuthenticated")


def test_silent_calls_stop_nobody(world: World, stack: ExitStack) -> None:
    crowd = world.channel(stack)
    before = threading.active_count()
    for name in ("", "root"):
        for path in (f"{PREFIX}Commit", f"{PREFIX}Lookup", f"{HEALTH}Check", f"{HEALTH}Watch"):
            for _ in range(THREADS):
                silent(crowd, stack, path, name)
    with world.lake("report") as lake:
        assert lake.table("shop.orders").scan().count() == 1
    assert check(world.channel(stack)) == health_pb2.HealthCheckResponse.SERVING
    grown = threading.active_count() - before
    assert grown <= 10 * THREADS, "a thread of the client for each silent call, and the server's few"


def test_the_connection_with_the_most_silent_calls_loses_its_oldest(world: World, stack: ExitStack) -> None:
    quiet, crowd = world.channel(stack), world.channel(stack)
    mine = silent(quiet, stack, f"{PREFIX}Lookup", "report")
    calls = [silent(crowd, stack, f"{PREFIX}Lookup", "report") for _ in range(WAITING)]
    until(lambda: any(call.done() for call in calls), "a call that had to go")
    assert not mine.done()
    gone = next(call for call in calls if call.done())
    error = error_of(gone.result)
    assert isinstance(error, Unavailable), error
    assert error.applied == "no"
    assert error.retry_after > 0


def test_a_message_that_does_not_come_ends_its_call(world: World, stack: ExitStack) -> None:
    began = time.monotonic()
    call = silent(world.channel(stack), stack, f"{PREFIX}Lookup", "report")
    assert "no whole message" in error_of(lambda: call.result(WAIT_SECONDS)).message
    assert time.monotonic() - began >= FIRST_SECONDS


def test_bytes_that_are_no_message_are_invalid_and_cost_nothing(
    world: World, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """More of them than a connection may have calls: each one is over when it was answered."""
    caplog.set_level(logging.INFO, "lakestore")
    channel = world.channel(stack)
    for path in (f"{PREFIX}Commit", f"{PREFIX}Fetch", f"{PREFIX}Changes", f"{PREFIX}Write"):
        for data in (b"\xff\xff\xff", b"\x0a\xff", b"\xff" * 1_000):
            for _ in range(LIMITS.connection_streams // 8):
                call = channel.unary_stream(path)(data, metadata=shown("root"), timeout=WAIT_SECONDS)
                if path.endswith("Write"):
                    answer = pb.CommitAnswer.FromString(next(call))
                    assert answer.error.kind == "Invalid", answer
                else:
                    error = error_of(lambda call=call: list(call))  # type: ignore[misc]
                    assert error.kind == "Invalid", error
    assert not [record for record in caplog.records if record.exc_info]
    health = channel.unary_unary(f"{HEALTH}Check")
    with pytest.raises(grpc.RpcError) as refusal:
        health(b"\xff\xff", timeout=WAIT_SECONDS)
    told: Any = refusal.value
    assert told.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_strangers_in_a_loop_do_not_fill_the_log(
    world: World, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lakestore")
    channel = world.channel(stack)
    for _ in range(50):
        assert error_of(lambda: channel.unary_unary(f"{PREFIX}Plan")(b"\xff", timeout=WAIT_SECONDS)).kind
    assert 1 <= sum(record.name.startswith("lakestore") for record in caplog.records) < 10


def test_idle_streams_hold_no_threads_and_hear_of_what_comes(world: World, stack: ExitStack) -> None:
    """Subscribers and writers, many times as many as there are threads."""
    lake = stack.enter_context(world.lake("root"))
    table = lake.table("shop.orders")
    channel = world.channel(stack)
    asked = pb.ChangesRequest(tables=["shop.orders"], start="latest", progress=True).SerializeToString()
    before = {thread.ident for thread in threading.enumerate() if thread.name.startswith("grpc-")}
    follow = channel.unary_stream(f"{PREFIX}Changes")
    running = world.server.service.calls.running
    subscribers: list[Any] = []

    def all_run() -> bool:
        return running().get("Changes") == len(subscribers)

    for _ in range(STREAMS // WAITING):  # on a slow machine no more than may wait for their messages at once
        subscribers += [follow(asked, metadata=shown("root")) for _ in range(WAITING)]
        until(all_run, "open streams")
    write = channel.stream_stream(f"{PREFIX}Write")
    said = [threading.Event() for _ in range(10)]

    def later(event: threading.Event) -> Iterator[bytes]:
        event.wait()
        batch = pa.RecordBatch.from_pylist([{"id": 7}], SCHEMA)
        yield pb.CommitRequest(changes=[wire_change("shop.orders", pb.APPEND, [batch], 0)]).SerializeToString()

    writers = [write(later(event), metadata=shown("root")) for event in said]
    for call in (*subscribers, *writers):
        stack.callback(call.cancel)
    for event in said:
        stack.callback(event.set)
    until(lambda: running().get("Write") == len(writers), "open writers")
    mine = [t for t in threading.enumerate() if t.name.startswith("grpc-") and t.ident not in before]
    assert len(mine) <= 2 * THREADS, mine
    assert lake.tables()
    table.append([{"id": 2}])
    for stream in subscribers:
        assert pb.ChangeBatch.FromString(next(stream)).rows
    for event in said:
        event.set()
    for stream in writers:
        assert pb.CommitAnswer.FromString(next(stream)).token


def test_a_defect_at_the_edge_fails_one_call_and_not_the_port(
    world: World, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the judgement of a call, of what is done now and then, and of a thread's work."""
    channel = world.channel(stack)
    broken = {"rpc", "tick", "taken"}

    def breaks(kind: type, name: str, part: str) -> None:
        real = getattr(kind, name)

        def method(*given: Any, **named: Any) -> Any:
            if part in broken:
                broken.discard(part)
                raise KeyError(part)
            return real(*given, **named)

        monkeypatch.setattr(kind, name, method)

    breaks(Admission, "rpc", "rpc")
    breaks(Arrivals, "tick", "tick")
    breaks(WriteStream, "take", "taken")
    with pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(f"{PREFIX}Head")(b"", metadata=shown("root"), timeout=WAIT_SECONDS)
    told: Any = refusal.value
    assert told.code() == grpc.StatusCode.INTERNAL
    until(lambda: "tick" not in broken, "the next tick")
    answer = pb.CommitAnswer.FromString(
        next(channel.stream_stream(f"{PREFIX}Write")(iter([b""]), metadata=shown("root"), timeout=WAIT_SECONDS))
    )
    assert answer.error.kind == "Internal"
    assert not broken
    with world.lake("root") as lake:
        assert lake.tables()
    assert any(record.exc_info for record in caplog.records)


def test_an_idle_stream_ends_with_its_token(world: World, stack: ExitStack) -> None:
    asked = pb.ChangesRequest(tables=["shop.orders"], start="latest")
    guest = stack.enter_context(world.lake("guest"))
    follow = guest.transport.changes(asked)
    ended: list[LakestoreError] = []

    def listen() -> None:
        try:
            list(follow)
        except LakestoreError as error:
            ended.append(error)

    reader = threading.Thread(target=listen)
    reader.start()
    until(lambda: bool(world.server.service.calls.running().get("Changes")), "an open stream")
    try:
        write_auth(world.auth, {name: grants for name, grants in PRINCIPALS.items() if name != "guest"})
        reader.join(WAIT_SECONDS)
    finally:
        write_auth(world.auth, PRINCIPALS)
    assert [type(error) for error in ended] == [NotAuthenticated]
