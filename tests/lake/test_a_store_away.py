"""Rounds while the object store is away: a sentence, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jepsen.system.http_proxy import Trouble, Weather
from jepsen.system.store import WAREHOUSE, Store
from lakestore.errors import Unavailable
from lakestore.iceberg import places
from tests.support.store_lake import StoreLake

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_a_round_says_that_the_store_is_away_and_the_next_one_does_its_work(
    store: Store, tmp_path: Path, method: str
) -> None:
    with StoreLake(tmp_path / "data", WAREHOUSE, store.requests) as on:
        table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=1)
        tierer = on.tierer()
        table.upsert([{"id": n, "v": "a"} for n in range(100)])
        tierer.run_once("shop.rows", compaction=False)
        table.upsert([{"id": n, "v": "b"} for n in range(50, 150)])
        places.forget_small_files()
        store.proxy.breaks(Weather((Trouble.REFUSE,), share=1.0, methods=frozenset({method})))
        with pytest.raises(Unavailable):
            tierer.run_once("shop.rows", compaction=False)
        store.proxy.mend()
        (outcome,) = tierer.run_once("shop.rows", compaction=False)
        assert outcome.flushed is not None
        assert outcome.flushed.rows == 100
        found = table.scan().to_arrow()
        assert sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == [
            (n, "a" if n < 50 else "b") for n in range(150)
        ]
