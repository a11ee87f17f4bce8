# mypy: ignore-errors
# ruff: noqa: B023
"""T4/T5: cost of many buckets / many tables in commit and checkpoint (quadratic?)."""

import logging
import os
import shutil
import sys
import time

import numpy as np
import pyarrow as pa

import lakestore as ls
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


mode = sys.argv[1]
d = str(BASE / f"t5_{mode}")
shutil.rmtree(d, ignore_errors=True)
lake = ls.open(d)
server = lake._on_close.__self__
sch = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def maps():
    return sum(1 for _ in open("/proc/self/maps"))


def clock(f):
    a = time.time()
    c = time.process_time()
    f()
    return round(time.time() - a, 2), round(time.process_time() - c, 2)


if mode == "buckets":
    for B in (64, 512, 4096):
        t = lake.create_table(f"a.b{B}", schema=sch, primary_key=["id"], buckets=B)
        tab = pa.table({"id": np.arange(20_000), "v": np.arange(20_000)})
        print(
            B,
            "buckets: upsert 20k rows (wall,cpu)",
            clock(lambda: t.upsert(tab)),
            "again",
            clock(lambda: t.upsert(tab)),
            "checkpoint",
            clock(server.upkeep.checkpoint),
            "checkpoint 1 row",
            (t.upsert([{"id": 1, "v": 2}]), clock(server.upkeep.checkpoint))[1],
            "maps",
            maps(),
            "fds",
            len(os.listdir("/proc/self/fd")),
            flush=True,
        )
        print("   scan", clock(lambda: t.scan().count()), "lookup 1", clock(lambda: t.lookup([{"id": 5}])), flush=True)
else:
    made = 0
    for N in (250, 500, 1000):
        a = time.time()
        while made < N:
            lake.create_table(f"a.t{made}", schema=sch, primary_key=["id"], buckets=4)
            made += 1
        cr = time.time() - a
        tabs = [lake.table(f"a.t{i}") for i in range(N)]
        a = time.time()
        for t in tabs:
            t.upsert([{"id": i, "v": 1} for i in range(16)])
        up = time.time() - a
        print(
            N,
            "tables: create s",
            round(cr, 1),
            "upsert each s",
            round(up, 1),
            "checkpoint (wall,cpu)",
            clock(server.upkeep.checkpoint),
            "idle checkpoint",
            clock(server.upkeep.checkpoint),
            "maps",
            maps(),
            flush=True,
        )
lake.close()
