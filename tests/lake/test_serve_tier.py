"""`lakestore serve --tier`: a tierer that lives and ends with its server."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from tests.support.process import ServerProcess
from tests.support.waiting import until

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def tierer_of(server: ServerProcess) -> int:
    """The newest process of a tierer that the server's log names; 0 if there was none."""
    return int([0, *re.findall(r"a tierer runs as process (\d+)", server.said())][-1])


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tiered(lake: ls.Lake) -> int:
    """Rows of the table in the lake."""
    return sum(lake.status()["tables"][0]["tier_point"] or [0])


def test_the_tierer_lives_and_ends_with_its_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", arguments=["--tier"])
    try:
        with ls.connect(server.address) as lake:
            table = lake.create_table("shop.items", SCHEMA, primary_key=["id"], buckets=1, lake={"freshness": "1s"})
            table.upsert([{"id": number, "text": "a"} for number in range(10)])
            until(lambda: tiered(lake) == 10, "the first round", 120)
            first = tierer_of(server)
            os.kill(first, signal.SIGKILL)
            until(lambda: tierer_of(server) not in (0, first), "another tierer")
            assert "the tierer beside the server ended by signal 9" in server.said()
            table.upsert([{"id": number, "text": "b"} for number in range(5)])
            until(lambda: tiered(lake) == 15, "a round of the other one", 120)
            second = tierer_of(server)
        assert server.stop() == 0
        assert not is_running(second), "it ends before its server does"
    finally:
        server.stop()


def test_the_tierer_ends_after_a_kill_of_its_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", arguments=["--tier"])
    until(lambda: tierer_of(server), "the tierer")
    tierer = tierer_of(server)
    server.kill()
    until(lambda: not is_running(tierer), "the end of the tierer")


def test_servers_without_the_setting_have_no_tierer(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, ls.connect(server.address) as lake:
        lake.create_table("shop.items", SCHEMA)
        assert tierer_of(server) == 0
        assert "tiering" not in lake.status()["duties"]
