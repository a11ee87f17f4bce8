"""The tierer and its Spark, killed, stopped and overtaken: another one goes on, and the zombie is fenced."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from jepsen.nemeses import NEMESES
from jepsen.system import System
from jepsen.system.processes import descendants
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long]

TABLE = "t.log"
ROUND_SECONDS = 180.0


@pytest.fixture
def system(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[System]:
    with System(tmp_path, frozenset(request.param), {}) as made:
        with made.connect(-1) as lake:
            lake.create_table(TABLE, pa.schema([("n", pa.int64())]), lake={"freshness": "1s"})
        yield made
    assert made.nursery.left() == []


def tiers(system: System, number: int) -> None:
    """A new row comes into the lake."""
    with system.connect(-1) as lake:
        lake.table(TABLE).append([{"n": number}])
    catalog = RestCatalog("lake", uri=system.catalog)
    until(lambda: in_lake(catalog) == number, f"row {number} in the lake", ROUND_SECONDS)


def in_lake(catalog: RestCatalog) -> int:
    """The rows that the lake's own reader sees."""
    time.sleep(0.5)
    return int(catalog.load_table(TABLE).scan().to_arrow().num_rows)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", [["tierer"]], indirect=True, ids=["local"])
def test_a_tierer_is_killed_loses_its_driver_and_comes_back_as_a_zombie(system: System) -> None:
    assert system.tierer is not None
    tiers(system, 1)
    (driver,) = system.tierer.driver()
    assert driver.pid in NEMESES["kill-driver"].begin(system, random.Random(1))
    NEMESES["kill-driver"].end(system)
    tiers(system, 2)
    NEMESES["kill-tierer"].begin(system, random.Random(1))
    assert not system.tierer.found()
    assert NEMESES["kill-tierer"].end(system) == "started"
    tiers(system, 3)
    (old,) = system.tierer.found()
    stopped = NEMESES["zombie-tierer"].begin(system, random.Random(1))
    assert old.pid in stopped
    assert len(stopped) > len(descendants(old.pid))
    tiers(system, 4)
    assert old.is_stopped
    NEMESES["zombie-tierer"].end(system)
    until(lambda: not old.is_there, "the zombie is fenced, and ends", ROUND_SECONDS)
    tiers(system, 5)
    assert system.heal() == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", [["tierer", "spark"]], indirect=True, ids=["cluster"])
def test_executors_are_killed_and_stopped(system: System) -> None:
    assert system.spark is not None
    tiers(system, 1)
    (executor,) = system.spark.executors()
    assert NEMESES["kill-executor"].begin(system, random.Random(1)) == [executor.pid]
    NEMESES["kill-executor"].end(system)
    tiers(system, 2)
    NEMESES["pause-executor"].begin(system, random.Random(1))
    NEMESES["pause-executor"].end(system)
    tiers(system, 3)
