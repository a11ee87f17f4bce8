"""Each class of commits by another engine, under each policy for other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.evolution import SetOptions
from lakestore.model.alteration import apply_steps
from lakestore.model.table import define
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.catalog.foreign_commits import CommitClass, classes_of
from lakestore_server.catalog.schemas import Json
from tests.support.catalogs import World, set_ref, snapshot, tier, world

OURS, MAINTAINED = "ours_only", "ours+maintenance"
COLUMN = {"id": 9, "name": "new", "type": "long", "required": False}
FIELD = {"source-id": 1, "transform": "identity", "name": "id"}
ORDER = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}
BLOB = {"snapshot-id": 2, "statistics-path": "file:///s", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1}


def rows(operation: str, **summary: Any) -> tuple[Json, ...]:
    return snapshot(3, 2, 3, operation, **summary), set_ref("main", 3)


CASES: dict[CommitClass, tuple[tuple[Json, ...], str]] = {
    CommitClass.APPEND: (rows("append"), "are written through Lakestore: use `lakestore write db.own"),
    CommitClass.DELETE: (rows("delete"), "are deleted through Lakestore: use `lakestore delete db.own"),
    CommitClass.OVERWRITE: (rows("overwrite"), "are changed through Lakestore: use `lakestore write db.own"),
    CommitClass.ROLLBACK: ((set_ref("main", 1),), "cannot go back below its tier point"),
    CommitClass.SCHEMA: (({"action": "add-schema", "schema": {"fields": [COLUMN]}},), "columns of db.own are changed"),
    CommitClass.PARTITIONING: (({"action": "add-spec", "spec": {"fields": [FIELD]}},), "partitioning of db.own is"),
    CommitClass.SORT_ORDER: (
        ({"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [ORDER]}},),
        "sort order of db.own is",
    ),
    CommitClass.REWRITE: (rows("replace", total_records=10, total_position_deletes=0), ""),
    CommitClass.EXPIRY: (({"action": "remove-snapshots", "snapshot-ids": [1]},), ""),
    CommitClass.BRANCH: ((set_ref("mine", 2),), ""),
    CommitClass.TAG: ((set_ref("mine", 2, "tag"),), ""),
    CommitClass.PROPERTY: (({"action": "set-properties", "updates": {"comment": "x"}},), ""),
    CommitClass.STATISTICS: (({"action": "set-statistics", "statistics": {**BLOB, "blob-metadata": []}},), ""),
}
"""Class to a commit of it, and the sentence of a refusal under every policy; empty if one policy adopts it."""


def lake_of(folder: Path, committers: str) -> World:
    """A table of ours with two tier commits, 1 and 2."""
    lake = world(folder)
    table = lake.create_own(committers=committers)
    for point in ((5, 5), (6, 6)):
        lake.ledger.sums[table.uuid, point] = (7, 8)
        lake.ledger.rows[table.uuid, point] = 10
    lake.commit("own", *tier(1, None, (0, 0), (5, 5)))
    lake.commit("own$0", *tier(2, 1, (5, 5), (6, 6)))
    return lake


@pytest.mark.parametrize("committers", [OURS, MAINTAINED])
@pytest.mark.parametrize("kind", CASES)
def test_a_commit_is_adopted_whole_or_refused(tmp_path: Path, kind: CommitClass, committers: str) -> None:
    lake = lake_of(tmp_path, committers)
    before, changes = lake.load("own"), len(lake.ledger.changes)
    updates, sentence = CASES[kind]
    if sentence or committers == OURS:
        wanted = sentence or f"db.own takes no {kind.value} of other engines"
        with pytest.raises(Forbidden) as refused:
            lake.commit("own", *updates)
        assert wanted in refused.value.message
        assert lake.load("own") is before
        assert len(lake.ledger.changes) == changes
        return
    after = lake.commit("own", *updates)
    assert classes_of(before, after) == [kind]
    uuid = lake.ledger.tables["db.own"].uuid
    assert lake.ledger.tier_records(uuid)[after["current-snapshot-id"]].tier_point == (6, 6)


@pytest.mark.parametrize("kind", CASES)
def test_every_class_is_told_from_the_others(kind: CommitClass, tmp_path: Path) -> None:
    lake = lake_of(tmp_path, MAINTAINED)
    lake.ledger.tables.clear()  # now the table is another maker's, which may do everything
    before = lake.load("own")
    assert classes_of(before, lake.commit("own", *CASES[kind][0])) == [kind]


def test_the_tierer_does_all_of_its_work_under_either_policy(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, OURS)
    lake.commit("own$0", set_ref("lakestore_stage_1", 2))
    compacted = tier(3, 2, (6, 6), (6, 6), operation="replace")
    lake.commit("own$0", *compacted[:2])
    lake.commit("own$0", {"action": "remove-snapshots", "snapshot-ids": [1]})
    with pytest.raises(Forbidden, match="has no tier point"):
        lake.commit(
            "own$0", snapshot(4, 3, 4, "replace", total_records=10, total_position_deletes=0), set_ref("main", 4)
        )


def test_a_commit_of_rows_with_a_tag_is_told_the_way_to_write_rows(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, OURS)
    with pytest.raises(Forbidden, match="are written through Lakestore"):
        lake.commit("own", *rows("append"), set_ref("mine", 3, "tag"))


@pytest.mark.parametrize(
    ("operation", "way"), [("append", 'mode("append")'), ("overwrite", 'mode("upsert")'), ("delete", 'mode("delete")')]
)
def test_spark_is_told_the_way_in_spark(tmp_path: Path, operation: str, way: str) -> None:
    lake = lake_of(tmp_path, MAINTAINED)
    with pytest.raises(Forbidden) as refused:
        lake.commit("own", *rows(operation, engine_name="spark"))
    assert way in refused.value.message


def test_the_policy_is_changed_and_open_is_refused_by_a_sentence() -> None:
    schema = pa.schema([("id", pa.int64())])
    made = define("t.t", schema, buckets=1)
    assert made.lake.committers == MAINTAINED
    assert apply_steps(made, [SetOptions(lake={"committers": OURS})]).lake.committers == OURS
    with pytest.raises(Invalid, match="write them through Lakestore"):
        apply_steps(made, [SetOptions(lake={"committers": "open"})])
    with pytest.raises(Invalid, match="write them through Lakestore"):
        define("t.t", schema, buckets=1, lake={"committers": "open"})
