# mypy: ignore-errors
"""T3: keys of dropped tables stay in the index (LMDB and memory) for ever."""

import pathlib
import shutil

import numpy as np
import pyarrow as pa

import lakestore as ls
from tests.repro.server.common import BASE

d = f"{BASE}/t3"
shutil.rmtree(d, ignore_errors=True)
lake = ls.open(d)
eng = lake._on_close.__self__.engine
for r in range(6):
    t = lake.create_table(
        "a.t", schema=pa.schema([("id", pa.string()), ("v", pa.int64())]), primary_key=["id"], buckets=1
    )
    ids = [f"key-{i:012d}-{'x' * 40}" for i in range(50_000)]
    for a in range(0, 50_000, 10_000):
        t.upsert(pa.table({"id": ids[a : a + 10_000], "v": np.arange(10_000)}))
    lake.drop_table("a.t")
    eng.checkpoint()
    print(
        "round",
        r,
        "live tables",
        len(eng.view.tables),
        "index keys",
        eng.index.size.keys,
        "index bytes",
        eng.index.size.bytes >> 10,
        "KB, cached overlay keys",
        sum(map(len, eng.index._older)),
        "segments",
        sum(1 for _ in pathlib.Path(d + "/segments").rglob("*.seg")),
        flush=True,
    )
eng.checkpoint()
print("after one more checkpoint", eng.index.size)
lake.close()
lake = ls.open(d)
eng = lake._on_close.__self__.engine
print("after restart", eng.index.size, len(eng.view.tables))
lake.close()
