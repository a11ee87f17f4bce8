"""Contracts in a world: decisions and measured minutes go on through kills of the leader, none twice and none lost."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.evolution import SetContract
from lakestore.model.system_tables import AUDIT, SLA
from tests.simulation import folders
from tests.simulation.case import limits_of
from tests.simulation.system import SimSystem
from tests.simulation.test_replicas import check_same
from tests.simulation.threads import installed
from tests.simulation.world import STEPS_MAX, World

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
slaProperties:
  - {property: latency, value: 1, unit: m}
  - {property: availability, value: 99, unit: percent}
"""
CONFIRMED_SECONDS = 200.0
"""The time in which a server confirms its clock, and some minutes."""


def promise(lake: ls.Lake, name: str) -> None:
    lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
    lake.table(name).alter(SetContract(DOCUMENT, "orders"))


def pass_seconds(world: World, seconds: float) -> None:
    """Let time pass. A sleep may end early, when a process is killed."""
    until = world.now + seconds
    while world.now < until:
        world.sleep(until - world.now)


def check_minutes(lake: ls.Lake, name: str, kind: str) -> list[float | None]:
    """The measured values of a promise, by minute: one for each."""
    rows = lake.table(SLA).scan(where=f"\"table\" = '{name}' AND promise = '{kind}'").to_arrow().sort_by("minute")
    minutes = [minute.timestamp() // 60 for minute in rows["minute"].to_pylist()]
    assert minutes
    assert all(after - before == 1 for before, after in pairwise(minutes)), (name, kind, minutes)
    found: list[float | None] = rows["measured"].to_pylist()
    return found


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_the_server_go_on_through_kills(servers: int, seed: int) -> None:
    world = World(f"contracts {seed} {servers}", steps_max=STEPS_MAX * servers)

    def main() -> None:
        system = SimSystem(world, folder, world_seed, limits_of(random.Random(world_seed)), servers=servers)
        try:
            system.start()
            with system.connect(0) as lake:
                promise(lake, "shop.orders")
                pass_seconds(world, CONFIRMED_SECONDS)
                system.await_leader().kill()
                pass_seconds(world, 150.0 if servers == 1 else 1.0)
                system.restart()
                promise(lake, "shop.more")
                pass_seconds(world, CONFIRMED_SECONDS)
                if servers > 1:
                    check_same(system)
                found = lake.table(AUDIT).scan().to_arrow().sort_by("at")
                assert found["table"].to_pylist() == ["shop.orders", "shop.more"]
                for name in ("shop.orders", "shop.more"):
                    for kind in ("freshness", "availability"):
                        check_minutes(lake, name, kind)
                percents = check_minutes(lake, "shop.orders", "availability")
                assert 100.0 in percents
                assert servers > 1 or percents.count(0.0) >= 1, percents
        finally:
            system.close()

    world_seed = f"contracts {seed} {servers}"
    with folders.folder() as folder, installed(world):
        world.run(main)
