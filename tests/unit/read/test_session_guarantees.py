"""Reads at tokens: a write is seen at its token, and a later token shows what an earlier one showed (R31)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakestore as ls
from lakestore.model.token import position_of
from tests.support.served import Served

NAME, OTHER = "d.t", "d.other"
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
WRITERS, WRITES = 3, 5


def reads(lake: ls.Lake) -> dict[str, Callable[[str], dict[int, int]]]:
    """Every way to read both tables at a token: writer to the number of its newest write."""
    keys = [{"id": n} for n in range(WRITERS)]

    def both(one: Any, two: Any) -> dict[int, int]:
        found = {row["id"]: row["n"] for row in one.to_pylist()}
        assert found == {row["id"]: row["n"] for row in two.to_pylist()}, "one commit is seen whole"
        return found

    def held(at: str) -> dict[int, int]:
        cut = lake.at(at)
        return both(cut.scan(NAME).to_arrow(), cut.scan(OTHER).to_arrow())

    return {
        "scan": lambda at: both(*(lake.table(name).scan(at=at).to_arrow() for name in (NAME, OTHER))),
        "lookup": lambda at: both(*(lake.table(name).lookup(keys, at=at) for name in (NAME, OTHER))),
        "sql": lambda at: both(*(lake.sql(f"SELECT * FROM {name}", at=at) for name in (NAME, OTHER))),
        "lake.at": held,
    }


def test_a_token_shows_its_write_and_later_tokens_show_no_less(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        for name in (NAME, OTHER):
            lake.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
        seen: list[tuple[int, str, dict[int, int]]] = []
        ways = reads(lake)

        def run(writer: int) -> None:
            chance = random.Random(writer)
            for number in range(WRITES):
                with lake.commit() as commit:
                    for name in (NAME, OTHER):
                        commit.upsert(name, [{"id": writer, "n": number}])
                token = str(commit.token)
                for way in (chance.choice(sorted(ways)), "lookup"):
                    found = ways[way](token)
                    assert found[writer] == number, (way, "its own write, and none of later")
                    seen.append((position_of(token).lsn, way, found))
                newest = {row["id"]: row["n"] for row in lake.table(NAME).scan().to_arrow().to_pylist()}
                assert newest[writer] == number, "a plain read does not fall behind its own writes"
                assert all(newest[each] >= n for each, n in found.items())
                with lake.snapshot() as cut:
                    assert position_of(cut.token).lsn >= position_of(token).lsn

        threads = [threading.Thread(target=run, args=(writer,)) for writer in range(WRITERS)]
        for thread in threads:
            thread.start()
        served.checkpoint()
        for thread in threads:
            thread.join()
        assert len(seen) == 2 * WRITERS * WRITES, "a reader failed"
        before: dict[int, int] = {}
        for lsn, way, found in sorted(seen, key=lambda each: each[0]):
            assert all(found.get(writer, -1) >= number for writer, number in before.items()), (lsn, way)
            before = found
        by_lsn: dict[int, dict[int, int]] = {}
        for lsn, way, found in seen:
            assert by_lsn.setdefault(lsn, found) == found, (lsn, way, "every way reads the same")
