"""A table and its later namesake are two: who means the dropped one is told, and nothing reaches the new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.table import Table
from lakestore.client.writer import change
from lakestore.errors import NotFound
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served
from tests.support.switch import ends

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])
WIDER = KEYED.append(pa.field("tenant", pa.string()))
ROW = [{"id": 1, "v": "meant for the dropped table"}]


def _writer(table: Table) -> None:
    with table.writer() as writer:
        writer.upsert(ROW)


USES: dict[str, Callable[[Table], Any]] = {
    "upsert": lambda t: t.upsert(ROW),
    "rows of a newer version": lambda t: t.upsert([{**ROW[0], "tenant": "x"}]),
    "insert_if_absent": lambda t: t.insert_if_absent(ROW),
    "delete": lambda t: t.delete([{"id": 5}]),
    "writer": _writer,
    "lookup": lambda t: t.lookup([{"id": 5}]),
    "lookup of several": lambda t: t.lookup([{"id": 5}, {"id": 6}]),
    "scan": lambda t: t.scan().to_arrow(),
    "count": lambda t: t.scan().count(),
    "changes": lambda t: list(t.changes(until="now")),
    "subscription": lambda t: list(t.changes(subscription="s", until="now")),
    "alter": lambda t: t.alter(add={"more": pa.int64()}),
}


@pytest.mark.parametrize("wider", [False, True])
def test_a_handle_of_a_dropped_table_says_so(served: Served, wider: bool) -> None:
    lake = served.lake
    old = lake.create_table("a.t", KEYED, primary_key=["id"])
    writer = old.writer()
    old.upsert([{"id": 5, "v": "old"}])
    lake.drop_table("a.t")
    for name, use in USES.items():
        assert isinstance(ends(lambda use=use: use(old)), NotFound), name  # type: ignore[misc]
    new = lake.create_table("a.t", WIDER if wider else KEYED, primary_key=["id"])
    new.upsert([{"id": 5, "v": "new"}])
    for name, use in USES.items():
        error = ends(lambda use=use: use(old))  # type: ignore[misc]
        assert isinstance(error, NotFound), name
        assert "dropped" in error.message, name
    writer.upsert(ROW)
    assert isinstance(ends(writer.flush), NotFound)
    assert new.scan(columns=["id", "v"]).to_arrow().to_pylist() == [{"id": 5, "v": "new"}]
    assert lake.table("a.t").definition == new.definition
    assert lake.subscriptions() == []


def test_a_commit_by_name_is_refused_once_and_then_means_the_new_table(served: Served) -> None:
    lake = served.lake
    lake.create_table("a.t", KEYED, primary_key=["id"]).upsert(ROW)
    other = served.lake
    lake.definition_of("a.t")
    other.transport.drop_table(pb.TableRequest(table="a.t"))
    other.transport.create_table(pb.CreateTableRequest(definition=_wider(served)))

    def write() -> None:
        with lake.commit() as commit:
            commit.upsert("a.t", ROW)

    assert isinstance(ends(write), NotFound)
    write()
    assert lake.table("a.t").scan().count() == 1


def _wider(served: Served) -> str:
    made = served.lake.create_table("a.other", WIDER, primary_key=["id"]).definition
    return made.to_json().replace("a.other", "a.t").replace(made.uuid, "")


def test_a_retry_of_what_was_done_gets_its_answer_after_the_table_is_gone(served: Served) -> None:
    lake = served.lake
    table = lake.create_table("a.t", KEYED, primary_key=["id"])
    sent: list[pb.CommitRequest] = []
    real = lake.transport.commit

    def noted(request: pb.CommitRequest) -> pb.CommitAnswer:
        sent.append(request)
        return real(request)

    lake.transport.commit = noted  # type: ignore[method-assign]
    token = table.upsert(ROW)
    lake.drop_table("a.t")
    assert real(sent[0]).token == token
    lake.create_table("a.t", KEYED, primary_key=["id"])
    assert real(sent[0]).token == token
    assert lake.table("a.t").scan().count() == 0


def test_a_client_that_does_not_say_which_table_is_served_as_ever(served: Served) -> None:
    lake = served.lake
    lake.create_table("a.t", KEYED, primary_key=["id"])
    lake.drop_table("a.t")
    lake.create_table("a.t", KEYED, primary_key=["id"])
    (batch,) = pa.Table.from_pylist(ROW, schema=KEYED).to_batches()
    lake.transport.commit(pb.CommitRequest(changes=[change("a.t", pb.UPSERT, [batch], 0)]))
    assert lake.table("a.t").scan().count() == 1
