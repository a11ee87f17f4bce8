"""What main of our tables takes, and what is refused with the command to use instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakestore.errors import Conflict, Fenced
from lakestore.model.table import Table
from lakestore.union.tier_record import Record
from lakestore_server.catalog import gate, our_tables, rewind
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import TierRecord
from tests.support.catalogs import World, set_ref, snapshot, tier, world


@pytest.fixture
def lake(tmp_path: Path) -> World:
    """A table of ours with one tier commit: snapshot 1 at (5, 5), ten live rows."""
    lake = world(tmp_path)
    table = lake.create_own()
    for point in ((5, 5), (6, 6), (5, 4)):
        lake.ledger.sums[table.uuid, point] = (7, 8)
    lake.commit("own", *tier(1, None, (0, 0), (5, 5)))
    return lake


def own_of(lake: World) -> Table:
    return lake.ledger.tables["db.own"]


def rewrite(number: int, parent: int, records: int, deletes: int = 0, **summary: Any) -> tuple[Json, Json]:
    update = snapshot(
        number, parent, number, "replace", total_records=records, total_position_deletes=deletes, **summary
    )
    return update, set_ref("main", number)


def test_a_tier_commit_is_recorded_with_its_pointer(lake: World) -> None:
    step = lake.ledger.changes[-1].steps[0]
    record = lake.ledger.tier_records(own_of(lake).uuid)[1]
    assert step.tiers == (record,)  # type: ignore[union-attr]
    assert (record.tier_point, record.live_sums, record.lsn, record.epoch) == ((5, 5), (7, 8), 3, 1)
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6)))
    assert set(lake.ledger.tier_records(own_of(lake).uuid)) == {1, 2}


@pytest.mark.parametrize("number", [None, 2**62])
def test_the_record_in_a_summary_is_read_back(number: int | None) -> None:
    """A tierer finds a commit whose answer was lost by its record."""
    record = Record(1, (0, 0), (5, 5), (7, 2**64 - 1), 3, 4, number)
    assert Record.parse(record.summary()) == record


@pytest.mark.parametrize(
    ("said", "below", "result"),
    [("1", False, True), ("1", True, True), ("2", False, False), ("2", True, True), (None, True, True)],
)
def test_no_adopted_file_is_left_if_the_commit_says_so_of_its_parent(
    said: str | None, below: bool, result: bool
) -> None:
    """The same from the summaries alone, after a restore."""
    first = tier(1, None, (0, 0), (5, 5))[0]["snapshot"]
    later = tier(2, 1, (5, 5), (6, 6))[0]["snapshot"]
    if said is not None:
        later["summary"][gate.NUMBERED_ON] = said
    record = TierRecord(1, (5, 5), (7, 8), 3, 1, is_numbered=below)
    assert gate.is_numbered(later, record) is result
    assert rewind._records([later, first], {1: record})[2].is_numbered is result


@pytest.mark.parametrize(
    ("updates", "error", "says"),
    [
        (tier(2, 1, (0, 0), (6, 6)), Fenced, "main is at \\[5, 5\\]"),
        (tier(2, 1, (5, 5), (6, 6), epoch=0), Fenced, "replaced by epoch 1"),
        (tier(2, 1, (5, 5), (6, 6), sums=(7, 9)), Forbidden, "lakestore verify"),
        (tier(2, 1, (5, 5), (9, 9)), Forbidden, "lakestore verify"),
        (tier(2, 1, (5, 5), (5, 4)), Forbidden, "below its start"),
        (tier(2, 1, (5,), (6,)), Forbidden, "names 1 buckets"),
        (tier(2, 1, (5, 5), (6, 6), operation="replace", records=9), Forbidden, "must keep the live rows"),
        (tier(2, None, (5, 5), (6, 6)), Forbidden, "directly upon it"),
        ((snapshot(2, 1, 2), set_ref("main", 2)), Forbidden, "lakestore write"),
        ((snapshot(2, 1, 2, "delete"), set_ref("main", 2)), Forbidden, "lakestore delete"),
        (rewrite(2, 1, 9), Forbidden, "lakestore tier"),
        (rewrite(2, 1, 11), Forbidden, "lakestore tier"),
        ((snapshot(2, 1, 2, "replace"), set_ref("main", 2)), Forbidden, "total-records"),
        (({"action": "remove-snapshot-ref", "ref-name": "main"},), Forbidden, "lake.drop_table"),
        (({"action": "remove-snapshots", "snapshot-ids": [1]},), Forbidden, "lake.drop_table"),
        ((set_ref("lakestore-pin-x", 1, "tag"),), Forbidden, "Lakestore's own"),
        (({"action": "remove-snapshot-ref", "ref-name": "lakestore-tier"},), Forbidden, "Lakestore's own"),
        (({"action": "set-location", "location": "file:///x"},), Forbidden, "location"),
        (({"action": "assign-uuid", "uuid": "22222222-2222-4333-8444-555555555555"},), Forbidden, "table-uuid"),
        (({"action": "upgrade-format-version", "format-version": 3},), Forbidden, "lakestore apply"),
        (({"action": "add-spec", "spec": {"fields": [
            {"source-id": 1, "transform": "identity", "name": "id"}]}},), Forbidden, "partitioning"),
        (({"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [
            {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}]}},),
            Forbidden, "sort order"),
        (({"action": "add-schema", "schema": {"fields": [
            {"id": 1, "name": "id", "type": "long", "required": True}]}},), Forbidden, "columns"),
        (({"action": "set-properties", "updates": {"lakestore.table-uuid": "x"}},), Forbidden, "lakestore apply"),
        (({"action": "set-properties", "updates": {"write.data.path": "file:///x"}},), Forbidden, "cannot be set"),
        (({"action": "set-properties", "updates": {"py-io-impl": "x"}},), Forbidden, "cannot be set"),
        (({"action": "set-properties", "updates": {"s3.secret-access-key": "x"}},), Forbidden, "cannot be set"),
        *(
            (({"action": "set-properties", "updates": {key: "1"}},), Forbidden, "cannot be set")
            for key in ("write.format.default", "write.metadata.compression-codec", "commit.retry.num-retries",
                "gc.enabled", "history.expire.min-snapshots-to-keep", "read.split.target-size", "format", "a.b",
                "schema.name-mapping.default", "write.metadata.metrics.column.__offset", "password")
        ),
        (({"action": "remove-properties", "removals": ["write.metadata.metrics.column.__offset"]},), Forbidden, "set"),
    ],
)  # fmt: skip
def test_refused(lake: World, updates: tuple[Json, ...], error: type[Exception], says: str) -> None:
    before, changes = lake.load("own"), len(lake.ledger.changes)
    with pytest.raises(error, match=says):
        lake.commit("own", *updates)
    assert lake.load("own") is before
    assert len(lake.ledger.changes) == changes


def test_a_rewrite_inherits_the_tier_record(lake: World) -> None:
    lake.commit("own", *rewrite(2, 1, 10))
    records = lake.ledger.tier_records(own_of(lake).uuid)
    assert records[2].tier_point == (5, 5)
    lake.commit("own", *tier(3, 2, (5, 5), (6, 6)))


def test_a_rewrite_may_leave_delete_files_behind_and_a_later_one_clean_them(lake: World) -> None:
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6), records=10, deletes=4))
    with pytest.raises(Forbidden, match="must keep the live rows"):
        lake.commit("own", *rewrite(3, 2, 5, 4))
    with pytest.raises(Forbidden, match="must keep the live rows"):
        lake.commit("own", *rewrite(3, 2, 10, 0, removed_position_deletes=4))
    lake.commit("own", *rewrite(3, 2, 7, 4, deleted_records=10, added_records=7))
    with pytest.raises(Forbidden, match="must keep the live rows"):
        lake.commit("own", *rewrite(4, 3, 7, 0, removed_position_deletes=4))
    lake.commit("own", *rewrite(4, 3, 7, 1, removed_position_deletes=3))
    lake.commit("own", *rewrite(5, 4, 6, 0, deleted_records=7, added_records=6, removed_position_deletes=1))


def test_a_rewrite_with_its_deletes_is_exact(lake: World) -> None:
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6), records=10, deletes=4))
    lake.commit("own", *rewrite(3, 2, 6, 0))


def test_several_snapshots_in_one_commit_are_each_judged(lake: World) -> None:
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6)), *rewrite(3, 2, 10))
    assert set(lake.ledger.tier_records(own_of(lake).uuid)) == {1, 2, 3}
    with pytest.raises(Forbidden):
        lake.commit("own", snapshot(4, 3, 4), *rewrite(5, 4, 10))


def test_branches_and_tags_of_others_are_free_but_do_not_become_main(lake: World) -> None:
    lake.commit("own", snapshot(2, 1, 2), set_ref("work", 2), set_ref("mine", 1, "tag"))
    with pytest.raises(Forbidden, match="did not tier"):
        lake.commit("own", set_ref("main", 2))
    with pytest.raises(Forbidden, match="directly upon it"):
        lake.commit("own", *rewrite(3, 2, 10))
    lake.commit("own", {"action": "remove-snapshot-ref", "ref-name": "work"})
    lake.commit("own", {"action": "remove-snapshots", "snapshot-ids": [2]})


def test_main_does_not_go_back_below_its_tier_point(lake: World) -> None:
    lake.commit("own", *rewrite(2, 1, 10))
    lake.commit("own", set_ref("main", 1))
    lake.commit("own", set_ref("main", 2))
    lake.commit("own", *tier(3, 2, (5, 5), (6, 6)))
    with pytest.raises(Forbidden, match="below its tier point"):
        lake.commit("own", set_ref("main", 1))


def test_expiry_forgets_tier_records_and_spares_what_is_held(lake: World) -> None:
    uuid = own_of(lake).uuid
    lake.commit("own", *tier(2, 1, (5, 5), (6, 6)))
    expire = {"action": "remove-snapshots", "snapshot-ids": [1]}
    lake.ledger.pinned[uuid] = frozenset({1})
    with pytest.raises(Forbidden, match="being read"):
        lake.commit("own", expire)
    lake.ledger.pinned.clear()
    lake.catalog.pin(own_of(lake), "a", 1)
    with pytest.raises(Forbidden, match="lakestore-pin-a"):
        lake.commit("own", expire)
    lake.catalog.pin(own_of(lake), "a", None)
    lake.commit("own", expire)
    assert set(lake.ledger.tier_records(uuid)) == {2}


def test_harmless_properties_and_unchanged_schemas_pass(lake: World) -> None:
    doc = lake.load("own")
    lake.commit("own", {"action": "set-properties", "updates": {"comment": "sales", "team": "a", "user.pii": "no"}})
    lake.commit(
        "own", {"action": "add-schema", "schema": doc["schemas"][0]}, {"action": "set-current-schema", "schema-id": -1}
    )


def test_the_schema_changes_only_with_a_tier_commit_and_to_the_table_s_own(lake: World) -> None:
    wanted = our_tables.schema_of(own_of(lake))
    wider = {**wanted, "fields": [*wanted["fields"], {"id": 3, "name": "w", "required": False, "type": "int"}]}
    change: tuple[Json, ...] = (
        {"action": "add-schema", "schema": wider},
        {"action": "set-current-schema", "schema-id": -1},
    )
    with pytest.raises(Forbidden, match="columns"):
        lake.commit("own", *change, *tier(2, 1, (5, 5), (6, 6)))


def test_a_drop_is_refused_and_a_lost_race_is_a_conflict(lake: World) -> None:
    with pytest.raises(Forbidden, match=r"lake\.drop_table\('db\.own'\)"):
        lake.catalog.drop_table(Name("db", "own"))
    with pytest.raises(Conflict):
        lake.commit("own", *tier(2, 1, (5, 5), (6, 6)), requirements=[
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 99}])  # fmt: skip
