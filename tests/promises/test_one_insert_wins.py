"""Insert-if-absent: one of many inserts a key, and all are given the winner's row."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore import aio
from lakestore_server.main import Server
from lakestore_server.settings import Settings

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module", name="address")
def _address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(Settings(data=tmp_path_factory.mktemp("insert") / "data", port=0, http_port=0))
    try:
        server.start()
        yield server.about["grpc"]
    finally:
        server.close()


@pytest.fixture(name="table")
def _table(address: str, request: pytest.FixtureRequest) -> Iterator[ls.Table]:
    with ls.connect(address) as lake:
        yield lake.create_table(f"t.{re.sub('[^a-zA-Z0-9]', '_', request.node.name)}", SCHEMA, primary_key=["id"])


def test_the_rows_that_are_there_then_come_back_in_order(table: ls.Table) -> None:
    table.upsert([{"id": 1, "v": "old"}])
    found = table.insert_if_absent([{"id": 2, "v": "a"}, {"id": 1, "v": "b"}, {"id": 3, "v": "c"}])
    assert found.to_pylist() == [{"id": 2, "v": "a"}, {"id": 1, "v": "old"}, {"id": 3, "v": "c"}]
    assert found.schema == table.schema
    assert table.last_result is not None
    assert (table.last_result.inserted, table.last_result.ignored) == (2, 1)
    table.delete([{"id": 1}])
    assert table.insert_if_absent([{"id": 1, "v": "again"}]).column("v").to_pylist() == ["again"]


def test_of_two_rows_of_one_key_the_first_is_inserted(table: ls.Table) -> None:
    found = table.insert_if_absent([{"id": 1, "v": "first"}, {"id": 1, "v": "second"}])
    assert found.column("v").to_pylist() == ["first", "first"]


def test_exactly_one_of_many_racers_inserts_each_key(address: str, table: ls.Table) -> None:
    racers, rounds = 8, 12
    start = threading.Barrier(racers)

    def race(me: int) -> list[tuple[int, str, int]]:
        with ls.connect(address) as lake:
            mine = lake.table(table.name)
            seen = []
            for key in range(rounds):
                start.wait(30)
                row = mine.insert_if_absent([{"id": key, "v": f"racer {me}"}]).to_pylist()[0]
                assert mine.last_result is not None
                seen.append((key, row["v"], mine.last_result.inserted))
            return seen

    with ThreadPoolExecutor(racers) as pool:
        seen = [each for result in pool.map(race, range(racers)) for each in result]
    for key in range(rounds):
        assert len({winner for k, winner, _ in seen if k == key}) == 1
    assert Counter(key for key, _, inserted in seen if inserted) == Counter(range(rounds))
    assert table.scan().count() == rounds


def test_commits_writers_and_asyncio_have_it_too(address: str, table: ls.Table) -> None:
    with ls.connect(address) as lake:
        with lake.commit() as commit:
            commit.upsert(table.name, [{"id": 1, "v": "one"}])
            commit.insert_if_absent(table.name, [{"id": 1, "v": "no"}, {"id": 2, "v": "two"}])
        assert commit.results[1].ignored == 1
        with lake.table(table.name).writer() as writer:
            writer.insert_if_absent([{"id": 2, "v": "no"}])
            writer.insert_if_absent([{"id": 3, "v": "three"}])
    assert table.lookup([{"id": i} for i in (1, 2, 3)]).column("v").to_pylist() == ["one", "two", "three"]

    async def insert() -> pa.Table:
        async with aio.connect(address) as lake:
            return await (await lake.table(table.name)).insert_if_absent([{"id": 3, "v": "no"}])

    assert asyncio.run(insert()).column("v").to_pylist() == ["three"]


def test_a_look_up_sees_what_was_acknowledged_here_and_by_its_token_elsewhere(address: str, table: ls.Table) -> None:
    with ls.connect(address) as other:
        for i in range(20):
            token = table.upsert([{"id": 1, "v": f"{i}"}])
            assert table.lookup([{"id": 1}]).column("v").to_pylist() == [f"{i}"]
            assert other.table(table.name).lookup([{"id": 1}], at=token).column("v").to_pylist() == [f"{i}"]
            assert other.table(table.name).lookup([{"id": 1}]).column("v").to_pylist() == [f"{i}"]


def test_a_stream_of_batches_is_inserted_although_it_can_be_read_only_once(address: str) -> None:
    with ls.connect(address) as lake:
        table = lake.create_table("d.reader", SCHEMA, primary_key=["id"])
        stream = pa.table({"id": [1, 2], "v": ["a", "b"]}).to_reader()
        assert table.insert_if_absent(stream).column("v").to_pylist() == ["a", "b"]
        assert table.scan().count() == 2
        later = lake.table("d.reader")
        table.alter(add={"w": pa.int64()})
        later.upsert(pa.table({"id": [3], "v": ["c"], "w": [7]}).to_reader())
        assert table.lookup([{"id": 3}]).column("w").to_pylist() == [7]


@pytest.mark.parametrize("shares", [False, True])
def test_an_insert_is_answered_with_its_own_row_whoever_changes_it_next(
    address: str, table: ls.Table, shares: bool
) -> None:
    def race(me: int) -> list[tuple[int, str, list[str]]]:
        told = []
        with ls.connect(address) as lake:
            mine = table if shares else lake.table(table.name)
            for turn in range(25):
                if me % 2:
                    (mine.delete([{"id": 1}]) if turn % 3 else mine.upsert([{"id": 1, "v": "other"}]))
                    continue
                found = mine.insert_if_absent([{"id": 1, "v": f"{me}-{turn}"}])
                assert mine.last_result is not None
                told.append((mine.last_result.inserted, f"{me}-{turn}", found.column("v").to_pylist()))
        return told

    with ThreadPoolExecutor(8) as pool:
        answers = [each for told in pool.map(race, range(8)) for each in told]
    assert [each for each in answers if each[0] and each[2] != [each[1]]] == []
    assert all(len(rows) == 1 for _, _, rows in answers)
