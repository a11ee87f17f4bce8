# mypy: ignore-errors
"""T7b: after one commit under a clock 10 years ahead, age retention (1 h) lets nothing go for 10 years; idle
subscriptions are kept as long.
"""

import logging
import shutil
import time

import pyarrow as pa

import lakestore as ls
from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore_server.duties.retention import decide
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


class C:
    off = 0.0
    mono = 0.0

    def now_us(self):
        return int((time.time() + self.off) * 1e6)

    def monotonic(self):
        return time.monotonic() + self.mono

    def both(self, s):
        self.off += s
        self.mono += s


for jump in (0, 10 * 365 * 86400):
    clock = C()
    d = BASE / "t7b"
    shutil.rmtree(d, ignore_errors=True)
    s = Server(
        Settings(data=d, lease_grace_seconds=0, retention_check_seconds=3600, subscription_idle_seconds=86400),
        clock=clock,
    )
    lake = Lake(local_transport(s.service), "x")
    t = lake.create_table(
        "a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"], retention="1h"
    )
    t.upsert([{"id": 1, "v": "before"}])
    s.upkeep.checkpoint()
    clock.off += jump
    t.upsert([{"id": 1, "v": "during"}])
    clock.off -= jump
    for b in t.changes("earliest", until="now", subscription="gone"):
        b.ack()
    s.upkeep.checkpoint()
    for k in range(30):
        clock.both(86400)
        t.upsert([{"id": k, "v": "x"}])
        s.upkeep.checkpoint()
    s.retention.run_once()
    s.retention.run_once()
    st = s.engine.view.named("a.t")
    print(
        "jump",
        jump,
        "after 30 days: lsn",
        s.engine.view.lsn,
        "log start that 1h of retention asks for:",
        decide(st, clock.now_us(), []).lsn,
        "| idle subscription (1 day) still there:",
        "gone" in s.engine.view.subscriptions,
    )
    s.close()
# a writer outlives its table

d = str(BASE / "t7c")
shutil.rmtree(d, ignore_errors=True)
lake = ls.open(d)
sch = pa.schema([("id", pa.int64()), ("v", pa.string())])
t = lake.create_table("a.t", schema=sch, primary_key=["id"])
w = t.writer()
w.upsert([{"id": 1, "v": "old"}])
w.flush()
lake.drop_table("a.t")
n = lake.create_table(
    "a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string()), ("tenant", pa.string())]), primary_key=["id"]
)
try:
    w.upsert([{"id": 2, "v": "meant for the dropped table"}])
    w.flush()
    t.upsert([{"id": 3, "v": "same"}])
    print("rows of the dropped table's handle and writer are now in the new table:", n.scan().to_arrow().to_pylist())
except Exception as e:
    print("writer:", type(e).__name__, e)
lake.close()
