# mypy: ignore-errors
"""T1: one public-API call ends the server for everybody."""

import os
import time

import pyarrow as pa

import lakestore as ls
from tests.repro.server.common import Srv

s = Srv("t1").start()
lake = ls.connect(s.addr)
t = lake.create_table("shop.orders", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
t.upsert([{"id": 1, "v": "a"}])
for what, call in {
    'alter retention="9999999999999999d"': lambda: lake.table("shop.orders").alter(retention="9999999999999999d"),
    "create_table retention 2**64 bytes": lambda: lake.create_table(
        "shop.x", schema=pa.schema([("id", pa.int64())]), retention={"bytes": 2**64}
    ),
    "add column with lone surrogate": lambda: lake.table("shop.orders").alter(add={"caf\udce9": pa.int64()}),
}.items():
    from lakestore.client.retry import within

    try:
        with within(5):
            print(what, "->", call())
    except Exception as e:
        print(what, "->", type(e).__name__, str(e)[:150])
    time.sleep(1)
    print("   server exit code:", s.p.poll(), "| log:", s.tail(200).strip().splitlines()[-1][:200])
    if s.p.poll() is not None:
        s._mark = os.path.getsize(f"{s.dir}/log")
        s.start()
lake.close()
s.stop()
