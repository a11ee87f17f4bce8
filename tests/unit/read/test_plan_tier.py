"""A plan carries the tier record from the journal, whatever history the lake keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lakestore.union import plan
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
