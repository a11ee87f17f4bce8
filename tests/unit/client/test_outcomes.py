"""The outcome of a write is said honestly, with its rows and its numbers, whatever breaks behind it."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.access import policy
from lakestore_server.access.principals import Grant, Principal
from tests.support.served import Served
from tests.support.world.wire import over

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def broken(served: Served, *names: str) -> tuple[ls.Lake, Any]:
    """A lake that can never send these calls, and its transport."""
    transport: Any = over(served.lake, lambda called: "unsent" if called in names else None)
    return ls.Lake(transport, "broken"), transport


def test_the_rows_of_insert_if_absent_come_with_the_commits_answer(served: Served) -> None:
    served.lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 2, "v": "theirs"}])
    lake, transport = broken(served, "Lookup")
    table = lake.table("a.b")
    rows = [{"id": 3, "v": "mine"}, {"id": 2, "v": "mine"}, {"id": 1, "v": "mine"}]
    found = table.insert_if_absent(rows)
    assert found.schema == table.schema
    assert [row["v"] for row in found.to_pylist()] == ["mine", "theirs", "mine"]
    assert [row["id"] for row in found.to_pylist()] == [3, 2, 1]
    assert table.last_result == ls.WriteResult("a.b", inserted=2, ignored=1)
    assert "Lookup" not in transport.wire.seen
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: table.insert_if_absent([{"id": 9, "v": str(i)}])["v"][0].as_py(), range(8)))
    assert len(set(won)) == 1


def test_rows_without_room_in_the_answer_are_looked_up_and_else_the_outcome_is_unknown(tmp_path: Any) -> None:
    with Served(tmp_path, limits=Limits(read_batch_bytes=1_000)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        large = [{"id": i, "v": "x" * 600} for i in range(5)]
        assert table.insert_if_absent(large).num_rows == 5
        lake, _ = broken(served, "Lookup")
        other = lake.table("a.b")
        more = [{"id": i, "v": "y" * 600} for i in range(10, 15)]
        with (
            lake.within(2.0),
            pytest.raises(Unavailable, match=r"are written as .* not be read back") as failed,
        ):
            other.insert_if_absent(more)
        assert failed.value.applied == "unknown"
        assert table.scan().count() == 10


def test_who_may_not_read_is_given_no_rows_and_nothing_is_stored() -> None:
    row = policy.RPCS[rpc.METHODS["Commit"].path]
    writer = Principal("w", (Grant(frozenset({"write"}), ("a.*",)),))
    known: Any = None
    plain = pb.CommitRequest(changes=[pb.Change(table="a.b", kind=pb.INSERT)])
    policy.check_right(row, writer, plain, known, "Commit")
    plain.changes[0].want_rows = True
    with pytest.raises(ls.Denied, match=r"no right 'read' on a\.b"):
        policy.check_right(row, writer, plain, known, "Commit")


def test_a_token_has_the_result_of_its_own_write(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])

    def write(i: int) -> tuple[ls.CommitToken, ls.WriteResult | None]:
        rows = [{"id": 100 * i + j, "v": ""} for j in range(i + 1)]
        return table.upsert(rows), table.last_result

    with ThreadPoolExecutor(8) as pool:
        for i, (token, last) in enumerate(pool.map(write, range(24))):
            assert (token.result.inserted, token.result.updated) == (i + 1, 0)
            assert last == token.result
    token = table.delete([{"id": 0}, {"id": -1}])
    assert (token.result.deleted, token.result.not_found) == (1, 1)
    assert isinstance(token, str)
    for same in (copy.copy(token), pickle.loads(pickle.dumps(token))):
        assert (same, same.result) == (token, token.result)
    assert table.scan(at=token).count() == sum(range(25)) - 1


VERBS: dict[str, Any] = {
    "upsert": lambda lake, i: lake.table("a.k").upsert([{"id": i, "v": "x"}]),
    "delete and insert": lambda lake, i: (
        lake.table("a.k").delete([{"id": i}]),
        lake.table("a.k").upsert([{"id": i, "v": "x"}]),
    ),
    "insert_if_absent": lambda lake, i: lake.table("a.k").insert_if_absent([{"id": i, "v": "x"}]),
    "commit": lambda lake, i: _commit(lake, i),
    "writer": lambda lake, i: _writer(lake, i, None),
    "named writer": lambda lake, i: _writer(lake, i, f"p{i}"),
    "lookup": lambda lake, i: lake.table("a.k").lookup([{"id": -1}]).num_rows == 1 or pytest.fail("row"),
    "scan": lambda lake, i: lake.table("a.l").scan().to_arrow().num_rows == 5 or pytest.fail("rows"),
    "count": lambda lake, i: lake.table("a.l").scan().count() == 5 or pytest.fail("rows"),
    "sql": lambda lake, i: len(lake.sql("SELECT * FROM a.l")) == 5 or pytest.fail("rows"),
    "snapshot": lambda lake, i: lake.snapshot().scan("a.l").count(),
    "tables": lambda lake, i: lake.tables(),
    "subscriptions": lambda lake, i: lake.subscriptions(),
    "changes": lambda lake, i: _followed(lake) == [1, 2, 3, 4, 5] or pytest.fail("rows"),
}


def _commit(lake: ls.Lake, i: int) -> None:
    with lake.commit() as commit:
        commit.upsert("a.k", [{"id": i, "v": "x"}])


def _writer(lake: ls.Lake, i: int, name: str | None) -> None:
    with lake.table("a.k").writer(producer=name) as writer:
        writer.upsert([{"id": i, "v": "x"}])


def _followed(lake: ls.Lake) -> list[int]:
    stream = lake.table("a.l").changes(until="now")
    return [each for batch in stream for each in batch.table["id"].to_pylist()]


@pytest.mark.parametrize("verb", VERBS)
def test_a_wire_that_breaks_at_any_message_is_ridden_out_or_the_outcome_is_honest(served: Served, verb: str) -> None:
    """One fault at each message of each verb in turn, and one that stays."""
    keyed = served.lake.create_table("a.k", SCHEMA, primary_key=["id"])
    keyed.upsert([{"id": -1, "v": "there"}])
    served.lake.create_table("a.l", SCHEMA, buckets=1).append([{"id": i, "v": ""} for i in range(1, 6)])
    run, number = VERBS[verb], 0
    transport: Any = over(served.lake, lambda _: None)
    run(ls.Lake(transport, "whole"), 0)
    messages = len(transport.wire.seen)
    assert messages
    for place in range(messages):
        for fault in ("unsent", "sent", "answered"):
            for stays in (False, True):
                number += 1
                count = -1

                def broken_here(_: str, place: int = place, fault: Any = fault, stays: bool = stays) -> Any:
                    nonlocal count
                    count += 1
                    return fault if count == place or (stays and count > place) else None

                lake = ls.Lake(over(served.lake, broken_here), "broken")
                try:
                    with lake.within(0.08 if stays else 5.0):
                        run(lake, number)
                except LakestoreError as error:
                    assert stays, (verb, place, fault, error)
                    if error.applied == "no" and verb != "delete and insert":
                        assert keyed.lookup([{"id": number}]).num_rows == 0, (verb, place, fault, error)
                    continue
                if verb in ("upsert", "delete and insert", "insert_if_absent", "commit", "writer", "named writer"):
                    assert keyed.lookup([{"id": number}])["v"].to_pylist() == ["x"], (verb, place, fault)
