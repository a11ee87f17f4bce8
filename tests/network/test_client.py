"""The client when things go wrong: lost answers, cut and silent connections, forks, other releases."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.proxy import LOST, Proxy
from lakestore.client.transport import PROCESS
from lakestore.client.writer import change as wire_change
from lakestore.errors import Invalid, Unavailable
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore_server.edge import grpc as grpc_server
from lakestore_server.main import Server
from lakestore_server.operate.status import StatusVerbs
from lakestore_server.settings import Settings
from tests.support.process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("client") / "data") as running:
        yield running


@pytest.fixture
def proxy(process: ServerProcess) -> Iterator[Proxy]:
    with Proxy(process.address) as between:
        yield between


@pytest.fixture
def lake(proxy: Proxy) -> Iterator[ls.Lake]:
    with ls.connect(proxy.address) as connected:
        yield connected


@pytest.fixture
def table(lake: ls.Lake, request: pytest.FixtureRequest) -> ls.Table:
    return lake.create_table(f"t.{request.node.name.partition('[')[0]}", SCHEMA)


def ids(table: ls.Table) -> list[int]:
    found: list[int] = table.scan(["id"]).to_arrow()["id"].to_pylist()
    return sorted(found)


def test_a_commit_whose_answer_is_lost_is_applied_once(table: ls.Table, proxy: Proxy) -> None:
    table.append([{"id": 0}])
    for i in range(1, 6):
        proxy.cut_after = 1
        table.append([{"id": i}])
    proxy.cut_after = None
    assert ids(table) == list(range(6))


@pytest.mark.parametrize("after", [500, 3_000])
def test_a_writer_whose_connections_are_cut_in_mid_stream_applies_every_row_once_in_order(
    lake: ls.Lake, process: ServerProcess, proxy: Proxy, after: int
) -> None:
    table = lake.create_table(f"t.cut_{after}", SCHEMA, buckets=1)
    stop = threading.Event()

    def cutting() -> None:
        while not stop.wait(0.1):
            proxy.cut_after = after

    cutter = threading.Thread(target=cutting)
    cutter.start()
    try:
        with table.writer() as writer:
            for i in range(300):
                writer.append([{"id": i}])
                time.sleep(0.002)
    finally:
        stop.set()
        cutter.join()
        proxy.cut_after = None
    with ls.connect(process.address) as direct:
        batches = direct.table(table.name).changes(until="now")
        assert [i for batch in batches for i in batch.table["id"].to_pylist()] == list(range(300))


def test_a_change_stream_goes_on_over_cut_connections_and_gives_every_row_once(
    table: ls.Table, process: ServerProcess, proxy: Proxy
) -> None:
    got: list[int] = []
    stream = table.changes()

    def follow() -> None:
        for batch in stream:
            got.extend(batch.table["id"].to_pylist())
            if len(got) >= 400:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    with ls.connect(process.address) as direct:
        written = direct.table(table.name)
        for i in range(400):
            written.append([{"id": i}])
            if i % 40 == 20:
                proxy.cut()
    reader.join(60)
    stream.close()
    assert got == list(range(400))


def test_latest_and_now_mean_the_moment_of_the_call_on_every_connection(table: ls.Table, proxy: Proxy) -> None:
    table.append([{"id": 1}])
    later, whole = table.changes("latest"), table.changes(until="now")
    table.append([{"id": 2}])
    proxy.cut()
    assert next(later).table["id"].to_pylist() == [2]
    assert [i for batch in whole for i in batch.table["id"].to_pylist()] == [1]
    later.close()


def test_a_server_that_says_nothing_is_noticed_by_unary_calls(lake: ls.Lake, table: ls.Table, proxy: Proxy) -> None:
    table.append([{"id": 1}])
    proxy.breaks(LOST, LOST)
    with lake.within(0.5), pytest.raises(Unavailable, match="in time") as lost:
        lake.tables()
    assert lost.value.applied == "no"
    with lake.within(0.5), pytest.raises(Unavailable) as unknown:
        table.append([{"id": 2}])
    assert unknown.value.applied == "unknown"


def test_a_server_that_says_nothing_is_noticed_by_streams(
    proxy: Proxy, table: ls.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestore.client.retry.RETRY_SECONDS", 5.0)
    monkeypatch.setattr("lakestore.client.grpc.HELLO_SECONDS", 5.0)
    quick = [
        ("grpc.keepalive_time_ms", 1_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
    ]
    monkeypatch.setattr("lakestore.client.grpc._CHANNEL", quick)
    with ls.connect(proxy.address) as lake:
        _silence_is_noticed(lake.table(table.name), proxy)


def _silence_is_noticed(table: ls.Table, proxy: Proxy) -> None:
    stream = table.changes()
    table.append([{"id": 1}])
    assert next(stream).table["id"].to_pylist() == [1]
    proxy.breaks(LOST, LOST)
    with pytest.raises(Unavailable):
        next(stream)


def test_one_lake_serves_many_threads(lake: ls.Lake) -> None:
    table = lake.create_table("t.threads", SCHEMA, primary_key=["id"])

    def work(thread: int) -> int:
        for i in range(20):
            table.upsert([{"id": thread * 100 + i, "v": str(i)}])
            assert table.lookup([{"id": thread * 100 + i}])["v"].to_pylist() == [str(i)]
        return table.scan(where=f"id >= {thread * 100} AND id < {thread * 100 + 100}").count()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [20] * 16
    assert table.scan().count() == 320


def _connects(address: str, answers: Any) -> None:
    try:
        with ls.connect(address) as lake:
            answers.put(len(lake.tables()) > 0)
    except Invalid as error:
        answers.put(error.message)


@pytest.mark.parametrize(("how", "says"), [("spawn", True), ("fork", "spawn")])
def test_children_work_or_say_why_not(process: ServerProcess, lake: ls.Lake, how: str, says: Any) -> None:
    lake.create_table(f"t.child_{how}", SCHEMA)
    context: Any = multiprocessing.get_context(how)
    answers = context.Queue()
    child = context.Process(target=_connects, args=(process.address, answers))
    child.start()
    told = answers.get(timeout=60)
    child.join(30)
    assert child.exitcode == 0
    assert told is says or says in told


def test_what_the_parent_made_is_refused_in_a_forked_child_while_it_is_busy(table: ls.Table, tmp_path: Path) -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            table.append([{"id": 1}])

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    local = ls.open(tmp_path / "local")
    local.create_table("a.b", SCHEMA)
    writer = table.writer()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                try:
                    os._exit(_refusals(table, writer, local))
                except BaseException as error:
                    os.write(2, repr(error).encode())
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    writer.append([{"id": 2}])
    writer.close()
    assert local.table("a.b").scan().count() == 0
    local.close()
    assert not PROCESS.is_orphan


def _refusals(table: ls.Table, writer: ls.Writer, local: ls.Lake) -> int:
    calls: list[Any] = [
        lambda: table.append([{"id": 1}]),
        lambda: table.scan().count(),
        lambda: next(table.changes()),
        lambda: writer.append([{"id": 1}]),
        writer.flush,
        local.tables,
        lambda: ls.connect("localhost:1"),
    ]
    for call in calls:
        try:
            call()
        except Invalid as error:
            if "spawn" in error.message:
                continue
        return 1
    return 0


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server in this process."""
    running = Server(Settings(folder / "data", port=0, http_port=0))
    try:
        running.start()
        yield running.about["grpc"]
    finally:
        running.close()


def test_both_ends_know_each_other(process: ServerProcess) -> None:
    with ls.connect(process.address) as lake:
        lake.tables()
        hello: pb.HelloAnswer = lake.transport.server
        assert (hello.protocol, hello.protocol_min) == (rpc.PROTOCOL, rpc.PROTOCOL_MIN)
        assert hello.timeline
        with pytest.raises(
            Invalid, match=rf"client \(0\.1\) speaks protocol 3, this server \({RELEASE}\).*newer lakestore"
        ):
            lake.transport.hello(pb.HelloRequest(release="0.1", protocol=3))


def test_a_newer_server_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pb.HelloAnswer(release="9.0", protocol_min=8, protocol=9)
    monkeypatch.setattr(StatusVerbs, "hello", lambda *_: answer)
    with served(tmp_path) as newer, ls.connect(newer) as lake:
        with pytest.raises(Invalid, match=r"9\.0.*newer lakestore"):
            lake.tables()


def test_a_server_that_is_too_old_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pb.HelloAnswer(release="0.1", protocol_min=1, protocol=3)
    monkeypatch.setattr(StatusVerbs, "hello", lambda *_: answer)
    with served(tmp_path) as older, ls.connect(older) as lake:
        with pytest.raises(Invalid, match=rf"\(0\.1\) speaks protocol 3, this client \({RELEASE}\) 4 to 5: run the"):
            lake.tables()


def test_a_server_that_knows_no_hello_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(**vars(rpc))
    known.METHODS = {name: method for name, method in rpc.METHODS.items() if name != "Hello"}
    monkeypatch.setattr(grpc_server, "rpc", known)
    with served(tmp_path) as older, ls.connect(older) as lake:
        with pytest.raises(Invalid, match=r"release 0\.1, or no Lakestore"):
            lake.tables()


@contextmanager
def served_by_the_previous_protocol(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of release 0.2: without the RPCs that came later."""
    known = SimpleNamespace(**vars(rpc))
    known.METHODS = {name: method for name, method in rpc.METHODS.items() if not method.rule.since}
    monkeypatch.setattr(grpc_server, "rpc", known)
    answer = pb.HelloAnswer(release="0.2.0", protocol_min=1, protocol=4)
    monkeypatch.setattr(StatusVerbs, "hello", lambda *_: answer)
    running = Server(Settings(folder / "data", port=0, http_port=0))
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_an_older_server_serves_what_it_knows_and_the_rest_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_by_the_previous_protocol(tmp_path, monkeypatch) as old, ls.connect(old.about["grpc"]) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert([{"id": 1}])
        assert table.lookup([{"id": 1}]).num_rows == 1
        assert sum(len(batch) for batch in table.changes(until="now")) == 1
        assert lake.snapshot().scan("a.b").count() == 1
        with pytest.raises(Invalid, match=r"has no OpenRegisters.*run the server with release"):
            lake.registers(["k/0"])


def test_an_older_server_is_not_asked_for_what_it_would_ignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_by_the_previous_protocol(tmp_path, monkeypatch) as old, ls.connect(old.about["grpc"]) as lake:
        table = lake.create_table("a.b", SCHEMA)
        batch = pa.RecordBatch.from_pylist([{"id": 1, "v": "x"}], schema=SCHEMA)
        change = wire_change("a.b", pb.APPEND, [batch], 0)
        change.part = "mine"
        commit = pb.CommitRequest(changes=[change])
        calls: list[tuple[str, Callable[[], object]]] = [
            ("part", lambda: lake.transport.commit(commit)),
            ("part", lambda: list(lake.transport.write(iter([commit])))),
            ("where", lambda: list(lake.transport.fetch(pb.FetchRequest(table_uuid="x", where="id = 1")))),
            ("registers", lambda: lake.transport.commit(pb.CommitRequest(registers=[pb.RegisterMove()]))),
        ]
        for field, call in calls:
            with pytest.raises(Invalid, match=f"would ignore '{field}' of .* protocol 5: run the server"):
                call()
        assert [each.name for each in lake.tables()] == ["a.b"]
        assert table.scan().count() == 0


def test_a_client_of_the_previous_protocol_still_works(process: ServerProcess) -> None:
    """Plain gRPC as release 0.2 spoke it: errors as three parts."""
    with ls.connect(process.address) as lake:
        lake.create_table("a.b", SCHEMA, primary_key=["id"])
    batch = pa.RecordBatch.from_pylist([{"id": 1, "v": "x"}], schema=SCHEMA)
    data = wire_change("a.b", pb.UPSERT, [batch])
    with grpc.insecure_channel(process.address) as channel:

        def call(name: str, request: Any, answer: Any) -> Any:
            path = f"/{rpc.SERVICE}/{name}"
            return channel.unary_unary(path, request.SerializeToString, answer.FromString)(request, timeout=30)

        assert call("Hello", pb.HelloRequest(release="0.2.0", protocol=4), pb.HelloAnswer).protocol == rpc.PROTOCOL
        answer = call("Commit", pb.CommitRequest(changes=[data], producer="p", sequence=1), pb.CommitAnswer)
        assert answer.results[0].inserted == 1
        with pytest.raises(grpc.RpcError) as refused:
            call("Commit", pb.CommitRequest(producer="p", sequence=2), pb.CommitAnswer)
        ended: Any = refused.value
        assert dict(ended.trailing_metadata())[errors.ERROR_KEY].startswith(b'["Invalid", ')
