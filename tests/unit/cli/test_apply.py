"""`lakestore apply`: tables become what a file says, once, and nothing is lost unless it is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.cli import apply as apply_command
from lakestore.cli.main import run_command
from lakestore.errors import Invalid
from lakestore.evolution import SetOptions
from lakestore.model import table_file
from lakestore.model.alteration import apply_steps
from lakestore.model.retention import Retention
from tests.support.seeds import examples

SHOP = Path(__file__).resolve().parents[3] / "examples" / "shop" / "tables.yaml"
FILE = """
tables:
  - name: shop.orders
    columns:
      - {name: id, type: int64}
      - {name: customer, type: string, required: true}
      - {name: n, type: int16}
      - {name: day, type: date}
    primary_key: [id]
    buckets: 2
    lake: {freshness: 10s, partition_by: [month(day)], format_version: 3}
  - name: shop.events
    columns:
      - {name: what, type: string, default: none}
"""


class Shell:
    """`lakestore apply` of a file against a server in this process."""

    def __init__(self, lake: ls.Lake, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.lake, self.path, self._capsys = lake, path, capsys

    def __call__(self, text: str, *arguments: str, code: int = 0) -> str:
        self.path.write_text(text)
        assert run_command(["apply", "-f", str(self.path), *arguments]) == code
        said = self._capsys.readouterr()
        return said.err if code == 1 else said.out


@pytest.fixture(name="shell")
def _shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    with ls.open(tmp_path / "data") as lake:
        monkeypatch.setattr(apply_command, "open_lake", lambda server: nullcontext(lake))
        yield Shell(lake, tmp_path / "tables.yaml", capsys)


@contextmanager
def unchanged(lake: ls.Lake) -> Iterator[None]:
    before = [table.definition for table in lake.tables()]
    yield
    assert [table.definition for table in lake.tables()] == before


def test_a_file_is_applied_once(shell: Shell) -> None:
    with unchanged(shell.lake):
        said = shell(FILE, "--plan", code=apply_command.PENDING)
    assert "shop.orders: new table, primary key id, 2 buckets\n  + id int64, required\n" in said
    assert "  + what string, default 'none'\n2 to create\n" in said
    assert shell(FILE).endswith("2 created\n")
    table = shell.lake.table("shop.events")
    assert (table.definition.column("what").default, table.definition.buckets) == ("none", 4)
    with unchanged(shell.lake):
        assert shell(FILE, "--plan") == "shop.orders: nothing to do\nshop.events: nothing to do\nnothing to do\n"
        assert shell(FILE).endswith("nothing to do\n")


def test_versions_within_a_column_are_applied_once_in_each_spelling_and_follow_its_renames(shell: Shell) -> None:
    def file(merge: str, source: str = "{name: source, type: string}") -> str:
        columns = f"[{{name: id, type: int64}}, {{name: at, type: int64}}, {source}]"
        return f"tables: [{{name: d.t, primary_key: [id], columns: {columns}, merge: {merge}}}]"

    assert shell(file('"versioned(at, within source)"')).endswith("1 created\n")
    assert str(shell.lake.table("d.t").definition.merge) == "versioned(at, within source)"
    with unchanged(shell.lake):
        assert shell(file("{versioned: at, within: source}")).endswith("nothing to do\n")
        said = shell(file("versioned(at)"), code=1)
        assert "merge is versioned(at, within source) and cannot become versioned(at)" in said
    renamed = file("{versioned: at, within: from_}", "{name: from_, type: string, renamed_from: source}")
    assert shell(renamed).endswith("1 altered\n")
    assert str(shell.lake.table("d.t").definition.merge) == "versioned(at, within from_)"


def test_the_shop_is_made_by_apply(shell: Shell) -> None:
    assert shell(SHOP.read_text()).endswith("2 created\n")
    assert shell.lake.table("shop.orders").definition.lake.partition_by == ("status",)


def test_a_plan_reads_as_a_person_wants_it(shell: Shell) -> None:
    shell(FILE)
    orders = shell.lake.table("shop.orders")
    orders.upsert([{"id": 1, "customer": "c", "n": 5, "day": None}])
    text = FILE.replace("{name: n, type: int16}", "{name: note, type: string, default: x}")
    text = text.replace(
        "{name: customer, type: string, required: true}", "{name: client, type: string, renamed_from: customer}"
    )
    text = text.replace("freshness: 10s", "freshness: 30s").replace("default: none", "default: some")
    with unchanged(shell.lake):
        said = shell(text, "--plan", code=apply_command.PENDING)
        assert said == (
            "shop.orders: schema version 0 → 1\n"
            "  ~ customer: called client from now on\n"
            "  ~ client: may be null from now on\n"
            "  + note string, default 'x', after client\n"
            "  - n int16, with what it holds\n"
            "  ~ freshness: 10s → 30s\n"
            "    needs --allow-drop shop.orders.n\n"
            "shop.events: schema version 0 → 1\n"
            "  ~ what: default 'some' for new rows\n"
            "2 to alter\n"
        )
        assert "to do so add --allow-drop shop.orders.n" in shell(text, code=1)
        assert "--allow-drop shop.orders.n" in shell(text, "--allow-drop", "shop.orders.day", code=1)
    assert shell(text, "--allow-drop", "shop.orders.n").endswith("2 altered\n")
    assert shell(text, "--allow-drop", "shop.orders.n").endswith("nothing to do\n")
    assert orders.scan().to_arrow().to_pylist() == [{"id": 1, "client": "c", "note": "x", "day": None}]


def test_widening_order_and_json(shell: Shell) -> None:
    shell(FILE)
    text = FILE.replace("      - {name: day, type: date}\n", "").replace("type: int16", "type: int32")
    text = text.replace("columns:\n", "columns:\n      - {name: day, type: date}\n", 1)
    said = shell(text, "--plan", code=apply_command.PENDING)
    assert "  ~ n: int16 → int32\n  ~ order: day, id, customer, n\n" in said
    [orders, events] = json.loads(shell(text, "--plan", "--json", code=apply_command.PENDING))
    assert (orders["action"], events["action"]) == ("alter", "nothing")
    shell(text)
    assert shell.lake.table("shop.orders").schema.names == ["day", "id", "customer", "n"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("primary_key: [id]", "primary_key: [id, customer]"), "primary_key is [id] and cannot become [id, customer]"),
        (("    primary_key: [id]\n", ""), "primary_key is [id] and cannot become []: make a table of another name"),
        (("buckets: 2", "buckets: 3"), "buckets is 2 and cannot become 3"),
        (("month(day)", "month(n)"), "partition field 'month(n)' has no values that engines can store"),
        (("format_version: 3", "format_version: 2"), "lake.format_version is 3 and cannot become 2"),
        (("type: int16", "type: string"), "column 'n' is int16, which cannot be widened to string"),
        (("type: int16}", "type: int16, required: true}"), "'n' is optional and cannot become"),
        (("{name: id, type: int64}", "{name: key, type: int64}"), "'id' is in the primary key and cannot be dropped"),
        (("type: int16", "type: int17"), "type 'int17'"),
        (("default: none", "default: 5"), "column 'what': the default 5 is no string"),
        (("buckets: 2", "bucket: 2"), "says 'bucket', which is not known"),
        (("type: int16", "typ: int16"), "a column has a name and a type"),
        (("freshness: 10s", "fresh: 10s"), "lake option 'fresh' is not known"),
        (("shop.events", "shop.orders"), "says table shop.orders twice"),
        (("tables:", "- tables:"), "tables.yaml"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_first_change(shell: Shell, change: tuple[str, str], told: str) -> None:
    shell(FILE)
    new_first = "tables:\n  - {name: shop.first, columns: [{name: a, type: int8}]}\n"
    assert change[0] in FILE
    with unchanged(shell.lake):
        assert told in shell(FILE.replace(*change).replace("tables:\n", new_first, 1), code=1)


def test_what_is_not_said_of_an_old_table_stays(shell: Shell) -> None:
    shell(FILE)
    text = FILE.replace("    buckets: 2\n", "").replace(", partition_by: [month(day)], format_version: 3", "")
    assert shell(text).endswith("nothing to do\n")


def test_the_plan_of_a_new_table_says_what_else_it_is_told(shell: Shell) -> None:
    said = shell(FILE + "    retention: 7d\n", "--plan", code=apply_command.PENDING)
    for line in ("lake freshness: 10s", "lake partition_by: month(day)", "lake format_version: 3", "retention: 7d"):
        assert f"  + {line}\n" in said


def test_retention_is_said_changed_and_taken_back(shell: Shell) -> None:
    kept = FILE + "    retention: 7d\n"
    shell(FILE)
    assert "shop.events: options\n  ~ retention: all → 7d\n" in shell(kept, "--plan", code=apply_command.PENDING)
    shell(kept)
    assert shell(kept).endswith("nothing to do\n")
    assert shell(FILE).endswith("nothing to do\n")
    assert shell.lake.table("shop.events").definition.retention is not None
    shell(FILE + "    retention: null\n")
    events = shell.lake.table("shop.events")
    assert events.definition.retention is None
    assert events.alter(retention={"bytes": "1GB"}).definition.retention == Retention(bytes=10**9)
    assert events.alter(SetOptions(retention=Retention(age_seconds=60))).definition.retention == Retention(60)
    assert events.alter(retention=None).definition.schema_id == 0


def test_what_only_the_server_knows_is_asked_before_the_first_change(shell: Shell) -> None:
    shell(FILE)
    text = FILE.replace("default: none}", "default: other}").replace(
        "{name: n, type: int16}", "{name: n, type: int16}\n      - {name: day_month, type: int8}"
    )
    with unchanged(shell.lake):
        assert "column 'day_month' has the name of a field of the lake's partitioning" in shell(text, code=1)


NAMES = ["a", "b", "c", "d"]
TYPES = ["int8", "int32", "int64", "string"]
COLUMN = st.fixed_dictionaries(
    {"name": st.sampled_from(NAMES), "type": st.sampled_from(TYPES)},
    optional={"renamed_from": st.sampled_from(NAMES), "default": st.none()},
)
COLUMNS = st.lists(COLUMN, min_size=1, max_size=4, unique_by=lambda column: column["name"])


@settings(max_examples=examples(60))
@given(COLUMNS, COLUMNS)
def test_the_steps_lead_to_the_file_and_then_there_are_none(
    old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    def wanted(columns: list[dict[str, Any]]) -> table_file.WantedTable:
        [table] = table_file.parse(yaml.safe_dump({"tables": [{"name": "a.b", "columns": columns}]}), "t.yaml")
        return table

    try:
        start = wanted(old).definition()
        reached = apply_steps(start, table_file.steps_between(start, wanted(new)))
    except Invalid:
        return
    assert [(c.name, c.type) for c in reached.columns] == [(c["name"], c["type"]) for c in new]
    assert table_file.steps_between(reached, wanted(new)) == []


def test_an_unknown_word_of_a_file_is_told_with_its_line_and_the_word_that_was_meant() -> None:
    text = "tables:\n  - name: a.a\n    columns: [{name: id, type: int64}]\n  - name: a.b\n"
    with pytest.raises(Invalid) as refused:
        table_file.parse(f"{text}    primry_key: [id]\n    columns: [{{name: id, type: int64}}]\n", "t.yaml")
    assert refused.value.message == (
        "t.yaml, line 4: table a.b says 'primry_key', which is not known: did you mean primary_key?"
    )
    (_, table) = table_file.parse(f"{text}    primary_key: [idd]\n    columns: [{{name: id, type: int46}}]\n", "t.yaml")
    assert table.place == "t.yaml, line 4"
    with pytest.raises(Invalid, match=r"type 'int46' is not known: did you mean int64\?"):
        table.definition()
