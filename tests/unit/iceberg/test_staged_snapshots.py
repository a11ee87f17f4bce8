"""A staged snapshot goes with the commit that lands its files in main, unless somebody else needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestore_server.catalog.schemas import Json
from tests.support.catalogs import UUID, World, set_ref, snapshot, tier, world

STAGED = "lakestore_stage_1_x"


@pytest.fixture
def lake(tmp_path: Path) -> World:
    made = world(tmp_path)
    made.create_own()
    for point in ((1, 1), (2, 2)):
        made.ledger.sums[UUID, point] = (7, 8)
        made.ledger.rows[UUID, point] = 10
    made.commit("own", *tier(1, None, (0, 0), (1, 1)))
    made.commit("own", snapshot(2, 1, 2, total_records=10), set_ref(STAGED, 2))
    made.commit("own", snapshot(3, 2, 3, total_records=10), set_ref(STAGED, 3))
    return made


def land(lake: World) -> set[int]:
    """Snapshots after snapshot 4 landed what snapshots 2 and 3 staged."""
    landing, main, tag = tier(4, 1, (1, 1), (2, 2))
    landing["snapshot"]["summary"]["source-snapshot-id"] = "3"
    gone: Json = {"action": "remove-snapshot-ref", "ref-name": STAGED}
    doc = lake.commit("own", landing, main, tag, gone)
    return {each["snapshot-id"] for each in doc["snapshots"]}


def test_it_goes_with_the_branch_that_it_stood_on(lake: World) -> None:
    assert land(lake) == {1, 4}


def test_another_branch_keeps_it(lake: World) -> None:
    lake.commit("own", set_ref("mine", 3))
    assert land(lake) == {1, 2, 3, 4}


def test_a_read_keeps_it(lake: World) -> None:
    lake.ledger.pinned = {UUID: frozenset({2})}
    assert land(lake) == {1, 2, 4}


def test_a_landing_is_answered_again_after_a_lost_answer(lake: World) -> None:
    assert land(lake) == land(lake)
