"""A contract and the table of `tables.yaml` are made from each other, and a fault is told with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.evolution import RenameColumn
from lakestore.model.alteration import apply_steps
from lakestore.model.contract import document, file, standard
from lakestore.model.contract.contract import Contract
from lakestore.model.table import Table, define
from lakestore.model.table_file import steps_between
from tests.support.all_types import SCHEMA
from tests.support.seeds import examples

OTHERS = Path(__file__).with_name("contracts")
HEAD = "apiVersion: v3.2.0\nkind: DataContract\nid: orders\nversion: 1.0.0\n"
ORDERS = f"""{HEAD}
schema:
  - name: orders
    physicalName: shop.orders
    properties:
      - {{name: id, logicalType: integer, primaryKey: true}}
      - {{name: note, logicalType: string}}
"""


def wanted(text: str, existing: Table | None = None) -> Table:
    root = document.parse(text)
    (table,) = file.wanted_tables(root, existing={existing.name: existing} if existing else None)
    return table.definition()


def typed(fields: str) -> str:
    """The declared type of a column of these fields."""
    return wanted(ORDERS.replace("logicalType: string", fields)).column("note").type


def test_every_type_and_option_comes_back() -> None:
    table = define(
        "shop.Orders_1",
        SCHEMA.append(pa.field("näme 2.x", pa.string(), nullable=False)),
        primary_key=["näme 2.x", "id"],
        bucket_key=["id"],
        buckets=7,
        merge={"aggregate": {"c3": "sum"}},
        lake={"freshness": "3s", "partition_by": ["bucket(4, id)"], "sort_by": ["id desc"], "format_version": 3},
        retention={"age": "7d", "bytes": "1GB"},
        deletes="ignore",
        ttl={"column": "c16", "after": "30d"},
        tombstone_ttl="1h",
    )
    table = replace(table, columns=tuple(replace(c, default="x") if c.name == "c10" else c for c in table.columns))
    text = file.exported([table])
    assert standard.faults(document.parse(text)) == []
    assert wanted(text) == table


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_definition_of_random_options_comes_back(data: st.DataObject) -> None:
    keyed = data.draw(st.booleans())
    lake = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "freshness": st.sampled_from(["1s", "5m", "1h"]),
                "partition_by": st.lists(st.sampled_from(["day(c16)", "c3", "truncate(3, c10)"]), unique=True),
                "snapshots": st.integers(1, 500),
                "upkeep_percent": st.integers(1, 100),
                "committers": st.sampled_from(["ours_only", "ours+maintenance"]),
                "catalog": st.just("prod"),
            },
        )
    )
    options: dict[str, Any] = data.draw(
        st.fixed_dictionaries(
            {"buckets": st.integers(1, 64)},
            optional={"retention": st.sampled_from(["90s", "7d", {"bytes": "3MB"}]), "lake": st.just(lake)}
            | ({"skip_unchanged": st.booleans(), "merge": st.sampled_from(["partial", "first_row", "versioned(c3)"])}
               if keyed else {}),
        )
    )  # fmt: skip
    made = define("a.b", SCHEMA, primary_key=["id"] if keyed else None, **options)
    assert wanted(file.exported([made])) == made


def test_tables_of_one_short_name_stand_in_one_contract() -> None:
    tables = [define(name, pa.schema([("v", pa.int64())])) for name in ("a.t", "b.t", "b.u")]
    root = document.parse(file.exported(tables))
    assert [table.definition() for table in file.wanted_tables(root)] == tables
    assert [entry.text("name") for entry in root.listed("schema")] == ["a.t", "b.t", "u"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ("logicalType: integer", "int64"),
        ("logicalType: integer, logicalTypeOptions: {format: u8}", "uint8"),
        ("logicalType: integer, physicalType: int8", "int64"),
        ("logicalType: number", "float64"),
        ("logicalType: number, physicalType: 'NUMERIC(12, 2)'", "decimal(12,2)"),
        ("logicalType: number, logicalTypeOptions: {format: f64}, physicalType: decimal(9)", "decimal(9,0)"),
        ("logicalType: number, physicalType: serial", "int32"),
        ("logicalType: date, physicalType: timestamp", "timestamp"),
        ("logicalType: timestamp, physicalType: TIMESTAMP(6) WITH TIME ZONE", "timestamptz"),
        ("logicalType: timestamp, logicalTypeOptions: {timezone: true}", "timestamptz"),
        ("logicalType: string, physicalType: 'varchar[15]'", "string"),
        ("logicalType: object, physicalType: json", "string"),
        ("logicalType: string, logicalTypeOptions: {format: binary}", "binary"),
        ("logicalType: vector, logicalTypeOptions: {dimensions: 3}", "list<float32 not null>"),
        ("logicalType: array, items: {logicalType: integer, required: true}", "list<int64 not null>"),
        (
            "logicalType: map, map: {key: {logicalType: string}, value: {logicalType: object, properties:"
            " [{name: a b, logicalType: boolean, required: true}]}}",
            "map<string, struct<`a b`: bool not null>>",
        ),
    ],
)
def test_logical_and_physical_types_become_declared_ones(fields: str, kind: str) -> None:
    assert typed(fields) == kind


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("logicalType: object", r"line 11: schema.0..properties.1. is an object without properties"),
        ("logicalType: array", r"line 11: .* is an array without items"),
        ("logicalType: map", r"line 11: .* is a map without map.key and map.value"),
        ("physicalType: geometry", r"line 11: .*no logicalType.*'geometry' is not known"),
        ("logicalType: number, physicalType: numeric", r"line 11: .*physicalType is numeric without digits"),
        ("logicalType: number, physicalType: 'decimal(40,2)'", r"line 11: .*physicalType is not a type of a table"),
        ("logicalType: integer, logicalTypeOptions: {format: u64}", r"line 11: .*format is u64; .*decimal\(20,0\)"),
        ("logicalType: string, required: sometimes", r"line 11: .*required is true or false"),
        (
            "logicalType: string, customProperties: [{property: lakestore.column, value: {defalt: x}}]",
            r"line 11: .*says 'defalt', which is not known: did you mean default",
        ),
    ],
)
def test_a_column_that_no_table_has_is_told_with_its_line(fields: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        typed(fields)


OWNER = "customProperties: [{property: lakestore.owner, value: {}}]"
COLUMN = "customProperties: [{property: lakestore.column, value: {}}]"
RULE = "quality: [{customProperties: [{property: lakestore.onViolatoin, value: count}]}]"
TEAM = "team: {customProperties: [{property: lakestore.x, value: 1}]}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: note", f"name: note, {OWNER}", r"line 11: .*'lakestore.owner'.*known there are lakestore.column"),
        ("version: 1.0.0", f"version: 1.0.0\n{TEAM}", r"line 5: .*it belongs to a table or the whole contract"),
        ("name: note", f"name: note, {RULE}", r"line 11: .*did you mean lakestore.onViolation"),
        ("    properties:", f"    {COLUMN}\n    properties:", r"line 9: .*known there are lakestore.table"),
    ],
)
def test_an_unknown_property_of_ours_is_refused_wherever_it_stands(old: str, new: str, said: str) -> None:
    text = ORDERS.replace(old, new)
    with pytest.raises(Invalid, match=f"^{said}"):
        Contract(text, "orders").check(define("shop.orders", pa.schema([("id", pa.int64())]), primary_key=["id"]))


def test_the_database_is_in_the_name_or_the_iceberg_server_or_is_asked_for() -> None:
    plain = ORDERS.replace("shop.orders", "orders")
    with pytest.raises(Invalid, match=r"line 7: .*tells no database for the table 'orders'.*--database"):
        wanted(plain)
    assert file.wanted_tables(document.parse(plain), "sales")[0].name == "sales.orders"
    server = "servers: [{server: p, type: kafka, namespace: no}, {server: lake, type: iceberg, namespace: metrics}]\n"
    assert file.wanted_tables(document.parse(plain + server))[0].name == "metrics.orders"
    with pytest.raises(Invalid, match=r"line 7: .*names of tables have the letters"):
        wanted(ORDERS.replace("shop.orders", "shop.orders-1"))


def test_keys_and_partitions_follow_their_positions() -> None:
    text = ORDERS.replace(
        "- {name: note, logicalType: string}",
        "- {name: b, logicalType: date, primaryKey: true, primaryKeyPosition: 1, partitioned: true}\n"
        "      - {name: c, logicalType: string, partitioned: true, partitionKeyPosition: 1}",
    ).replace("primaryKey: true}", "primaryKey: true, primaryKeyPosition: 2}")
    made = wanted(text)
    assert (made.primary_key, made.lake.partition_by) == (("b", "id"), ("b", "c"))
    ours = "\n    customProperties: [{property: lakestore.table, value: {buckets: 2, lake: {partition_by: [day(b)]}}}]"
    assert wanted(text + ours.lstrip("\n")).lake.partition_by == ("day(b)",)


def test_a_column_that_was_renamed_is_named_back_and_not_dropped() -> None:
    table = wanted(ORDERS)
    table = replace(table, contract=Contract(ORDERS, "orders").bind(table))
    table = apply_steps(table, [RenameColumn("note", "remark")])
    (again,) = file.wanted_tables(document.parse(ORDERS), existing={table.name: table})
    assert steps_between(table, again) == [RenameColumn("remark", "note")]


def test_a_required_column_of_an_existing_table_is_a_rule_and_no_alteration() -> None:
    table = wanted(ORDERS)
    required = ORDERS.replace("logicalType: string", "logicalType: string, required: true")
    (again,) = file.wanted_tables(document.parse(required), existing={table.name: table})
    assert steps_between(table, again) == []
    assert wanted(required).column("note").required


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("full-example", {"shop.tbl_1": ("rcvr_id",), "shop.receivers_master": ("id", "country_code")}),
        ("web-shop-orders", {"shop.orders": ("order_id",)}),
        ("all-new-fields", "line 145: schema.1. has no properties, which are the columns of a table"),
    ],
)
def test_a_published_contract_is_read_or_its_line_is_named(name: str, tables: dict[str, object] | str) -> None:
    root = document.parse((OTHERS / f"{name}.odcs.yaml").read_text())
    assert standard.faults(root) == []
    if isinstance(tables, str):
        with pytest.raises(Invalid, match=tables):
            file.wanted_tables(root, "shop")
        first = file.wanted(root, root.listed("schema")[0], "shop").definition()
        assert [column.name for column in first.columns] == ["country_code", "attributes", "embedding", "legacy_flag"]
    else:
        made = [table.definition() for table in file.wanted_tables(root, "shop")]
        assert {table.name: table.primary_key for table in made} == tables


def test_a_fault_by_the_standard_has_its_line() -> None:
    text = ORDERS.replace("logicalType: string", "logicaltype: string, quality: [{metric: rowCount}], tags: x")
    assert standard.faults(document.parse(text)) == [
        "line 11: schema[0].properties[1] says 'logicaltype', which the standard does not have there: did you mean"
        " logicalType?",
        "line 11: schema[0].properties[1].quality[0] has 0 comparisons such as mustBe; it has one",
        "line 11: schema[0].properties[1].tags is a list, not 'x'",
    ]
