# mypy: ignore-errors
# ruff: noqa: B023
"""Which calls ride out a restart of the server of 3 s, and which fail at once?"""

import re
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow as pa

import lakestore as ls
from tests.repro.place import room

d = tempfile.mkdtemp(dir=room("client"))


def serve(port=0):
    p = subprocess.Popen(
        [sys.executable, "-m", "lakestore", "serve", "--data", d, "--port", str(port), "--http-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return p, int(re.search(r"gRPC on [\w.]+:(\d+)", p.stdout.readline())[1])


p, port = serve()
addr = f"127.0.0.1:{port}"
lake = ls.connect(addr)
t = lake.create_table("t.x", pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key=["k"])
t.upsert([{"k": 1, "v": "a"}])
log = lake.create_table("t.l", pa.schema([("n", pa.int64())]))
log.append([{"n": 1}])
warm = lake
with warm.commit() as c:
    c.upsert("t.x", [{"k": 3, "v": "z"}])


def commit(lk):
    with lk.commit() as c:
        c.upsert("t.x", [{"k": 2, "v": "b"}])


def one(f):
    return next(iter(f))


CASES = {
    "upsert (table held)": lambda: t.upsert([{"k": 1, "v": "b"}]),
    "commit (table seen before)": lambda: commit(warm),
    "commit (fresh lake)": lambda: commit(ls.connect(addr)),
    "insert_if_absent": lambda: t.insert_if_absent([{"k": 9, "v": "i"}]),
    "lake.table": lambda: ls.connect(addr).table("t.x"),
    "lookup": lambda: t.lookup([{"k": 1}]),
    "scan": lambda: t.scan().to_arrow(),
    "sql": lambda: lake.sql("SELECT count(*) FROM t.x"),
    "snapshot": lambda: lake.snapshot(),
    "changes": lambda: one(t.changes("earliest")),
    "changes until=now": lambda: one(t.changes("earliest", until="now")),
    "writer(producer=)": lambda: log.writer(producer="p"),
}
for name, f in CASES.items():
    p.kill()
    p.wait()
    box = {}
    threading.Thread(target=lambda: (time.sleep(2), box.update(s=serve(port)))).start()
    began = time.monotonic()
    try:
        f()
        said = "ok"
    except ls.errors.LakestoreError as e:
        said = f"{type(e).__name__} applied={e.applied}"
    print(f"{name:28} {said:32} after {time.monotonic() - began:.1f} s", flush=True)
    while "s" not in box:
        time.sleep(0.1)
    p = box["s"][0]
    for _ in range(300):
        try:
            ls.connect(addr).table("t.x").lookup([{"k": 1}])
            lake.table("t.x")
            t.lookup([{"k": 1}])
            break
        except ls.errors.LakestoreError:
            time.sleep(0.1)
p.kill()
