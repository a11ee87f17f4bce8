# mypy: ignore-errors
# ruff: noqa: B023
"""T15: rows near the message limit: is what is accepted readable by every path?"""

import concurrent.futures as cf
import os
import time

import pyarrow as pa

import lakestore as ls
from lakestore.client.retry import within
from tests.repro.server.common import Srv

s = Srv("t15", limits={"message_bytes": 2 << 20, "read_batch_bytes": 1 << 20}).start()
lake = ls.connect(s.addr)
t = lake.create_table("a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.binary())]), primary_key=["id"], buckets=1)
L = 2 << 20


def tryit(what, f, sec=60):
    a = time.time()
    try:
        with within(sec):
            r = f()
        print("  ", what, "ok", r if not isinstance(r, (bytes,)) else len(r), round(time.time() - a, 1), flush=True)
        return True
    except Exception as e:
        print("  ", what, "->", type(e).__name__, str(e)[:160], flush=True)


blob = os.urandom(2 << 20)
lo, hi = L - 4096, L
best = None
for slack in (1 << 19, 1 << 17, 1 << 16, 1 << 15, 4096, 2048, 1024, 800, 700, 600, 500, 450, 400, 350, 300, 250, 200):
    n = L - slack
    ok = tryit(
        f"upsert of a row of limit - {slack}",
        lambda: bool(t.upsert(pa.table({"id": [1], "v": pa.array([blob[:n]], pa.binary())}))),
    )
    if not ok:
        break
    best = n
print("largest accepted: the limit -", L - best)
t.upsert([{"id": 2, "v": b"small"}])
tryit("lookup", lambda: len(t.lookup([{"id": 1}]).column("v")[0].as_py()))
tryit("scan", lambda: t.scan().to_arrow().nbytes)


def stream(**kw):
    n = 0
    for b in t.changes("earliest", until="now", **kw):
        n += len(b)
    return n


th = None

for what, kw in (
    ("changes", {}),
    ("changes with before images", {"before_images": True}),
    ("changes columns=id", {"columns": ["id"]}),
):
    ex = cf.ThreadPoolExecutor(1)
    fu = ex.submit(stream, **kw)
    try:
        print("  ", what, "rows", fu.result(40))
    except cf.TimeoutError:
        print("  ", what, "STUCK for 40 s (client tries again and again)")
    except Exception as e:
        print("  ", what, "->", type(e).__name__, str(e)[:160])


def snap():
    n = 0
    for b in t.changes("snapshot", until="now"):
        n += len(b)
    return n


ex = cf.ThreadPoolExecutor(1)
fu = ex.submit(snap)
try:
    print("   snapshot rows", fu.result(40))
except BaseException as e:
    print("   snapshot ->", type(e).__name__, str(e)[:160])
print("0 rows:", t.upsert(pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.binary())})))
s.stop()
os._exit(0)
