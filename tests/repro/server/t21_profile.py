# mypy: ignore-errors
"""A checkpoint of many buckets, by function."""

import cProfile
import logging
import pstats
import shutil
import time

import numpy as np
import pyarrow as pa

import lakestore as ls
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


d = str(BASE / "t21")
shutil.rmtree(d, ignore_errors=True)
lake = ls.open(d)
server = lake._on_close.__self__
for B in (1024, 4096):
    t = lake.create_table(
        f"a.b{B}",
        schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]),
        primary_key=["id"],
        buckets=B,
    )
    t.upsert(pa.table({"id": np.arange(40_000), "v": np.arange(40_000)}))
    p = cProfile.Profile()
    a = time.process_time()
    w = time.time()
    p.enable()
    server.upkeep.checkpoint()
    p.disable()
    print(B, "buckets: checkpoint cpu", round(time.process_time() - a, 1), "wall", round(time.time() - w, 1))
    ps = pstats.Stats(p)
    for (f, _, n), v in sorted(ps.stats.items(), key=lambda x: -x[1][3])[:40]:
        if n in ("_new_path", "sync", "write", "list", "_cut_bucket", "<genexpr>", "_trim", "remove_unnamed"):
            print("    ", f.split("/")[-1], n, "calls", v[0], "cum s", round(v[3], 2))
lake.close()
shutil.rmtree(d, ignore_errors=True)
