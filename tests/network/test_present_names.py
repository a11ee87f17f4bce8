"""Whatever goes on after a call began is judged by the present names of its tables, and ends with its token."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Denied, NotAuthenticated
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.queries.service import QueryRun
from tests.console.scene import address, queries_of
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PRINCIPALS = {"root": {"*": ["admin"]}, "shop": {"shop.*": ["read", "write"]}, "shared": {"shop.*": ["read", "write"]}}
NAMES = (f"shop.t{number}" for number in range(1_000))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("names")
    auth = write_auth(folder / "auth.yaml", PRINCIPALS, shared={"shared_names": True})
    with Served(folder / "data", ports=True, auth=str(auth)) as made:
        yield made


@pytest.fixture
def name(served: Served) -> str:
    """A table with one row that `shop` may read."""
    made = next(NAMES)
    served.lake.create_table(made, SCHEMA, primary_key=["id"], buckets=1)
    served.lake.table(made).upsert([{"id": 1, "v": "public"}])
    return made


def lake(served: Served, who: str = "shop", token: str = "") -> ls.Lake:
    return ls.connect(served.server.about["grpc"], token=token or token_of(who))


def web(served: Served, token: str) -> httpx.Client:
    return httpx.Client(base_url=address(served), headers={"Authorization": f"Bearer {token}"}, timeout=60)


def hidden(served: Served, name: str, *, writes: bool = True) -> str:
    """Rename the table to a name that `shop` may not read, and write a row under the name."""
    moved = name.replace("shop.", "secret.")
    served.lake.table(name).rename(moved)
    if writes:
        served.lake.table(moved).upsert([{"id": 2, "v": "secret"}])
    return moved


STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "subscription": {"subscription": "mine"},
    "member": {"subscription": "ours", "member": "a", "session": 1},
}


@pytest.mark.parametrize("asked", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("writes", [True, False], ids=["busy", "silent"])
def test_a_stream_ends_when_its_table_gets_a_name_that_its_reader_may_not_read(
    served: Served, name: str, asked: dict[str, Any], writes: bool
) -> None:
    with lake(served) as reader:
        own = {**asked, **({"subscription": asked["subscription"] + name} if asked else {})}
        stream = reader.transport.changes(pb.ChangesRequest(tables=[name], start="earliest", **own))
        assert b"public" in next(stream).rows
        moved = hidden(served, name, writes=writes)
        with pytest.raises(Denied) as refused:
            next(stream)
        assert moved not in refused.value.message


def test_a_stream_goes_on_under_a_name_that_its_reader_may_read(served: Served, name: str) -> None:
    with lake(served) as reader:
        stream = reader.transport.changes(pb.ChangesRequest(tables=[name], start="earliest"))
        next(stream)
        served.lake.table(name).rename(f"{name}_new")
        served.lake.table(f"{name}_new").upsert([{"id": 2, "v": "still"}])
        assert b"still" in next(stream).rows


def test_a_stream_of_a_table_that_is_undropped_under_another_name_ends(served: Served, name: str) -> None:
    with lake(served) as reader:
        before = reader.subscriptions()
        stream = reader.transport.changes(pb.ChangesRequest(tables=[name], start="earliest", subscription=f"s{name}"))
        next(stream)
        served.lake.drop_table(name)
        with pytest.raises(ls.NotFound, match="was dropped"):
            next(stream)
        served.lake.undrop(name, as_name=name.replace("shop.", "secret."))
        with pytest.raises(Denied):
            reader.reset_subscription(f"s{name}", to="earliest")
        assert len(reader.subscriptions()) == len(before) + 1


def test_a_subscription_of_a_hidden_table_tells_neither_its_name_nor_its_lag(served: Served, name: str) -> None:
    other = f"{name}_other"
    served.lake.create_table(other, SCHEMA, primary_key=["id"], buckets=1)
    for who in ("shop", "shared"):
        with lake(served, who) as reader:
            subscription = f"{who}{name}"
            batch = next(reader.table(name).changes(subscription=subscription, until="now"))
            moved = hidden(served, name)
            asked: dict[str, Any] = {"subscription": subscription, "start": "earliest", "until": "now"}
            request = pb.ChangesRequest(tables=[other], **asked)
            calls: tuple[Callable[[], Any], ...] = (
                partial(next, reader.transport.changes(request)),
                partial(reader.reset_subscription, subscription, to="earliest"),
                batch.ack,
            )
            for call in calls:
                with pytest.raises(Denied, match="on a table of this call") as refused:
                    call()
                assert moved not in refused.value.message
            reader.drop_subscription(subscription)
        served.lake.table(moved).rename(name)


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])


def test_a_tail_ends_when_its_table_gets_a_name_that_its_viewer_may_not_read(served: Served, name: str) -> None:
    until(lambda: not served.engine.wakeups.listeners, "the ends of earlier streams")
    path = f"/console/api/tables/{name}/tail"
    with web(served, token_of("shop")) as http, http.stream("GET", path) as stream:
        told = events(stream.iter_lines())
        assert next(told)[0] == "begin"
        until(lambda: served.engine.wakeups.listeners, "the tail")
        hidden(served, name)
        kind, said = next(told)
        assert (kind, said["kind"], "secret" in said["message"]) == ("failed", "Denied", False)


def test_streams_and_tails_end_with_the_access_token_that_opened_them(served: Served, name: str) -> None:
    with web(served, token_of("shop")) as http:
        session = http.post("/console/api/session", json={"token": token_of("shop")}).json()
    until(lambda: not served.engine.wakeups.listeners, "the ends of earlier streams")
    with lake(served, token=session["token"]) as reader, web(served, session["token"]) as http:
        stream = reader.transport.changes(pb.ChangesRequest(tables=[name], start="earliest"))
        next(stream)
        with http.stream("GET", f"/console/api/tables/{name}/tail") as tail:
            told = events(tail.iter_lines())
            assert next(told)[0] == "begin"
            until(lambda: served.engine.wakeups.listeners >= 2, "the tail")
            served.clock.advance(session["seconds"])
            served.lake.table(name).upsert([{"id": 2, "v": "late"}])
            with pytest.raises(NotAuthenticated):
                next(stream)
            kind, said = next(told)
            assert (kind, said["kind"]) == ("failed", "NotAuthenticated")


SLOW = "SELECT sum(hash(a.id + b.range + c.range)) FROM {} a, range(10000000) b, range(1000000) c"


def test_a_running_query_ends_when_the_right_to_what_it_reads_goes(served: Served, name: str) -> None:
    queries = queries_of(served)

    def reads(query: QueryRun) -> bool:
        return any(rpc == "Plan" and name in tables for rpc, tables in query.reads._calls)

    with web(served, token_of("shop")) as http:
        answers: list[httpx.Response] = []
        body = {"sql": SLOW.format(name)}
        thread = threading.Thread(target=lambda: answers.append(http.post("/console/api/query", json=body)))
        thread.start()
        until(lambda: any(reads(query) for query in list(queries._runs)), "the plan of the query")
        moved = hidden(served, name)
        thread.join()
    assert answers[0].status_code == 403
    assert moved not in answers[0].text


def test_a_feed_moves_only_while_its_table_may_be_written(served: Served, name: str) -> None:
    """Neither a commit that names no table, nor a dropped register, makes another's table look complete."""
    register = f"complete/{name}/etl"
    file = served.server.access._file
    assert file is not None
    with lake(served, "shared") as writer:
        opened = writer.transport.open_registers(pb.OpenRegistersRequest(registers=[register]))
        try:
            write_auth(file, {**PRINCIPALS, "shared": {"shop.other": ["write"]}}, shared={"shared_names": True})
            served.server.access.refresh()
            move = pb.RegisterMove(register=register, epoch=opened.epoch, after="2030-01-01T00:00:00+00:00")
            with pytest.raises(Denied, match=name):
                writer.transport.commit(pb.CommitRequest(timeline=opened.timeline, registers=[move]))
            with pytest.raises(Denied, match=name):
                writer.transport.drop_registers(pb.DropRegistersRequest(registers=[register]))
        finally:
            write_auth(file, PRINCIPALS, shared={"shared_names": True})
            served.server.access.refresh()
        assert register in served.engine.registers()


def test_a_fetch_of_a_moved_table_is_refused_by_its_present_name(served: Served, name: str) -> None:
    with lake(served) as reader:
        plan = reader.transport.plan(pb.PlanRequest(tables=[name], lease_seconds=60))
        uuid = json.loads(plan.tables[0].definition)["uuid"]
        hidden(served, name)
        with pytest.raises(Denied, match="on that table"):
            list(reader.transport.fetch(pb.FetchRequest(table_uuid=uuid, bucket=0, start=0, end=1, lease=plan.lease)))
