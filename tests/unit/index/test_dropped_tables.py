"""Keys of dropped tables leave the index, whatever happens in between."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore_server.duties import index_rebuild
from tests.support import seeds
from tests.support.served import Served
from tests.support.waiting import until

NUMBERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
TEXTS = pa.schema([pa.field("id", pa.string(), nullable=False), ("v", pa.int64())])


def fill(served: Served, name: str, schema: pa.Schema, rows: int) -> None:
    table = served.lake.create_table(name, schema, primary_key=["id"], buckets=2)
    ids = pa.array(range(rows)).cast(schema.field("id").type)
    table.upsert(pa.table({"id": ids, "v": range(rows)}))


def cached(served: Served) -> int:
    return sum(len(overlay) for overlay in served.engine.index._older)


def test_keys_of_dropped_tables_leave_runs_and_memory(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        for name, schema in (("a.n", NUMBERS), ("a.t", TEXTS), ("a.kept", TEXTS)):
            fill(served, name, schema, 50)
        served.checkpoint()
        fill(served, "a.never_merged", TEXTS, 50)
        assert (served.engine.index.size.entries, cached(served)) == (150, 100), "of numbers nothing is kept in memory"
        for name in ("a.n", "a.t", "a.never_merged"):
            served.purge(name)
        served.checkpoint()
        assert (served.engine.index.size.entries, cached(served)) == (50, 50)
        assert served.lake.table("a.kept").lookup([{"id": "7"}]).num_rows == 1
        fill(served, "a.n", NUMBERS, 20)
        served.checkpoint()
        assert served.engine.index.size.entries == 70
        assert served.lake.table("a.n").lookup([{"id": 30}]).num_rows == 0


def test_the_index_has_the_keys_of_the_tables_that_are_there(tmp_path: Path) -> None:
    chance, served = random.Random(int(seeds.seed(8))), Served(tmp_path)
    right: dict[str, int] = {}
    for step in range(20):
        name = f"a.t{chance.randrange(4)}"
        if name in right:
            served.purge(name)
            del right[name]
        else:
            right[name] = chance.randrange(1, 60)
            fill(served, name, chance.choice([NUMBERS, TEXTS]), right[name])
        if chance.random() < 0.4:
            served.checkpoint()
        if chance.random() < 0.1:
            served.kill()
            served.start()
        if step % 10 == 9:
            served.engine.index.found_problem("a test says so", damaged=False)
            served.until_indexed()
    served.checkpoint()
    assert served.engine.index.size.entries == sum(right.values())
    for name, rows in right.items():
        ids = [
            {"id": i if served.state(name).table.schema.field("id").type == pa.int64() else str(i)} for i in range(60)
        ]
        assert served.lake.table(name).lookup(ids).num_rows == rows
    served.close()


@pytest.mark.parametrize("schema", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_many_keys_of_a_dropped_table_leave_the_runs_at_once(tmp_path: Path, schema: pa.Schema) -> None:
    """Both tables are in one run, which no merge would rewrite for a long time; the space is on the disk."""
    with Served(tmp_path) as served:
        fill(served, "a.gone", schema, 400)
        fill(served, "a.kept", schema, 1_000)
        served.checkpoint()
        served.purge("a.gone")
        served.checkpoint()
        index = served.engine.index
        until(lambda: not index.dropped_entries, "the run without the dropped table")
        assert [run.entries for run in index.runs] == [1_000]
        until(lambda: len(list((tmp_path / "index").glob("*.run"))) == 1, "the checkpoint that names it")
        ids = pa.table({"id": pa.array(range(1_000)).cast(schema.field("id").type)})
        assert served.lake.table("a.kept").lookup(ids).num_rows == 1_000


def test_few_keys_of_a_dropped_table_leave_the_runs_with_a_sweep_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path) as served:
        fill(served, "a.gone", NUMBERS, 10)
        fill(served, "a.kept", NUMBERS, 1_000)
        served.checkpoint()
        fill(served, "a.kept_too", TEXTS, 1_000)
        served.purge("a.gone")
        served.checkpoint()
        served.server.upkeep.merge_index()
        assert served.engine.index.dropped_entries == 10
        served.kill()
        served.start()
        assert served.engine.index.dropped_entries == 10, "known without a checkpoint"
        monkeypatch.setattr(index_rebuild, "SWEEP_SECONDS", 0.0)
        served.server.upkeep.merge_index()
        assert served.engine.index.dropped_entries == 0
        assert sorted(run.entries for run in served.engine.index.runs) == [1_000, 1_000]
        assert served.lake.table("a.kept").lookup([{"id": 7}]).num_rows == 1
