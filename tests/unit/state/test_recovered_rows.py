"""Rows that a restart has read from the journal are found as those of segments are: many pieces by one gathering."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore_server.arrays.gather import Plan
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())])
COMMITS, ROWS = 12, 3_000


def rows(commit: int) -> pa.Table:
    """The rows of one of the commits."""
    ids = np.arange(commit, COMMITS * ROWS, COMMITS)
    return pa.table({"id": ids, "name": [f"n{n}" for n in ids.tolist()], "v": ids / 7}, schema=SCHEMA)


def test_rows_of_the_journal_are_gathered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(overlay_checkpoint_keys=10_000_000)
    with Served(tmp_path, limits=limits) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
        for commit in range(COMMITS):
            table.upsert(rows(commit))
        served.kill()
    gathered: list[int] = []
    gather = Plan.gather

    def counted(self: Plan, parts: list[object], *about: object) -> object:
        gathered.append(len(parts))
        return gather(self, parts, *about)  # type: ignore[arg-type]

    monkeypatch.setattr(Plan, "gather", counted)
    with Served(tmp_path, limits=limits) as served:
        ids = np.random.default_rng(1).integers(0, COMMITS * ROWS, 500)
        found = served.lake.table("a.b").lookup(pa.table({"id": ids}))
        buckets = len(served.state("a.b").logs)
    assert found.column("id").to_pylist() == ids.tolist()
    assert found.column("name").to_pylist() == [f"n{n}" for n in ids.tolist()]
    assert found.column("v").to_pylist() == (ids / 7).tolist()
    assert gathered == [COMMITS * buckets], "one gathering of all chunks"
