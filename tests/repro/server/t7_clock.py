# mypy: ignore-errors
"""T7: the wall clock jumps 10 years forward for one commit and comes back."""

import datetime as dt
import inspect
import logging
import shutil
import time

import pyarrow as pa

from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


class C:
    off = 0
    base = time.monotonic()

    def now_us(self):
        return int((time.time() + self.off) * 1e6)

    def monotonic(self):
        return time.monotonic() + self.mono

    mono = 0.0


clock = C()
d = BASE / "t7"
shutil.rmtree(d, ignore_errors=True)


def mk():
    return Server(
        Settings(data=d, lease_grace_seconds=0, retention_check_seconds=3600, expiry_check_seconds=3600), clock=clock
    )


s = mk()


def lake_of(s):
    return (
        Lake(local_transport(s.service), "x", lambda: None)
        if len(inspect.signature(Lake.__init__).parameters) >= 4
        else Lake(local_transport(s.service))
    )


print(inspect.signature(Lake.__init__))
lake = lake_of(s)
t = lake.create_table(
    "a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"], retention="1h"
)
e = lake.create_table(
    "a.e",
    schema=pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]),
    primary_key=["id"],
    ttl={"column": "at", "after": "30d"},
)
now = dt.datetime.utcnow()
e.upsert([{"id": i, "at": now} for i in range(10)])
t.upsert([{"id": 1, "v": "before"}])
clock.off = 10 * 365 * 86400  # a bad NTP answer, a VM resumed
t.upsert([{"id": 1, "v": "during"}])
clock.off = 0  # mended a second later
t.upsert([{"id": 1, "v": "after"}])
t.upsert([{"id": 2, "v": "after"}])


def times():
    st = [b.to_arrow().column("__timestamp").to_pylist() for b in t.changes("earliest", until="now")]
    return sorted({x.year for p in st for x in p})


print("years of commit times:", times())
ask = (dt.datetime.now(dt.UTC)).isoformat()
time.sleep(0.05)
try:
    print("scan at=now-50ms:", lake.at(ask).scan("a.t").to_arrow().to_pylist() if hasattr(lake, "at") else None)
except Exception as x:
    print("scan at=now:", type(x).__name__, x)
# three days later, mended clock
clock.off = 3 * 86400
clock.mono = 3 * 86400
for k in range(3):
    t.upsert([{"id": 3, "v": f"day{k}"}])
    clock.off += 86400
    clock.mono += 86400
s.upkeep.checkpoint()
s.retention.run_once()
print("retention decision (1h kept):", s.retention.decision(t.definition.uuid))
ask = dt.datetime.fromtimestamp(clock.now_us() / 1e6 - 3600, dt.UTC).isoformat()
print("scan at=one hour ago, 6 days after:", lake.at(ask).scan("a.t").to_arrow().to_pylist())
print("commit years now:", times())
# restart with a wrong clock: TTL
s.close()
clock.off = 2 * 365 * 86400
s = mk()
lake = lake_of(s)
s.expiry.run_once()
print("rows of the 30-day TTL table after a start with a clock 2 years ahead:", lake.table("a.e").scan().count())
s.close()
