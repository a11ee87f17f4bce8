"""Runs of the server in a world, by seeds: no anomaly, whatever breaks. A finding prints how to run it again."""

from __future__ import annotations

import os

import pytest

from tests.simulation.case import SIMULATED, Case, run
from tests.simulation.shrink import command

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "2"))
"""Of each workload; the nightly form has thousands, by `python -m tests.simulation`."""


@pytest.mark.parametrize("workload", SIMULATED)
def test_no_seed_shows_an_anomaly(workload: str) -> None:
    for seed in range(SEEDS):
        outcome = run(Case(f"{seed}", workload))
        told = [f"{each.name}: {each.sentence}" for each in outcome.anomalies]
        assert not told, f"{command(outcome.case)}\n" + "\n".join(told)
