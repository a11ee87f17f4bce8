"""Promises of a contract: one row of `lakestore.sla` for each minute and promise, also for minutes without a server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.evolution import SetContract
from lakestore.model.system_tables import SLA
from lakestore.model.times import text_of
from lakestore_server.operate import metrics
from lakestore_server.operate.promises import MINUTE_US, Minute, Uptime
from tests.support.replicas import Replicas
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
slaProperties:
  - {property: latency, value: 90, unit: s}
  - {property: completeness, value: 5, unit: m}
  - {property: availability, value: 99, unit: percent}
"""
FEED = "complete/shop.orders/etl"
Rows = list[dict[str, Any]]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as one:
        yield one


def promise(lake: ls.Lake, name: str = "shop.orders") -> ls.Table:
    lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
    return lake.table(name).alter(SetContract(DOCUMENT, "orders"))


def pass_seconds(served: Served, seconds: int) -> None:
    for _ in range(seconds // 5):
        served.clock.advance(5)
        served.server.service.status.promises.run_once()


def rows(lake: ls.Lake, kind: str) -> Rows:
    found: Rows = lake.table(SLA).scan(where=f"promise = '{kind}'").to_arrow().sort_by("minute").to_pylist()
    return found


def check_dense(found: Rows) -> None:
    minutes = [row["minute"].timestamp() // 60 for row in found]
    assert all(after - before == 1 for before, after in pairwise(minutes)), minutes


def test_freshness_grows_with_the_oldest_change_that_the_lake_lacks(served: Served) -> None:
    orders = promise(served.lake)
    pass_seconds(served, 120)
    orders.upsert([{"id": 1}])
    pass_seconds(served, 180)
    served.tier("shop.orders")
    pass_seconds(served, 120)
    found = rows(served.lake, "freshness")
    check_dense(found)
    assert {(row["table"], row["promised"], row["unit"]) for row in found} == {("shop.orders", 90.0, "s")}
    assert [row["met"] for row in found] == [row["measured"] <= 90 for row in found]
    assert found[0]["measured"] == 0.0
    assert max(row["measured"] for row in found) in (175.0, 180.0)
    assert found[-1]["measured"] == 0.0
    assert False in [row["met"] for row in found]


def test_completeness_is_the_lag_of_the_slowest_feed(served: Served) -> None:
    promise(served.lake)
    pass_seconds(served, 120)
    assert {row["measured"] for row in rows(served.lake, "completeness")} == {0.0}
    with served.lake.registers([FEED]) as feed:
        pass_seconds(served, 120)
        assert rows(served.lake, "completeness")[-1] == rows(served.lake, "completeness")[-1] | {
            "measured": None,
            "met": None,
        }
        behind = text_of(served.engine.now_us() - 400_000_000)
        with feed.commit({FEED: behind}) as commit:
            commit.upsert("shop.orders", [{"id": 1}])
        pass_seconds(served, 120)
    last = rows(served.lake, "completeness")[-1]
    assert last["met"] is False
    assert last["measured"] > 400


def test_minutes_without_a_server_are_not_available_and_nothing_else_is_known_of_them(served: Served) -> None:
    promise(served.lake)
    pass_seconds(served, 180)
    before = rows(served.lake, "availability")
    assert {row["measured"] for row in before[1:]} == {100.0}
    served.kill()
    served.clock.advance(600)
    served.start()
    pass_seconds(served, 180)
    found = rows(served.lake, "availability")
    check_dense(found)
    down = [row for row in found if row["measured"] == 0.0]
    assert 9 <= len(down) <= 11
    assert not any(row["met"] for row in down)
    assert found[-1]["measured"] == 100.0
    assert found[: len(before)] == before
    for kind in ("freshness", "completeness"):
        others = rows(served.lake, kind)
        check_dense(others)
        assert [row["minute"] for row in others if row["met"] is None] == [row["minute"] for row in down]


def test_a_minute_in_which_the_server_comes_back_counts_in_part(served: Served) -> None:
    promise(served.lake)
    pass_seconds(served, 180)
    served.kill()
    served.clock.advance(90)
    served.start()
    pass_seconds(served, 180)
    parts = [row["measured"] for row in rows(served.lake, "availability") if 0 < row["measured"] < 100]
    assert parts


def test_a_server_that_takes_no_rows_is_not_available(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    promise(served.lake)
    pass_seconds(served, 120)
    monkeypatch.setattr(served.engine, "is_disk_full", lambda: True)
    pass_seconds(served, 180)
    assert rows(served.lake, "availability")[-1]["measured"] == 0.0
    monkeypatch.undo()
    pass_seconds(served, 180)
    assert rows(served.lake, "availability")[-1]["measured"] == 100.0


def test_rows_begin_with_the_contract_and_end_with_it(served: Served) -> None:
    pass_seconds(served, 300)
    promise(served.lake)
    served.clock.advance(120)
    promise(served.lake, "shop.other")
    served.kill()
    served.clock.advance(600)
    served.start()
    pass_seconds(served, 60)
    found = [row["table"] for row in rows(served.lake, "availability")]
    assert 11 <= found.count("shop.orders") <= 13, "the minutes since the contract, and none before"
    assert found.count("shop.orders") == found.count("shop.other") + 2
    for name in set(found):
        served.lake.table(name).alter(SetContract(""))
    pass_seconds(served, 180)
    assert len(rows(served.lake, "availability")) <= len(found) + 2
    assert b"lakestore_promise_met{" not in metrics.text(served.server.sources)


def test_metrics_and_status_show_the_promises(served: Served) -> None:
    orders = promise(served.lake)
    orders.upsert([{"id": 1}])
    pass_seconds(served, 120)
    text = metrics.text(served.server.sources).decode()
    assert 'lakestore_promise_promised{promise="freshness",table="shop.orders"} 90.0' in text
    assert 'lakestore_promise_met{promise="freshness",table="shop.orders"} 0.0' in text
    assert 'lakestore_promise_met{promise="availability",table="shop.orders"} 1.0' in text
    [table] = [each for each in served.lake.status()["tables"] if each["name"] == "shop.orders"]
    assert table["contract"]["version"] == 1
    assert [each["promise"] for each in table["contract"]["promises"]] == ["freshness", "completeness", "availability"]


def test_nothing_is_written_while_the_clock_is_in_doubt(tmp_path: Path) -> None:
    with Served(tmp_path, believes_clock=False) as served:
        promise(served.lake)
        pass_seconds(served, 240)
        assert rows(served.lake, "freshness") == []
        pass_seconds(served, 120)
        found = rows(served.lake, "freshness")
        assert len(found) >= 4
        check_dense(found)


def test_the_next_leader_goes_on(tmp_path: Path) -> None:
    with Replicas(tmp_path, count=2) as replicas, ls.connect(replicas.addresses) as lake:
        promise(lake)
        first = replicas.leader()
        assert first is not None
        replicas.depose()
        duty = replicas.servers[first].service.status.promises
        until(lambda: not replicas.servers[first].engine.is_leading, "the former leader")
        duty.run_once()
        assert duty._uptime.current is None


def minutes(looks: list[tuple[float, float, bool]]) -> dict[int, float]:
    """Minute to percent, from looks of (time in seconds, monotonic seconds, there)."""
    uptime = Uptime(1)
    ended: list[Minute] = []
    for time, monotonic, there in looks:
        ended += uptime.look(int(time * 1e6), monotonic, (there,))
    assert len({minute.number for minute in ended}) == len(ended)
    return {minute.number: minute.percents[0] for minute in ended}


def steady(begin: float, end: float, *, ahead: float = 0.0, there: bool = True) -> list[tuple[float, float, bool]]:
    return [(at + ahead, at, there) for at in range(int(begin), int(end) + 1, 5)]


def test_shares_of_minutes() -> None:
    assert MINUTE_US == 60_000_000
    assert minutes(steady(600, 780)) == {10: 100.0, 11: 100.0, 12: 100.0}
    assert minutes(steady(630, 720)) == {10: 50.0, 11: 100.0}
    assert minutes(steady(600, 630) + steady(635, 720, there=False)) == {10: 50.0, 11: 0.0}


def test_a_process_that_stood_still_was_not_there() -> None:
    assert minutes(steady(600, 630) + steady(670, 720)) == {10: 50.0, 11: pytest.approx(83.333)}
    assert minutes(steady(600, 630) + steady(900, 960)) == {10: 50.0, 11: 0.0, 12: 0.0, 13: 0.0, 14: 0.0, 15: 100.0}


def test_a_clock_that_jumps_makes_no_minutes_that_were_missed() -> None:
    assert minutes(steady(600, 645) + steady(650, 780, ahead=3_600)) == {10: 100.0, 70: 100.0, 71: 100.0, 72: 100.0}
    back = minutes(steady(600, 645) + steady(650, 900, ahead=-120))
    assert back == {10: 100.0, 11: 100.0, 12: 100.0}, "minutes that have passed do not come again"
