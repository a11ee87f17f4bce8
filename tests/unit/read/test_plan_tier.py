"""A plan carries the tier record from the journal, whatever history the lake keeps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.union import plan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.state.catalog_change import CatalogChange, SetPointer
from tests.support.served import SCHEMA, Served


def tier(served: Served) -> plan.TierState | None:
    return plan.decode(served.lake.transport.plan(plan.request(["t.log"]))).scan("t.log").tier


def test_a_plan_knows_main_by_each_snapshot_that_a_rewrite_left(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.lake.create_table("t.log", SCHEMA, buckets=2, bucket_key=["v"])
        assert tier(served) is None
        served.append("t.log", 1, 2, 3)
        served.tier("t.log")
        served.append("t.log", 4, 5)
        first = served.tier("t.log")
        record = served.state("t.log").tiers[first]
        pointer = served.engine.view.pointers["t", "log"]
        for rewrite, forgotten, known in ((71, (), {first, 71}), (72, (first, 71), {72})):
            tiers = (replace(record, snapshot_id=rewrite),)
            step = SetPointer("t", "log", pointer.location, pointer, tiers, forgotten)
            served.server.catalog.ledger.commit(CatalogChange((step,)))
            found = tier(served)
            assert found is not None
            assert found.snapshot_ids == known
            assert (found.tier_point, found.live_sum, found.lsn) == (record.tier_point, record.live_sums, record.lsn)


def bounded(served: Served, most: int = 0, hot_bytes_max: int = 0) -> tuple[list[tuple[int, int]], int]:
    """The hot ranges of a bounded plan, and the offsets that it leaves."""
    request = plan.request(["t.log"], changes_max=most, hot_bytes_max=hot_bytes_max)
    found = plan.decode(served.lake.transport.plan(request))
    return [(part.tier_point, part.head) for part in found.scan("t.log").buckets], found.changes_left


def test_a_bounded_plan_ends_at_a_commit(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.lake.create_table("t.log", SCHEMA, buckets=1)
        served.lake.create_table("t.other", SCHEMA)
        assert bounded(served, 3) == ([(0, 0)], 0)
        for number in range(4):
            served.append("t.log", *range(10 * number, 10 * number + 10))
            served.append("t.other", 1)
        assert bounded(served, 25) == ([(0, 20)], 20)
        assert bounded(served, 20) == ([(0, 20)], 20)
        assert bounded(served, 19) == ([(0, 10)], 30)
        assert bounded(served, 3) == ([(0, 10)], 30), "a commit is not divided"
        assert bounded(served, 40) == bounded(served, 10**9) == ([(0, 40)], 0)
        served.tier("t.log", next(lsn for lsn in range(100) if served.state("t.log").logs[0].at_lsn(lsn).end == 20))
        assert bounded(served, 19) == ([(20, 30)], 10)
        assert bounded(served, 1) == ([(20, 30)], 10)
        served.lake.table("t.log").truncate()
        served.append("t.log", 1, 2)
        served.append("t.log", 3)
        assert bounded(served, 1)[1] == 1


def test_wide_rows_make_a_round_smaller(tmp_path: Path) -> None:
    """Ten narrow rows, then ten wide ones in each of three commits; in memory, and in segments."""
    with Served(tmp_path) as served:
        schema = pa.schema([pa.field("v", pa.int64(), nullable=False), ("text", pa.string())])
        table = served.lake.create_table("t.log", schema, buckets=1)
        for chars in (1, 50_000, 50_000, 50_000):
            table.append([{"v": v, "text": random.Random(v).randbytes(chars // 2).hex()} for v in range(10)])
        for _ in range(2):
            assert bounded(served) == ([(0, 40)], 0)
            assert bounded(served, 40, 10_000_000) == bounded(served, 0, 10_000_000) == ([(0, 40)], 0)
            assert bounded(served, 40, 1_200_000) == ([(0, 30)], 10)
            assert bounded(served, 25, 1_200_000) == ([(0, 20)], 20)
            assert bounded(served, 40, 800_000) == ([(0, 20)], 20), "a part of a chunk counts by its rows"
            assert bounded(served, 40, 1) == ([(0, 10)], 30), "a commit is not divided"
            served.server.upkeep.checkpoint()


@pytest.mark.parametrize("more", [{"at": "x"}, {"tables": ["t.log", "t.other"]}, {"tables": []}])
def test_only_a_plan_of_one_head_is_bounded(tmp_path: Path, more: dict[str, Any]) -> None:
    with Served(tmp_path) as served:
        served.lake.create_table("t.log", SCHEMA)
        served.lake.create_table("t.other", SCHEMA)
        with pytest.raises(ls.Invalid, match="bound a plan of the head of one table"):
            served.lake.transport.plan(pb.PlanRequest(**{"tables": ["t.log"], "changes_max": 5, **more}))
