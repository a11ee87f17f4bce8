"""Tables that swap their names between the steps of a round: no step works on the table that took the name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore_tiering import Tierer, compact, orphans
from tests.lake.tiering_tables import NAME, SCHEMA, in_lake, in_table, items

pytestmark = pytest.mark.spark
OTHER = "shop.other"


def swap(lake: ls.Lake) -> None:
    lake.table(NAME).rename("shop.aside")
    lake.table(OTHER).rename(NAME)
    lake.table("shop.aside").rename(OTHER)


def branches(spark: SparkSession, name: str) -> list[str]:
    refs = [str(row.name) for row in spark.sql(f"SELECT name FROM lake.{name}.refs").collect()]
    return [ref for ref in refs if ref.startswith("lakestore_compact_")]


def test_swapped_names(lake: ls.Lake, spark: SparkSession, tmp_path: Path) -> None:
    tables = [lake.create_table(name, SCHEMA, primary_key=["id"], buckets=2) for name in (NAME, OTHER)]
    with Tierer(lake, spark, holder="one") as tierer:
        tools = tierer.tools
        for step in range(2):
            for number, table in enumerate(tables):
                table.upsert(items(range(20), f"{number}{step}-"))
            tierer.run_once(compaction=False)
        before, other = (table.definition for table in tables)
        forks = [compact.fork(tools, name, force=True) for name in (NAME, OTHER)]
        compact.rewrite(tools, forks[0])  # type: ignore[arg-type]
        swap(lake)
        tools.swept.clear()
        with pytest.raises(ls.NotFound, match="another table has its name now"):
            tools.sweep_once(before)
        with pytest.raises(ls.NotFound, match="another table has its name now"):
            tools.lake(before)
        with pytest.raises(ls.NotFound, match="another table has its name now"):
            orphans.remove(tools, before, keep_seconds=-1.0)
        tools.known.clear()
        with pytest.raises(ls.NotFound, match="another table has its name now"):
            orphans.expire(tools, before, keep_last=1, keep_seconds=-1.0)
        with pytest.raises(ls.NotFound, match="another table has its name now"):
            compact.land(tools, forks[0])  # type: ignore[arg-type]
        with pytest.raises(ls.NotFound, match="another table has its name now"):
            compact.rewrite(tools, forks[1])  # type: ignore[arg-type]
        assert [len(branches(spark, name)) for name in (NAME, OTHER)] == [1, 1], "the forks are as they were"
        with pytest.raises(ls.NotFound):
            compact.abandon(tools, forks[1])  # type: ignore[arg-type]
        tierer.run_once(compaction=False)
        assert [branches(spark, name) for name in (NAME, OTHER)] == [[], []]
        for name, definition in ((NAME, other), (OTHER, before)):
            renamed = lake.table(name)
            assert renamed.definition.uuid == definition.uuid
            assert in_lake(spark, name) == in_table(renamed)


def test_a_look_for_orphans_reads_what_its_own_table_names(
    lake: ls.Lake, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are swapped while the look waits for Spark: every file would be one that no snapshot names."""
    tables = [lake.create_table(name, SCHEMA, primary_key=["id"], buckets=2) for name in (NAME, OTHER)]
    for number, table in enumerate(tables):
        table.upsert(items(range(20), f"{number}-"))
    with Tierer(lake, spark, holder="one") as tierer:
        tierer.run_once(compaction=False)
        for path in (tmp_path / "data" / "warehouse").rglob("*"):
            os.utime(path, (1.0, 1.0))
        named = orphans._named

        def swapped(*given: object) -> set[str]:
            swap(lake)
            return named(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(orphans, "_named", swapped)
        assert orphans.remove(tierer.tools, tables[0].definition) == 0
    assert in_lake(spark, OTHER) == in_table(lake.table(OTHER))
