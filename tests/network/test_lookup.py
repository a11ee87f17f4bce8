"""Look-ups from the command line and by clients in other processes than the server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from tests.support.process import ServerProcess

SCHEMA = pa.schema([("customer", pa.string()), ("day", pa.date32()), ("v", pa.string())])


@pytest.fixture(scope="module", name="process")
def _process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("lookup") / "data") as running:
        yield running


def shell(process: ServerProcess, *arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--server", process.address])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_keys_prefixes_columns_and_cuts_from_the_command_line(process: ServerProcess) -> None:
    with ls.connect(process.address) as lake:
        table = lake.create_table("t.o", SCHEMA, primary_key=["customer", "day"], bucket_key=["customer"])
        days = pa.array([3, 1, 2], pa.date32())
        token = table.upsert(pa.table([pa.array(["a", "a", "b"]), days, pa.array(["x", "y", "z"])], schema=SCHEMA))
        table.delete([{"customer": "a", "day": days[0].as_py()}])
    found = shell(process, "lookup", "t.o", "a", "--json", "--at", str(token), "--columns", "v, day").splitlines()
    assert [json.loads(line) for line in found] == [
        {"v": "y", "day": "1970-01-02"},
        {"v": "x", "day": "1970-01-04"},
    ]
    assert [json.loads(line)["v"] for line in shell(process, "lookup", "t.o", "b", "a", "--json").splitlines()] == [
        "z",
        "y",
    ]
    assert json.loads(shell(process, "lookup", "t.o", "b,1970-01-03", "--json"))["v"] == "z"
    assert shell(process, "lookup", "t.o", "a,1970-01-04") == "no such key\n"
    wrong = CliRunner().invoke(cli, ["lookup", "t.o", "a", "a,1970-01-04", "--server", process.address])
    assert wrong.exit_code != 0
    assert "give all as many" in str(wrong.output) + str(wrong.exception)


def test_many_rows_of_a_prefix_and_many_keys_cross_the_wire_in_parts(process: ServerProcess) -> None:
    with ls.connect(process.address) as lake:
        schema = pa.schema([("c", pa.int32()), ("id", pa.int64()), ("v", pa.string())])
        table = lake.create_table("t.many", schema, primary_key=["c", "id"], bucket_key=["c"])
        ids = list(range(150_000))
        rows = pa.table([pa.array([i % 2 for i in ids], pa.int32()), ids, ["v" * 300] * len(ids)], schema=schema)
        with table.writer() as writer:
            writer.upsert(rows)
        assert table.lookup([{"c": 1}]).column("id").to_pylist() == list(range(1, 150_000, 2))
        found = table.lookup(rows.select(["c", "id"]))
        assert found.cast(schema).equals(rows)
        assert found.nbytes > 32 << 20
