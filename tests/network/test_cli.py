"""The command line against a real server process, as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakestore as ls
from lakestore.cli import connect
from lakestore.cli.main import COMMANDS, run_command
from lakestore.evolution import SetContract
from lakestore_spark.session import RUNTIME, STORE_RUNTIME
from tests.support.waiting import until

ORDERS = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "customer": [f"c{i % 7}" for i in range(1000)],
        "amount": pa.array([i / 4 for i in range(1000)], pa.float64()),
    }
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-m", "lakestore", "serve", "--data", str(data), "--port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"gRPC on ([\w.]+:\d+)", said)
        assert found, said
        yield found[1]
        process.terminate()
        assert process.wait(120) == 0


class Shell:
    """Runs commands against the server."""

    def __init__(self, server: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._server, self._capsys = server, capsys

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """stdout and stderr of a command that ends with this code."""
        self._capsys.readouterr()
        assert run_command([*arguments, "--server", self._server]) == code
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return said.out, said.err


@pytest.fixture
def shell(server: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(server, capsys)


@pytest.fixture
def orders(shell: Shell, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A table of its own for each test, filled from a Parquet file."""
    name = f"shop.orders_{abs(hash(request.node.name)) % 10**8}"
    pq.write_table(ORDERS, tmp_path / "orders.parquet")
    out, err = shell("write", name, str(tmp_path / "orders.parquet"), "--key", "id", "--buckets", "2", "--yes")
    assert out.strip()
    assert "1,000 rows" in err
    return name


def test_tables_and_describe(shell: Shell, orders: str) -> None:
    assert orders in shell("tables")[0]
    assert orders in {table["name"] for table in json.loads(shell("tables", "--json")[0])}
    text = shell("describe", orders)[0]
    assert "primary-key table" in text
    assert json.loads(shell("describe", orders, "--json")[0])["buckets"] == 2


CONTRACT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties: [{name: customer, logicalType: string, required: true}]
    customProperties:
      - {property: lakestore.onViolation, value: count}
      - {property: lakestore.owner, value: {owner: orders-team}}
      - {property: lakestore.budget, value: {files: 500, snapshotAge: 12h}}
slaProperties:
  - {property: latency, value: 0, unit: s}
  - {property: availability, value: 99.9, unit: percent}
"""


def test_describe_shows_the_contract_and_status_says_what_is_not_kept(shell: Shell, orders: str, server: str) -> None:
    assert "contract" not in shell("describe", orders)[0]
    with ls.connect(server) as lake:
        table = lake.table(orders).alter(SetContract(CONTRACT, "orders", "we sell them"))
        table.upsert([{"id": 1, "amount": 1.0}])
    text = shell("describe", orders)[0]
    assert re.search(r"^contract +version 1, 20.*: we sell them$", text, re.MULTILINE)
    assert re.search(r"^owner +orders-team$", text, re.MULTILINE)
    assert re.search(r"^rules +1 at write; customer\.required 1 counted$", text, re.MULTILINE)
    assert re.search(
        r"^budget +files not counted yet \(500 allowed\); snapshot age .* \(12 h allowed\)$", text, re.MULTILINE
    )
    until(lambda: "is not kept" in shell("status", orders)[0], "the first look at the promises")
    said = shell("status", orders)[0]
    assert re.search(
        rf"The contract of {orders} is not kept: freshness \d+ s \(0 s promised, broken\)$", said, re.MULTILINE
    )
    assert re.search(r"^promises +freshness .*broken\); availability ", shell("describe", orders)[0], re.MULTILINE)


def test_read_in_every_form(shell: Shell, orders: str, tmp_path: Path) -> None:
    assert shell("read", orders, "--count")[0] == "1000\n"
    assert shell("read", orders, "--count", "--where", "customer = 'c1'")[0] == "143\n"
    assert len(shell("read", orders, "--limit", "3")[0].splitlines()) == 4
    lines = shell("read", orders, "--json", "--columns", "id", "--where", "id < 2")[0].splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == [0, 1]
    for name in ("a.parquet", "a.csv", "a.jsonl", "a.arrow"):
        shell("read", orders, "-o", str(tmp_path / name))
        copy = f"{orders}_{name[2:]}"
        shell("write", copy, str(tmp_path / name), "--key", "id", "--yes")
        assert shell("read", copy, "--count")[0] == "1000\n"
    assert pq.read_table(tmp_path / "a.parquet").sort_by("id").to_pylist() == ORDERS.to_pylist()


def test_delete_changes_and_lookup(shell: Shell, orders: str, tmp_path: Path) -> None:
    (tmp_path / "gone.csv").write_text("id\n7\n8\n")
    shell("write", orders, str(tmp_path / "gone.csv"), "--delete")
    assert shell("lookup", orders, "7", code=4)[0] == "no such key\n"
    assert json.loads(shell("lookup", orders, "9", "--json")[0])["customer"] == "c2"
    out, err = shell("changes", orders, "--json")
    assert [json.loads(line)["__change"] for line in out.splitlines()].count("-D") == 2
    token = err.split()[-1]
    out, err = shell("changes", orders, "--start", token)
    assert (out, err.splitlines()[0]) == ("", "no changes")
    assert "token: " in err


def test_changes_as_debezium_events(shell: Shell, orders: str, tmp_path: Path) -> None:
    start = shell("changes", orders, "--json")[1].split()[-1]
    (tmp_path / "gone.csv").write_text("id\n7\n")
    shell("write", orders, str(tmp_path / "gone.csv"), "--delete")
    (line,) = shell("changes", orders, "--start", start, "--format", "debezium")[0].splitlines()
    event = json.loads(line)
    assert (event["op"], event["before"]["customer"], event["after"]) == ("d", "c0", None)
    (line,) = shell("changes", orders, "--start", start, "--format", "debezium-schema")[0].splitlines()
    assert json.loads(line)["payload"]["before"]["id"] == 7


def test_a_shared_subscription_is_listed_though_nobody_reads_it(shell: Shell, orders: str) -> None:
    shell("changes", orders, "--json", "--subscription", f"of {orders}", "--shared")

    def listed() -> str:
        (line,) = [line for line in shell("subscriptions")[0].splitlines() if line.startswith(f"of {orders}")]
        return line

    until(lambda: "shared, nobody now" in listed(), "the consumer to be gone")


def test_named_producers_are_listed_and_dropped(shell: Shell, server: str, orders: str) -> None:
    with ls.connect(server) as lake, lake.table(orders).writer(producer=f"for {orders}") as writer:
        assert writer.progress == ""

    def listed() -> list[str]:
        return [each["name"] for each in json.loads(shell("producers", "--json")[0])]

    assert f"for {orders}" in listed()
    shell("producers", "--drop", f"for {orders}")
    assert f"for {orders}" not in listed()
    assert "there is no producer" in shell("producers", "--drop", "nobody", code=1)[1]


def test_registers_are_listed_and_dropped_by_the_beginning_of_their_names(shell: Shell, server: str) -> None:
    with ls.connect(server) as lake, lake.registers(["cli/a/0", "cli/a/1", "cli/b/0"]) as registers:
        with registers.commit({"cli/a/1": "17"}):
            pass

    def listed(*options: str) -> list[tuple[str, str]]:
        return [(each["name"], each["value"]) for each in json.loads(shell("producers", *options, "--json")[0])]

    assert listed("--registers", "cli/a/") == [("cli/a/0", ""), ("cli/a/1", "17")]
    assert ("cli/b/0", "") in listed("--registers")
    assert listed("--drop-registers", "cli/a/", "--registers", "cli/") == [("cli/b/0", "")]
    assert "not an empty one" in shell("producers", "--drop-registers", "", code=2)[1]


def test_files_of_a_partial_table_set_what_they_name(shell: Shell, orders: str, tmp_path: Path) -> None:
    columns = "columns: [{name: id, type: int64}, {name: city, type: string}, {name: phone, type: string}]"
    name = f"{orders}_partial"
    (tmp_path / "t.yaml").write_text(f"tables: [{{name: {name}, primary_key: [id], merge: partial, {columns}}}]")
    shell("apply", "-f", str(tmp_path / "t.yaml"))
    for file, text in {
        "a.jsonl": '{"id": 1, "city": "Rome", "phone": "1"}\n{"id": 2, "phone": "2"}\n',
        "b.csv": "id,city\n2,Oslo\n",
        "c.jsonl": '{"id": 1, "phone": "3"}\n',
    }.items():
        (tmp_path / file).write_text(text)
        shell("write", name, str(tmp_path / file))
    (tmp_path / "d.jsonl").write_text('{"id": 2, "phone": null}\n')
    shell("write", name, str(tmp_path / "d.jsonl"), "--delete")
    rows = [json.loads(line) for line in shell("lookup", name, "1", "2", "--json")[0].splitlines()]
    assert rows == [{"id": 1, "city": "Rome", "phone": "3"}, {"id": 2, "city": "Oslo", "phone": None}]


def test_sql(shell: Shell, orders: str) -> None:
    out, _ = shell("sql", f"SELECT sum(amount) AS s FROM {orders}", "--explain")
    assert orders in out
    assert "offsets behind the lake" in out
    out, _ = shell("read", orders, "--where", "amount < 0", "--explain", "--json")
    assert json.loads(out)["rows"] == 0
    out, _ = shell("sql", f"SELECT customer, count(*) AS n FROM {orders} GROUP BY 1 ORDER BY 1", "--json")
    assert json.loads(out.splitlines()[0]) == {"customer": "c0", "n": 143}


def test_status_files_and_verify(shell: Shell, orders: str) -> None:
    assert "never tiered" in shell("status", orders)[0]
    assert re.search(r"index_size +[\d,]+ entries, ", shell("status", orders)[0])
    assert re.search(r"duties +all \d+ ok\n", shell("status", orders)[0])
    assert json.loads(shell("status", orders, "--json")[0])["tables"][0]["rows"] == 1000
    assert "1,000 changes not tiered yet" in shell("files", orders)[0]
    assert "rows and values agree" in shell("verify", orders)[0]
    assert json.loads(shell("verify", orders, "--json")[0])["same"] is True


@pytest.mark.parametrize("engine", ["spark", "duckdb", "trino", "pyiceberg", "clickhouse", "polars"])
def test_connect_prints_lines_for_each_engine(shell: Shell, orders: str, engine: str) -> None:
    out, _ = shell("connect", engine)
    assert re.search(r"http://[\w.]+:\d+/iceberg", out)
    named = [each for each in json.loads(shell("tables", "--json")[0]) if each["name"] in out]
    assert named, orders
    assert "a.b" in shell("connect", engine, "--table", "a.b")[0]


def test_connect_prints_what_a_warehouse_in_s3_needs(
    shell: Shell, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's runtime alone has no S3, and a local file system of Trino's opens no bucket."""
    assert "iceberg-aws-bundle" not in shell("connect", "spark")[0]
    assert "fs.native-local.enabled=true" in shell("connect", "trino")[0]
    store = connect.Store(gives_keys=False, endpoint="http://store:9000", region="eu-west-3")
    monkeypatch.setattr(connect, "_store_of", lambda _: store)
    (packages,) = re.findall(r"--packages (\S+)", shell("connect", "spark")[0])
    assert packages.split(",") == [RUNTIME, STORE_RUNTIME]
    trino = shell("connect", "trino")[0]
    assert set(re.findall(r"fs\.\S+", trino)) == {"fs.native-s3.enabled=true"}, orders
    engines = [engine for engine in connect.LINES if engine != "clickhouse"]
    for engine in engines:
        text = shell("connect", engine)[0]
        assert re.search(r"KEY_ID.*SECRET", text, re.DOTALL), engine
        assert "store:9000" in text, engine
    monkeypatch.setattr(connect, "_store_of", lambda _: replace(store, gives_keys=True))
    for engine in engines:
        assert "SECRET" not in shell("connect", engine)[0], engine
    assert "not known to read a warehouse in S3" in shell("connect", "clickhouse", code=1)[1]
    assert "vended-credentials-enabled=true" in shell("connect", "trino")[0]


def test_apply_makes_and_evolves_the_tables_of_a_file(shell: Shell, tmp_path: Path) -> None:
    shop = Path(__file__).resolve().parents[2] / "examples" / "shop" / "tables.yaml"
    file = tmp_path / "tables.yaml"
    file.write_text(shop.read_text().replace("shop.", "applied."))
    assert "applied.orders: new table" in shell("apply", "-f", str(file), "--plan", code=3)[0]
    assert shell("apply", "-f", str(file))[0].endswith("2 created\n")
    assert shell("apply", "-f", str(file), "--plan")[0].endswith("nothing to do\n")
    (tmp_path / "rows.jsonl").write_text('{"order_id": 1, "step": "paid", "delta": "1.50"}\n')
    token = shell("write", "applied.events", str(tmp_path / "rows.jsonl"))[0].strip()
    step = "{name: step, type: string}"
    file.write_text(file.read_text().replace(step, "{name: kind, type: string, renamed_from: step}"))
    assert "  ~ step: called kind from now on" in shell("apply", "-f", str(file))[0]
    shell("read", "applied.events", "-o", str(tmp_path / "new.parquet"))
    shell("read", "applied.events", "--at", token, "-o", str(tmp_path / "old.parquet"))
    assert pq.read_table(tmp_path / "new.parquet").schema.names == ["order_id", "kind", "delta"]
    assert pq.read_table(tmp_path / "old.parquet").schema.names == ["order_id", "step", "delta"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["read", "no.such"], "no.such"),
        (["describe", "bad name"], "bad name"),
        (["write", "no.such", "missing.parquet"], "missing.parquet does not exist"),
        (["sql", "DROP TABLE x"], "one query"),
        (["changes", "no.such"], "no.such"),
        (["changes", "no.such", "--topic", "x"], "--topic is an option of a sink: say --to kafka as well"),
        (["changes", "no.such", "--no-tombstones"], "--no-tombstones is an option of a sink"),
        (["changes", "no.such", "--shared"], "say --subscription NAME --shared"),
        (["changes", "no.such", "--member", "a", "--subscription", "s"], "say --subscription NAME --shared"),
    ],
)
def test_errors_are_one_sentence(shell: Shell, arguments: list[str], sentence: str) -> None:
    out, err = shell(*arguments, code=1)
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_a_server_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tables", "--server", "127.0.0.1:1"]) == 1
    assert "lakestore: " in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert run_command([name, "--help"]) == 0
        assert "Usage:" in capsys.readouterr().out
