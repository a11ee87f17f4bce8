"""Versions of a table's schema in the catalog, and rewrites judged by how many rows live."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakestore.errors import Invalid
from lakestore.model.columns import Column, LakeOptions
from lakestore.model.table import Table
from lakestore_server.catalog import metadata, our_tables, schemas, tables
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import AlreadyExists, Forbidden, NoSuchTable
from lakestore_server.catalog.schemas import Json
from lakestore_server.files import checkpoint
from lakestore_server.state.catalog_change import TierRecord
from tests.support.catalogs import SCHEMA, World, set_ref, snapshot, tier, world

TARGET = "write.target-file-size-bytes"


@pytest.fixture
def lake(tmp_path: Path) -> World:
    """A table of ours, ten live rows tiered with version 0; by now its version is 2: v renamed, w added."""
    lake = world(tmp_path)
    first = lake.create_own()
    for point in ((5, 5), (6, 6), (7, 7)):
        lake.ledger.sums[first.uuid, point] = (7, 8)
        lake.ledger.rows[first.uuid, point] = 10
    lake.commit("own", *tier(1, None, (0, 0), (5, 5)))
    renamed = replace(first, schema_id=1, columns=(first.columns[0], replace(first.columns[1], name="word")))
    added = (*renamed.columns, Column(7, "v", "int64"))
    second = replace(renamed, schema_id=2, columns=added, lake=replace(LakeOptions(), target_file_bytes=1 << 20))
    lake.ledger.older[first.uuid] = (first, renamed)
    lake.ledger.tables["db.own"] = second
    return lake


def second(lake: World) -> Table:
    return lake.ledger.tables["db.own"]


def current(doc: Json) -> Json:
    found: Json = next(schema for schema in doc["schemas"] if schema["schema-id"] == doc["current-schema-id"])
    return found


def made_with(updates: tuple[Json, ...], schema_id: int) -> tuple[Json, ...]:
    updates[0]["snapshot"]["schema-id"] = schema_id
    return updates


def test_a_version_s_name_shows_its_schema_and_main_keeps_its_own(lake: World) -> None:
    seen = lake.load("own$2")
    assert schemas.same_schema(current(seen), our_tables.schema_of(second(lake)))
    assert seen["properties"][TARGET] == str(1 << 20)
    assert current(lake.load("own"))["schema-id"] == 0
    assert lake.catalog.tables("db") == ["own"]
    assert lake.load("own$0") == lake.load("own")
    # As before there was a list of what others may set.
    orc = {"action": "set-properties", "updates": {"write.format.default": "orc", "gc.enabled": "false"}}
    [changed] = lake.catalog._commits.attempts((TableChange(Name("db", "own"), (), (orc,)),), "", trusted=True)
    assert changed.doc["properties"]["write.format.default"] == "orc"
    assert lake.load("own$0")["properties"] == seen["properties"] | {TARGET: changed.doc["properties"][TARGET]}


def test_only_the_tierer_of_very_many_files_merges_no_manifests_in_its_commits(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, deletes = 6_000, 4_000
    added, *moved = tier(3, 1, (5, 5), (6, 6))
    added["snapshot"]["summary"] |= {"total-data-files": str(files), "total-delete-files": str(deletes)}
    lake.commit("own", added, *moved)
    assert our_tables.MANIFEST_MERGE not in lake.load("own$2")["properties"]
    monkeypatch.setattr(our_tables, "MERGED_FILES_MAX", files + deletes - 1)
    assert lake.load("own$2")["properties"][our_tables.MANIFEST_MERGE] == "false"
    assert our_tables.MANIFEST_MERGE not in lake.load("own")["properties"]
    staged = snapshot(4, 3, 4)
    answered = lake.commit("own$2", staged, set_ref("stage", 4))
    assert answered["properties"][our_tables.MANIFEST_MERGE] == "false"
    assert our_tables.MANIFEST_MERGE not in lake.load("own")["properties"], "it is not stored"


def test_the_schema_moves_with_the_rows_that_need_it(lake: World) -> None:
    number = lake.load("own$2")["current-schema-id"]
    staged = snapshot(2, 1, 2)
    staged["snapshot"]["schema-id"] = number
    answered = lake.commit("own$2", staged, set_ref("stage", 2))
    assert answered["current-schema-id"] == number
    assert lake.load("own")["current-schema-id"] == 0
    assert lake.load("own")["properties"][TARGET] != str(1 << 20)
    gone = {"action": "remove-snapshot-ref", "ref-name": "stage"}
    lake.commit("own$2", *made_with(tier(3, 1, (5, 5), (6, 6), schema_id=2), number), gone)
    doc = lake.load("own")
    assert doc["current-schema-id"] == number
    assert [field["id"] for field in current(doc)["fields"]][:3] == [1, 2, 7]
    assert {s["snapshot-id"]: s["schema-id"] for s in doc["snapshots"]} == {1: 0, 2: number, 3: number}
    assert doc["properties"][TARGET] == str(1 << 20)
    assert doc["last-column-id"] == max(schemas.field_ids(current(doc)))
    records = lake.ledger.tier_records(second(lake).uuid)
    assert [records[number].schema_id for number in (1, 3)] == [0, 2]


@pytest.mark.parametrize(
    ("updates", "says"),
    [
        (tier(12, 1, (5, 5), (6, 6), schema_id=2), "another schema"),
        (made_with(tier(12, 1, (5, 5), (6, 6), schema_id=9), 1), "version 9"),
        (made_with(tier(12, 1, (5, 5), (6, 6), schema_id=0), 1), "another schema"),
        (({"action": "set-current-schema", "schema-id": 1},), "lakestore apply"),
        (({"action": "add-schema", "schema": {**SCHEMA, "fields": SCHEMA["fields"][:1]}},), "lakestore apply"),
    ],
)
def test_another_schema_than_the_version_s_is_refused(lake: World, updates: tuple[Json, ...], says: str) -> None:
    staged = snapshot(9, 1, 2)
    staged["snapshot"]["schema-id"] = 1
    lake.commit("own$2", staged, set_ref("stage", 9))
    with pytest.raises(Forbidden, match=says):
        lake.commit("own", *updates)


def test_the_lake_does_not_go_back_to_an_older_version(lake: World) -> None:
    number = lake.load("own$2")["current-schema-id"]
    lake.commit("own$2", *made_with(tier(2, 1, (5, 5), (6, 6), schema_id=2), number))
    with pytest.raises(Forbidden, match="version 1"):
        lake.commit("own$1", *made_with(tier(3, 2, (6, 6), (7, 7), schema_id=1), 0))


def test_names_of_versions_are_no_tables_of_others(lake: World) -> None:
    with pytest.raises(AlreadyExists):
        lake.create_free("own$2")
    with pytest.raises(NoSuchTable):
        lake.load("own$5")
    lake.create_free("other$2")
    assert lake.load("other$2")["current-schema-id"] == 0


def rewrite(number: int, parent: int, records: int, deletes: int, **summary: Any) -> tuple[Json, Json]:
    counts = {"total_records": records, "total_position_deletes": deletes}
    return snapshot(number, parent, number, "replace", **counts, **summary), set_ref("main", number)


def test_a_rewrite_is_judged_by_the_rows_that_live_however_little_history_is_kept(lake: World) -> None:
    """Ten live rows under fourteen records and four deletes."""
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6), records=14, deletes=4))
    _left_behind(lake)
    for records, deletes in ((9, 4), (11, 0), (10, -1), (12, 4), (9, 0)):
        with pytest.raises(Forbidden, match="must keep the live rows"):
            lake.commit("own", *rewrite(5, 4, records, deletes))
    lake.commit("own", *rewrite(5, 4, 11, 1))
    assert lake.ledger.tier_records(second(lake).uuid)[5].live_rows == 10
    lake.commit("own", *rewrite(6, 5, 10, 0))
    assert metadata.main_of(lake.load("own")) == 6


def _left_behind(lake: World) -> None:
    """A rewrite leaves three deletes without a row, a flush follows, and the rewrite's snapshot expires."""
    lake.commit("own", *rewrite(3, 2, 11, 4))
    lake.commit("own", *tier(4, 3, (6, 6), (7, 7), records=11, deletes=4))
    lake.commit("own", {"action": "remove-snapshots", "snapshot-ids": [1, 2, 3]})


def test_a_record_of_before_live_rows_were_kept_asks_the_log(lake: World) -> None:
    uuid = second(lake).uuid
    rows = dict(lake.ledger.rows)
    lake.ledger.rows.clear()
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6), records=14, deletes=4))
    assert lake.ledger.tier_records(uuid)[2].live_rows is None
    _left_behind(lake)
    with pytest.raises(Forbidden, match="must keep the live rows"):
        lake.commit("own", *rewrite(5, 4, 11, 1))
    lake.ledger.rows.update(rows)
    lake.commit("own", *rewrite(5, 4, 11, 1))


def test_a_column_does_not_take_the_name_of_a_partition_field(lake: World) -> None:
    """Iceberg refuses to open such a table; the source of the field may have its name."""
    columns = (Column(1, "region", "string"), Column(2, "at", "timestamptz"))
    first = Table("a.b", columns, lake=LakeOptions(partition_by=("region", "day(at)")))
    tables.check_new(first)
    area = (replace(columns[0], name="area"), columns[1])
    renamed = replace(first, columns=area, lake=LakeOptions(partition_by=("area", "day(at)")))
    tables.check_version(first, renamed)
    for name in ("region", "at_day", "AT_DAY"):
        with pytest.raises(Invalid, match="partitioning"):
            tables.check_version(first, replace(renamed, columns=(*area, Column(3, name, "string"))))
    source = replace(first, columns=(columns[0], replace(columns[1], name="at_day")))
    tables.check_version(first, replace(source, lake=LakeOptions(partition_by=("region", "day(at_day)"))))
    again = replace(first, lake=LakeOptions(partition_by=("bucket(4, region)",)))
    for name in ("region_bucket", "region_bucket_4"):
        with pytest.raises(Invalid, match="partitioning"):
            tables.check_version(first, replace(again, columns=(*columns, Column(3, name, "string"))))


def test_tier_records_keep_version_and_live_rows_and_old_ones_open() -> None:
    record = TierRecord(1 << 60, (5, 5), (1 << 63, 8), 3, 1, 10, 2)
    assert checkpoint.tier_of(json.loads(json.dumps(checkpoint.tier_list(record)))) == record
    assert checkpoint.tier_of(checkpoint.tier_list(record)[:5]) == replace(record, live_rows=None, schema_id=0)
