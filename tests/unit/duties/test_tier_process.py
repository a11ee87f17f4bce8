"""The tierer beside a server: started while the server leads, again when it ends, and ended with the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from lakestore.errors import Unavailable
from lakestore_server.duties import tier_process
from lakestore_server.duties.tier_process import TierProcess, tier_command
from lakestore_server.host.clock import RealClock
from lakestore_server.main import Server
from tests.support.waiting import until
from tests.support.world.clock import HandClock

ENDS_WITH_INPUT = [sys.executable, "-c", "import sys; sys.stdin.read()"]
NEVER_ENDS = [sys.executable, "-c", "import time; time.sleep(600)"]
FAILS = [sys.executable, "-c", "raise SystemExit(3)"]


@pytest.fixture
def tierer(server: Server) -> Iterator[TierProcess]:
    made = TierProcess(server.engine, RealClock(), ENDS_WITH_INPUT)
    yield made
    made.close()


def process_of(tierer: TierProcess) -> subprocess.Popen[bytes] | None:
    return tierer._process


def test_it_runs_while_the_server_leads(server: Server, tierer: TierProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    tierer.run_once()
    process = process_of(tierer)
    assert process is not None
    tierer.run_once()
    assert process_of(tierer) is process
    monkeypatch.setattr(server.engine.loop, "_is_leading", False)
    tierer.run_once()
    assert process.returncode == 0, "its input ended"
    tierer.run_once()
    assert process_of(tierer) is None
    monkeypatch.setattr(server.engine.loop, "_is_leading", True)
    tierer.run_once()
    assert process_of(tierer) is not None


def test_it_is_started_again_with_growing_pauses(server: Server) -> None:
    clock = HandClock()
    tierer = TierProcess(server.engine, clock, FAILS)
    begun = list[float]()
    for _ in range(4):
        while process_of(tierer) is None:
            tierer.run_once()
            clock.advance(0.5)
        begun.append(clock.monotonic())
        process = process_of(tierer)
        assert process is not None
        process.wait()
        with pytest.raises(Unavailable, match="ended with exit code 3"):
            tierer.run_once()
    assert [later - earlier for earlier, later in pairwise(begun)] == [2.5, 4.5, 8.5]


def test_one_that_does_not_end_is_killed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_process, "END_SECONDS", 0.1)
    tierer = TierProcess(server.engine, RealClock(), NEVER_ENDS)
    tierer.run_once()
    process = process_of(tierer)
    tierer.close()
    assert process is not None
    assert process.returncode == -9
    tierer.run_once()
    assert process_of(tierer) is None, "nothing starts after the end"


def test_a_failure_is_a_failing_duty(server: Server) -> None:
    tierer = TierProcess(server.engine, RealClock(), FAILS)
    tierer.start()
    try:
        until(lambda: server.engine.supervisor.states()["tiering"].in_a_row, "the failure")
        assert "exit code 3" in server.engine.supervisor.states()["tiering"].error
    finally:
        tierer.close()


@pytest.mark.parametrize(
    ("listens", "reached"),
    [("0.0.0.0:7340", "localhost:7340"), ("[::]:1", "localhost:1"), ("10.0.0.1:7340",) * 2, ("[::1]:7340",) * 2],
)
def test_it_reaches_a_server_on_all_addresses_by_a_name_that_a_certificate_can_have(listens: str, reached: str) -> None:
    command = tier_command(listens, "local[2]")
    assert command[command.index("--server") + 1] == reached


def test_a_tierer_that_ends_by_itself_keeps_its_exit_code() -> None:
    """While a thread of it waits for the end of the server's pipe."""
    code = """
import threading, time
from lakestore.cli.serve import _stop_with_input
threading.Thread(target=_stop_with_input, args=(threading.Event(),), daemon=True).start()
time.sleep(0.5)
raise SystemExit(3)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as ended:
        assert ended.wait(60) == 3
