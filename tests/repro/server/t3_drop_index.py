# mypy: ignore-errors
"""T3: keys of dropped tables stay in the index (files and memory) for ever."""

import pathlib
import shutil

import numpy as np
import pyarrow as pa

import lakestore as ls
from tests.repro.server.common import BASE

d = f"{BASE}/t3"
shutil.rmtree(d, ignore_errors=True)
lake = ls.open(d)
server = lake._on_close.__self__
for r in range(6):
    t = lake.create_table(
        "a.t", schema=pa.schema([("id", pa.string()), ("v", pa.int64())]), primary_key=["id"], buckets=1
    )
    ids = [f"key-{i:012d}-{'x' * 40}" for i in range(50_000)]
    for a in range(0, 50_000, 10_000):
        t.upsert(pa.table({"id": ids[a : a + 10_000], "v": np.arange(10_000)}))
    lake.drop_table("a.t")
    server.upkeep.checkpoint()
    print(
        "round",
        r,
        "live tables",
        len(server.engine.view.tables),
        "index keys",
        server.engine.index.size.entries,
        "index bytes",
        server.engine.index.size.nbytes >> 10,
        "KB, cached overlay keys",
        sum(map(len, server.engine.index._older)),
        "segments",
        sum(1 for _ in pathlib.Path(d + "/segments").rglob("*.seg")),
        flush=True,
    )
server.upkeep.checkpoint()
print("after one more checkpoint", server.engine.index.size)
lake.close()
lake = ls.open(d)
server = lake._on_close.__self__
print("after restart", server.engine.index.size, len(server.engine.view.tables))
lake.close()
