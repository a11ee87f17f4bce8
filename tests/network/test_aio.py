"""asyncio: the loop never waits, cancelled calls end, interrupted streams lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from jepsen.system.proxy import LOST, Proxy
from lakestore import aio
from lakestore.errors import Fenced, Invalid, NotFound
from tests.support.contract_texts import column, document
from tests.support.process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
COLUMNS = (
    column("id", logicalType="integer", physicalType="bigint", primaryKey=True, required=True),
    column("v", logicalType="string", enum=[{"value": "a"}]),
)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("aio")
    with ServerProcess(folder / "data") as running:
        yield running


def test_everything_of_a_table_can_be_awaited(process: ServerProcess) -> None:
    async def story() -> None:
        async with aio.connect(process.address) as lake:
            table = await lake.create_table("a.story", SCHEMA, primary_key=["id"])
            await table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
            await table.delete([{"id": 1}])
            async with table.writer() as writer:
                for i in range(10, 20):
                    await writer.upsert([{"id": i, "v": "w"}])
                await writer.flush()
            assert (await table.lookup([{"id": 2}]))["v"].to_pylist() == ["b"]
            assert await table.scan().count() == 11
            assert sum([batch.num_rows async for batch in table.scan().to_batches()]) == 11
            got = [row async for batch in table.changes(until="now") for row in batch.to_pylist()]
            assert len(got) == 13
            assert "a.story" in [one.sync.name for one in await lake.tables()]
            with pytest.raises(NotFound):
                await lake.table("a.none")

    asyncio.run(story())


def test_contracts_can_be_awaited(process: ServerProcess) -> None:
    async def story() -> None:
        async with aio.connect(process.address) as lake:
            text = document(COLUMNS, "count")
            [change] = await lake.apply_contract(text, database="a", check_only=True)
            assert change.after.name == "a.orders"
            with pytest.raises(NotFound):
                await lake.table("a.orders")
            await lake.apply_contract(text, database="a", why="new")
            table = await lake.table("a.orders")
            assert table.contract_text == text
            assert table.sync.contract is not None
            assert table.sync.contract.why == "new"
            await table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
            measures = await table.test_contract()
            assert measures == await asyncio.to_thread(table.sync.test_contract)
            assert [each.rule for each in measures if each.state == "broken"] == ["v.enum"]
            with pytest.raises(Invalid, match="has no contract"):
                await (await lake.create_table("a.free", SCHEMA)).test_contract()

    asyncio.run(story())


def test_commits_of_several_tables_can_be_awaited(process: ServerProcess) -> None:
    async def story() -> None:
        async with aio.connect(process.address) as lake:
            keyed = await lake.create_table("a.keyed", SCHEMA, primary_key=["id"])
            await lake.create_table("a.log", SCHEMA)
            row = [{"id": 1, "v": "a"}]
            async with lake.commit() as commit:
                await commit.upsert("a.keyed", row)
                await commit.append("a.log", row)
            assert [result.inserted for result in commit.results] == [1, 1]
            assert commit.token
            async with await lake.producer("aio") as producer:
                async with producer.commit(progress="7") as commit:
                    await commit.insert_if_absent("a.keyed", row)
                assert (producer.progress, [result.ignored for result in commit.results]) == ("7", [1])
            async with await lake.registers(["aio/0"]) as registers:
                async with registers.commit({"aio/0": "3"}) as commit:
                    await commit.delete("a.keyed", [{"id": 1}])
                await registers.open(["aio/1"])
                assert dict(registers.progress) == {"aio/0": "3", "aio/1": ""}
                with suppress(ZeroDivisionError):
                    async with registers.commit({"aio/0": "4"}) as commit:
                        await commit.append("a.log", row)
                        raise ZeroDivisionError
                registers.release(["aio/0"])
                await lake.registers(["aio/1"])
                with pytest.raises(Fenced):
                    async with registers.commit({"aio/1": "4"}):
                        pass
            assert await keyed.scan().count() == 0
            assert {held.name: held.value for held in lake.sync.list_registers("aio/")} == {"aio/0": "3", "aio/1": ""}

    asyncio.run(story())


def test_a_commit_that_is_cancelled_leaves_its_registers_and_producer_over(process: ServerProcess) -> None:
    async def story() -> None:
        with Proxy(process.address) as proxy:
            async with aio.connect(proxy.address) as lake:
                await lake.create_table("a.doubtful", SCHEMA)
                producer, registers = await lake.producer("doubtful"), await lake.registers(["d/0"])
                for begin in (partial(producer.commit, "1"), partial(registers.commit, {"d/0": "1"})):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None) as limit, begin() as commit:
                            await commit.append("a.doubtful", [{"id": 1, "v": "x"}])
                            proxy.breaks(LOST, LOST)
                            limit.reschedule(asyncio.get_running_loop().time() + 0.3)
                        pytest.fail("a silent server has answered")
                    proxy.mend()
                    with pytest.raises(Invalid):
                        await commit_of(begin())

    async def commit_of(commit: aio.Commit) -> None:
        async with commit:
            await commit.append("a.doubtful", [{"id": 1, "v": "x"}])

    asyncio.run(story())


def test_a_hundred_calls_at_once_take_turns_and_the_loop_goes_on(process: ServerProcess) -> None:
    async def story() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        async with aio.connect(process.address, threads=4) as lake:
            table = await lake.create_table("a.many", SCHEMA)
            ticking = asyncio.create_task(tick())
            await asyncio.gather(*(table.append([{"id": i, "v": "x"}]) for i in range(100)))
            ticking.cancel()
            assert await table.scan().count() == 100
        return ticks

    assert asyncio.run(story()) > 5


def test_a_cancelled_call_ends_on_the_wire_and_gives_its_thread_back(process: ServerProcess) -> None:
    async def story() -> None:
        with Proxy(process.address) as proxy:
            async with aio.connect(proxy.address, threads=1) as lake:
                table = await lake.create_table("a.cancelled", SCHEMA)
                proxy.breaks(LOST, LOST)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(table.append([{"id": 1, "v": "x"}]), 0.2)
                proxy.mend()
                proxy.cut()
                await table.append([{"id": 2, "v": "x"}])

    asyncio.run(story())


def test_an_interrupted_wait_for_changes_loses_nothing_and_closing_ends_the_stream(process: ServerProcess) -> None:
    async def story() -> None:
        async with aio.connect(process.address) as lake:
            table = await lake.create_table("a.followed", SCHEMA)
            async with table.changes() as stream:
                for i in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(stream), 0.05)
                    await table.append([{"id": i, "v": "x"}])
                    batch = await anext(stream)
                    assert batch.table["id"].to_pylist() == [i]
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(story())
