"""One policy for every call: what is sent again, for how long, and what the last error says of all tries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli.shell import Shell
from lakestore.client import calls, grpc
from lakestore.client.calls import Calls, transport_of
from lakestore.client.retry import within
from lakestore.client.writer import change
from lakestore.errors import Exhausted, LakestoreError, LimitReached, Stopped, Unavailable
from lakestore.union.cut import Cut
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.v1.lakestore_pb2 import Rule
from lakestore.wire import rpc
from tests.support.served import Served
from tests.support.waiting import until
from tests.support.world.wire import Fault, FaultyWire, over

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def once(name: str, *faults: Fault) -> Callable[[str], Fault | None]:
    """These faults, one for each of the first calls of an RPC."""
    left = list(faults)
    return lambda called: left.pop(0) if called == name and left else None


def test_every_rpc_has_a_rule_and_every_read_is_tried_again() -> None:
    for method in rpc.METHODS.values():
        assert method.rule.right != Rule.UNKNOWN_RIGHT, method.name
        assert method.rule.retry != Rule.UNKNOWN_RETRY, method.name
        assert method.streams_in or method.streams_out or method.rule.retry != Rule.RESUMED, method.name
        if method.reads:
            assert method.rule.retry == (Rule.RESUMED if method.streams_out else Rule.ALWAYS), method.name


def test_a_call_that_begins_after_its_deadline_is_not_sent(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    transport: Any = over(served.lake, lambda _: None)
    late = ls.Table(ls.Lake(transport, "late")._connection, table.definition)
    asked: list[Callable[[], object]] = [
        lambda: late.upsert([{"id": 1, "v": "a"}]),
        lambda: late.lookup([{"id": 1}]),
        lambda: late.scan().to_arrow(),
        lambda: next(late.changes()),
        lambda: late.insert_if_absent([{"id": 1, "v": "a"}]),
    ]
    for call in asked:
        with within(0.0), pytest.raises(Unavailable, match=r"deadline passed before .* was (sent|read)") as refused:
            call()
        assert refused.value.applied == "no"
    assert transport.wire.seen == []


def test_a_probe_of_a_server_that_is_away_ends_soon(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    away = True
    transport: Any = over(served.lake, lambda _: "unsent" if away else None)
    monkeypatch.setattr(calls, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr("lakestore.client.retry.RETRY_SECONDS", 600.0)
    with pytest.raises(Unavailable):
        transport.probe()
    shell = Shell(ls.Lake(transport, "away"))
    for typed in ("SELECT 1;", ".tables"):
        with pytest.raises(Unavailable):
            shell.handle(typed)
    away = False
    transport.probe()
    assert transport.wire.seen == ["Hello"]


def test_a_try_that_may_have_counted_is_told_of_by_the_last_error(served: Served) -> None:
    request = pb.DropSubscriptionRequest(subscription="s")
    lost = over(served.lake, once("DropSubscription", "unsent", "sent"))
    with pytest.raises(Unavailable) as refused:
        lost.drop_subscription(request)
    assert refused.value.applied == "unknown"
    known = over(served.lake, once("CreateTable", "unsent", "unsent"))
    ls.Lake(known, "known").create_table("a.c", SCHEMA)


def test_a_commit_without_a_sequence_is_not_sent_twice(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "v": "x"}], schema=SCHEMA)
    request = pb.CommitRequest(changes=[change("a.b", pb.APPEND, [batch])])
    with pytest.raises(Unavailable):
        over(served.lake, once("Commit", "answered")).commit(request)
    assert table.scan().count() == 1


def test_a_fetch_goes_on_where_it_broke(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, buckets=1)
    table.append([{"id": i, "v": str(i)} for i in range(10)])
    broken = ls.Lake(over(served.lake, once("Fetch", "unsent", 1, "answered", 0)), "broken")
    assert broken.table("a.b").scan().to_arrow()["id"].to_pylist() == list(range(10))


@pytest.mark.parametrize("error", [Stopped("it is over"), LimitReached("as many as there may be")])
def test_what_no_waiting_mends_is_not_asked_again(served: Served, error: LakestoreError) -> None:
    class Ended(FaultyWire):
        def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
            self.seen.append(method.name)
            raise error

    transport: Any = served.lake.transport
    wire = Ended(transport.wire, lambda _: None)
    with pytest.raises(type(error)):
        transport_of(wire).head(pb.HeadRequest())
    assert wire.seen == ["Head"]


def test_a_refusal_with_a_hint_is_tried_again_then(served: Served) -> None:
    class Busy(FaultyWire):
        def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
            self.seen.append(method.name)
            if len(self.seen) == 1:
                raise Exhausted("busy", retry_after=0.05)
            return super().call(method, request, seconds)

    transport: Any = served.lake.transport
    began = time.monotonic()
    assert transport_of(Busy(transport.wire, lambda _: None)).head(pb.HeadRequest()).token
    assert time.monotonic() - began >= 0.05


def test_a_lease_is_given_back_though_the_callers_time_is_over(served: Served) -> None:
    served.lake.create_table("a.b", SCHEMA)
    cut = Cut(served.lake.transport, ["a.b"])
    assert served.server.sources.leases.count == 1
    with within(0.0):
        cut.close()
    assert served.server.sources.leases.count == 0


def test_threads_do_not_wait_for_one_anothers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(self: grpc.GrpcWire, method: rpc.Method, request: Any, seconds: float) -> Any:
        if method.name != "Hello":
            self._ready(method, seconds)
        assert goes_on.wait(100)
        raise Unavailable("no answer")

    monkeypatch.setattr(grpc.GrpcWire, "call", hangs)
    calls: Any = Calls(grpc.GrpcWire("127.0.0.1:1"), call_seconds=0.3)
    goes_on, ended = threading.Event(), list[bool]()

    def run() -> None:
        with pytest.raises(Unavailable):
            calls.head(pb.HeadRequest())
        ended.append(True)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(ended) == 3, "the threads that wait for the greeting of another one")
    goes_on.set()
    for thread in threads:
        thread.join()
    assert ended == [True] * 4


def test_a_scan_goes_on_though_the_restarted_server_knows_no_lease(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert([{"id": i, "v": str(i)} for i in range(100)])
    leases = served.server.sources.leases
    batches = table.scan(["id"]).to_batches()
    seen = next(batches)["id"].to_pylist()
    leases._leases.clear()
    table.upsert([{"id": 1_000, "v": "later"}])
    seen += [i for batch in batches for i in batch["id"].to_pylist()]
    assert sorted(seen) == list(range(100))
    assert leases.count == 0
    other = table.scan().to_batches()
    next(other)
    leases._leases.clear()
    served.lake.drop_table("a.b")
    with pytest.raises(ls.NotFound):
        list(other)
