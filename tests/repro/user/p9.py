# mypy: ignore-errors
"""Local times of Python's datetime.now() in rows of dicts."""

import datetime as dt
import os
import time

import pandas as pd
import pyarrow as pa

import lakestore as ls
from tests.repro.user.shop import Shop

shop = Shop("p9", filled=True)

os.environ["TZ"] = "America/New_York"

time.tzset()


lake = ls.connect(shop.address)
try:
    t = lake.create_table(
        "t.tz",
        schema=pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("n", pa.timestamp("us"))]),
        primary_key=["id"],
    )
except ls.Conflict:
    t = lake.table("t.tz")
now = dt.datetime.now()
aware = dt.datetime(2026, 1, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=5)))
for label, row in [("naive", {"id": 1, "ts": now}), ("aware", {"id": 1, "n": aware})]:
    try:
        t.upsert([row])
        print("dict", label, "into the other kind: taken")
    except ls.Invalid as e:
        print("dict", label, "into the other kind: refused:", e)
if not t.lookup([{"id": 1}]).num_rows:
    t.upsert([{"id": 1, "ts": now.astimezone(), "n": now}])
r = t.lookup([{"id": 1}]).to_pylist()[0]
print("wall clock", now, "| stored", r["ts"], "| off by", (now.astimezone() - r["ts"]))
print("aware 10:00+05:00 into naive column ->", r["n"])
for label, d in [
    ("pandas naive->timestamptz", pd.DataFrame({"id": [1], "ts": [pd.Timestamp(now)]})),
    ("pandas aware->timestamp", pd.DataFrame({"id": [1], "n": [pd.Timestamp("2026-01-01 10:00+05:00")]})),
]:
    try:
        t.upsert(d)
        print(label, "taken")
    except Exception as e:
        print(label, "refused:", e)
shop.close()
