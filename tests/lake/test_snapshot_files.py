"""The first look of a tierer at a lake that is there: the files as Java would list them, and Java asked for few."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.iceberg.row_search import Bounds
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET
from lakestore_tiering import Tierer, live_files, small_rows, snapshot_files
from lakestore_tiering.iceberg_java import Iceberg, LakeDelete, LakeFile
from lakestore_tiering.live_files import MainFiles
from lakestore_tiering.orphans import expire
from tests.lake.tiering_tables import NAME, SCHEMA, in_lake, in_table, items, keys

pytestmark = pytest.mark.spark
ENDS = (LAKE_BUCKET, LAKE_OFFSET)
QUESTIONS_MAX = 10
"""About each; what Python lets go of, and what other threads ask meanwhile, is none."""


def lake_file(java: Any) -> LakeFile:
    ends = [[limit.get(LAKE_FIELD_IDS[name]) for limit in (java.lowerBounds(), java.upperBounds())] for name in ENDS]
    bucket, offset = ((number(low), number(high)) for low, high in ends)
    partition = tuple(java.partition().get(place, java.getClass().forName("java.lang.Object")) for place in range(1))
    rows, size, format_ = int(java.recordCount()), int(java.fileSizeInBytes()), str(java.format())
    return LakeFile(str(java.location()), rows, size, Bounds(bucket, offset), java, format_, partition)


def number(buffer: Any) -> int:
    return int.from_bytes(bytes(buffer.array()), "little", signed=True)


def lake_delete(lake: Iceberg, java: Any) -> LakeDelete:
    return LakeDelete(int(java.recordCount()), bool(lake.api.util.ContentFileUtil.isFileScoped(java)), java)


def delete_key(java: Any) -> tuple[str, int]:
    offset = java.contentOffset()
    return str(java.location()), -1 if offset is None else int(offset)


def listed_by_java(lake: Iceberg) -> dict[str, LakeFile]:
    """All files with their deletes, as Iceberg's own scan plans them."""
    found = {}
    for task in lake._listed(lake.table.newScan().includeColumnStats(_names(lake)).planFiles()):
        made = lake_file(task.file())
        made.deletes = {delete_key(delete): lake_delete(lake, delete) for delete in task.deletes()}
        found[made.path] = made
    return found


def paths(main: MainFiles) -> set[str]:
    return {file.path for file in main.files()}


def _names(lake: Iceberg) -> Any:
    columns = lake.jvm.java.util.ArrayList()
    for name in ENDS:
        columns.add(name)
    return columns


def facts(file: LakeFile) -> tuple[int, int, Bounds | None, str, Any, dict[tuple[str, int], tuple[int, bool]]]:
    deletes = {key: (delete.rows, delete.alone) for key, delete in file.deletes.items()}
    return file.rows, file.bytes, file.bounds, file.format, file.partition, deletes


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_another_tierer_sees_what_java_lists_and_asks_for_what_it_changes(
    lake: ls.Lake, spark: SparkSession, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"format_version": version, "partition_by": ["truncate(2, text)"]}
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=options)
    with Tierer(lake, spark, holder="one") as first:
        for step in range(2):
            table.upsert(items(range(step * 20, step * 20 + 30), f"{'bc'[step]}-"))
            first.run_once(compaction=False)
        java = first.tools.standing(table.definition)[0]
        wanted = listed_by_java(java)
        found = {file.path: file for file in first.tools.main_files(table.definition, java).files()}
        assert {path: facts(file) for path, file in found.items()} == {path: facts(f) for path, f in wanted.items()}
        assert len(found) >= 2
        assert sum(len(file.deletes) for file in found.values()) >= 1
        for path, file in found.items():
            assert str(file.java.location()) == path
            for key, delete in file.deletes.items():
                assert delete_key(delete.java) == key
    if version == 3:
        return
    asked: list[str] = []
    get = snapshot_files.ManifestReader.get

    def counted(self: snapshot_files.ManifestReader, place: int, path: str) -> Any:
        asked.append(path)
        return get(self, place, path)

    monkeypatch.setattr(snapshot_files.ManifestReader, "get", counted)
    with Tierer(lake, spark, holder="two") as second:
        table.upsert(items(range(49, 50), "c-"))
        second.run_once(compaction=False)
        assert not asked, "a delete names its data file by path, and Arrow's new file is known to Java"
        table.delete(keys(range(0, 5)))
        second.run_once(compaction=True)
        assert asked, "a rewrite removes files"
        assert in_lake(spark) == in_table(table)


def test_a_truncate_leaves_no_file_in_a_tierers_memory(lake: ls.Lake, spark: SparkSession) -> None:
    """Its snapshot names no file that left: a tierer that still believes in them begins a rewrite each round."""
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2)
    with Tierer(lake, spark, holder="one") as tierer:
        for text in "ab":
            table.upsert(items(range(20), text))
            tierer.run_once(compaction=False)
            java = tierer.tools.standing(table.definition)[0]
            before = paths(tierer.tools.main_files(table.definition, java))
        table.truncate()
        table.upsert(items(range(5)))
        tierer.run_once(compaction=False)
        java = tierer.tools.standing(table.definition)[0]
        after = paths(tierer.tools.main_files(table.definition, java))
        assert after == set(listed_by_java(java))
        assert not before & after


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_rounds_go_on_when_the_manifests_that_the_files_were_listed_by_are_gone(
    lake: ls.Lake, spark: SparkSession, version: int
) -> None:
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"format_version": version})
    with Tierer(lake, spark, holder="one") as tierer:
        for begin in (0, 20, 40):
            table.upsert(items(range(begin, begin + 20)))
            tierer.run_once(compaction=False)
        table.delete(keys(range(0, 3)))
        tierer.run_once(compaction=False)
        java = tierer.tools.standing(table.definition)[0]
        lists = [str(each.path()) for each in java.table.currentSnapshot().allManifests(java.table.io())]
        spark.sql(f"CALL lake.system.rewrite_manifests(table => '{NAME}', use_caching => false)").collect()
        table.delete(keys(range(59, 60)))
        tierer.run_once(compaction=False)
        definition = next(each for each in tierer._tables() if each.name == NAME)
        assert expire(tierer.tools, definition, keep_last=1, keep_seconds=0) > 0
        assert not all(Path(each.removeprefix("file:")).exists() for each in lists)
        table.delete(keys(range(1, 30)))
        tierer.run_once(compaction=False)
        assert in_lake(spark) == in_table(table)
        tierer.run_once(compaction=True)
        assert in_lake(spark) == in_table(table)


def test_the_jvm_is_asked_few_questions_about_each_file_that_changes(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_rows, "PARTITIONS_MAX", 1)
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"partition_by": ["id"]})
    asked: list[str] = []
    client = spark._jvm._gateway_client  # type: ignore[union-attr]
    send = client.send_command

    def counting(command: str, *rest: Any, **named: Any) -> Any:
        in_round = threading.current_thread().name.startswith("lakestore-round")
        if in_round and not command.startswith(MEMORY_COMMAND_NAME):
            asked.append(command)
        return send(command, *rest, **named)

    with Tierer(lake, spark, holder="one") as tierer:
        questions = []
        table.upsert(items(range(60)))
        tierer.run_once(compaction=False)
        client.send_command = counting
        try:
            for count in (20, 60):
                table.upsert(items(range(count), f"{count}-"))
                asked.clear()
                tierer.run_once(compaction=False)
                questions.append(len(asked))
        finally:
            client.send_command = send
        assert (questions[1] - questions[0]) / 40 < QUESTIONS_MAX, "of a file that is written, and one of deletes"
        assert in_lake(spark) == in_table(table)


def _main(**manifests: list[int]) -> Any:
    """A main whose manifests have data files of these numbers."""
    data = [
        SimpleNamespace(
            name=name,
            entries=SimpleNamespace(
                path_hashes=np.array(numbers, np.int64), paths=lambda at, numbers=numbers: [str(numbers[i]) for i in at]
            ),
        )
        for name, numbers in manifests.items()
    ]
    return SimpleNamespace(data=data, by_name={each.name: each for each in data})


def test_files_that_left_main_are_those_of_no_new_manifest() -> None:
    before = _main(same=[1, 2], merged=[3, 4], other=[5, 6, 7], empty=[])
    assert live_files._gone(before, _main(same=[1, 2], made=[3, 7, 8])) == ["4", "5", "6"]
    assert live_files._gone(before, before) == []
    assert live_files._gone(_main(), before) == []
    assert sorted(live_files._gone(before, _main())) == list("1234567")
