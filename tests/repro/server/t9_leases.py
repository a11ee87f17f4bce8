# mypy: ignore-errors
"""T9: consumers that begin a snapshot and go away: each leaves two leases for an hour; all reads are refused then."""

import logging
import time

import numpy as np
import pyarrow as pa

import lakestore as ls
from tests.repro.server.common import Srv

logging.disable(logging.CRITICAL)


s = Srv("t9", limits={"leases": 200}).start()
lake = ls.connect(s.addr)
t = lake.create_table("a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"], buckets=2)
for k in range(4):
    t.upsert(
        pa.table({"id": np.arange(k * 20000, (k + 1) * 20000), "v": ["x" * 2000] * 20000})
    )  # more than what streams hold ahead
n = 0
for i in range(150):
    t.upsert([{"id": 0, "v": str(i)}])
    try:
        st = t.changes("snapshot")
        next(st)
        st.close()
        n += 1
    except Exception as e:
        print("stream", i, type(e).__name__, str(e)[:120])
        break
time.sleep(1)
for what, f in {"scan": lambda: t.scan().count(), "stream": lambda: next(t.changes("snapshot"))}.items():
    from lakestore.client.retry import within

    try:
        with within(5):
            f()
            print(what, "ok after", n)
    except Exception as e:
        print(what, "->", type(e).__name__, str(e)[:150])
lake.close()
s.stop()
