"""Fields inside columns change by path, and rows follow them by id."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore import evolution
from lakestore.errors import Invalid
from lakestore.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SetDefault,
    Step,
    WidenColumn,
)
from lakestore.limits import Limits
from lakestore.model import table as schema
from lakestore.model.alteration import apply_steps
from lakestore.model.nested_fields import LIST, STRUCT, NestedField, tree
from lakestore.model.table import Table
from lakestore.model.table_file import parse, steps_between
from lakestore.model.types import arrow_type
from lakestore.rows.projection import Projection, check_present
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.seeds import examples

PLACE = "struct<street: string not null, zip: int32>"
ITEM = "struct<sku: string, amount: float32>"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("place", arrow_type(PLACE)),
        ("items", arrow_type(f"list<{ITEM}>")),
        ("prices", arrow_type(f"map<string, {ITEM}>")),
        ("numbers", arrow_type("list<int32>")),
        ("place.note", pa.string()),
    ]
)
ROW: dict[str, Any] = {
    "id": 1,
    "place": {"street": "Main", "zip": 7},
    "items": [{"sku": "a", "amount": 1.5}, None, {"sku": None, "amount": None}],
    "prices": [("eu", {"sku": "b", "amount": 2.5}), ("us", None)],
    "numbers": [1, None],
    "place.note": "a column with a dot",
}
EMPTY = {"id": 2, "place": None, "items": None, "prices": None, "numbers": None, "place.note": None}


def table() -> Table:
    return schema.define("shop.orders", SCHEMA, primary_key=["id"])


def types_of(definition: Table) -> dict[str, str]:
    return {column.name: column.type for column in definition.columns}


def projected(old: Table, new: Table, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=old.storage_schema)
    found: list[dict[str, Any]] = Projection(old, new).batch(batch).to_pylist()
    return found


def test_each_step_changes_one_place_and_rows_follow() -> None:
    steps: list[Step] = [
        AddColumn("place.city", "struct<name: string, code: int16>", after="street"),
        AddColumn("items.element.tags", "list<string>", first=True),
        DropColumn("items.element.sku"),
        RenameColumn("place.zip", "postcode"),
        WidenColumn("place.postcode", "int64"),
        WidenColumn("prices.value.amount", "float64"),
        WidenColumn("numbers.element", "int64"),
        MoveColumn("place.postcode", first=True),
        MakeOptional("place.street"),
        AddColumn("place.city.mayor", "string"),
    ]
    old = table()
    new = apply_steps(old, steps)
    assert types_of(new) == {
        "id": "int64",
        "place": "struct<postcode: int64, street: string, city: struct<name: string, code: int16, mayor: string>>",
        "items": "list<struct<tags: list<string>, amount: float32>>",
        "prices": "map<string, struct<sku: string, amount: float64>>",
        "numbers": "list<int64>",
        "place.note": "string",
    }
    assert new.schema_id == old.schema_id + 1
    assert projected(old, new, ROW, EMPTY) == [
        ROW
        | {
            "place": {"postcode": 7, "street": "Main", "city": None},
            "items": [{"tags": None, "amount": 1.5}, None, {"tags": None, "amount": None}],
        },
        EMPTY,
    ]


WORDS = ["street", "zip", "sku", "amount", "a"]
KINDS = ["int64", "float64", "string", "struct<a: int32, zip: string>", "list<struct<sku: int32>>"]


def any_step(data: st.DataObject, definition: Table) -> Step:
    """A step at a field that is there, or beside one; many are refused."""
    paths = [path for column in definition.columns for path, _ in tree(column).with_paths()]
    path, word = data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(WORDS))
    place: dict[str, Any] = data.draw(st.sampled_from([{"first": True}, {"after": word}]))
    steps: list[Step] = [
        AddColumn(f"{path}.{word}", data.draw(st.sampled_from(KINDS)), **data.draw(st.sampled_from([{}, place]))),
        DropColumn(path),
        RenameColumn(path, word),
        WidenColumn(path, data.draw(st.sampled_from(KINDS[:2]))),
        MoveColumn(path, **place),
        MakeOptional(path),
    ]
    return data.draw(st.sampled_from(steps))


def rendered(value: Any, old: NestedField, new: NestedField) -> Any:
    """A value of an older field as the newer one shows it, found by ids in plain Python."""
    if value is None or not new.parts:
        return value
    if new.shape == STRUCT:
        known = {part.id: part for part in old.parts}
        found = {part.id: value[known[part.id].name] for part in new.parts if part.id in known}
        return {
            part.name: rendered(found[part.id], known[part.id], part) if part.id in found else None
            for part in new.parts
        }
    if new.shape == LIST:
        return [rendered(each, old.parts[0], new.parts[0]) for each in value]
    return [(key, rendered(each, old.parts[1], new.parts[1])) for key, each in value]


@settings(max_examples=examples(400))
@given(st.data(), st.integers(1, 12))
def test_rows_follow_any_steps_by_id(data: st.DataObject, count: int) -> None:
    versions, steps = [table()], list[Step]()
    for _ in range(count):
        step = any_step(data, versions[-1])
        try:
            versions.append(apply_steps(versions[-1], [step]))
            steps.append(step)
        except Invalid as error:
            assert "shop.orders" in error.message or "column" in error.message
    old, new = versions[0], versions[-1]
    columns = {column.id: column for column in old.columns}
    assert projected(old, new, ROW, EMPTY) == [
        {
            column.name: rendered(row[columns[column.id].name], tree(columns[column.id]), tree(column))
            if column.id in columns
            else None
            for column in new.columns
        }
        for row in (ROW, EMPTY)
    ]
    assert apply_steps(old, evolution.from_json(evolution.to_json(steps))).columns == new.columns
    ids = [number for version in versions for column in version.columns for number in (column.id, *column.nested)]
    assert max(ids) <= new.last_column_id
    for before, after in pairwise(versions):
        made = {part.id for column in after.columns for _, part in tree(column).with_paths()}
        held = {part.id for column in before.columns for _, part in tree(column).with_paths()}
        assert all(number > before.last_column_id for number in made - held)
        assert Table.from_json(after.to_json()) == after


def test_a_name_that_is_used_again_is_another_field() -> None:
    old = table()
    new = apply_steps(old, [DropColumn("place.zip"), AddColumn("place.zip", "int32")])
    assert types_of(new) == types_of(old)
    assert new.column("place").nested != old.column("place").nested
    assert projected(old, new, ROW)[0]["place"] == {"street": "Main", "zip": None}
    swapped = apply_steps(
        old, [RenameColumn("prices.value.sku", "x"), AddColumn("prices.value.sku", "string"), DropColumn("numbers")]
    )
    assert projected(old, swapped, ROW)[0]["prices"] == [("eu", {"x": "b", "amount": 2.5, "sku": None}), ("us", None)]


def test_ids_are_never_used_again() -> None:
    definition, seen = table(), set[int]()
    for turn in range(5):
        definition = apply_steps(definition, [AddColumn("place.x", f"struct<a{turn}: string, b: list<int32>>")])
        inside = set(definition.column("place").nested[2:])
        assert len(inside) == 4
        assert not inside & seen
        seen |= inside
        assert max(seen) == definition.last_column_id
        definition = apply_steps(definition, [DropColumn("place.x")])


def test_a_column_with_a_dot_in_its_name_is_a_column() -> None:
    new = apply_steps(table(), [RenameColumn("place.note", "note"), AddColumn("place.note", "int32")])
    assert types_of(new)["place"] == "struct<street: string not null, zip: int32, note: int32>"
    assert types_of(apply_steps(table(), [DropColumn("place.note")])).keys() == set(SCHEMA.names) - {"place.note"}
    assert "id.x" in types_of(apply_steps(table(), [AddColumn("id.x", "int32")])), "id has no fields inside"


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (AddColumn("place.zip", "int32"), "field 'place.zip' cannot be called 'zip': another field of its struct is"),
        (AddColumn("place.ZIP", "int32"), "field 'place.ZIP' cannot be called 'ZIP'"),
        (AddColumn("place.a", "int32", required=True), "field 'place.a' is inside a column: it is added as optional"),
        (AddColumn("place.a", "int32", default=1), "without a default"),
        (AddColumn("items.a", "int32"), "is not a field of a struct: 'items' is none"),
        (AddColumn("place.zip.a", "int32"), "is not a field of a struct"),
        (AddColumn("place.a", "int32", after="b"), "is not there: fields inside 'place' are street, zip"),
        (DropColumn("place.a"), "field 'place.a' is not there: fields inside 'place' are street, zip"),
        (DropColumn("items.element"), "is not a field of a struct"),
        (DropColumn("prices.key"), "is not a field of a struct"),
        (RenameColumn("place.zip", "Street"), "cannot be called 'Street'"),
        (RenameColumn("place.zip", "place.code"), "is renamed by its last name alone: say 'code', not 'place.code'"),
        (WidenColumn("place.zip", "int16"), "field 'place.zip' is int32, which cannot be widened to int16"),
        (WidenColumn("prices.key", "binary"), "is the key of a map and does not change"),
        (WidenColumn("place", "struct<street: string>"), "change the fields inside it by their paths"),
        (WidenColumn("items.element", "struct<sku: string>"), "cannot be widened"),
        (MakeOptional("prices.key"), "is the key of a map and does not change"),
        (SetDefault("place.zip", 1), "has no default of its own"),
        (MoveColumn("place.zip", after="zip"), "has two places"),
        (MoveColumn("numbers.element", first=True), "is not a field of a struct"),
        (AddColumn("place.a", "nothing"), "type 'nothing' is not known"),
    ],
)
def test_what_cannot_be_is_refused_by_path_and_rule(step: Step, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        apply_steps(table(), [step])
    assert told in refused.value.message


def test_the_last_field_of_a_struct_stays() -> None:
    with pytest.raises(Invalid, match="is the only field of its struct"):
        apply_steps(table(), [DropColumn("place.zip"), DropColumn("place.street")])


def test_limits_count_fields_inside() -> None:
    limits, places = Limits(nested_fields=2), schema.define("a.b", pa.schema([("place", arrow_type(PLACE))]))
    with pytest.raises(Invalid, match="has 3 fields inside, more than 2"):
        apply_steps(places, [AddColumn("place.a", "int8")], limits)


def test_rows_of_an_older_version_with_a_dropped_field_are_refused() -> None:
    old = table()
    new = apply_steps(old, [DropColumn("items.element.sku")])
    with pytest.raises(Invalid, match=r"column 'items\.element\.sku' of schema version 0 was dropped"):
        check_present({old.column("items").id}, old, new)
    check_present({old.column("place").id}, old, new)


FILE = """
tables:
  - name: shop.orders
    primary_key: [id]
    columns:
      - {name: id, type: int64}
      - {name: place, type: "struct<zip: int64, street: string, city: struct<name: string>>"}
      - {name: items, type: "list<struct<sku: string>>"}
      - {name: prices, type: "map<string, struct<amount: float64, sku: string>>"}
      - {name: numbers, type: "list<int64>"}
      - {name: place.note, type: string}
"""


def test_a_file_is_reached_field_by_field() -> None:
    wanted = parse(FILE, "tables.yaml")[0]
    steps = steps_between(table(), wanted)
    reached = apply_steps(table(), evolution.from_json(evolution.to_json(steps)))
    assert types_of(reached) == {column.name: column.type for column in wanted.columns}
    assert [step.name for step in steps if isinstance(step, DropColumn)] == ["items.element.amount"]
    assert steps_between(reached, wanted) == []
    assert projected(table(), reached, ROW)[0]["prices"] == [("eu", {"amount": 2.5, "sku": "b"}), ("us", None)]


def test_a_file_cannot_require_an_optional_field() -> None:
    text = FILE.replace("zip: int64", "zip: int64 not null")
    with pytest.raises(Invalid, match=r"field 'place\.zip' is optional and cannot become required"):
        steps_between(table(), parse(text, "tables.yaml")[0])


def test_rows_of_two_versions_are_one_table(tmp_path: Path) -> None:
    limits = Limits(segment_rows=4, shared_segment_bytes=0)
    with ls.open(tmp_path, limits=limits) as lake:
        orders = lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
        former = lake.table("shop.orders")
        before = orders.upsert([ROW | {"id": number} for number in range(6)])
        orders = orders.alter(
            rename={"place.zip": "code"},
            widen={"place.code": pa.int64()},
            add={"items.element.tags": pa.list_(pa.string())},
        )
        former.upsert([ROW | {"id": 6, "place": {"street": "Old", "zip": 8}}])
        orders.upsert([ROW | {"id": 7, "place": {"street": "New", "code": 1 << 40}, "items": [{"tags": ["x"]}]}])
        found = {row["id"]: row for row in orders.scan().to_arrow().to_pylist()}
        assert found[0]["place"] == {"street": "Main", "code": 7}
        assert found[0]["items"][0] == {"sku": "a", "amount": 1.5, "tags": None}
        assert found[6]["place"] == {"street": "Old", "code": 8}
        assert found[7]["place"] == {"street": "New", "code": 1 << 40}
        assert found[7]["items"] == [{"sku": None, "amount": None, "tags": ["x"]}]
        assert orders.scan(at=before).to_arrow().to_pylist()[0] == ROW | {"id": 0}
        assert orders.lookup([{"id": 1}]).to_pylist()[0]["place"] == {"street": "Main", "code": 7}
        shapes = [batch.table.schema.field("place").type for batch in orders.changes(until="now")]
        assert [shape.get_field_index("zip") >= 0 for shape in shapes] == sorted(
            (shape.get_field_index("zip") >= 0 for shape in shapes), reverse=True
        )
        assert verify(lake.transport, "shop.orders").same
    with ls.open(tmp_path, limits=limits) as lake:
        assert {row["id"]: row for row in lake.table("shop.orders").scan().to_arrow().to_pylist()} == found


def test_an_update_of_some_columns_takes_an_older_row_by_id(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        orders = lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1, merge="partial")
        orders.upsert([ROW])
        orders = orders.alter(drop=["place.zip"])
        orders = orders.alter(add={"place.zip": pa.int32()})
        orders.upsert([{"id": 1, "numbers": [3]}])
        assert orders.lookup([{"id": 1}]).to_pylist()[0]["place"] == {"street": "Main", "zip": None}


def test_a_writer_of_an_older_version_sends_no_dropped_field(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        former = lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
        lake.table("shop.orders").alter(drop=["place.zip"])
        with pytest.raises(Invalid, match=r"column 'place\.zip' of schema version 0 was dropped"):
            former.upsert([ROW])
        former.upsert([{"id": 1, "numbers": [1]}])
        request = pb.AlterTableRequest(table="shop.orders", schema_id=1)
        request.alteration = evolution.to_json([AddColumn("place.zip", "int32")])
        lake.transport.alter_table(request)
        with pytest.raises(Invalid, match=r"column 'place\.zip' of schema version 0 was dropped"):
            former.upsert([ROW])
