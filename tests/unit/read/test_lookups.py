"""Look-ups: bounded answers at one cut, projection, leading parts of keys, in key order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client import lookup as client_lookups
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.rows import ipc, keys, user
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.index.entry import table_prefix
from lakestore_server.read import lookup as server_lookups
from lakestore_server.read import rows as reads
from tests.support.served import Served

ORDERS = pa.schema([("customer", pa.string()), ("id", pa.int32()), ("v", pa.string())])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", limits=Limits(read_batch_bytes=4096)) as running:
        yield running


@pytest.fixture(name="lake")
def _lake(served: Served) -> ls.Lake:
    return served.lake


@pytest.fixture(name="orders")
def _orders(lake: ls.Lake) -> ls.Table:
    return lake.create_table("s.orders", ORDERS, primary_key=["customer", "id"], bucket_key=["customer"])


def order(customer: str, number: int, value: str = "x") -> dict[str, Any]:
    return {"customer": customer, "id": number, "v": value}


def settle(served: Served, how: str) -> None:
    """Where keys lie: in the overlay, in runs and a cached overlay, or in runs alone."""
    if how != "overlay":
        served.checkpoint()
    if how == "runs":
        served.engine.index._older = ()


def test_any_number_of_keys_comes_in_parts_of_one_cut(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create_table("s.t", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
    table.upsert([{"id": i, "v": f"{i}" * 50} for i in range(1000)])
    asked: list[pb.LookupRequest] = []
    lookup = lake.transport.lookup

    def with_writes_between(request: pb.LookupRequest) -> pb.RowBatch:
        asked.append(request)
        answer = lookup(request)
        table.upsert([{"id": i, "v": "new"} for i in range(0, 1000, 7)])
        table.delete([{"id": i} for i in range(0, 1000, 11)])
        return answer

    monkeypatch.setattr(lake.transport, "lookup", with_writes_between)
    monkeypatch.setattr(client_lookups, "KEYS_MAX", 300)
    found = table.lookup([{"id": i} for i in reversed(range(-5, 1005))])
    assert len(asked) > 10
    assert not asked[0].at
    assert len({request.at for request in asked[1:]}) == 1
    assert found.to_pylist() == [{"id": i, "v": f"{i}" * 50} for i in reversed(range(1000))]


def test_a_client_that_takes_no_parts_is_told_before_an_answer_is_too_long(tmp_path: Path) -> None:
    with ls.open(tmp_path / "data", limits=Limits(message_bytes=1 << 20, read_batch_bytes=1000)) as lake:
        table = lake.create_table("s.t", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
        for i in range(3):
            table.upsert([{"id": i, "v": "v" * 500_000}])
        batch = user.from_user([{"id": 0}, {"id": 1}, {"id": 2}], table.schema)
        request = pb.LookupRequest(table="s.t", keys=ipc.encode(batch.schema, [batch]))
        with pytest.raises(Invalid, match="more than 1048576 bytes: ask for fewer"):
            lake.transport.lookup(request)
        request.columns.append("id")
        assert lake.transport.lookup(request).answered == 3
        assert table.lookup(batch).num_rows == 3


@pytest.mark.parametrize("how", ["overlay", "cached", "runs"])
def test_a_prefix_gives_all_its_rows_in_key_order(served: Served, lake: ls.Lake, orders: ls.Table, how: str) -> None:
    names = ["", "a", "a\0", "a\0\0", "a\0b", "ab", "b", "ü"]
    orders.upsert([order(name, i) for i in (5, -3, 0, 2**31 - 1, -(2**31)) for name in names])
    settle(served, how)
    orders.delete([{"customer": "a", "id": 0}])
    orders.upsert([order("a", 7, "new"), order("a", 5, "new")])
    for name in names:
        ids = [-(2**31), -3, 5, 7, 2**31 - 1] if name == "a" else [-(2**31), -3, 0, 5, 2**31 - 1]
        found = orders.lookup([{"customer": name}]).to_pylist()
        assert found == [order(name, i, "new" if name == "a" and i in (5, 7) else "x") for i in ids]
    several = orders.lookup(
        [{"customer": "b"}, {"customer": "none"}, {"customer": "a\0"}], columns=["customer", "__bucket"]
    )
    assert several.column("customer").to_pylist() == ["b"] * 5 + ["a\0"] * 5
    assert several.schema.names == ["customer", "__bucket"]


def test_a_prefix_with_many_rows_comes_in_pages_of_one_cut(
    served: Served, lake: ls.Lake, orders: ls.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_lookups, "PAGE_KEYS", 300)
    monkeypatch.setattr(server_lookups, "PREFIX_KEYS_MIN", 70)
    orders.upsert([order(name, i, "v" * 40) for i in range(1000) for name in ("a", "b", "c")])
    settle(served, "runs")
    orders.upsert([order(name, i, "w" * 40) for i in range(0, 1000, 3) for name in ("a", "c")])
    orders.delete([{"customer": "a", "id": i} for i in range(400, 900)])
    wanted = orders.scan().to_arrow().sort_by([("customer", "ascending"), ("id", "ascending")]).to_pylist()
    answers = []
    lookup = lake.transport.lookup

    def with_writes_between(request: pb.LookupRequest) -> pb.RowBatch:
        answer = lookup(request)
        answers.append(answer)
        orders.upsert([order("a", 10_000 + len(answers)), order("b", 3, "later"), order("a", 450, "back")])
        orders.delete([{"customer": "c", "id": 900 - len(answers)}])
        return answer

    monkeypatch.setattr(lake.transport, "lookup", with_writes_between)
    found = orders.lookup([{"customer": name} for name in ("a", "b", "c")]).to_pylist()
    assert len(answers) > 20
    assert max(len(answer.rows) for answer in answers) < 16_000
    assert found == wanted


@pytest.mark.parametrize("how", ["overlay", "runs"])
def test_prefixes_of_keys_that_the_index_cuts_are_told_apart_and_in_order(
    served: Served, lake: ls.Lake, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names differ behind what the index keeps, or the numbers do: by the index's bytes they are in any order."""
    monkeypatch.setattr(server_lookups, "PAGE_KEYS", 20)
    monkeypatch.setattr(server_lookups, "PREFIX_KEYS_MIN", 5)
    table = lake.create_table("s.orders", ORDERS, primary_key=["customer", "id"], bucket_key=["customer"])
    long = "l" * (keys.KEPT_BYTES - 4)
    names = [long, long[:-1], long[:-6], long + "x", long + "y", long * 2, long[:-3] + "\0\0"]
    table.upsert([order(name, i, "v" * 60) for i in range(40) for name in names])
    settle(served, how)
    table.delete([{"customer": long + "x", "id": 3}])
    before = str(table.upsert([order(long + "y", 3, "new")]))
    table.delete([{"customer": name, "id": i} for i in range(10, 20) for name in names])
    for name in names:
        gone = {*range(10, 20), *([3] if name == long + "x" else [])}
        found = table.lookup([{"customer": name}], columns=["customer", "id"]).to_pylist()
        assert found == [{"customer": name, "id": i} for i in range(40) if i not in gone]
        past = table.lookup([{"customer": name}], at=before).column("id").to_pylist()
        assert past == [i for i in range(40) if i != 3 or name != long + "x"]


def test_columns_that_are_no_leading_part_are_refused(lake: ls.Lake, orders: ls.Table) -> None:
    with pytest.raises(Invalid, match=r"\(id\) is not a leading part of the primary key \(customer, id\)"):
        orders.lookup([{"id": 1}])
    with pytest.raises(Invalid, match="column 'v' is not in the primary key"):
        orders.lookup([{"customer": "a", "v": "x"}])
    with pytest.raises(Invalid, match="column 'nobody' is not in the primary key"):
        orders.lookup([{"nobody": 1}])
    other = lake.create_table("s.other", ORDERS, primary_key=["customer", "id"])
    with pytest.raises(Invalid, match=r"does not contain the bucket key \(customer, id\)"):
        other.lookup([{"customer": "a"}])
    log = lake.create_table("s.log", ORDERS)
    with pytest.raises(Invalid, match="no primary key"):
        log.lookup([{"customer": "a"}])


def test_a_place_to_go_on_that_nobody_gave_is_refused(orders: ls.Table, lake: ls.Lake) -> None:
    orders.upsert([order("a", 1)])
    batch = pa.RecordBatch.from_pylist([{"customer": "a"}])
    request = pb.LookupRequest(table="s.orders", keys=ipc.encode(batch.schema, [batch]), in_parts=True)
    start = keys.leading([batch.column(0)], table_prefix(orders.definition.number))[0]
    for after in (b"x", b"y" * 600, bytes(4), bytes(4) + b"\xff\xff", bytes(4) + start + b"x" * 600):
        request.after = after
        with pytest.raises(Invalid, match="look up from the start"):
            lake.transport.lookup(request)
    request.after = bytes(4) + start
    assert lake.transport.lookup(request).answered == 1


def test_new_keys_are_seen_in_order_while_the_overlay_changes_hands(
    served: Served, lake: ls.Lake, orders: ls.Table
) -> None:
    for i in range(60):
        orders.upsert([order("a", i), order("b", -i)])
        if i % 10 == 3:
            served.checkpoint()
        assert orders.lookup([{"customer": "a"}]).column("id").to_pylist() == list(range(i + 1))
        assert orders.lookup([{"customer": "b"}]).column("id").to_pylist() == list(range(-i, 1))


def test_only_the_columns_asked_for_are_taken(
    served: Served, lake: ls.Lake, orders: ls.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.upsert([order("a", i) for i in range(3)])
    settle(served, "runs")
    taken: list[list[str]] = []
    project = reads.project

    def seen(shape: Any, found: Any, columns: Any, bucket: int) -> pa.RecordBatch:
        taken.append(found.batch.schema.names)
        return project(shape, found, columns, bucket)

    monkeypatch.setattr(reads, "project", seen)
    found = orders.lookup([order("a", 0), order("a", 2)], columns=["id", "__offset", "__timestamp"])
    assert found.column("id").to_pylist() == [0, 2]
    assert taken == [["id"]]
    assert orders.lookup([order("a", 1)], columns=["__bucket"]).num_rows == 1
