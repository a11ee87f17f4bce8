"""Promises and budgets of a contract are read by unit, element and strictness, and a fault names its line."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.model.contract import document, promises
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.promises import Budget, Promise
from lakestore.model.table import Table, define

HEAD = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    physicalName: shop.orders
    properties: [{name: id, logicalType: integer}]
"""
TABLE = define("shop.orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key=["id"])


def contract(*lines: str, key: str = "slaProperties") -> Contract:
    made = Contract(HEAD + "\n".join([f"{key}:", *(f"  - {line}" for line in lines)]), "orders")
    made.check(TABLE)
    return made


def kinds(*lines: str) -> dict[str, float]:
    return {promise.kind: promise.value for promise in contract(*lines).promises}


def test_units_of_the_standard_are_read() -> None:
    assert kinds("{property: latency, value: 4, unit: d}") == {"freshness": 345_600}
    assert kinds("{property: freshness, value: '90', unit: Seconds}") == {"freshness": 90}
    assert kinds("{property: retention, value: 3, unit: y}") == {"retention": 3 * 365 * 86_400}
    assert kinds("{property: availability, value: 99.9, unit: percent}") == {"availability": 99.9}
    assert kinds("{property: availability, value: '99.9%'}") == {"availability": 99.9}
    assert kinds("{property: completeness, value: 0.5, unit: hours}") == {"completeness": 1_800}
    assert contract().promises == ()


def test_a_promise_of_another_table_and_a_property_for_readers_are_left_out() -> None:
    lines = (
        "{property: latency, value: 1, unit: m, element: payments.at}",
        "{property: latency, value: 5, unit: m, element: 'payments.at, orders.id'}",
        "{property: latency, value: 9, unit: m, element: shop.orders.id}",
        "{property: generalAvailability, value: '2022-05-12T09:30:10-08:00'}",
    )
    assert kinds(*lines) == {"freshness": 300}
    assert [entry.text("property") for entry in promises.unmeasured(contract(*lines).root)] == ["generalAvailability"]


def test_the_stricter_of_two_promises_counts() -> None:
    assert kinds("{property: latency, value: 1, unit: h}", "{property: freshness, value: 1, unit: m}") == {
        "freshness": 60
    }
    one, two = "{property: availability, value: 99}", "{property: availability, value: 99.5}"
    assert kinds(one, two) == kinds(two, one) == {"availability": 99.5}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{property: latency, unit: m}", "no value"),
        ("{property: latency, value: soon, unit: m}", "a number"),
        ("{property: latency, value: -1, unit: m}", "a number"),
        ("{property: latency, value: true, unit: m}", "a number"),
        ("{property: latency, value: .nan, unit: m}", "a number"),
        ("{property: latency, value: 1, unit: fortnight}", "fortnight"),
        ("{property: latency, value: 1}", "is a time"),
        ("{property: completeness, value: 99, unit: percent}", "how old the newest data may be"),
        ("{property: availability, value: 101, unit: percent}", "a percentage"),
        ("{property: availability, value: 1, unit: d}", "a percentage"),
    ],
)
def test_a_fault_names_its_line(line: str, fault: str) -> None:
    with pytest.raises(Invalid, match=rf"line 13: slaProperties\[1\].*{fault}"):
        contract("{property: frequency, value: 1, unit: d}", line)


def test_a_promise_is_met_up_to_its_value() -> None:
    freshness, availability = Promise("freshness", 60, 1), Promise("availability", 99, 1)
    assert [freshness.is_met(each) for each in (60, 60.1, None)] == [True, False, None]
    assert [availability.is_met(each) for each in (99, 98.9, None)] == [True, False, None]


def test_rows_that_expire_sooner_than_promised_are_refused() -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", tz="UTC"))])
    made = contract("{property: retention, value: 30, unit: d}")

    def table(age: str) -> Table:
        return define("shop.orders", columns, primary_key=["id"], ttl={"column": "at", "after": age})

    made.check(table("30d"))
    with pytest.raises(Invalid, match="line 12: the contract promises to keep rows for 30 days"):
        made.check(table("29d"))


def test_a_budget_is_read_and_its_faults_are_named() -> None:
    def budget(said: str) -> Budget:
        return contract(f"{{property: lakestore.budget, value: {said}}}", key="customProperties").budget

    assert contract().budget == Budget()
    whole = "{files: 500, deleteRatio: 0.2, snapshotAge: 12h, percent: 25}"
    assert budget(whole) == Budget(500, 0.2, 43_200, 25)
    assert budget("{files: 500}") == Budget(500)
    for said in (
        "{files: 0}",
        "{files: many}",
        "{deleteRatio: 1.5}",
        "{snapshotAge: 12}",
        "{percent: 101}",
        "{file: 1}",
    ):
        with pytest.raises(Invalid, match=r"^line 12: "):
            budget(said)


def test_the_properties_are_those_of_the_document() -> None:
    assert promises.BUDGET in document.PROPERTIES
