"""Runs of the server in a world, by seeds: no anomaly, whatever breaks. A finding prints how to run it again."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest

import lakestore as ls
from tests.simulation import folders
from tests.simulation.case import SIMULATED, Case, limits_of, run
from tests.simulation.shrink import command
from tests.simulation.system import SimSystem
from tests.simulation.threads import installed
from tests.simulation.world import World

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "1"))
"""Of each workload; `.ci/run` has thirty by `python -m tests.simulation`, and the nightly form has thousands."""


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("workload", SIMULATED)
def test_no_seed_shows_an_anomaly(workload: str, servers: int) -> None:
    for seed in range(SEEDS):
        outcome = run(Case(f"{seed}", workload, servers=servers))
        told = [f"{each.name}: {each.sentence}" for each in outcome.anomalies]
        assert not told, f"{command(outcome.case)}\n" + "\n".join(told)


def test_a_write_whose_answer_is_muted_is_unknown_and_has_happened() -> None:
    world, told = World("mute"), list[object]()

    def main() -> None:
        system = SimSystem(world, folder, "mute", limits_of(random.Random(0)))
        system.start()
        with system.connect(0) as lake:
            table = lake.create_table("jepsen.muted", pa.schema([pa.field("n", pa.int64())]))
            system.machines[0].network.weather.mute = 1.0
            try:
                table.append([{"n": 1}])
            except ls.LakestoreError as error:
                told.append(error.applied)
            told.append(table.scan().to_arrow().num_rows)
        system.close()

    with folders.folder() as folder, installed(world):
        world.run(main)
    assert told == ["unknown", 1]
