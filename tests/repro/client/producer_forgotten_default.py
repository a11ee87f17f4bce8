# mypy: ignore-errors
"""As producer_forgotten.py with the default limit of 20,000: each short-lived client is simulated by a fresh
anonymous producer over one channel.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow as pa

import lakestore as ls
from lakestore.client.producer import Producer
from lakestore.client.writer import change
from lakestore.v1 import lakestore_pb2 as pb
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
S = pa.schema([("n", pa.int64())])
t = lake.create_table("t.log", S)
with t.writer(producer="etl") as w:
    w.append([{"n": 1}], progress="file-1 done")
c = change("t.log", pb.APPEND, pa.table({"n": [0]}, schema=S).to_batches())
began = time.monotonic()


def many(k):
    for _ in range(k):
        lake.transport.commit(Producer().request([c]))


ts = [threading.Thread(target=many, args=(1260,)) for _ in range(16)]
[x.start() for x in ts]
[x.join() for x in ts]
print(f"{16 * 1260} other producers in {time.monotonic() - began:.0f} s")
new = ls.connect(f"127.0.0.1:{port}").table("t.log").writer(producer="etl")
print("progress handed back:", repr(new.progress), "epoch", new._producer.epoch)
p.kill()

os._exit(0)
