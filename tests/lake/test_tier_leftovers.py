"""Leftovers of rounds and rewrites that were killed: branches go at the next round, files after their grace time."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_tiering import Tierer, compact, orphans
from tests.lake.test_tier_crash import Died, at
from tests.lake.tiering_tables import NAME, create, in_lake, in_table, items, refs

pytestmark = pytest.mark.spark


def files(folder: Path, kind: str) -> set[str]:
    return {path.name for path in folder.rglob(kind)}


def age(folder: Path) -> None:
    then = time.time() - 10 * 86_400.0
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_leftovers_go(lake: ls.Lake, spark: SparkSession, tmp_path: Path) -> None:
    table, folder = create(lake), tmp_path / "data" / "warehouse"
    table.upsert(items(range(30)))
    with Tierer(lake, spark, holder="one") as first:
        first.run_once(compaction=False)
        table.upsert(items(range(20, 40), "b"))
        first.run_once(compaction=True)
    assert spark.sql(f"SELECT * FROM lake.{NAME}.snapshots").count() == 3, "what was staged went with its landing"
    named = {
        str(row[0]).rsplit("/", 1)[1] for row in spark.sql(f"SELECT path FROM lake.{NAME}.all_manifests").collect()
    }
    assert {name for name in files(folder, "*.avro") if not name.startswith("snap-")} == named

    table.upsert(items(range(10, 15), "c"))
    stale = Tierer(lake, spark, holder="one", crash=at("deaths-written"))
    with pytest.raises(Died):
        stale.run_once(compaction=False)
    with Tierer(lake, spark, holder="one") as second:
        second.run_once(compaction=False)
        assert refs(spark) == {"main", "lakestore-tier"}
        # A tierer of an earlier epoch that was stopped, and goes on while the next one lives.
        stale.tools.epoch = lambda: 1
        stale.tools.crash = lambda _: None
        assert compact.fork(stale.tools, NAME, force=True) is not None
        assert refs(spark) > {"main", "lakestore-tier"}
        table.upsert(items(range(3), "d"))
        second.run_once(compaction=False)
        assert refs(spark) == {"main", "lakestore-tier"}

        definition = table.definition
        orphans.expire(second.tools, definition, keep_last=1, keep_seconds=0.0)
        data = next(folder.rglob("data"))
        (data / "killed.parquet").write_text("never named")
        (data / ".killed.parquet.crc").write_text("its checksum")
        assert orphans.remove(second.tools, definition) == 0, "within their grace time"
        age(folder)
        ahead = next(folder.rglob("metadata")) / "99999-of-another-history.metadata.json"
        ahead.write_text("{}")
        assert orphans.remove(second.tools, definition) == 0, "the lake of another history is not touched"
        ahead.unlink()
        hot = data / f"hot-{32 * 'a'}" / "left.parquet"
        hot.parent.mkdir()
        hot.write_text("of a round that was killed")
        age(folder)
        shared = replace(definition, lake=replace(definition.lake, adopted=True, catalog="prod"))
        assert orphans.remove(second.tools, shared) == 1, "another table may have the other files"
        assert not hot.exists()
        assert second.tools.debts.of(definition.uuid)["orphans"].note.startswith("hot rows only: the outside catalog")
        assert orphans.remove(second.tools, definition) >= 3, "what was killed, and the deaths of the round that died"
        assert "killed.parquet" not in files(folder, "*")
        assert in_lake(spark) == in_table(table)
        assert verify(lake.transport, NAME).problems() == []

        assert compact.fork(second.tools, NAME, force=True) is not None
        stale.tools.swept.clear()
        stale.tools.sweep_once(definition)
        assert refs(spark) > {"main", "lakestore-tier"}, "an earlier epoch leaves the branches of a later one"
