"""Workloads on one server touch nothing of one another: their operations in turns, in one thread, without a fault."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest

import lakestore as ls
from jepsen.history import History, Recorder
from jepsen.operation import HEALED, NEMESIS, Kind
from jepsen.run import _LAST_PROCESSES, _Session
from jepsen.trial import needs_of
from jepsen.workload import Workload
from jepsen.workloads import WORKLOADS
from lakestore_server.main import Server
from lakestore_server.settings import Settings

LIGHT = [name for name in sorted(WORKLOADS) if not needs_of([name])]
OPERATIONS = 25
FEW_OPERATIONS = 10
"""Of each workload while all of them take turns."""


@dataclass
class Here:
    """A target: a server of this process, by its port."""

    server: Server
    catalog = kafka = sql = ""

    def connect(self, process: int) -> ls.Lake:
        """A connection of its own."""
        return ls.connect(self.server.about["grpc"])


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, History]:
    """What every light workload saw while all of them took turns."""
    return _together(tmp_path_factory.mktemp("together"), LIGHT, FEW_OPERATIONS)


def _together(folder: Path, names: Sequence[str], operations: int = OPERATIONS) -> dict[str, History]:
    """Run workloads in turns on one server, and return what they saw."""
    server = Server(Settings(folder, port=0, http_port=0))
    server.start()
    try:
        return _taken_turns(Here(server), [WORKLOADS[name](random.Random(name)) for name in names], operations)
    finally:
        server.close()


def _taken_turns(target: Here, workloads: list[Workload], operations: int) -> dict[str, History]:
    recorders = {each.name: Recorder(None) for each in workloads}
    with target.connect(-1) as lake:
        for each in workloads:
            each.setup(lake)
    turns = [_steps(each, target, recorders[each.name]) for each in workloads]
    for _ in range(operations):
        for turn in turns:
            next(turn)
    for turn in turns:
        turn.close()
    for each in workloads:
        recorder = recorders[each.name]
        recorder.record(NEMESIS, Kind.INFO, HEALED)
        session = _Session(lambda: each.client(target, 0), recorder, _LAST_PROCESSES, 1)  # noqa: B023
        for invocation in each.last(0):
            assert session.do(invocation) is Kind.OK, (each.name, invocation)
        session.close()
    return {name: recorder.close() for name, recorder in recorders.items()}


def _steps(workload: Workload, target: Here, recorder: Recorder) -> Generator[Kind]:
    session = _Session(lambda: workload.client(target, 0), recorder, 0, 1)
    try:
        for invocation in workload.operations(0, random.Random(f"{workload.name} operations")):
            yield session.do(invocation)
    finally:
        session.close()


@pytest.mark.parametrize("name", LIGHT)
def test_a_workload_among_all_others_sees_no_anomaly(histories: dict[str, History], name: str) -> None:
    assert _anomalies(histories, name) == []


@pytest.mark.long
@pytest.mark.parametrize("names", list(combinations(LIGHT, 2)), ids="-".join)
def test_two_workloads_alone_see_no_anomaly(tmp_path: Path, names: tuple[str, str]) -> None:
    """A workload that relies on another one's commits, as to move the head on, shows only where few are beside it."""
    histories = _together(tmp_path, names)
    assert [(name, *each) for name in names for each in _anomalies(histories, name)] == []


def _anomalies(histories: dict[str, History], name: str) -> list[tuple[str, str]]:
    found = WORKLOADS[name](random.Random(name)).check(histories[name])
    return [(each.name, each.sentence) for each in found]


def test_an_undrop_of_one_workload_has_no_table_of_another_back(server: Server, lake: ls.Lake) -> None:
    administered, evolution = (WORKLOADS[name](random.Random(1)) for name in ("administration", "evolution"))
    administered.setup(lake)
    evolution.setup(lake)
    names = [table.name for table in lake.tables()]
    client = administered.client(Here(server), 0)
    undrop = next(each for each in administered.last(0) if each.f == "undrop")
    for name in names:
        lake.drop_table(name)
    for _ in names:
        client.invoke(undrop)
    client.close()
    assert [table.name for table in lake.tables()] == ["jepsen.administered"]
