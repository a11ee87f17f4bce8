# mypy: ignore-errors
"""An idle client after as many other clients as the server remembers producers (lowered to 50; default 20,000)."""

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
idle = ls.connect(f"127.0.0.1:{port}")
t = idle.create_table("t.log", pa.schema([("n", pa.int64())]))
for n in range(3):
    t.append([{"n": n}])
w = t.writer()
w.append([{"n": 50}])
w.flush()
for i in range(60):
    with ls.connect(f"127.0.0.1:{port}") as c:
        c.table("t.log").append([{"n": 100 + i}])
for n in range(3):
    try:
        t.append([{"n": 1000 + n}])
        print("append ok")
    except ls.errors.LakestoreError as e:
        print("append:", type(e).__name__, e.applied, e)
try:
    w.append([{"n": 51}])
    w.flush()
    print("writer ok")
except ls.errors.LakestoreError as e:
    print("writer:", type(e).__name__, e.applied, e)
# one commit, answer lost, producer forgotten, then the retry: applied twice?
lake2 = ls.connect(f"127.0.0.1:{port}")
t2 = lake2.table("t.log")
real = lake2.transport.wire.call
calls = []


def lossy(method, request, seconds):
    answer = real(method, request, seconds)
    if method.name != "Commit":
        return answer
    calls.append(1)
    if len(calls) == 1:
        for i in range(60):
            with ls.connect(f"127.0.0.1:{port}") as c:
                c.table("t.log").append([{"n": 5000 + i}])
        raise ls.errors.Unavailable("the answer was lost", applied="unknown")
    return answer


lake2.transport.wire.call = lossy
t2.append([{"n": 7777}])
print("rows with 7777:", ls.connect(f"127.0.0.1:{port}").table("t.log").scan(where="n = 7777").count())
p.kill()
