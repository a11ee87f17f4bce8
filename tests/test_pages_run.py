"""Every block of the documents does what it says when a reader types it, in the order of its page.

Other tests run the blocks that need more: `tests/test_pages_on_spark.py` those with Spark,
`tests/network/test_bridge_cli.py` those with a broker, `tests/network/test_page_of_replicas.py` the page on replicas.
`tests/support/unrun.py` has the blocks that nobody runs, and why.
"""

from __future__ import annotations

import datetime
import gzip
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from duckdb_extensions import import_extension

import lakestore as ls
from jepsen.__main__ import main as breaking
from lakestore.cli.contract import FOUND
from lakestore.cli.main import run_command
from lakestore.evolution import SetContract
from lakestore.kafka.bridge import spec_file
from lakestore.model import settings, table_file
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.event_time import EventTime
from lakestore.model.contract.late_data import LateData
from lakestore.rows.contract_review import review
from lakestore_server.access import principals
from lakestore_server.settings import Settings
from tests.support.clickhouse import ClickHouseProcess
from tests.support.documents import (
    HERE,
    NOWHERE,
    Block,
    Part,
    Reader,
    blocks,
    name_of,
    output_of,
    pages,
    parts,
    runner_of,
    words_of,
)
from tests.support.served import Served
from tests.support.unrun import NOT_RUN, WRITTEN
from tests.support.waiting import WAIT_SECONDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages()
CATALOG = "http://localhost:7341/iceberg"
CONFIG = "/etc/lakestore"
NOON = int(datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.UTC).timestamp() * 1e6)
ORDERS = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("day", pa.date32()),
        ("place", pa.struct([("city", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)


def order(number: int) -> dict[str, Any]:
    day = datetime.date(2026, 11, 1 + number)
    created = datetime.datetime(2026, 11, 1 + number, tzinfo=datetime.UTC)
    rest = {"place": {"city": "Berlin"}, "tags": ["new"], "created_at": created}
    return {"order_id": number, "customer": "ann", "amount": 7.5 * number, "day": day, **rest}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The server of a page, and the reader's folder."""
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with Served(tmp_path / "server", ports=True) as running:
        running.clock.us = NOON
        monkeypatch.setenv("LAKESTORE_SERVER", running.server.about["grpc"])
        yield running


def shop(lake: ls.Lake) -> dict[str, Any]:
    """The two tables that most pages speak of."""
    orders = lake.create_table("shop.orders", ORDERS, primary_key=["order_id"])
    events = lake.create_table("shop.events", pa.schema([("order_id", pa.int64()), ("step", pa.string())]))
    token = orders.upsert([order(number) for number in range(1, 4)])
    events.append([{"order_id": 1, "step": "paid"}])
    rows, keys = [order(7)], [{"order_id": 1}]
    return {
        "ls": ls,
        "pa": pa,
        "date": datetime.date,
        "lake": lake,
        "orders": orders,
        "events": events,
        "token": token,
        "rows": rows,
        "keys": keys,
    }


def of_time(lake: ls.Lake) -> dict[str, Any]:
    """The tables of `shop`, and a table with a contract, so that the system tables are there."""
    lake.create_table("shop.promised", pa.schema([("id", pa.int64())])).alter(
        SetContract(
            "{apiVersion: v3.2.0, kind: DataContract, id: a, version: 1.0.0, schema: [{name: promised}]}", "promised"
        )
    )
    return shop(lake)


def of_tables(lake: ls.Lake) -> dict[str, Any]:
    """The names that docs/tables.md uses beside those of its blocks."""
    key = [("customer", pa.string()), ("order_id", pa.int64())]
    orders = lake.create_table(
        "shop.orders", pa.schema([*key, ("amount", pa.float64())]), primary_key=["customer", "order_id"],
        bucket_key=["customer"],
    )  # fmt: skip
    photos = lake.create_table(
        "shop.photos", pa.schema([("id", pa.int64()), ("photo", pa.binary())]), primary_key=["id"]
    )
    lake.create_table("shop.imports", pa.schema([("file", pa.string())]))
    token = orders.upsert([{"customer": "ann", "order_id": 7, "amount": 1.0}])
    photos.upsert([{"id": number, "photo": b"x"} for number in range(3)])
    rows = [{"id": number, "photo": b""} for number in range(3)]
    read = [{"customer": "bob", "order_id": 1, "amount": 2.0}]
    columns = ("id", pa.int64()), ("city", pa.string()), ("phone", pa.string())
    totals = pa.schema(
        [("customer", pa.int64()), ("spent", pa.int64()), ("orders", pa.int64()), ("visitors", pa.binary()),
         ("unique", pa.int64())]
    )  # fmt: skip
    return {
        "ls": ls, "pa": pa, "lake": lake, "orders": orders, "photos": photos, "token": token, "rows": rows,
        "profile": pa.schema(columns), "total": totals, "files": ["1.csv", "2.csv"], "read": lambda _: read,
        "mine": [0, 1], "seek": lambda _: None, "polled": lambda: [(read, {"orders/0": "1500"})],
    }  # fmt: skip


def of_readme(lake: ls.Lake) -> dict[str, Any]:
    """The tables of examples/shop, and a file for one of them."""
    shutil.copy(ROOT / "examples" / "shop" / "tables.yaml", "tables.yaml")
    assert run_command(["apply", "-f", "tables.yaml"]) == 0
    schema = lake.table("shop.orders").schema
    rows = pa.table({field.name: pa.array([2] if field.name == "order_id" else [None], field.type) for field in schema})
    pq.write_table(rows, "orders.parquet")
    return {}


def of_loading(lake: ls.Lake) -> dict[str, Any]:
    """The files that docs/loading.md speaks of and does not show."""
    head = "id,name,born,height\n"
    Path("more.csv").write_text(f"{head}4,joe,NULL,1.9\n")
    Path("changes.jsonl").write_text('{"op": "D", "id": 4}\n')
    Path("tall.jsonl.gz").write_bytes(gzip.compress(b'{"id": 5, "name": "max", "height": 2.0}\n'))
    Path("guests.csv").write_text(f"{head}6,may,1999-01-01,tall\n7,kim,1999-01-02,1.5\n")
    return {}


def check_loading(lake: ls.Lake, reader: Reader) -> None:
    """The commands of docs/loading.md have done what it says."""
    assert "is loaded already, 3 rows" in reader.said
    assert "types from the first 3 rows of people.csv" in reader.said
    assert sorted(lake.table("shop.people").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 5, 7]
    assert Path("some.csv").read_text().splitlines()[0] == '"id","name"'
    assert [path.name for path in Path("people").iterdir()] == ["part-00000.parquet"]
    assert len(Path("bad.jsonl").read_text().splitlines()) == 1
    assert '"op":"d"' in Path("events.jsonl").read_text()


WORLDS: dict[str, Callable[[ls.Lake], dict[str, Any]]] = {
    "docs/tables.md": of_tables,
    "docs/time.md": of_time,
    "docs/quickstart.md": lambda lake: {"ls": ls},
    "README.md": of_readme,
    "examples/shop/README.md": of_readme,
    "docs/loading.md": of_loading,
    "docs/contracts.md": lambda lake: {"lake": lake},
}
"""Page to what is there before its first block; `shop` for the others."""
CHECKS = {"docs/loading.md": check_loading}
"""Page to what is to hold behind its last block."""


def run_yaml(block: Block, reader: Reader) -> None:
    """Have the part that such a file is for read it."""
    data = yaml.safe_load(block.text)
    if data.get("kind") == "DataContract":
        assert review(block.text, database="shop").faults == 0
    elif "tables" in data:
        for table in table_file.parse(block.text, "tables.yaml"):
            table.definition()
    elif "topics" in data:
        Path("bridge.yaml").write_text(block.text)
        assert spec_file.read(Path("bridge.yaml")).name
    elif data.keys() & {"customProperties", "slaProperties"}:
        head = "apiVersion: v3.2.0\nkind: DataContract\nid: x\nversion: 1.0.0\nschema: [{name: x}]\n"
        contract = Contract(head + block.text, "x")
        assert contract.root.value
        for section in (EventTime, LateData):
            section.of(contract)
    elif "principals" in data:
        principals.book_of(data)
    elif "profiles" not in data:
        folder = {} if "data" in data else {"data": "data"}  # a block may show a part of server.yaml
        settings.read(Settings, file="server.yaml", text=block.text, environment={}, flags=folder).settings()
    reader.ran.append("yaml")


def run_sql(text: str, catalog: str, lake: ls.Lake) -> None:
    """Run statements in the engine that the text names, DuckDB if it names none; the last one counts three orders."""
    statements = [part for part in re.sub(r"--.*", "", text.replace(CATALOG, catalog)).split(";") if part.strip()]
    if "ATTACH" not in text and "-- ClickHouse" not in text:
        lake.sql(text).to_arrow()
        return
    if "-- ClickHouse" in text:
        with ClickHouseProcess() as clickhouse:
            assert [clickhouse.rows(each) for each in statements][-1] == [[3]]
        return
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            import_extension(name, con=connection)  # from a package, where INSTALL fetches it from its makers
            connection.execute(f"LOAD {name}")
        wanted = [each for each in statements if "INSTALL" not in each]
        assert [connection.execute(each).fetchall() for each in wanted][-1] == [(3,)]


def run_settings(lines: list[str], reader: Reader) -> None:
    """Find each line of a file of settings among those that `lakestore connect` prints for the engine."""
    engine = "trino" if "connector.name=iceberg" in lines else "spark"
    printed, code = output_of(lambda: run_command(["connect", engine, "--table", "shop.orders"]))
    assert code == 0
    told = {line.removeprefix("--conf ").strip() for line in printed.splitlines()}
    assert {reader.here(line).removeprefix("--conf ") for line in lines} <= told
    reader.ran.append("settings")


def run_line(part: Part, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a shell. Servers are there already, and a password is typed."""
    words = words_of(part)
    if words[0] == "serve":
        reader.ran.append("serve")  # by `test_servers_of_the_pages_start`
        return
    monkeypatch.setattr(sys, "stdin", io.StringIO("a-token\n"))
    if CONFIG in part.text:
        words = [word.replace(CONFIG, str(ROOT / "examples" / "deploy")) for word in words]
        output_of(lambda: run_command(words))  # says what this machine lacks, whatever that is
        return
    reader.command(words, codes=(0, FOUND) if words[:2] == ["contract", "diff"] else (0,))


def run(part: Part, reader: Reader, lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part."""
    block = part.block
    if block.file:
        Path(block.file).write_text(reader.here(block.text))
    if block.typed:
        run_line(part, reader, monkeypatch)
    elif block.language == "python":
        reader.python(block.text)
    elif block.language == "yaml":
        run_yaml(block, reader)
    elif block.language == "sql":
        run_sql(block.text, f"http://{reader.here('localhost:7341')}/iceberg", lake)
    elif block.settings:
        run_settings(block.settings, reader)
    elif block.language == "text":
        reader.saw(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_run_in_their_order(
    page: Path, served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKESTORE_PROFILES", str(tmp_path / "profiles.yaml"))
    lake = ls.connect(served.server.about["grpc"])
    with lake:
        names = WORLDS.get(name_of(page), shop)(lake)
        served.clock.advance(7_200)
        reader = Reader(served.server.about["grpc"], served.server.about["http"], names)
        for part in (each for each in parts(page) if runner_of(each) == HERE):
            run(part, reader, lake, monkeypatch)
        if name_of(page) in CHECKS:
            CHECKS[name_of(page)](lake, reader)


def test_every_part_of_a_page_is_run_or_says_why_not() -> None:
    found = [part for page in PAGES for part in parts(page)]
    unsaid = [part.key for part in found if runner_of(part) is None]
    assert unsaid == [], "have a test run it, or give the reason in tests/support/unrun.py"
    assert set(NOT_RUN) == {part.key for part in found if runner_of(part) == NOWHERE}
    assert set(WRITTEN) <= {name_of(page) for page in PAGES}


def test_the_tests_that_reasons_name_are_there() -> None:
    for reason in [*WRITTEN.values(), *NOT_RUN.values()]:
        for place in re.findall(r"\btests/[\w/]+(?:\.py)?", reason):
            assert (ROOT / place).exists(), place


def test_every_target_of_make_and_every_option_that_a_page_names_is_there() -> None:
    typed = {line for page in PAGES for block in blocks(page) for line in block.typed}
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    assert {line.split()[1] for line in typed if line.startswith("make ")} <= targets
    for line in typed:
        words = shlex.split(line)
        if words[:3] == ["python", "-m", "jepsen"]:
            found = breaking.commands[words[3]]
            with click.Context(found, info_name=words[3], resilient_parsing=True) as context:
                found.make_parser(context).parse_args(words[4:])
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), line


def test_servers_of_the_pages_start(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each distinct one, with a folder and ports of its own."""
    served = [part for page in PAGES for part in parts(page) if part.text.startswith("lakestore serve ")]
    found = {part.text for part in served if runner_of(part) == HERE}
    running: list[subprocess.Popen[str]] = []
    for number, text in enumerate(sorted(found)):
        words = shlex.split(text)[1:]
        words[words.index("--data") + 1] = str(tmp_path / str(number))
        command = [str(Path(sys.executable).parent / "lakestore"), *words, "--port", "0", "--http-port", "0"]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        request.addfinalizer(running[-1].kill)
    for process in running:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "gRPC" in line or "serving" in line:
                break
        assert process.poll() is None, "".join(said)
        process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0
