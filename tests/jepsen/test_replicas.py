"""Runs of several servers on one journal: what they are made of, and that each fault is mended where it was made."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from jepsen.nemeses.replicas import NAMES, OfOne, made
from jepsen.schedule import LEFT_OUT
from jepsen.system.replicas import Replicas
from jepsen.trial import Trial, drawn, needs_of, with_replicas
from tests.jepsen.test_documents import PAGE


class Servers:
    """Three servers that are only names, for the nemeses to choose from."""

    def __init__(self) -> None:
        self.servers: list[Any] = ["a", "b", "c"]
        self._victims = iter([2, 0, 2])

    def victim(self, _: random.Random) -> int:
        return next(self._victims)


class Fault:
    name, needs = "fault", frozenset[str]()

    def __init__(self, told: str = "broken") -> None:
        self.told, self.broken = told, set[str]()

    def begin(self, system: Any, _: random.Random) -> str:
        self.broken.add(system)
        return self.told

    def end(self, system: Any) -> str:
        self.broken.discard(system)
        return "mended"


def test_a_fault_is_mended_at_every_server_that_it_befell() -> None:
    servers, fault, chance = cast("Replicas", Servers()), Fault(), random.Random(0)
    nemesis = OfOne(fault)
    assert nemesis.begin(servers, chance) == {"server": 2, "done": "broken"}
    assert nemesis.begin(servers, chance) == {"server": 0, "done": "broken"}
    assert fault.broken == {"a", "c"}
    assert nemesis.end(servers) == {0: "mended", 2: "mended"}
    assert not fault.broken
    assert nemesis.end(servers) == {}, "mended already"


def test_a_fault_that_cannot_be_had_is_told_as_such() -> None:
    left_out = f"{LEFT_OUT}no compiler"
    assert OfOne(Fault(left_out)).begin(cast("Replicas", Servers()), random.Random(0)) == left_out


@pytest.mark.parametrize("number", range(20))
def test_a_drawn_trial_has_workloads_and_faults_of_several_servers(number: int) -> None:
    trial = with_replicas(drawn(7, number), 3)
    assert trial.workloads
    assert not needs_of(trial.workloads)
    assert trial.nemeses
    assert set(trial.nemeses) <= NAMES
    assert "--servers 3 --reads leader" in trial.command


def test_one_server_is_run_as_ever() -> None:
    assert "--servers" not in Trial("1", ("log",), ()).command


def test_every_fault_is_on_the_page_and_no_run_shares_them() -> None:
    table = PAGE.split("| fault of several servers |")[1].split("\n\n")[0]
    assert {name for name in NAMES if f"`{name}`" not in table} == set()
    assert made()["kill"] is not made()["kill"]
