"""A contract is part of a table's definition: versions, lines of faults, and columns that it holds."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.evolution import SetContract
from lakestore.model.contract import document
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.rules import RULES_MAX
from lakestore.model.table import Table, define
from lakestore.model.token import position_of
from tests.support.served import Served

DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    physicalName: shop.orders
    properties:
      - {name: id, logicalType: integer, primaryKey: true, required: true}
      - {name: note, logicalType: string}
    customProperties:
      - {property: lakestore.onViolation, value: refuse}
      - {property: elsewhere, value: 1}
"""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("free", pa.string())])


def with_contract(lake: ls.Lake) -> ls.Table:
    lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
    return lake.table("shop.orders").alter(SetContract(DOCUMENT, "orders", "first"))


def contract_of(table: Table) -> Contract:
    assert table.contract is not None
    return table.contract


def test_versions_of_a_contract_survive_a_restart_and_are_read_at_their_cuts(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        orders = with_contract(served.lake)
        first = contract_of(orders.definition)
        assert (first.version, first.why, first.document) == (1, "first", DOCUMENT)
        assert first.at_us > 0
        token = orders.upsert([{"id": 1, "note": "a"}])
        orders.alter(SetContract(DOCUMENT.replace("1.0.0", "1.1.0"), "orders", "more"))
        assert contract_of(orders.definition).version == 2
        served.checkpoint()
        served.restart()
        state = served.engine.view.named("shop.orders")
        assert contract_of(state.versions.current).why == "more"
        assert contract_of(state.versions.at(position_of(str(token)).lsn)).why == "first"


def test_the_same_document_is_no_new_version_and_a_number_is_never_used_twice(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        orders = with_contract(served.lake)
        schema_id = orders.definition.schema_id
        orders.alter(SetContract(DOCUMENT, "orders", "once more"))
        assert (orders.definition.schema_id, contract_of(orders.definition).why) == (schema_id, "first")
        orders.alter(SetContract(""))
        assert orders.definition.contract is None
        orders.alter(SetContract(DOCUMENT, "orders"))
        assert contract_of(orders.definition).version == 2


def test_a_client_cannot_say_who_applied_a_contract(tmp_path: Path) -> None:
    table = define("shop.orders", SCHEMA, primary_key=["id"])
    forged = Contract(DOCUMENT, "orders", version=7, by="somebody", at_us=1, bound=(("id", 99),))
    with Served(tmp_path) as served:
        stored = contract_of(served.lake.create(replace(table, contract=forged)).definition)
        assert (stored.version, stored.by, stored.column_ids) == (1, "", {"id": 1, "note": 2})
        assert stored.at_us > 1


def test_a_column_of_a_contract_is_renamed_and_is_not_dropped(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        orders = with_contract(served.lake)
        orders.alter(rename={"note": "remark"})
        assert contract_of(orders.definition).column_ids == {"id": 1, "note": 2}
        with pytest.raises(Invalid, match="column 'note' is in the contract and cannot be dropped"):
            orders.alter(drop=["remark"])
        orders.alter(drop=["free"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lakestore.onViolation", "lakestore.onviolation", "line 14.*not known.*lakestore.onViolation"),
        ("name: note", "name: nope", "line 12.*column 'nope', which table shop.orders does not have"),
        ("v3.2.0", "v4.0.0", "line 2.*apiVersion 'v4.0.0', not one of"),
        ("DataContract", "Contract", "line 2.*kind 'Contract'"),
        ("status: active", "id: again", "line 6.*'id' is written twice"),
        ("name: orders\n", "name: others\n", "no entry 'orders' in schema; there are others"),
        ("version: 1.0.0", "version: 1.0", "line 5: version is a text, not 1.0: put it into quotes"),
        ("properties:\n", "properties: 7\n    description:\n", "line 10: schema.0..properties is a list, not 7"),
    ],
)
def test_a_fault_is_named_with_its_line_and_changes_nothing(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in DOCUMENT
    with Served(tmp_path) as served:
        orders = served.lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
        with pytest.raises(Invalid, match=f"(?s){said}"):
            orders.alter(SetContract(DOCUMENT.replace(old, new, 1), "orders"))
        assert served.engine.view.named("shop.orders").table.contract is None


def test_a_document_above_the_limit_is_refused() -> None:
    with pytest.raises(Invalid, match="at most 262144 characters"):
        document.parse(DOCUMENT + "#" * document.DOCUMENT_CHARS_MAX)


def test_a_property_of_the_table_wins_over_one_of_the_file() -> None:
    everywhere = "customProperties:\n  - {property: lakestore.onViolation, value: count}\n"
    contract = Contract(DOCUMENT + everywhere, "orders")
    assert contract.properties["lakestore.onViolation"].value == "refuse"
    other = DOCUMENT.replace("lakestore.onViolation", "others.onViolation")
    assert Contract(other + everywhere, "orders").properties["lakestore.onViolation"].value == "count"


def test_a_yaml_merge_and_an_alias_have_values() -> None:
    text = DOCUMENT.replace("status: active", "tags: &more [a]\nx: &base {kind: DataContract}")
    root = document.parse(text.replace("kind: DataContract\nid", "<<: {kind: DataContract}\nid", 1))
    assert root.text("kind") == "DataContract"


def test_rules_and_columns_that_a_yaml_merge_brings_are_rules() -> None:
    columns = """
      - {name: id, logicalType: integer, logicalTypeOptions: &low {minimum: 0, maximum: 9}}
      - &count {name: n, logicalType: integer, required: true, enum: [{value: 1}], logicalTypeOptions: {<<: *low}}
      - {<<: [{maximum: 1, logicalTypeOptions: {<<: *low, maximum: 5}}, *count], name: m}
"""
    text = DOCUMENT[: DOCUMENT.index("      - {name: id")] + columns.lstrip("\n")
    contract = Contract(text, "orders")
    assert {rule.name: rule.argument for rule in contract.rules.at_write} == {
        "id.minimum": 0,
        "id.maximum": 9,
        "n.required": None,
        "n.enum": (1,),
        "n.minimum": 0,
        "n.maximum": 9,
        "m.required": None,
        "m.enum": (1,),
        "m.minimum": 0,
        "m.maximum": 5,
    }
    assert contract.rules.in_test == ()


def test_a_number_of_a_rule_has_all_its_digits() -> None:
    column = "{name: note, logicalTypeOptions: {maximum: 99999999999999999.99, minimum: 0.1}, enum: [{value: 1.50}]}"
    rules = Contract(DOCUMENT.replace("{name: note, logicalType: string}", column), "orders").rules.at_write
    assert [rule.argument for rule in rules[1:]] == [(1.5,), Decimal("99999999999999999.99"), 0.1]


def test_checks_of_a_table_are_bounded_and_those_of_one_name_are_numbered() -> None:
    check = "    quality:\n      - &check {type: library, metric: nullValues, mustBe: 1}\n"
    for others, fits in ((RULES_MAX - 2, True), (RULES_MAX - 1, False)):
        text = DOCUMENT.replace(
            "    customProperties:", check + "      - *check\n" * others + "    customProperties:", 1
        )
        if fits:
            names = [test.name for test in Contract(text, "orders").rules.in_test]
            assert names[:2] + names[-1:] == ["nullValues", "nullValues#2", f"nullValues#{others + 1}"]
        else:
            with pytest.raises(Invalid, match="is one check too many: a table has at most 5,000 rules and checks"):
                _ = Contract(text, "orders").rules
