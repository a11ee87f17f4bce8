"""Options of primary-key tables in every face: definition, alteration, file, command line, wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli import apply as apply_command
from lakestore.cli import tables as look_commands
from lakestore.cli.main import run_command
from lakestore.errors import Invalid
from lakestore.evolution import DropColumn, RenameColumn, SetOptions, Step, from_json, to_json
from lakestore.model import merge_engines, table_file, ttl
from lakestore.model.alteration import apply_steps
from lakestore.model.merge_engines import Merge, aggregate, versioned
from lakestore.model.table import Table, define
from lakestore.model.ttl import TOMBSTONE_SECONDS, Ttl
from lakestore.v1 import lakestore_pb2 as pb

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("n", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("blob", pa.binary()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("ok", pa.bool_()),
    ]
)
FUNCTIONS = {"n": "distinct_count(blob)", "blob": "bitmap", "name": "string_list(;)", "ok": "bool_or"}


def made(**options: Any) -> Table:
    return define("t.k", SCHEMA, primary_key=["id"], **options)


@pytest.fixture(name="lake")
def _lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ls.Lake]:
    with ls.open(tmp_path / "data") as lake:
        for module in (apply_command, look_commands):
            monkeypatch.setattr(module, "open_lake", lambda server: nullcontext(lake))
        yield lake


@pytest.mark.parametrize(
    ("said", "engine"),
    [
        ("upsert", Merge()),
        ("partial", Merge("partial")),
        ("first_row", Merge("first_row")),
        ("versioned(at)", versioned("at")),
        (" versioned( at ) ", versioned("at")),
        ({"versioned": "at"}, versioned("at")),
        ({"aggregate": {"n": "sum"}}, aggregate({"n": "sum"})),
        (aggregate(FUNCTIONS), aggregate(FUNCTIONS)),
    ],
)
def test_engines_are_read_as_users_write_them(said: Any, engine: Merge) -> None:
    assert merge_engines.parse_merge(said) == engine
    assert merge_engines.parse_merge(json.loads(json.dumps(engine.as_data(), sort_keys=True))) == engine


@pytest.mark.parametrize("said", ["sum", {"total": 3}, None])
def test_functions_that_are_no_texts_by_column_are_refused(said: Any) -> None:
    with pytest.raises(Invalid, match="aggregate takes a function for each column"):
        aggregate(said)
    with pytest.raises(Invalid, match="aggregate takes a function for each column"):
        merge_engines.parse_merge({"aggregate": said})


@pytest.mark.parametrize("name", ["primary_key", "bucket_key"])
def test_a_text_for_a_list_of_key_columns_is_refused(name: str) -> None:
    keys: dict[str, Any] = {"primary_key": ["id"]} | {name: "id"}
    with pytest.raises(Invalid, match=f"{name}= is a list of column names, not the text 'id'"):
        define("t.x", SCHEMA, **keys)


@pytest.mark.parametrize("said", ["", "versioned", "replace", "versioned()", {"a": 1, "b": 2}, 3, None, ["upsert"]])
def test_what_is_no_engine_is_refused(said: Any) -> None:
    with pytest.raises(Invalid, match="is not known: say 'upsert'"):
        merge_engines.parse_merge(said)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("versioned(gone)", "names column 'gone', which is not there"),
        ("versioned(id)", "in the primary key and cannot be merged"),
        ("versioned(name)", "version column 'name' is string"),
        (aggregate({}), "names a function for at least one column"),
        (aggregate({"name": "sum"}), "column 'name' is string, and sum takes"),
        (aggregate({"n": "distinct_count(name)"}), "which is not a bitmap column"),
        ({"aggregate": {"n": "median"}}, "'median' is not known"),
        ({"aggregate": {"n": "sum(1)"}}, "takes no argument"),
        ({"aggregate": {"n": "distinct_count"}}, "names the bitmap column"),
    ],
)
def test_what_an_engine_cannot_work_on_is_refused_by_column(said: Any, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(merge=said)
    assert told in refused.value.message


def test_partial_rows_need_optional_columns_and_log_tables_have_no_engine() -> None:
    needed = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(Invalid, match="'n' is required, which partial rows need not bring"):
        define("t.k", needed, primary_key=["id"], merge="partial")
    for options in ({"merge": "partial"}, {"deletes": "ignore"}, {"skip_unchanged": True}):
        with pytest.raises(Invalid, match=r"log table has no merge engine|are for primary-key tables"):
            define("t.l", needed, **options)
    with pytest.raises(Invalid, match="a log table has retention="):
        define("t.l", SCHEMA, ttl={"column": "at", "after": "1d"})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"column": "at"}, "is not {'column'"),
        ({"column": 3, "after": "1d"}, "is not {'column'"),
        ("30d", "is not {'column'"),
        ({"column": "at", "after": "soon"}, "ttl after 'soon' is not a span of time"),
        ({"column": "at", "after": {"bytes": 3}}, "is not a span of time"),
        ({"column": "at", "after": True}, "is not a span of time"),
        ({"column": "at", "after": 0}, "above zero"),
        ({"column": "at", "after": 10**15}, "up to 3660000d"),
        ({"column": "name", "after": "1d"}, "is string: take a timestamp or a date"),
        ({"column": "gone", "after": "1d"}, "is not there"),
    ],
)
def test_what_is_no_ttl_is_refused(said: Any, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(ttl=said)
    assert told in refused.value.message


def test_a_span_is_said_in_its_largest_unit() -> None:
    parsed = ttl.parse_ttl({"column": "at", "after": "36h"})
    assert str(parsed) == "36h after at"
    assert [ttl.span(amount) for amount in (0, 59, 3600, TOMBSTONE_SECONDS)] == ["0s", "59s", "1h", "7d"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"merge": aggregate(FUNCTIONS)},
        {"merge": "versioned(at)", "tombstone_ttl": "90s"},
        {"deletes": "refuse", "skip_unchanged": True, "ttl": {"column": "at", "after": "30d"}},
    ],
)
def test_a_definition_survives_its_json(options: dict[str, Any]) -> None:
    table = made(**options)
    assert Table.from_json(table.to_json()) == table


def test_a_definition_of_before_has_what_always_held() -> None:
    old = made(merge="partial", deletes="ignore", skip_unchanged=True, ttl={"column": "at", "after": 5}).as_dict()
    for name in ("deletes", "skip_unchanged", "ttl"):
        del old[name]
    opened = Table.from_dict({**old, "merge": "upsert"})
    assert opened == made()
    assert (opened.deletes, opened.skip_unchanged, opened.ttl) == ("allow", False, None)
    assert opened.tombstone_seconds == TOMBSTONE_SECONDS
    assert set(made().as_dict()) == {*old, "merge"}


def test_renames_follow_into_engine_and_ttl() -> None:
    table = made(merge=aggregate(FUNCTIONS), ttl={"column": "at", "after": "1d"})
    renamed = apply_steps(table, [RenameColumn("blob", "users"), RenameColumn("n", "z"), RenameColumn("at", "seen")])
    assert str(renamed.merge) == "aggregate(name: string_list(;), ok: bool_or, users: bitmap, z: distinct_count(users))"
    assert renamed.ttl == Ttl("seen", 86_400)
    assert Table.from_json(renamed.to_json()) == renamed
    assert apply_steps(made(merge="versioned(at)"), [RenameColumn("at", "v")]).merge == versioned("v")


@pytest.mark.parametrize(
    ("options", "column", "use"),
    [
        ({"merge": "versioned(at)"}, "at", "merge engine"),
        ({"merge": aggregate(FUNCTIONS)}, "ok", "merge engine"),
        ({"merge": aggregate(FUNCTIONS)}, "blob", "merge engine"),
        ({"ttl": {"column": "at", "after": "1d"}}, "at", "ttl"),
    ],
)
def test_a_column_that_engine_or_ttl_use_is_not_dropped(options: dict[str, Any], column: str, use: str) -> None:
    with pytest.raises(Invalid, match=f"column '{column}' is in the {use} and cannot be dropped"):
        apply_steps(made(**options), [DropColumn(column)])


def test_options_are_altered_and_make_no_version(lake: ls.Lake) -> None:
    table = lake.create_table("t.k", SCHEMA, primary_key=["id"], merge="versioned(at)")
    table.alter(deletes="ignore", skip_unchanged=True, ttl={"column": "at", "after": "1h"}, tombstone_ttl="2d")
    found = lake.table("t.k").definition
    assert (found.deletes, found.skip_unchanged, found.ttl) == ("ignore", True, Ttl("at", 3600))
    assert (found.tombstone_seconds, found.schema_id) == (172_800, 0)
    assert table.alter(ttl=None, lake={"freshness": "9s"}).definition.ttl is None
    assert table.definition.deletes == "ignore", "what is not said stays"
    assert table.alter(SetOptions(ttl=Ttl("at", 60), merge=versioned("at"))).definition.ttl == Ttl("at", 60)
    table.alter(SetOptions(ttl=None))
    for changes, told in [
        ({"merge": "upsert"}, "the merge engine is versioned(at) and cannot become upsert: make a table"),
        ({"deletes": "perhaps"}, "deletes is one of allow, ignore, refuse"),
        ({"skip_unchanged": "yes"}, "skip_unchanged is true or false"),
        ({"ttl": {"column": "n", "after": "1d"}}, "ttl column 'n' is int64"),
        ({"colour": "red"}, "alter takes no 'colour'"),
    ]:
        with pytest.raises(Invalid) as refused:
            table.alter(**changes)  # type: ignore[arg-type]
        assert told in refused.value.message


def test_a_ttl_ends_together_with_its_column(lake: ls.Lake) -> None:
    table = lake.create_table("t.k", SCHEMA, primary_key=["id"], ttl={"column": "at", "after": "1h"})
    assert table.alter(drop=["at"], ttl=None).definition.ttl is None


def test_option_steps_survive_their_json() -> None:
    steps: list[Step] = [SetOptions(ttl=Ttl("at", 60), merge=aggregate(FUNCTIONS), skip_unchanged=False)]
    [back] = from_json(to_json(steps))
    assert apply_steps(made(merge=aggregate(FUNCTIONS)), [back]).ttl == Ttl("at", 60)
    plain: list[Step] = [SetOptions(deletes="refuse", ttl=None, tombstone_ttl="1d")]
    assert from_json(to_json(plain)) == plain


FILE = """
tables:
  - name: t.k
    columns:
      - {name: id, type: int64}
      - {name: n, type: int64}
      - {name: at, type: timestamp}
    primary_key: [id]
    merge: versioned(at)
"""
MORE = """    deletes: refuse
    skip_unchanged: true
    ttl: {column: at, after: 30d}
    tombstone_ttl: 1d
"""


def test_tables_yaml_says_options_of_new_and_old_tables(
    lake: ls.Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def apply(text: str, *arguments: str) -> str:
        (tmp_path / "t.yaml").write_text(text)
        run_command(["apply", "-f", str(tmp_path / "t.yaml"), *arguments])
        return "".join(capsys.readouterr())

    assert "  + merge: versioned(at)\n" in apply(FILE, "--plan")
    apply(FILE)
    assert apply(FILE + MORE, "--plan").startswith(
        "t.k: options\n  ~ deletes: allow → refuse\n  ~ skip_unchanged: no → yes\n"
        "  ~ ttl: never → 30d after at\n  ~ tombstone_ttl: 7d → 1d\n"
    )
    apply(FILE + MORE)
    for text in (FILE, FILE + MORE):
        assert apply(text).endswith("nothing to do\n")
    assert lake.table("t.k").definition.ttl == Ttl("at", 2_592_000)
    said = apply(FILE.replace("versioned(at)", "{aggregate: {n: sum}}"))
    assert "merge is versioned(at) and cannot become aggregate(n: sum): make a table of another name" in said
    apply(FILE.replace("name: at,", "name: seen, renamed_from: at,").replace("(at)", "(seen)"))
    assert lake.table("t.k").definition.ttl == Ttl("seen", 2_592_000)
    run_command(["describe", "t.k"])
    said = capsys.readouterr().out
    for line in ("versioned(seen), rows that equal", "deletes        refused", "30d after seen", "kept for 1d"):
        assert line in said
    run_command(["describe", "t.k", "--json"])
    assert json.loads(capsys.readouterr().out)["ttl"] == {"column": "seen", "seconds": 2_592_000}
    run_command(["tables"])
    assert "30d after seen" in capsys.readouterr().out


def test_a_file_drops_the_column_of_a_ttl_when_it_ends_the_ttl() -> None:
    table = define("t.k", SCHEMA, primary_key=["id"], ttl={"column": "at", "after": "1d"})
    columns = [{"name": c.name, "type": c.type} for c in table.columns if c.name != "at"]
    entry: dict[str, Any] = {"name": "t.k", "columns": columns, "primary_key": ["id"], "ttl": None}
    [wanted] = table_file.parse(json.dumps({"tables": [entry]}), "t.yaml")
    assert apply_steps(table, table_file.steps_between(table, wanted)).ttl is None


def test_a_server_refuses_keys_of_a_definition_that_it_does_not_know(lake: ls.Lake) -> None:
    definition = json.dumps({**made().as_dict(), "colour": "red"})
    with pytest.raises(Invalid, match="does not know 'colour' of a table: run it with a newer release"):
        lake.transport.create_table(pb.CreateTableRequest(definition=definition))
