# mypy: ignore-errors
"""T17: one Ack of a reader with a forged position ends a real server (exit 70)."""

import base64
import json
import os
import time
import zlib

import pyarrow as pa

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.server.common import Srv

s = Srv("t17").start()
lake = ls.connect(s.addr)
t = lake.create_table("a.t", schema=pa.schema([("id", pa.int64())]), primary_key=["id"], buckets=2)
t.upsert([{"id": i} for i in range(20)])
st = t.changes("snapshot", subscription="s")
b = next(st)
raw = base64.urlsafe_b64decode(b.token + "=" * (-len(b.token) % 4))
d = json.loads(raw[4:])
print("token:", d)
d = [*d[:3], [d[2][0], 1, 2**64]]
text = json.dumps(d).encode()
tok = base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4, "big") + text).rstrip(b"=").decode()
try:
    lake.transport.ack(pb.AckRequest(subscription="s", epoch=st._epoch, token=tok))
    print("ok")
except Exception as e:
    print(type(e).__name__, e)
time.sleep(1)
print("exit code", s.p.poll(), s.tail(200).strip().splitlines()[-1])
s.stop()
os._exit(0)
