"""Update actions on metadata as JSON, held against PyIceberg's model of it."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from lakestore.errors import Conflict, Invalid
from lakestore_server.catalog import commits, metadata, metadata_updates, our_tables
from lakestore_server.catalog.schemas import Json
from tests.support.catalogs import SCHEMA, own_table, set_ref, snapshot
from tests.support.seeds import examples

NOW = 1_700_000_000_000
UUID = "11111111-2222-4333-8444-555555555555"


def created(**fields: Any) -> Json:
    asked: dict[str, Any] = {"spec": None, "order": None, "properties": {}, **fields}
    return metadata_updates.created(
        uuid=UUID, location="file:///w/db/t", schema=asked.pop("schema", SCHEMA), now_ms=NOW, **asked
    )


def after(base: Json, *updates: Json) -> Json:
    return metadata_updates.updated(base, updates, now_ms=NOW + 1, base_location="file:///w/db/t/metadata/0.json")


def parsed(doc: Json) -> Any:
    return TableMetadataUtil.parse_obj(copy.deepcopy(doc))


def test_created_tables_number_fields_level_by_level_and_parse() -> None:
    nested = {
        "type": "struct",
        "identifier-field-ids": [40],
        "fields": [
            {
                "id": 10,
                "name": "s",
                "required": False,
                "type": {"type": "struct", "fields": [{"id": 11, "name": "x", "required": False, "type": "int"}]},
            },
            {"id": 40, "name": "k", "required": True, "type": "long"},
            {
                "id": 20,
                "name": "m",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 21,
                    "key": "string",
                    "value-id": 22,
                    "value-required": False,
                    "value": {"type": "list", "element-id": 23, "element": "int", "element-required": False},
                },
            },
        ],
    }
    spec = {"fields": [{"source-id": 40, "transform": "bucket[4]", "name": "k_bucket", "field-id": 5}]}
    doc = created(schema=nested, spec=spec)
    model = parsed(doc)
    assert model.schema().find_field("k").field_id == 2
    assert model.schema().find_field("s.x").field_id == 4
    assert model.schema().find_field("m.value.element").field_id == 7
    assert model.last_column_id == 7
    assert model.schema().identifier_field_ids == [2]
    assert doc["partition-specs"][0]["fields"][0] == {
        "source-id": 2,
        "transform": "bucket[4]",
        "name": "k_bucket",
        "field-id": 1000,
    }


@pytest.mark.parametrize("version", [2, 3])
def test_own_tables_parse_with_fixed_ids(version: int) -> None:
    table = own_table(format_version=version, partition_by=["bucket(4, id)", "day(__timestamp)"], sort_by="id desc")
    doc = our_tables.first_metadata(table, "file:///w/", NOW)
    model = parsed(doc)
    assert model.location == "file:///w/db/own-11111111"
    assert str(model.table_uuid) == table.uuid
    assert {field.name: field.field_id for field in model.schema().fields} == {
        "id": 1,
        "v": 2,
        "__bucket": 1_000_001,
        "__offset": 1_000_002,
        "__timestamp": 1_000_003,
    }
    assert model.schema().identifier_field_ids == [1]
    assert [part.name for part in model.spec().fields] == ["id_bucket", "__timestamp_day"]
    assert model.last_partition_id == 1001
    assert model.sort_order_by_id(1).fields[0].direction.value == "desc"
    assert doc["properties"]["write.metadata.metrics.column.__offset"] == "full"


def test_unknown_fields_are_kept_and_the_base_is_never_changed() -> None:
    base = {**created(), "x-future": {"a": 1}}
    before = copy.deepcopy(base)
    doc = after(base, snapshot(1, None, 1), set_ref("main", 1), {"action": "set-properties", "updates": {"a": "b"}})
    assert base == before
    assert doc["x-future"] == {"a": 1}
    assert doc["metadata-log"] == [{"timestamp-ms": NOW, "metadata-file": "file:///w/db/t/metadata/0.json"}]


def test_what_changes_nothing_is_the_base_itself() -> None:
    base = created()
    same = {"action": "add-schema", "schema": {**SCHEMA, "schema-id": 9}}
    assert after(base, same, {"action": "set-current-schema", "schema-id": -1}) is base
    assert after(base, {"action": "assign-uuid", "uuid": UUID}, {"action": "set-properties", "updates": {}}) is base


def test_schema_spec_and_order_evolve_by_last_added() -> None:
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {"id": 3, "name": "w", "required": False, "type": "date"}]}
    doc = after(
        created(),
        {"action": "add-schema", "schema": wider},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"fields": [{"source-id": 3, "transform": "day", "name": "w_day"}]}},
        {"action": "set-default-spec", "spec-id": -1},
        {
            "action": "add-sort-order",
            "sort-order": {
                "order-id": 1,
                "fields": [{"source-id": 3, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
            },
        },
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    ids = ("current-schema-id", "default-spec-id", "default-sort-order-id", "last-column-id", "last-partition-id")
    assert [doc[key] for key in ids] == [1, 1, 1, 3, 1000]
    parsed(doc)
    with pytest.raises(Invalid, match="default partition spec uses field id 3"):
        after(doc, {"action": "set-current-schema", "schema-id": 0})
    back = after(
        doc, {"action": "set-default-spec", "spec-id": 0}, {"action": "remove-partition-specs", "spec-ids": [1]}
    )
    assert [spec["spec-id"] for spec in back["partition-specs"]] == [0]
    with pytest.raises(Invalid, match="in use"):
        after(doc, {"action": "remove-schemas", "schema-ids": [1]})


def test_removed_snapshots_take_refs_statistics_and_older_history_along() -> None:
    doc = after(created(), snapshot(1, None, 1), set_ref("main", 1))
    doc = after(doc, snapshot(2, 1, 2), set_ref("main", 2), set_ref("t", 2, "tag"))
    doc = after(doc, snapshot(3, 2, 3), set_ref("main", 3))
    doc = after(doc, {"action": "set-statistics", "statistics": {"snapshot-id": 2, "statistics-path": "p"}})
    assert [entry["snapshot-id"] for entry in doc["snapshot-log"]] == [1, 2, 3]
    doc = after(doc, {"action": "remove-snapshots", "snapshot-ids": [2]})
    assert doc["statistics"] == []
    assert set(doc["refs"]) == {"main"}
    assert [entry["snapshot-id"] for entry in doc["snapshot-log"]] == [3]
    gone = after(doc, {"action": "remove-snapshots", "snapshot-ids": [1, 3]})
    assert gone["current-snapshot-id"] == -1
    assert gone["refs"] == {}
    parsed(gone)


def test_snapshots_main_only_passed_through_leave_no_history() -> None:
    doc = after(created(), snapshot(1, None, 1), set_ref("main", 1), snapshot(2, 1, 2), set_ref("main", 2))
    assert [entry["snapshot-id"] for entry in doc["snapshot-log"]] == [2]
    assert doc["last-updated-ms"] == NOW + 1  # the catalog's time, which the second snapshot is ahead of


def test_late_snapshots_conflict_so_that_clients_make_them_anew() -> None:
    doc = after(created(), snapshot(1, None, 5), set_ref("main", 1))
    with pytest.raises(Conflict, match="sequence number"):
        after(doc, snapshot(2, 1, 5))
    with pytest.raises(Invalid, match="already"):
        after(doc, snapshot(1, None, 6))


def test_row_lineage_of_v3() -> None:
    doc = after(created(), {"action": "upgrade-format-version", "format-version": 3})
    assert doc["next-row-id"] == 0
    one = snapshot(1, None, 1)
    with pytest.raises(Invalid, match="first-row-id"):
        after(doc, one)
    one["snapshot"].update({"first-row-id": 0, "added-rows": 10})
    doc = after(doc, one, set_ref("main", 1))
    assert doc["next-row-id"] == 10
    parsed(doc)
    two = snapshot(2, 1, 2)
    two["snapshot"].update({"first-row-id": 9, "added-rows": 1})
    with pytest.raises(Conflict, match="first-row-id"):
        after(doc, two)
    with pytest.raises(Invalid, match="cannot become 2"):
        after(doc, {"action": "upgrade-format-version", "format-version": 2})


def test_the_metadata_log_is_bounded() -> None:
    doc = created(properties={metadata.PREVIOUS_VERSIONS_MAX: "3"})
    for number in range(6):
        update = {"action": "set-properties", "updates": {"n": str(number)}}
        doc = metadata_updates.updated(doc, [update], now_ms=NOW, base_location=f"file:///{number}")
    assert [entry["metadata-file"] for entry in doc["metadata-log"]] == ["file:///3", "file:///4", "file:///5"]


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3))
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)
)
_KEYS = [
    "schema",
    "spec",
    "sort-order",
    "snapshot",
    "statistics",
    "partition-statistics",
    "ref-name",
    "snapshot-id",
    "snapshot-ids",
    "schema-id",
    "spec-id",
    "type",
    "updates",
    "removals",
    "encryption-key",
    "key-id",
    "location",
]


@settings(max_examples=examples(400))
@given(st.sampled_from(sorted(metadata_updates.ACTIONS)), st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4))
def test_any_update_is_applied_or_refused(action: str, fields: dict[str, Any]) -> None:
    try:
        doc = after(created(), {**fields, "action": action})
    except (Invalid, Conflict):
        return
    orjson.dumps(doc)


def test_requirements() -> None:
    doc = after(created(), snapshot(1, None, 1), set_ref("main", 1))
    good: list[Json] = [
        {"type": "assert-table-uuid", "uuid": UUID.upper()},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
        {"type": "assert-ref-snapshot-id", "ref": "other", "snapshot-id": None},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2},
        {"type": "assert-current-schema-id", "current-schema-id": 0},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
        {"type": "assert-default-spec-id", "default-spec-id": 0},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
    ]
    commits.check_requirements(good, doc)
    bad: list[Json] = [{key: 77 if isinstance(value, int) else value for key, value in each.items()} for each in good]
    bad = [each for each, right in zip(bad, good, strict=True) if each != right]
    assert len(bad) == 6
    for each in [*bad, {"type": "assert-create"}, {"type": "assert-ref-snapshot-id", "ref": "main"}]:
        with pytest.raises(Conflict):
            commits.check_requirements([each], doc)
    with pytest.raises(Invalid):
        commits.check_requirements([{"type": "assert-what"}], doc)
    commits.check_requirements([{"type": "assert-create"}], None)


def test_a_commit_to_two_thousand_snapshots_takes_milliseconds() -> None:
    doc = created()
    doc["snapshots"] = [
        snapshot(number, number - 1, number, total_records=number, filler="x" * 500)["snapshot"]
        for number in range(1, 2001)
    ]
    doc["last-sequence-number"] = 2000
    for number in range(3000, 3010):
        orjson.dumps(after(doc, snapshot(number, 2000, 2001), set_ref("main", number)))


def test_an_ancestry_ends_at_what_is_gone_and_where_a_circle_closes() -> None:
    doc = {"snapshots": [{"snapshot-id": number, "parent-snapshot-id": number - 1} for number in (3, 4, 5)]}
    assert [each["snapshot-id"] for each in metadata.ancestry(doc, 5)] == [5, 4, 3]
    assert not list(metadata.ancestry(doc, None))
    assert not list(metadata.ancestry(doc, 2))
    doc["snapshots"][0]["parent-snapshot-id"] = 5
    assert [each["snapshot-id"] for each in metadata.ancestry(doc, 4)] == [4, 3, 5]
