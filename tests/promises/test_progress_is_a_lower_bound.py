"""`lakestore.progress` has a lower bound for each feed and table at every cut, and names what holds a table back."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import NotFresh
from lakestore.evolution import SetContract
from tests.support.served import Served

DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: ORDERS
version: 1.0.0
schema:
  - name: ORDERS
    properties: [{name: id}]
"""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
TABLE = "shop.orders"
FEEDS = [f"complete/{TABLE}/etl {name}" for name in ("a", "ß")]
TEN = datetime(2026, 1, 1, 10, tzinfo=UTC)


def create(lake: ls.Lake, name: str = "orders") -> ls.Table:
    lake.create_table(f"shop.{name}", SCHEMA, primary_key=["id"])
    return lake.table(f"shop.{name}").alter(SetContract(DOCUMENT.replace("ORDERS", name), name))


def progress(lake: ls.Lake, **where: Any) -> dict[tuple[str, str], tuple[datetime | None, str | None]]:
    rows = lake.sql("SELECT * FROM lakestore.progress", **where).to_arrow().to_pylist()
    return {(row["table"], row["feed"]): (row["complete_through"], row["held_back_by"]) for row in rows}


def move(lake: ls.Lake, feed: str, to: datetime) -> None:
    with lake.registers([feed]) as registers, registers.commit({feed: to.isoformat()}):
        pass


def test_the_slowest_feed_is_named_and_a_feed_that_is_over_is_gone(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        create(lake)
        lake.create_table("shop.free", SCHEMA)
        served.server.progress.run_once()
        assert progress(lake) == {}
        move(lake, FEEDS[0], TEN)
        lake.registers([FEEDS[1]]).close()
        move(lake, "complete/shop.free/etl", TEN)
        served.server.progress.run_once()
        assert progress(lake) == {
            (TABLE, ""): (None, FEEDS[1]),
            (TABLE, FEEDS[0]): (TEN, None),
            (TABLE, FEEDS[1]): (None, None),
        }
        move(lake, FEEDS[1], TEN - timedelta(hours=1))
        served.server.progress.run_once()
        assert progress(lake)[TABLE, ""] == (TEN - timedelta(hours=1), FEEDS[1])
        lake.drop_registers([FEEDS[1]])
        served.server.progress.run_once()
        assert progress(lake) == {(TABLE, ""): (TEN, FEEDS[0]), (TABLE, FEEDS[0]): (TEN, None)}
        lake.drop_table(TABLE)
        served.server.progress.run_once()
        assert progress(lake) == {}


def test_a_row_keeps_the_time_since_which_it_is_so(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        create(served.lake)
        move(served.lake, FEEDS[0], TEN)
        served.server.progress.run_once()
        rows = served.lake.sql("SELECT * FROM lakestore.progress").to_arrow()
        lsn = served.engine.view.lsn
        served.clock.advance(600)
        served.server.progress.run_once()
        assert served.engine.view.lsn == lsn
        served.restart()
        served.server.progress.run_once()
        assert served.lake.sql("SELECT * FROM lakestore.progress").to_arrow() == rows
        move(served.lake, FEEDS[0], TEN + timedelta(hours=1))
        served.server.progress.run_once()
        since = served.lake.sql("SELECT min(since) AS s FROM lakestore.progress").to_arrow()["s"][0].as_py()
        assert since - rows["since"][0].as_py() >= timedelta(seconds=600)


@pytest.mark.parametrize("seed", range(4))
def test_no_cut_says_more_than_a_read_at_it_may_demand(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Served(tmp_path) as served:
        lake, said = served.lake, dict.fromkeys(FEEDS, TEN)
        create(lake)
        for feed in FEEDS:
            move(lake, feed, TEN)
        tokens = []
        for _ in range(12):
            feed = rng.choice(FEEDS)
            said[feed] += timedelta(minutes=rng.randrange(1, 90))
            move(lake, feed, said[feed])
            if rng.random() < 0.5:
                served.server.progress.run_once()
            with lake.snapshot() as cut:
                tokens.append(str(cut.token))
        served.clock.advance(60)
        for token in tokens:
            through = progress(served.lake, at=token).get((TABLE, ""), (None, None))[0]
            if through is not None:
                served.lake.sql(f"SELECT * FROM {TABLE}", at=token, require_complete_through=through)
        with pytest.raises(NotFresh):
            served.lake.sql(
                f"SELECT * FROM {TABLE}", at=tokens[-1], require_complete_through=min(said.values()) + timedelta(days=1)
            ).to_arrow()
