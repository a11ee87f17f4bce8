"""`lakestore contract`: a contract becomes tables and back, is checked with rows, compared and applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import lakestore as ls
from lakestore.cli import contract
from lakestore.cli.connect import CatalogPlace
from lakestore.cli.main import run_command
from lakestore.errors import Invalid
from lakestore.model.contract import document, standard

OTHERS = Path(__file__).resolve().parents[1] / "model" / "contracts"
ORDERS = """\
# The orders of the shop. This comment stays.
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
schema:
  - name: orders
    physicalName: shop.orders
    properties:
      - {name: id, logicalType: integer, primaryKey: true}
      - {name: note, logicalType: string}
      - {name: day, logicalType: date}
"""


class Shell:
    """`lakestore contract` against a server in this process."""

    def __init__(self, lake: ls.Lake, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.lake, self.path, self._capsys = lake, path, capsys

    def __call__(self, verb: str, text: str | None, *arguments: str, code: int = 0) -> str:
        if text is not None:
            self.path.write_text(text)
            arguments = (str(self.path), *arguments)
        assert run_command(["contract", verb, *arguments]) == code
        said = self._capsys.readouterr()
        return said.err if code == 1 else said.out


@pytest.fixture(name="shell")
def _shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    place = CatalogPlace("http", "lake:7341", True, "2026-11-28T00:00:00Z")
    with ls.open(tmp_path / "data") as lake:
        monkeypatch.setattr(contract, "open_lake", lambda server: nullcontext(lake))
        monkeypatch.setattr(contract, "catalog_of", lambda server: place)
        yield Shell(lake, tmp_path / "orders of mine.yaml", capsys)


def test_a_contract_makes_its_table_once_and_its_text_comes_back(shell: Shell) -> None:
    said = shell("diff", ORDERS, code=contract.FOUND)
    assert "shop.orders: new table, primary key id, 4 buckets" in said
    assert "+ contract: orders, 12 lines" in said
    assert shell.lake.tables() == []
    assert "1 created" in shell("apply", ORDERS, "--why", "the first")
    table = shell.lake.table("shop.orders")
    assert table.contract is not None
    assert (table.contract.version, table.contract.why, table.definition.schema_id) == (1, "the first", 0)
    assert shell("export", None, "shop.orders") == ORDERS
    assert table.contract_text == ORDERS
    assert "nothing to do" in shell("diff", ORDERS)
    assert "nothing to do" in shell("apply", ORDERS)


def test_a_changed_contract_alters_the_table_in_one_commit(shell: Shell) -> None:
    shell("apply", ORDERS)
    changed = ORDERS.replace("{name: note, logicalType: string}", "{name: amount, logicalType: integer}")
    said = shell("diff", changed, code=contract.FOUND)
    assert "- note string, with what it holds" in said
    assert "~ contract: version 1 → 2" in said
    assert "-         - {name: note, logicalType: string}" in said
    assert "needs --allow-drop shop.orders.note" in said
    assert "--allow-drop shop.orders.note" in shell("apply", changed, code=1)
    [told] = json.loads(shell("apply", changed, "--allow-drop", "shop.orders.note", "--json"))
    assert [step["step"] for step in told["steps"]] == ["drop", "add", "contract"]
    definition = shell.lake.table("shop.orders").definition
    assert definition.contract is not None
    assert (definition.contract.version, definition.schema_id) == (2, 1)


def test_columns_that_the_contract_adds_are_no_difference(shell: Shell) -> None:
    times = (
        "customProperties: [{property: lakestore.eventTime, value: {from: event, column: at, zone: UTC, keep: true}}]\n"
    )
    text = ORDERS.replace("{name: day, logicalType: date}", "{name: at, logicalType: timestamp}") + times
    shell("apply", text)
    columns = [column.name for column in shell.lake.table("shop.orders").definition.columns]
    assert len(columns) > 3
    assert "nothing to do" in shell("diff", text)
    more = text.replace("{name: at,", "{name: more, logicalType: string}\n      - {name: at,")
    shell("apply", more)
    assert shell.lake.table("shop.orders").schema.names[:4] == ["id", "note", "more", "at"]


def test_a_table_without_a_contract_is_exported_and_applied_without_a_change(shell: Shell) -> None:
    made = shell.lake.create_table(
        "shop.orders",
        pa.schema(
            [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("more", pa.map_(pa.string(), pa.int8()))]
        ),
        primary_key=["id"],
        lake={"partition_by": ["day(at)"]},
        retention="7d",
    )
    text = shell("export", None, "shop.orders", "--kafka", "broker:9092")
    assert standard.faults(document.parse(text)) == []
    servers = yaml.safe_load(text)["servers"]
    assert [(s["type"], s.get("catalogUrl"), s.get("warehouse"), s.get("host")) for s in servers] == [
        ("iceberg", "http://lake:7341/iceberg", "now", None),
        ("iceberg", "http://lake:7341/iceberg", "lake", None),
        ("kafka", None, None, "broker:9092"),
    ]
    said = shell("diff", text, code=contract.FOUND)
    assert said.splitlines() == [
        "shop.orders: schema version 0 → 1",
        f"  + contract: orders, {len(text.splitlines())} lines",
        "1 to alter",
    ]
    shell("apply", text)
    assert shell.lake.table("shop.orders").definition.columns == made.definition.columns


def test_tables_yaml_becomes_a_contract_and_a_contract_tables_yaml(shell: Shell, tmp_path: Path) -> None:
    said = shell("import", ORDERS)
    assert yaml.safe_load(said)["tables"][0]["primary_key"] == ["id"]
    (tmp_path / "tables.yaml").write_text(said)
    text = shell("export", None, "-f", str(tmp_path / "tables.yaml"))
    assert shell("import", text).replace("primary_key", "").count("shop.orders") == 1
    assert yaml.safe_load(shell("import", text))["tables"][0]["columns"] == yaml.safe_load(said)["tables"][0]["columns"]


def test_a_contract_of_somebody_else_is_applied_or_its_line_is_named(shell: Shell) -> None:
    full = (OTHERS / "full-example.odcs.yaml").read_text()
    assert "0 faults; the contract describes pay.tbl_1, pay.receivers_master" in shell(
        "check", full, "--database", "pay"
    )
    assert "line 40: schema[0] tells no database" in shell("check", full, code=contract.FOUND)
    assert "2 created" in shell("apply", full, "--database", "pay")
    assert shell("export", None, "pay.tbl_1") == full
    fields = (OTHERS / "all-new-fields.odcs.yaml").read_text()
    said = shell("check", fields, code=contract.FOUND)
    assert "note: line 96: schema[0].properties[0] is a measure and no column of the table" in said
    assert "fault: line 145: schema[1] has no properties" in said
    assert "line 145" in shell("apply", fields, code=1)
    shell("apply", fields, "--table", "turnover")
    assert [table.name for table in shell.lake.tables() if not table.name.startswith("lakestore.")] == [
        "pay.receivers_master",
        "pay.tbl_1",
        "sales.metrics_turnover",
    ]
    web = (OTHERS / "web-shop-orders.odcs.yaml").read_text()
    shell("check", web, "--database", "web")
    shell("apply", web, "--database", "web")


def test_a_sample_of_rows_tells_repeated_keys_and_nulls(shell: Shell, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2, 2, None, 1, None]), "note": ["a", None, "b", "c", "d", "e"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    said = shell("check", ORDERS, "--rows", str(tmp_path / "rows.parquet"), code=contract.FOUND)
    assert "fault: 2 of 6 rows break the rule 'id.required' of line 10; the first is row 4: id is null" in said
    assert "note: 2 of 6 rows (33.3 %) repeat a key (id)" in said
    (tmp_path / "good.jsonl").write_text('{"id": 1, "day": "2026-11-28"}\n{"id": 2}\n')
    said = shell("check", ORDERS, "--rows", str(tmp_path / "good.jsonl"))
    assert "0 of 2 rows (0.0 %) repeat a key" in said
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n{"id": "x"}\n')
    [sample] = json.loads(shell("check", ORDERS, "--rows", str(tmp_path / "bad.jsonl"), "--json", code=contract.FOUND))[
        "samples"
    ]
    assert sample["refused"] == 1
    assert sample["first_refused"].startswith("line 2")


def test_faults_are_told_with_lines_and_nothing_is_made(shell: Shell) -> None:
    text = ORDERS.replace("logicalType: date", "logicalType: array, Required: true").replace(
        "version: 1.0.0", "version: '1'"
    )
    said = shell("check", text, code=contract.FOUND)
    assert "fault: line 12: schema[0].properties[2] says 'Required'" in said
    assert "fault: line 12: schema[0].properties[2] is an array without items" in said
    assert "line 12" in shell("apply", text, code=1)
    assert "line 3: kind is a text" in shell(
        "check", ORDERS.replace("kind: DataContract", "kind: 7"), code=contract.FOUND
    )
    assert shell.lake.tables() == []


def test_contracts_in_python(shell: Shell) -> None:
    [change] = shell.lake.apply_contract(ORDERS, why="by a program", check_only=True)
    assert (change.action, shell.lake.tables()) == ("create", [])
    shell.lake.apply_contract(ORDERS, why="by a program")
    table = shell.lake.table("shop.orders")
    assert table.contract is not None
    assert table.contract.why == "by a program"
    with pytest.raises(Invalid, match=r"--allow-drop shop.orders.day"):
        shell.lake.apply_contract(ORDERS.replace("      - {name: day, logicalType: date}\n", ""))
    [change] = shell.lake.apply_contract(ORDERS)
    assert change.action == "nothing"


MEASURED = """\
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
schema:
  - name: orders
    physicalName: shop.orders
    quality:
      - {id: enough, metric: rowCount, mustBeGreaterThan: 2}
      - {id: spent, type: sql, query: "SELECT sum(amount) FROM ${object}", mustBeBetween: [1, 100]}
      - {id: named, type: sql, query: SELECT count(*) FROM orders WHERE note = 'a', mustBeLessThan: 9}
      - {id: elsewhere, type: custom, engine: soda, implementation: x}
      - {id: torn, type: sql, query: SELECT nothing FROM orders, mustBe: 1}
    properties:
      - {name: id, logicalType: integer, primaryKey: true}
      - {name: note, logicalType: string, enum: [{value: a}, {value: b}], unique: true}
      - name: amount
        logicalType: integer
        logicalTypeOptions: {minimum: 0}
        quality: [{id: few-nulls, metric: nullValues, mustBeLessThan: 30, unit: percent}]
"""
ROWS = [
    {"id": 1, "note": "a", "amount": 5},
    {"id": 2, "note": "a", "amount": -1},
    {"id": 3, "note": "z", "amount": None},
]


def test_checks_are_measured_with_rule_row_and_column(shell: Shell) -> None:
    schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("amount", pa.int64())])
    orders = shell.lake.create_table("shop.orders", schema, primary_key=["id"])
    orders.upsert(ROWS)
    told = json.loads(shell("test", MEASURED, "--json", code=contract.FOUND))["shop.orders"]
    found = {measure["rule"]: (measure["state"], measure["value"]) for measure in told}
    assert found == {
        "enough": ("kept", 3),
        "spent": ("kept", 4.0),
        "named": ("kept", 2),
        "elsewhere": ("not measured", None),
        "torn": ("not measured", None),
        "id.required": ("kept", 0),
        "note.enum": ("broken", 1),
        "note.unique": ("broken", 1),
        "amount.minimum": ("broken", 1),
        "few-nulls": ("broken", pytest.approx(100 / 3)),
    }
    assert [measure["line"] for measure in told] == sorted(measure["line"] for measure in told)
    said = shell("test", MEASURED, code=contract.FOUND)
    assert "broken: line 19, amount.minimum: 1, expected 0\n  id = 2, amount = -1\n" in said
    assert "broken: line 16, note.enum: 1, expected 0\n  id = 3, note = 'z'\n" in said
    assert "shop.orders: 4 broken, 4 kept, 2 not measured" in said


def test_a_stored_contract_is_measured_at_the_present_names_of_its_columns(shell: Shell) -> None:
    shell("apply", MEASURED)
    orders = shell.lake.table("shop.orders")
    orders.alter(rename={"amount": "total"})
    orders.upsert([{"id": number, "note": note, "total": 1} for number, note in enumerate("ab")])
    said = shell("test", None, "shop.orders", code=contract.FOUND)
    assert "broken: line 9, enough: 2, expected more than 2" in said
    assert "kept: line 19, amount.minimum: 0" in said
    assert "1 broken" in said
    free = shell.lake.create_table("shop.free", pa.schema([("v", pa.int64())]))
    with pytest.raises(Invalid, match=r"table shop.free has no contract"):
        free.test_contract()
    assert "has no contract" in shell("test", None, "shop.free", code=1)
    with pytest.raises(Invalid, match=r"does not describe the table shop.free"):
        free.test_contract(MEASURED)
