"""Writers that go on while a table is altered, and columns of nested types that come and go."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pyarrow as pa

import lakestore as ls
from lakestore import aio
from lakestore.union.verify import verify
from tests.support.waiting import joined

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int16()), ("word", pa.string())])
ROWS, WRITERS = 200, 3


def test_writers_of_the_first_version_lose_nothing_while_the_table_is_altered(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=2, lake={"format_version": 3})
        handles = [lake.table("a.b") for _ in range(WRITERS)]
        begun = threading.Barrier(WRITERS + 1)

        def write(number: int) -> None:
            begun.wait(60)
            with handles[number].writer() as writer:
                for i in range(ROWS):
                    writer.upsert([{"id": number * ROWS + i, "n": i, "word": str(i)}])
                    if i % 50 == 0:
                        writer.flush()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        table.alter(widen={"n": pa.int32()})
        for i in range(20):
            table.alter(
                rename={"n" if i == 0 else f"n{i - 1}": f"n{i}"}, add={f"c{i}": pa.int32()}, default={f"c{i}": i}
            )
        joined(*threads)
        found = table.scan().to_arrow().sort_by("id").to_pylist()
        assert [row["id"] for row in found] == list(range(ROWS * WRITERS))
        for row in found:
            assert row["n19"] == row["id"] % ROWS
            assert row["word"] == str(row["n19"])
            assert [row[f"c{i}"] for i in range(20)] == list(range(20))
        seen = [batch.schema_id for batch in table.changes(until="now")]
        assert seen == sorted(seen)
        assert verify(lake.transport, "a.b").same


def test_asyncio_alters_too(tmp_path: Path) -> None:
    async def story(lake: aio.Lake) -> None:
        table = await lake.create_table("a.b", SCHEMA)
        await table.append([{"id": 1}])
        await table.alter(rename={"id": "key"}, drop=["n"])
        assert (await table.scan().to_arrow()).to_pylist() == [{"key": 1, "word": None}]

    async def run() -> None:
        async with aio.Lake(lambda: ls.open(tmp_path), 2) as lake:
            await story(lake)

    asyncio.run(run())


def test_nested_columns_come_and_go(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    with ls.open(tmp_path) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert([{"id": 1}, {"id": 2}])
        table.alter(add={"s": inner, "l": pa.list_(pa.field("item", inner, nullable=False))})
        assert (table.definition.column("l").nested, table.definition.last_column_id) == ((7, 8), 8)
        table.upsert([{"id": 2, "s": {"a": 1}, "l": [{"a": 2}]}])
        assert table.lookup([{"id": 1}], columns=["s", "l"]).to_pylist() == [{"s": None, "l": None}]
        table.alter(drop=["l"], rename={"s": "t"}, add={"l": pa.int8()})
        found = table.scan().to_arrow()
        found.validate(full=True)
        assert table.definition.column("l").id == 9
        assert sorted(found.select(["id", "t", "l"]).to_pylist(), key=lambda row: row["id"]) == [
            {"id": 1, "t": None, "l": None},
            {"id": 2, "t": {"a": 1}, "l": None},
        ]
        assert verify(lake.transport, "a.b").same
