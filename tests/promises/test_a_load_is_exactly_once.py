"""Loads that are killed, interrupted, or lose their server at any moment: the same command again ends with the rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakestore as ls
from tests.support.process import ServerProcess

ROWS = 30_000
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("n", pa.int64())])
PACE = (
    "import lakestore.loading.reading as c, lakestore.loading.texts as t, lakestore.loading.columnar as p\n"
    "c.CHUNK_ROWS = t.CHUNK_ROWS = p.CHUNK_ROWS = 2_000\nt.BLOCK_BYTES = 100_000\n"
    "from lakestore.cli.main import main\nmain()"
)
"""The command line with commits that are small, so that there are many moments in a load."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows in each format; every 1,000th line of text is bad."""
    folder = tmp_path_factory.mktemp("files")
    made = {kind: folder / f"rows.{kind}" for kind in ("jsonl", "csv.gz", "parquet")}
    rows = pa.table({"id": range(ROWS), "text": [f"row {i}" for i in range(ROWS)], "n": range(ROWS)})
    pq.write_table(rows, made["parquet"], row_group_size=7_000)
    with made["jsonl"].open("w") as file:
        for row in rows.to_pylist():
            file.write(json.dumps(row) + "\n" + ("bad\n" if row["id"] % 1_000 == 999 else ""))
    with pa.CompressedOutputStream(str(made["csv.gz"]), "gzip") as packed:
        packed.write(b"id,text,n\n" + b"".join(b'%d,"row %d",%d\n' % (i, i, i) for i in range(ROWS)))
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as made:
        yield made


def _begun(server: ServerProcess, table: str, path: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PACE, "write", table, str(path), "--server", f"localhost:{server.port}", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finished(server: ServerProcess, table: str, path: Path, *more: str) -> str:
    with _begun(server, table, path, *more) as process:
        _, said = process.communicate()
    assert process.returncode == 0, said
    return said


def _broken(process: subprocess.Popen[str], number: int, seconds: float) -> tuple[int, str]:
    time.sleep(seconds)
    if process.poll() is None:
        os.kill(process.pid, number)
    with process:
        _, said = process.communicate()
    return process.returncode, said


def _progress(lake: ls.Lake, table: str) -> list[str]:
    return [each.progress for each in lake.producers() if f" {table} " in each.name]


def _check(lake: ls.Lake, table: str) -> None:
    rows = lake.table(table).scan(columns=["id", "text", "n"]).to_arrow().sort_by("id")
    assert rows.num_rows == ROWS
    assert rows.column("id").to_pylist() == list(range(ROWS))
    assert rows.column("n").to_pylist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("jsonl", 3),
        ("csv.gz", 1),
        *(pytest.param(kind, 17, marks=pytest.mark.long) for kind in ("jsonl", "csv.gz", "parquet")),
    ],
)
def test_a_load_that_is_killed_ends_with_its_rows(
    server: ServerProcess, files: dict[str, Path], tmp_path: Path, kind: str, kills: int
) -> None:
    """A log table would show a row twice, and one that is missing."""
    chance = random.Random(f"{kind} {kills}")
    table = f"kills.{kind.replace('.', '_')}_{kills}"
    keyed = kind == "csv.gz"
    more = ["--skip-bad", str(tmp_path / "bad.jsonl")] if kind == "jsonl" else []
    with ls.connect(f"localhost:{server.port}") as lake:
        lake.create_table(table, SCHEMA, primary_key=["id"] if keyed else [], buckets=2)
        broken = 0
        for _ in range(kills):
            before = _progress(lake, table)
            process = _begun(server, table, files[kind], *more)
            while process.poll() is None and _progress(lake, table) == before:
                time.sleep(0.01)
            code, _ = _broken(process, signal.SIGKILL, chance.choice([0, 0.02, 0.1, 0.3]) * chance.random())
            broken += code != 0
        said = _finished(server, table, files[kind], *more)
        _check(lake, table)
    if kind == "jsonl":
        lines = [json.loads(line)["line"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert lines == [1_001 * i for i in range(1, ROWS // 1_000 + 1)]
    assert broken or kills == 1, said  # one load may be done before it is killed


def test_an_interrupted_load_says_what_is_committed(server: ServerProcess, files: dict[str, Path]) -> None:
    with ls.connect(f"localhost:{server.port}") as lake:
        lake.create_table("kills.stopped", SCHEMA, buckets=2)
        process = _begun(server, "kills.stopped", files["parquet"])
        while not lake.table("kills.stopped").scan().count():
            time.sleep(0.05)
        code, said = _broken(process, signal.SIGINT, 0)
        if "interrupted; committed: " not in said:  # the load was done, and the command or Python was about to end
            assert code in (0, 130, -signal.SIGINT)
            _check(lake, "kills.stopped")
        else:
            assert code == 130
            told = int(said.split("committed: ")[1].split(" rows")[0].replace(",", ""))
            assert lake.table("kills.stopped").scan().count() == told
        _finished(server, "kills.stopped", files["parquet"])
        _check(lake, "kills.stopped")


def test_a_load_goes_on_with_the_server_that_comes_back(files: dict[str, Path], tmp_path: Path) -> None:
    first = ServerProcess(tmp_path / "data")
    with ls.connect(f"localhost:{first.port}") as lake:
        lake.create_table("kills.t", SCHEMA, buckets=2)
        process = _begun(first, "kills.t", files["parquet"])
        while not lake.table("kills.t").scan().count():
            time.sleep(0.05)
    first.kill()
    with ServerProcess(tmp_path / "data", port=first.port, http_port=first.http_port) as second:
        with process:
            _, said = process.communicate()
        assert process.returncode == 0, said
        with ls.connect(f"localhost:{second.port}") as lake:
            _check(lake, "kills.t")
