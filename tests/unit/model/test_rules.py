"""Rules of a contract: which of ODCS become rules of a write, with which action, and which are left to a test."""

from __future__ import annotations

from typing import Any

import pytest

from lakestore.errors import Invalid
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.document import parse
from lakestore.model.contract.file import wanted_tables
from lakestore.model.contract.rules import Rules
from tests.support.contract_texts import column, document, no_rows, on_violation


def rules(*columns: dict[str, Any], action: str = "", quality: Any = ()) -> Rules:
    return Contract(document(columns, action, quality), "orders").rules


def named(found: Rules) -> dict[str, tuple[str, Any, str]]:
    return {rule.name: (rule.kind, rule.argument, rule.action) for rule in found.at_write}


def test_every_kind_of_rule_is_read() -> None:
    found = rules(
        column("id", primaryKey=True),
        column("a", required=True, unique=True, enum=[{"value": "x"}, {"value": "y", "label": "Y"}]),
        column("b", logicalTypeOptions={"minLength": 1, "maxLength": 3, "pattern": "^a", "format": "email"}),
        column("c", logicalType="integer", logicalTypeOptions={"minimum": 0, "exclusiveMaximum": 9, "multipleOf": 3}),
        column("d", logicalType="date", logicalTypeOptions={"minimum": "2020-01-01", "format": "yyyy-MM-dd"}),
        column("old", logicalTypeOptions={"enum": [1, None]}),
        column("e", quality=[{"metric": "nullValues", "mustBe": 0}, {"rule": "missingValues", "mustBe": 0}]),
        column(
            "f",
            quality=[
                {"metric": "missingValues", "arguments": {"missingValues": [None, "", "n/a"]}, "mustBe": 0},
                {
                    "metric": "invalidValues",
                    "arguments": {"validValues": [1, 2], "pattern": "."},
                    "mustBe": 0,
                    "id": "ok",
                },
                no_rows("{property} > {property} + 1", "odd"),
            ],
        ),
        quality=[
            {"metric": "duplicateValues", "arguments": {"properties": ["a", "b"]}, "mustBe": 0, "name": "pairs"},
            no_rows("c > 1 AND d < '2020'"),
            no_rows("c > 2"),
        ],
    )
    assert named(found) == {
        "id.required": ("required", None, "refuse"),
        "a.required": ("required", None, "refuse"),
        "a.unique": ("unique", None, "refuse"),
        "a.enum": ("enum", ("x", "y"), "refuse"),
        "b.minLength": ("minLength", 1, "refuse"),
        "b.maxLength": ("maxLength", 3, "refuse"),
        "b.pattern": ("pattern", "^a", "refuse"),
        "c.minimum": ("minimum", 0, "refuse"),
        "c.exclusiveMaximum": ("exclusiveMaximum", 9, "refuse"),
        "c.multipleOf": ("multipleOf", 3, "refuse"),
        "d.minimum": ("minimum", "2020-01-01", "refuse"),
        "old.enum": ("enum", (1,), "refuse"),
        "e.nullValues": ("required", None, "refuse"),
        "e.missingValues": ("missingValues", (), "refuse"),
        "f.missingValues": ("missingValues", ("", "n/a"), "refuse"),
        "ok": ("enum", (1, 2), "refuse"),
        "ok#2": ("pattern", ".", "refuse"),
        "odd": ("sql", '"f" > "f" + 1', "refuse"),
        "pairs": ("unique", None, "refuse"),
        "sql": ("sql", "c > 1 AND d < '2020'", "refuse"),
        "sql#2": ("sql", "c > 2", "refuse"),
    }
    assert [(each.name, each.line > 1) for each in found.in_test] == [("b.format", True)]


def test_an_action_is_of_a_rule_or_of_a_column_or_of_the_table() -> None:
    found = rules(
        column("id", primaryKey=True, required=True),
        column("a", "count", required=True),
        column("b", {"pattern": "refuse"}, logicalTypeOptions={"pattern": "x", "minLength": 1}),
        column("c", required=True, quality=[no_rows("c < 0", action="refuse")]),
        action="dead_letter",
    )
    assert {rule.name: rule.action for rule in found.at_write} == {
        "id.required": "dead_letter",
        "a.required": "count",
        "b.pattern": "refuse",
        "b.minLength": "dead_letter",
        "c.required": "dead_letter",
        "sql": "refuse",
    }
    counting = rules(column("id", primaryKey=True), action="count").at_write
    assert [rule.action for rule in counting] == ["refuse"], "a null in a key column is never stored"


@pytest.mark.parametrize(
    ("quality", "reason"),
    [
        ({"metric": "nullValues", "mustBeLessThan": 5}, "mustBe 0, and it says mustBeLessThan 5"),
        ({"metric": "nullValues"}, "and it says no threshold"),
        ({"metric": "nullValues", "mustBe": False}, "mustBe False"),
        ({"metric": "rowCount", "mustBe": 0}, "about the whole table"),
        ({"type": "sql", "query": "SELECT SUM(a) FROM {object}", "mustBe": 0}, "answers only SELECT COUNT"),
        ({"type": "sql", "query": "SELECT COUNT(*) FROM others WHERE a > 1", "mustBe": 0}, "answers only SELECT COUNT"),
        ({"type": "custom", "engine": "soda", "implementation": "x"}, "'soda' runs it"),
    ],
)
def test_a_check_that_no_write_can_answer_is_left_to_a_test_or_refused(quality: dict[str, Any], reason: str) -> None:
    found = rules(column("a", quality=[quality]))
    assert not found.at_write
    assert reason in found.in_test[0].reason
    with pytest.raises(Invalid, match="cannot be honoured") as refused:
        rules(column("a", quality=[{**quality, "customProperties": on_violation("refuse")}]))
    assert refused.value.message.startswith("line ")
    assert reason in refused.value.message


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([column("a", "drop")], "is refuse, dead_letter, count, not 'drop'"),
        ([column("id", "count", primaryKey=True)], "never stored, so they are not only counted"),
        ([column("a", {"pattern": "count"})], "the column has no such rule"),
        ([column("a", enum=["x"])], "is an object with a value"),
        ([column("a", quality=[{"metric": "invalidValues", "mustBe": 0}])], "without the argument validValues"),
        ([column("a", quality=[{"metric": "invalidValues", "arguments": 7, "mustBe": 0}])], "is an object, not 7"),
    ],
)
def test_a_rule_that_is_none_is_refused_with_its_line(columns: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(Invalid, match=r"^line \d+: ") as refused:
        rules(*columns)
    assert said in refused.value.message


def test_a_table_made_of_a_contract_takes_nulls_that_are_only_counted() -> None:
    text = {"logicalType": "string", "required": True}
    columns = (column("id", primaryKey=True, **text), column("a", "count", **text), column("b", **text))
    root = parse(document(columns))
    [wanted] = wanted_tables(root, "shop")
    assert [each.required for each in wanted.columns] == [True, False, True]


def test_a_rule_inside_a_column_is_named_and_left_to_a_test() -> None:
    inner = {"name": "zip", "logicalTypeOptions": {"pattern": "x"}}
    found = rules(column("place", logicalType="object", properties=[inner]))
    assert [each.reason for each in found.in_test] == ["a rule on a field inside a column is not checked at a write"]


def test_the_checks_of_the_document_run_elsewhere_too() -> None:
    text = document([column("a")], quality=[no_rows('"a" < 0')])
    assert "SELECT COUNT(*) FROM {object} WHERE" in text
    [rule] = Contract(text, "orders").rules.at_write
    assert rule.where == "'sql' (sql '\"a\" < 0')"
