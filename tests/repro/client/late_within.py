# mypy: ignore-errors
"""a call made after the end of `within`: refused, or made without a deadline?"""

import re
import subprocess
import sys
import tempfile
import time

import pyarrow as pa

import lakestore as ls
from tests.repro.place import room

d = tempfile.mkdtemp(dir=room("client"))
p = subprocess.Popen(
    [sys.executable, "-m", "lakestore", "serve", "--data", d, "--port", "0", "--http-port", "0"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)
port = int(re.search(r"gRPC on [\w.]+:(\d+)", p.stdout.readline())[1])
lake = ls.connect(f"127.0.0.1:{port}")
t = lake.create_table("t.x", pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key=["k"])
t.upsert([{"k": 1, "v": "a"}])
res = {"raised": 0, "answered": 0}
for _i in range(10):
    try:
        with lake.within(0.05):
            time.sleep(0.1)
            t.lookup([{"k": 1}])
        res["answered"] += 1
    except ls.errors.LakestoreError as e:
        res["raised"] += 1
        said = f"{type(e).__name__} {e.applied} {e}"
print("lookup", res, res["raised"] and said)
res = {"raised": 0, "answered": 0}
for _i in range(10):
    try:
        with lake.within(0.05):
            time.sleep(0.1)
            t.upsert([{"k": 2, "v": "b"}])
        res["answered"] += 1
    except ls.errors.LakestoreError as e:
        res["raised"] += 1
        said = f"{type(e).__name__} {e.applied} {e}"
print("upsert", res, res["raised"] and said)
p.kill()
