"""The first look of a tierer at a lake that is there: the files as Java would list them, and Java asked for few."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.lake.row_search import Bounds
from lakestore_tiering import Tierer, first_look
from lakestore_tiering.iceberg_java import Iceberg, LakeFile, delete_key
from tests.lake.tiering_tables import NAME, SCHEMA, in_lake, in_table, items, keys

pytestmark = pytest.mark.spark


def listed_by_java(lake: Iceberg) -> dict[str, LakeFile]:
    """All files with their deletes, as Iceberg's own scan plans them."""
    found = {}
    for task in lake._listed(lake.table.newScan().includeColumnStats(_names(lake)).planFiles()):
        made = lake.lake_file(task.file())
        made.deletes = {delete_key(delete): lake.lake_delete(delete) for delete in task.deletes()}
        found[made.path] = made
    return found


def _names(lake: Iceberg) -> Any:
    columns = lake.jvm.java.util.ArrayList()
    for name in ("__bucket", "__offset"):
        columns.add(name)
    return columns


def facts(file: LakeFile) -> tuple[int, int, Bounds | None, str, str, dict[tuple[str, int], tuple[int, bool]]]:
    deletes = {key: (delete.rows, delete.alone) for key, delete in file.deletes.items()}
    return file.rows, file.bytes, file.bounds, file.format, file.partition, deletes


@pytest.mark.parametrize("version", [2, 3])
def test_another_tierer_sees_what_java_lists_and_asks_for_what_it_changes(
    lake: ls.Lake, spark: SparkSession, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"format_version": version, "partition_by": ["truncate(2, text)"]}
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=options)
    with Tierer(lake, spark, holder="one") as first:
        for step in range(2):
            table.upsert(items(range(step * 20, step * 20 + 30), f"{'bc'[step]}-"))
            first.run_once(compaction=False)
        java = first.tools.standing(NAME)[0]
        wanted = listed_by_java(java)
        found = {file.path: file for file in first_look.files(java)}
        assert {path: facts(file) for path, file in found.items()} == {path: facts(f) for path, f in wanted.items()}
        assert len(found) >= 2
        assert sum(len(file.deletes) for file in found.values()) >= 1
        for path, file in found.items():
            assert str(file.java.location()) == path
            assert file.partition == str(file.java.partition())
            for key, delete in file.deletes.items():
                assert delete_key(delete.java) == key
    if version == 3:
        return
    asked: list[str] = []
    get = first_look._Reader.get

    def counted(self: first_look._Reader, place: int, path: str) -> Any:
        asked.append(path)
        return get(self, place, path)

    monkeypatch.setattr(first_look._Reader, "get", counted)
    with Tierer(lake, spark, holder="two") as second:
        table.upsert(items(range(49, 50), "c-"))
        second.run_once(compaction=False)
        assert len(set(asked)) == 1, "one file holds the row that died"
        table.delete(keys(range(0, 5)))
        second.run_once(compaction=True)
        assert in_lake(spark) == in_table(table)
