"""The fate of deletes by a contract: applied, ignored, or dead letters; all doors commit by the same option."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change_to
from lakestore.errors import Invalid, Violated
from lakestore.evolution import SetContract, SetOptions
from lakestore.model.contract import deletes
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.contract_texts import column, document
from tests.support.served import Served

NAME = "shop.orders"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string())])
COLUMNS = (column("id", primaryKey=True, required=True), column("who"))
VALUES: dict[str, Any] = {"tombstone": "dead_letter", "eraseWithin": "7d"}


def text(**said: Any) -> str:
    """A contract with this section."""
    made = json.loads(document(COLUMNS))
    made["schema"][0]["customProperties"] = [{"property": "lakestore.deletes", "value": said}]
    return json.dumps(made, indent=1)


def table_with(served: Served, **said: Any) -> ls.Table:
    """A table of two rows under a contract."""
    table = served.lake.create_table(NAME, SCHEMA, primary_key=["id"])
    table.upsert([{"id": 1, "who": "ann"}, {"id": 2, "who": "bob é"}])
    return table.alter(SetContract(text(**said), "orders", "test"))


def ids(table: ls.Table) -> list[int]:
    """The live keys."""
    return sorted(table.scan().to_arrow().column("id").to_pylist())


@pytest.mark.parametrize(("tombstone", "left"), [("delete", [2]), ("ignore", [1, 2]), ("dead_letter", [1, 2])])
def test_a_delete_is_what_the_contract_says(served: Served, tombstone: str, left: list[int]) -> None:
    table = table_with(served, tombstone=tombstone)
    token = table.delete([{"id": 1}])
    assert ids(table) == left
    assert token.result.dead_letters == (tombstone == "dead_letter")
    served.restart()
    assert served.lake.table(NAME).definition.deletes == ("allow" if tombstone == "delete" else tombstone)


def test_a_delete_as_a_dead_letter_keeps_its_key_and_a_retry_makes_no_second_one(served: Served) -> None:
    table = table_with(served, tombstone="dead_letter")
    for _ in range(2):
        table.delete([{"id": 1}, {"id": 7}])
    letters = served.lake.table(f"{NAME}__dlq").scan().to_arrow().to_pylist()
    assert sorted(letter["value"] for letter in letters) == [b'{"id":1}', b'{"id":1}', b'{"id":7}', b'{"id":7}']
    assert {(letter["code"], letter["stage"]) for letter in letters} == {("tombstone", "contract")}
    assert letters[0]["headers"] == [{"name": "lakestore-change", "value": b"delete"}]
    with pytest.raises(Invalid, match="deletes='dead_letter': apply a contract with tombstone: delete first"):
        table.delete(where="id = 1")


def test_a_bridge_gets_the_rows_instead(served: Served) -> None:
    table = table_with(served, tombstone="dead_letter")
    batch = pa.RecordBatch.from_pylist([{"id": 1, "who": None}], table.definition.nullable_schema)
    change = change_to(table.definition, pb.DELETE, [batch])
    change.refuse_dead_letters = True
    with pytest.raises(Violated) as refused:
        served.lake.transport.commit(pb.CommitRequest(changes=[change]))
    assert [(each.rule, list(each.rows)) for each in refused.value.changes] == [("tombstone", [0])]
    assert ids(table) == [1, 2]


def test_the_option_cannot_differ_from_the_contract(served: Served) -> None:
    table = table_with(served, tombstone="ignore")
    with pytest.raises(Invalid, match="by its contract"):
        table.alter(SetOptions(deletes="allow"))
    table.alter(SetContract(text(tombstone="delete"), "orders", "again"))
    assert table.definition.deletes == "allow"


def test_a_deadline_of_the_contract_is_that_of_an_erasure(served: Served) -> None:
    table = table_with(served, **VALUES)
    assert deletes.of_table(table.definition).erase_within_seconds == 7 * 86_400
    asked = table.erase(where="id = 1")
    assert (asked.asked_at[:10], asked.until[:10]) == ("2026-09-21", "2026-09-28")
    audit = served.lake.table("lakestore.audit").scan().to_arrow().to_pylist()
    said = [(row["action"], row["outcome"], asked.id in row["what"]) for row in audit if row["action"] == "erase"]
    assert said == [("erase", "asked", True)]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"tombstone": "drop"}, r"line \d+.*one of delete, ignore, dead_letter"),
        ({"eraseWithin": "soon"}, r"line \d+.*such as 30d"),
        ({"eraseWithin": "400d"}, r"line \d+.*366 days"),
        ({"within": "3d"}, r"line \d+"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(served: Served, said: dict[str, Any], error: str) -> None:
    with pytest.raises(Invalid, match=error):
        table_with(served, **said)


def test_a_log_table_has_no_tombstones(served: Served) -> None:
    table = served.lake.create_table(NAME, SCHEMA)
    with pytest.raises(Invalid, match="log table"):
        table.alter(SetContract(text(tombstone="ignore").replace('"primaryKey": true', '"unique": false'), "orders"))
