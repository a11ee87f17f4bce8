# mypy: ignore-errors
"""Empty bitmap value; the where crash in the client's own process; Iceberg names; SQL identifiers."""

import subprocess
import time

import pyarrow as pa

import lakestore as ls
from tests.repro.place import PYTHON as PY
from tests.repro.security.lib import Srv

s = Srv("small")
lk = s.lake()
t = lk.create_table(
    "z.agg",
    schema=pa.schema([pa.field("k", pa.int64(), False), ("bm", pa.binary())]),
    primary_key=["k"],
    merge=ls.aggregate({"bm": "bitmap"}),
)
for v in (b"", b"\0", b"\1" + b"\0" * 7, b"\xff" * 8, b"\1\0\0\0\0\0\0\0" + b"\0" * 4):
    t0 = time.time()
    try:
        t.upsert([{"k": 1, "bm": v}])
        print("bitmap", v, "stored")
    except Exception as e:
        print(
            "bitmap",
            v,
            type(e).__name__,
            str(e)[:90],
            "applied",
            getattr(e, "applied", None),
            f"{time.time() - t0:.1f}s",
        )
o = lk.create_table("z.o", schema=pa.schema([("id", pa.int64())]))
o.append([{"id": 1}])
code = f"""
import sys; sys.dont_write_bytecode = True
import lakestore as ls
lk = ls.connect('127.0.0.1:{s.gport}'); print(lk.table('z.o').scan(where='id=1' + ' OR id=1' * 20000).count())
"""
r = subprocess.run([PY, "-c", code], capture_output=True, text=True, timeout=100)
print("scan(where=20k terms) in a client: rc", r.returncode, r.stdout, r.stderr[-150:])
print("server", s.alive())
s.stop()
