# mypy: ignore-errors
"""insert_if_absent whose look-up fails after its commit was answered: what does the error say?"""

import re
import subprocess
import sys
import tempfile
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
lake = ls.connect(f"127.0.0.1:{port}")
t = lake.create_table("t.x", pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key=["k"])
real = lake.transport.lookup


def dying(request):
    p.kill()
    p.wait()  # the commit was answered; the server dies before the look-up
    return real(request)


lake.transport.lookup = dying
try:
    t.insert_if_absent([{"k": 1, "v": "mine"}])
except ls.errors.LakestoreError as e:
    print("raised:", type(e).__name__, "applied =", e.applied, "|", e)
p.kill()  # if nobody looked anything up: the rows came with the commit's answer
p.wait()
p, port = serve(port)
lake2 = ls.connect(f"127.0.0.1:{port}")
while True:
    try:
        print("stored:", lake2.table("t.x").lookup([{"k": 1}]).to_pylist())
        break
    except ls.errors.Unavailable:
        pass
# the same by a deadline alone
lake3 = ls.connect(f"127.0.0.1:{port}")
t3 = lake3.table("t.x")
real3 = lake3.transport.lookup

lake3.transport.lookup = lambda r: (time.sleep(1.2), real3(r))[1]
try:
    with lake3.within(1):
        t3.insert_if_absent([{"k": 2, "v": "mine"}])
except ls.errors.LakestoreError as e:
    print("raised:", type(e).__name__, "applied =", e.applied, "|", e)
print("stored:", lake2.table("t.x").lookup([{"k": 2}]).to_pylist())
p.kill()
