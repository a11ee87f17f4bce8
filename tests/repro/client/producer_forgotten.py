# mypy: ignore-errors
"""A named producer's progress after many anonymous ones: is exactly-once kept? LIMIT is lowered to make it quick;
default 20,000.
"""

import os
import re
import subprocess
import sys
import tempfile

import pyarrow as pa

import lakestore as ls
from tests.repro.place import room

d = tempfile.mkdtemp(dir=room("client"))
env = {**os.environ, "LAKESTORE_LIMITS_PRODUCERS": "50"}
p = subprocess.Popen(
    [sys.executable, "-m", "lakestore", "serve", "--data", d, "--port", "0", "--http-port", "0"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    env=env,
)
port = int(re.search(r"gRPC on [\w.]+:(\d+)", p.stdout.readline())[1])
lake = ls.connect(f"127.0.0.1:{port}")
t = lake.create_table("t.log", pa.schema([("n", pa.int64())]))
with t.writer(producer="etl") as w:
    w.append([{"n": 1}], progress="file-1 done")
old = t.writer(producer="etl")  # epoch 2, stays open as a zombie
print("progress before:", repr(old.progress))
for i in range(60):  # 60 short-lived clients that write once each
    with ls.connect(f"127.0.0.1:{port}") as c:
        c.table("t.log").append([{"n": 100 + i}])
new = t.writer(producer="etl")
print("progress after 60 other clients:", repr(new.progress), "epoch", new._producer.epoch)
new.append([{"n": 2}], progress="file-2")
new.flush()
old.append([{"n": 999}])
try:
    old.flush()
    print("the fenced predecessor's write was ACCEPTED")
except ls.errors.LakestoreError as e:
    print("predecessor:", type(e).__name__, e)
p.kill()
