"""A server with something to show: `python -m tests.console.scene` takes the pictures of docs/console.md of it."""

from __future__ import annotations

import json
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.edge.console.routes import Console
from lakestore_server.operate.history import History, Kind, Series
from lakestore_server.operate.lake_figures import LakeFigures
from lakestore_server.queries.service import QueryService
from tests.support.browser import Browser
from tests.support.served import SCHEMA, Served

ORDERS = pa.schema([("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(12, 2))])
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "img"
LOGS = ("web.clicks", "web.views", "web.searches", "iot.readings", "iot.alarms", "audit.events")
KEYED = ("shop.orders", "shop.customers", "shop.items", "shop.stock", "shop.prices", "crm.accounts", "crm.contacts")


def console_of(served: Served) -> Console:
    """The console of a server with ports."""
    console = served.server._console
    assert console is not None
    return console


def queries_of(served: Served) -> QueryService:
    """The query service of a server with ports."""
    queries = served.server.queries
    assert queries is not None
    return queries


def address(served: Served) -> str:
    """The page."""
    about = served.server.about
    return f"{about['scheme']}://{about['http']}/"


def orders(first: int, count: int) -> pa.Table:
    """Rows of `shop.orders`."""
    numbers = range(first, first + count)
    names = pa.array([f"customer {n % 97}" for n in numbers])
    amounts = pa.array([Decimal(n % 10_000) for n in numbers], pa.decimal128(12, 2))
    return pa.table({"order_id": pa.array(numbers, pa.int64()), "customer": names, "amount": amounts})


def furnish(served: Served) -> None:
    """Tables at work, some of them in trouble, and those who read and write them."""
    lake = served.lake
    for i, name in enumerate(LOGS):
        lake.create_table(name, SCHEMA, buckets=2, lake={"freshness": "30s"})
        served.append(name, *range(1_500 * (i + 1)))
        served.tier(name)
        served.append(name, *range(120 * i))
    for i, name in enumerate(KEYED):
        lake.create_table(name, ORDERS, primary_key=["order_id"], buckets=4 if i % 2 else 6, lake={"freshness": "1m"})
        lake.table(name).upsert(orders(0, 900 * (i + 1)))
        served.tier(name)
        served.clock.advance(9)
        lake.table(name).upsert(orders(300, 150 * (i % 3) + 40))
    view = served.engine.view
    served.server.catalog.tier_problems = {}
    lakes: dict[str, Any] = served.server.service.status.lakes._known
    for i, (uuid, state) in enumerate(view.tables.items()):
        pointer = view.pointers[state.table.namespace, state.table.short_name]
        lakes[uuid] = (
            pointer.location,
            LakeFigures(12 + 7 * i, i % 4, 37 * (i % 5), 9_000 + 800 * i, 3_000_000 * (i + 1)),
        )
    list(lake.table("shop.orders").changes("earliest", until="now", subscription="billing"))
    list(lake.table("shop.stock").changes("latest", until="now", subscription="warehouse"))
    served.clock.advance(4)
    lake.table("shop.orders").upsert(orders(5_000, 60))
    with lake.producer("etl/orders") as producer, producer.commit(progress="file=day-12.csv;line=4000") as commit:
        commit.upsert("shop.orders", orders(9_000, 10))
    lake.transport.report(
        pb.ReportRequest(producer="bridge shop", records=48_210, bytes=9_400_000, rejected=3, lag=120, detail="{}")
    )


def draw_curves(served: Served, history: History) -> None:
    """Two hours of samples, so that there is something to draw."""
    now, view, history._next, history._begin_us = served.clock.us, served.engine.view, 0, 0
    for i in range(700):
        at = now - (700 - i) * 10_000_000
        wave = 1 + math.sin(i / 40) / 3 + math.sin(i / 7) / 9
        saw = (i * 10) % 60 + 8 * math.sin(i / 90)
        bytes_, disk = 3e7 + 6e4 * (i % 300), 4e11 - 6e6 * i
        server = [40 * wave, 21_000 * wave, 2e6 * wave, bytes_, disk, 9_000 * wave, saw, 12 + i % 5]
        tables = {
            uuid: [
                1_000 + 9 * i,
                400 * wave * (saw / 60 + 0.1),
                at - saw * 1_000_000,
                20 + (i % 240) / 12,
                (i % 240) / 40,
                (i % 240) * 31,
                (i % 180) * 50,
                9 + i % 9,
            ]
            for uuid, state in view.tables.items()
            if state.table.name == "shop.orders"
        }
        lags = {"billing": max(300 * wave * (saw / 60), 0.0), "warehouse": 40.0 if i < 500 else 8 * (i - 500)}
        streams = {Series(Kind.SUBSCRIPTION, name): lag for name, lag in lags.items() if i > 90}
        history.add(at, server, tables, {**streams, Series(Kind.BRIDGE, "bridge/shop"): 900 * wave})


def main() -> None:
    """Take the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder, "data"), ports=True) as served, Browser() as page:
        console = console_of(served)
        console.sampler.close()
        furnish(served)
        draw_curves(served, console.sampler.history)
        served.clock.advance(3)
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.open(address(served))
            page.until(
                "document.querySelectorAll('[role=row]').length > 10 && document.querySelectorAll('.line').length"
            )
            page.shot(PICTURES / f"console-{scheme}.png")
            print(json.dumps({scheme: page.errors}))


if __name__ == "__main__":
    main()
