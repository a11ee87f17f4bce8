"""Runs of the server in a world, by seeds: no anomaly, whatever breaks. A finding prints how to run it again."""

from __future__ import annotations

import os
import random
from collections import Counter

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.profiles import Reads
from tests.simulation import folders, marks
from tests.simulation.case import SIMULATED, Case, Outcome, limits_of, run
from tests.simulation.shrink import command
from tests.simulation.system import JournalKind, SimSystem
from tests.simulation.threads import installed
from tests.simulation.world import World
from tests.support import seeds

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "1"))
"""Of each workload; `.ci/run` has thirty by `python -m tests.simulation`, and the nightly form has thousands."""


LONG_SEEDS = 20
"""Seeds of each workload on a journal in a bucket in `make long`."""


@pytest.mark.parametrize(("servers", "journal"), [(1, "log"), (3, "log"), (3, "bucket")])
@pytest.mark.parametrize("workload", SIMULATED)
def test_no_seed_shows_an_anomaly(workload: str, servers: int, journal: JournalKind) -> None:
    for seed in range(SEEDS):
        _check(run(Case(f"{seed}", workload, servers=servers, journal=journal)))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_servers_with_a_journal_in_a_bucket_show_no_anomaly() -> None:
    """Every second run reads at followers."""
    chance, seen = seeds.seeded(), Counter[str]()
    for workload in SIMULATED:
        for number in range(LONG_SEEDS):
            reads: Reads = "follower" if number % 2 else "leader"
            outcome = run(Case(str(chance.random()), workload, servers=3, journal="bucket", reads=reads))
            _check(outcome)
            seen += outcome.marks
    assert not marks.OF_BUCKET - seen.keys()


def _check(outcome: Outcome) -> None:
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
