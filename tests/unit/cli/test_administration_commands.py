"""Commands on whole tables, as they are typed: what they say, ask, refuse and do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner, Result

import lakestore as ls
from lakestore.cli import administration, changes, output, tables
from lakestore.cli import changes as shown
from lakestore.cli.main import cli, run_command
from lakestore.limits import Limits
from tests.support.served import Served

Run = Callable[..., Result]


@pytest.fixture(name="served", scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("cli") / "data", limits=Limits(drop_grace_seconds=7_200)) as served:
        yield served


@pytest.fixture(name="run")
def commands(served: Served, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line whose server is the one of this process."""
    for module in (administration, changes, tables, shown):
        monkeypatch.setattr(module, "open_lake", lambda _: Attached(served.lake))

    def run(*arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(arguments), input=answer)

    return run


class Attached:
    """A lake that is not closed at the end of a command."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake

    def __enter__(self) -> ls.Lake:
        return self._lake

    def __exit__(self, *_: object) -> None:
        """Stay open."""


def good(result: Result) -> str:
    assert result.exception is None, result.exception
    return result.output


def test_a_table_from_its_making_to_its_end(run: Run, served: Served) -> None:
    columns = ("--column", "id int64", "--column", "price decimal(12, 2)", "--column", "at timestamptz")
    said = good(run("create", "shop.orders", *columns, "--key", "id", "--buckets", "2", "--set", "retention=7d"))
    assert said == "table shop.orders is there: 3 columns, key id\n"
    definition = served.lake.table("shop.orders").definition
    assert (definition.buckets, [c.type for c in definition.columns]) == (2, ["int64", "decimal(12,2)", "timestamptz"])
    assert str(definition.retention) == "7d"
    good(run("create", "shop.copy", "--like", "shop.orders"))
    altered = run(
        "alter", "shop.orders", "--add", "note string", "--rename", "at=since", "--set", "retention=none", "--set",
        "freshness=1m", "--set", "ttl=since:30d", "--default", "note=none", "--yes", "--json",
    )  # fmt: skip
    assert [c["name"] for c in json.loads(good(altered))["columns"]] == ["id", "price", "since", "note"]
    assert served.lake.table("shop.orders").definition.retention is None
    assert served.lake.table("shop.orders").definition.lake.freshness == "1m"
    table = served.lake.table("shop.orders")
    table.upsert([{"id": i, "price": None, "since": None} for i in range(10)])
    dry = json.loads(run("delete", "shop.orders", "--where", "id < 4", "--dry-run", "--json").stdout)
    assert (dry["matched"], dry["deleted"]) == (4, 0)
    assert "4 rows of table shop.orders are deleted" in good(run("delete", "shop.orders", "--where", "id < 4", "--yes"))
    assert good(run("rename", "shop.orders", "old.orders")).startswith("table shop.orders is old.orders now")
    assert "6 rows of table old.orders would go" in good(run("truncate", "old.orders", "--dry-run"))
    assert "6 rows of table old.orders are gone" in good(run("truncate", "old.orders", "--yes"))
    dropped = good(run("drop", "old.orders", "--yes"))
    assert "`lakestore undrop old.orders` has it back until 2026-" in dropped
    assert "old.orders" in good(run("tables", "--dropped"))
    good(run("undrop", "old.orders", "--as", "old.again"))
    listed = json.loads(good(run("databases", "--create", "new", "--json")))
    assert [each for each in listed if each["database"] != "a"] == [
        {"database": "new", "tables": 0},
        {"database": "old", "tables": 1},
        {"database": "shop", "tables": 1},
    ]
    good(run("databases", "--drop", "new"))
    good(run("drop", "old.again", "--now", "--yes"))
    served.server.dropped.run_once()
    assert "no dropped tables are kept" in good(run("tables", "--dropped"))


@pytest.mark.parametrize(
    "typed",
    [["drop", "a.t"], ["truncate", "a.t"], ["delete", "a.t", "--where", "v = 1"], ["alter", "a.t", "--drop", "v"]],
)
def test_what_loses_something_asks_first(run: Run, served: Served, typed: list[str]) -> None:
    if "a.t" not in served.engine.view.names:
        good(run("create", "a.t", "--column", "k int64", "--column", "v int64", "--key", "k"))
        served.lake.table("a.t").upsert([{"k": 1, "v": 1}])
    refused = run(*typed)
    assert "nobody is there to be asked, so say --yes" in str(refused.exception)
    assert served.lake.table("a.t").scan().count() == 1


def test_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lakestore.cli.output.sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)})()
    )
    said: list[str] = []

    def answered(text: str, **options: object) -> bool:
        said.append(text)
        raise click.Abort

    monkeypatch.setattr("lakestore.cli.output.click.confirm", answered)
    with pytest.raises(click.Abort):
        output.confirm("the rows go", yes=False)
    assert said == ["the rows go. Go on?"]
    output.confirm("the rows go", yes=True)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["create", "a.x"], "say one of them"),
        (["create", "a.x", "--column", "k"], "such as 'id int64 not null'"),
        (["create", "a.x", "--like", "a.t", "--key", "k"], "leave these out"),
        (["alter", "a.t"], "nothing to change"),
        (["alter", "a.t", "--rename", "k"], "--rename takes NAME=VALUE"),
        (["drop", "a.gone", "--yes"], "there is no table 'a.gone'"),
        (["undrop", "a.gone"], "no dropped table 'a.gone'"),
        (["subscriptions", "reset", "s", "--to", "latest", "--yes"], "there is no subscription 's'"),
    ],
)
def test_wrong_words_are_told(run: Run, typed: list[str], sentence: str) -> None:
    assert sentence in str(run(*typed).exception)


def test_subscriptions_are_listed_and_reset_and_an_ignored_start_is_told(run: Run, served: Served) -> None:
    good(run("create", "a.sub", "--column", "v int64"))
    table = served.lake.table("a.sub")
    table.append([{"v": 1}])
    for batch in table.changes(subscription="s", until="now"):
        batch.ack()
    told = run("changes", "a.sub", "--subscription", "s", "--start", "earliest")
    assert "--start is ignored; set it with `lakestore subscriptions reset s" in told.stderr
    assert "--start" not in run("changes", "a.sub", "--subscription", "s").stderr
    assert "is 1 changes behind now" in good(run("subscriptions", "reset", "s", "--to", "earliest", "--yes"))
    table.truncate()
    assert "nothing: reset it" in good(run("subscriptions"))


def test_the_exit_code_says_that_it_was_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["create", "a.x"]) == 1
    assert capsys.readouterr().err.startswith("lakestore: a table is created of --column")
