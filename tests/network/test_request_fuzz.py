"""Changed requests end no server: refused by name, and nothing of them is stored. FUZZ_SECONDS for longer runs."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import lakestore as ls
from tests.support.process import ServerProcess
from tests.support.request_fuzz import Fuzz
from tests.support.seeds import seed

SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
SERIES_STEPS = 2_000
GROWTH_BYTES_MAX = 192 << 20
"""Memory that the process may take on after its first minute."""
WARM_SECONDS = 60.0


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def _ends_well(data: Path, server: ServerProcess, fuzz: Fuzz) -> None:
    """The tables are as the answers said, before and after a restart."""
    with ls.connect(server.address) as lake:
        assert {table.name: table.scan().count() for table in lake.tables()} == fuzz.rows
    fuzz.close()
    assert server.stop() == 0, server.errors[-2_000:]
    assert "Traceback" not in server.errors, server.errors[-4_000:]
    with ls.open(data) as lake:
        assert {table.name: table.scan().count() for table in lake.tables()} == fuzz.rows


def test_changed_requests_end_no_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fuzz = Fuzz(random.Random(seed(1)), server.address, server.http_port)
        for _ in range(150):
            fuzz.step()
        assert server.alive
        _ends_well(tmp_path / "data", server, fuzz)
        assert fuzz.kinds["Invalid"] > 50
        assert fuzz.kinds["taken"] > 20


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_changed_requests_end_no_server_for_ten_minutes(tmp_path: Path) -> None:
    first = seed()
    began, series, warm = time.monotonic(), 0, 0
    with ServerProcess(tmp_path / "data") as server:
        fuzz = Fuzz(random.Random(f"{first}-0"), server.address, server.http_port)
        while time.monotonic() - began < SECONDS:
            fuzz.chance = random.Random(f"{first}-{series}")
            for _ in range(SERIES_STEPS):
                fuzz.step()
            assert server.alive, server.errors[-2_000:]
            series += 1
            if not warm and time.monotonic() - began > min(WARM_SECONDS, SECONDS / 3):
                warm = _resident(server.pid)
        grown = _resident(server.pid) - warm
        print(f"{series} series, {sum(fuzz.kinds.values())} requests, {grown >> 20} MB grown: {fuzz.kinds}")
        assert grown < GROWTH_BYTES_MAX
        _ends_well(tmp_path / "data", server, fuzz)
