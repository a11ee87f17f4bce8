"""Small calls on one open stream: shared by threads, each judged by itself, and nothing is lost when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.proxy import Proxy
from lakestore import aio
from lakestore.client import grpc as client_grpc
from lakestore.errors import Denied, Internal, Invalid, NotAuthenticated, NotFound, Stopped, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore_server.access.admission import RpcCall
from lakestore_server.edge import grpc as server_grpc
from lakestore_server.host.quota import Quota
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Settings(tmp_path_factory.mktemp("small") / "data", port=0, http_port=0))
    server.start()
    with ls.connect(server.about["grpc"]) as lake:
        lake.create_table("s.t", SCHEMA, primary_key=["id"]).upsert([{"id": i, "v": f"{i}"} for i in range(100)])
        lake.create_table("s.log", SCHEMA)
    yield server
    server.close()


@pytest.fixture(name="lake")
def _lake(server: Server) -> Iterator[ls.Lake]:
    with ls.connect(server.about["grpc"]) as lake:
        yield lake


def talks(server: Server) -> set[Any]:
    """The open streams of a server's small calls."""
    port: Any = server._grpc
    found: set[Any] = port._talks
    return found


def wire_of(lake: ls.Lake) -> Any:
    transport: Any = lake.transport
    return transport.wire


@contextmanager
def held(server: Server, name: str, calls: int = 1) -> Iterator[Callable[[], None]]:
    """Have a verb wait as long as the block goes on; called, wait until so many of its calls are there."""
    port: Any = server._grpc
    verbs, path = port._dispatch._verbs, f"/{rpc.SERVICE}/{name}"
    method, verb = verbs[path]
    go_on, came = threading.Event(), threading.Semaphore(0)

    def waiting(request: Any) -> Any:
        came.release()
        go_on.wait(30)
        return verb(request)

    verbs[path] = method, waiting

    def until_there() -> None:
        for _ in range(calls):
            assert came.acquire(timeout=30)

    try:
        yield until_there
    finally:
        verbs[path] = method, verb
        go_on.set()


def test_threads_share_one_stream_and_get_their_own_answers(server: Server, lake: ls.Lake) -> None:
    table, log = lake.table("s.t"), lake.table("s.log")
    until(lambda: not talks(server), "the end of other streams")
    wire_of(lake)._calls = {**wire_of(lake)._calls, "Lookup": None, "Commit": None}  # a call by itself would fail

    def work(start: int) -> list[Any]:
        log.append([{"id": start, "v": "x"}])
        return [table.lookup([{"id": i}]).to_pylist() for i in range(start, start + 20)]

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(work, range(0, 100, 20)))
    assert found == [[[{"id": i, "v": f"{i}"}] for i in range(start, start + 20)] for start in range(0, 100, 20)]
    assert len(talks(server)) == 1


def test_a_call_that_waits_holds_up_no_other_one(server: Server, lake: ls.Lake) -> None:
    table, log = lake.table("s.t"), lake.table("s.log")
    with ThreadPoolExecutor(1) as pool, held(server, "Commit") as until_there:
        slow = pool.submit(log.append, [{"id": 1, "v": "slow"}])
        until_there()
        assert len(table.lookup([{"id": 5}])) == 1
        assert not slow.done()
    assert slow.result()


def test_so_many_calls_of_a_stream_are_under_way(
    server: Server, lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_grpc, "CALLS_MAX", 3)
    table = lake.table("s.t")
    table.lookup([{"id": 1}])
    with ThreadPoolExecutor(8) as pool:
        with held(server, "Lookup", 3) as until_there:
            found = [pool.submit(table.lookup, [{"id": i}]) for i in range(8)]
            until_there()
            time.sleep(0.05)
            assert [talk._running for talk in talks(server) if talk._running] == [3]
        assert [each.result().column("id").to_pylist() for each in found] == [[i] for i in range(8)]


def test_errors_are_those_of_a_call_by_itself(server: Server, lake: ls.Lake) -> None:
    told = []
    for is_talking in (True, False):
        lake.table("s.t").lookup([{"id": 1}])
        wire_of(lake)._talks = is_talking
        for ask in (
            lambda: lake.transport.lookup(pb.LookupRequest(table="s.none", key=b"12345678")),
            lambda: lake.transport.lookup(pb.LookupRequest(table="s.t", key=b"short")),
            lambda: lake.transport.commit(pb.CommitRequest()),
            lambda: lake.transport.commit(pb.CommitRequest(changes=[pb.Change(table="s.t", kind=pb.APPEND)])),
        ):
            with pytest.raises((NotFound, Invalid)) as raised:
                ask()
            told.append((raised.value.kind, raised.value.message, raised.value.applied))
    assert told[:4] == told[4:]


def test_an_error_keeps_all_that_its_metadata_tells() -> None:
    fenced = ls.errors.Fenced("gone", applied="unknown", retry_after=1.5)
    fenced.buckets = (("a.b", 1), ("a.b", 2))
    again = errors.error_of_fields(errors.error_fields(fenced))
    assert type(again) is ls.errors.Fenced
    shown = [(e.message, e.applied, e.retry_after, tuple(map(tuple, e.buckets))) for e in (fenced, again)]
    assert shown[0] == shown[1]


def test_a_defect_is_one_calls_error_and_the_stream_goes_on(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.table("s.t")
    table.lookup([{"id": 1}])
    stream = wire_of(lake)._small_calls._stream
    monkeypatch.setattr(RpcCall, "other", lambda *_: 1 / 0)
    with pytest.raises(Internal, match="defect"):
        table.lookup([{"id": 1}])
    monkeypatch.undo()
    assert len(table.lookup([{"id": 1}])) == 1
    assert wire_of(lake)._small_calls._stream is stream


def test_a_call_ends_in_time_and_its_late_reply_is_nobodys(server: Server, lake: ls.Lake) -> None:
    table = lake.table("s.t")
    table.lookup([{"id": 1}])
    with held(server, "Lookup"), pytest.raises(Unavailable, match="in time") as raised, lake.within(1.0):
        table.lookup([{"id": 2}])
    assert raised.value.applied == "no"
    assert table.lookup([{"id": 3}]).column("v").to_pylist() == ["3"]
    assert not wire_of(lake)._small_calls._stream.waiting


def test_a_quiet_stream_ends_and_leaves_no_thread(
    server: Server, lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_grpc, "IDLE_SECONDS", 0.05)
    table = lake.table("s.t")
    for _ in range(2):
        assert len(table.lookup([{"id": 1}])) == 1
        until(lambda: not talks(server), "the end of the stream at the server")
        until(lambda: "small-calls" not in {thread.name for thread in threading.enumerate()}, "the end of its thread")


def test_closing_ends_what_waits(server: Server) -> None:
    lake = ls.connect(server.about["grpc"])
    table = lake.table("s.t")
    with ThreadPoolExecutor(1) as pool, held(server, "Lookup") as until_there:
        waits = pool.submit(table.lookup, [{"id": 1}])
        until_there()
        lake.close()
        with pytest.raises(Stopped):
            waits.result(60)
    with pytest.raises(Stopped):
        table.lookup([{"id": 1}])


def test_a_commit_whose_stream_breaks_is_sent_again_and_stored_once(server: Server) -> None:
    proxy = Proxy(server.about["grpc"])
    with ls.connect(proxy.address) as lake:
        table = lake.create_table("s.broken", SCHEMA)
        table.append([{"id": 0, "v": "a"}])
        for number in range(1, 4):
            streams = wire_of(lake)._small_calls._stream
            proxy.cut_after = 1  # which is of the answer, or of something before it
            assert table.append([{"id": number, "v": "b"}])
            assert wire_of(lake)._small_calls._stream is not streams
        assert table.scan().to_arrow().column("id").to_pylist() == [0, 1, 2, 3]
    proxy.close()


def test_a_cancelled_task_gives_up_and_the_stream_goes_on(server: Server) -> None:
    async def work() -> None:
        async with aio.connect(server.about["grpc"]) as lake:
            table = await lake.table("s.t")
            await table.lookup([{"id": 1}])
            with held(server, "Lookup") as until_there:
                task = asyncio.ensure_future(table.lookup([{"id": 2}]))
                await asyncio.to_thread(until_there)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await table.lookup([{"id": 3}])).column("id").to_pylist() == [3]

    asyncio.run(work())


@pytest.mark.parametrize("how", ["an older protocol", "no such service"])
def test_a_server_without_streams_of_small_calls_is_called_one_by_one(
    server: Server, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "no such service":
        port: Any = server._grpc
        monkeypatch.delitem(port._handlers, rpc.TALK_PATH)
    else:
        monkeypatch.setattr(rpc, "TALK_SINCE", rpc.PROTOCOL + 1)
    with ls.connect(server.about["grpc"]) as lake:
        assert lake.table("s.log").append([{"id": 1, "v": "x"}])
        assert len(lake.table("s.t").lookup([{"id": 1}])) == 1
        assert not wire_of(lake)._talks


def test_a_call_goes_by_itself_while_the_server_has_no_stream_to_give(
    server: Server, lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    port: Any = server._grpc
    none_left = Quota(1, 0.0, "no stream is left")
    monkeypatch.setattr(none_left, "_held", 1)
    monkeypatch.setattr(port, "_talkers", none_left)
    assert len(lake.table("s.t").lookup([{"id": 1}])) == 1
    monkeypatch.undo()
    assert wire_of(lake)._talks
    assert len(lake.table("s.t").lookup([{"id": 1}])) == 1
    assert len(talks(server)) == 1
    held_before = port._talkers.held
    lake.close()
    until(lambda: port._talkers.held < held_before, "the room of the stream")


def test_large_requests_go_by_themselves(server: Server, lake: ls.Lake) -> None:
    lake.table("s.log").append([{"id": 1, "v": "x" * 70_000}])
    lake.table("s.t").lookup([{"id": i} for i in range(10)])
    assert wire_of(lake)._small_calls._stream is None


def test_what_is_no_small_call_is_refused(server: Server) -> None:
    with grpc.insecure_channel(server.about["grpc"]) as channel:
        talk: Any = channel.stream_stream(rpc.TALK_PATH, bytes, pb.Reply.FromString)
        asks = [
            pb.Ask(id=1, method="DropTable", request=b""),
            pb.Ask(id=2, method="Commit", request=bytes(rpc.TALK_BYTES_MAX + 1)),
            pb.Ask(id=3, method="Lookup", request=b"\xff"),
            pb.Ask(id=4),
        ]
        replies = list(talk(iter([ask.SerializeToString() for ask in asks])))
        assert {reply.id: errors.error_of_fields(reply.error).kind for reply in replies} == dict.fromkeys(
            range(1, 5), "Invalid"
        )
        for data in (b"\xff\xff", pb.Ask(id=1, request=bytes(3 * rpc.TALK_BYTES_MAX)).SerializeToString()):
            with pytest.raises(grpc.RpcError) as raised:
                list(talk(iter([data])))
            failure: Any = raised.value
            assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    until(lambda: not talks(server), "the end of these streams")


@pytest.fixture(name="guarded")
def _guarded(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    auth = write_auth(tmp_path / "auth.yaml", {"root": {"*": ["admin"]}, "reader": {"s.*": ["read"]}})
    server = Server(Settings(tmp_path / "data", port=0, http_port=0, auth=str(auth)))
    server.start()
    yield server, auth
    server.close()


def test_rights_are_asked_for_each_call_and_a_stream_ends_with_its_token(guarded: tuple[Server, Path]) -> None:
    server, auth = guarded
    address, shown = server.about["grpc"], [token_of("reader")]
    with ls.connect(address, token=token_of("root")) as root, ls.connect(address, token=lambda: shown[0]) as lake:
        log = root.create_table("s.log", SCHEMA)
        root.create_table("s.t", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
        table = lake.table("s.t")
        assert len(table.lookup([{"id": 1}])) == 1
        with pytest.raises(Denied):
            lake.table("s.log").append([{"id": 1, "v": "a"}])
        stream = wire_of(lake)._small_calls._stream
        write_auth(auth, {"root": {"*": ["admin"]}, "reader": {"other.*": ["read"]}})
        server.access.refresh()
        with pytest.raises(Denied):
            table.lookup([{"id": 1}])
        assert wire_of(lake)._small_calls._stream is stream
        write_auth(auth, {"root": {"*": ["admin"]}})
        server.access.refresh()
        with pytest.raises(NotAuthenticated):
            table.lookup([{"id": 1}])
        until(lambda: len(talks(server)) == 1, "the end of the stream whose token is gone")
        with pytest.raises(NotAuthenticated):
            table.lookup([{"id": 1}])
        shown[0] = token_of("root")
        assert len(table.lookup([{"id": 1}])) == 1
        assert log.append([{"id": 1, "v": "a"}])


def test_a_silent_stream_ends_with_its_token_too(guarded: tuple[Server, Path]) -> None:
    server, auth = guarded
    with ls.connect(server.about["grpc"], token=token_of("reader")) as lake:
        with pytest.raises(NotFound):
            lake.transport.lookup(pb.LookupRequest(table="s.none", key=b"1"))
        write_auth(auth, {"root": {"*": ["admin"]}})
        server.access.refresh()
        until(lambda: not talks(server), "the end of the stream")


def test_a_server_that_goes_answers_what_it_began_and_waits_for_no_silent_stream(tmp_path: Path) -> None:
    server = Server(Settings(tmp_path / "data", port=0, http_port=0))
    server.start()
    with ls.connect(server.about["grpc"]) as lake, ls.connect(server.about["grpc"]) as silent:
        table = lake.create_table("s.t", SCHEMA, primary_key=["id"])
        table.upsert([{"id": 1, "v": "a"}])
        silent.table("s.t").lookup([{"id": 1}])
        with ThreadPoolExecutor(1) as pool:
            with held(server, "Lookup") as until_there:
                waits = pool.submit(table.lookup, [{"id": 1}])
                until_there()
                port: Any = server._grpc
                for talk in list(talks(server)):
                    talk.end(Unavailable("going"))
                until(lambda: len(talks(server)) == 1, "the end of the silent stream")
            assert waits.result(60).num_rows == 1
        port.stop(600)  # longer than a test may take: it waits for nobody
    server.close()
