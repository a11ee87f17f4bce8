# mypy: ignore-errors
"""T10: a larger journal (a documented setting) and wide rows: sixteen chunks of one bucket are joined into a column
beyond 2 GB on the commit loop.
"""

import logging
import resource
import shutil

import pyarrow as pa

from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore.limits import Limits
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


d = BASE / "t10"
shutil.rmtree(d, ignore_errors=True)


def mk():
    return Server(Settings(data=d, limits=Limits(journal_bytes=6 << 30, journal_checkpoint_bytes=4 << 30)))


s = mk()
lake = Lake(local_transport(s.service), "x")
t = lake.create_table("a.log", schema=pa.schema([("v", pa.string())]), buckets=1)
big = "x" * 36_000
for i in range(17):
    try:
        t.append(pa.table({"v": pa.array([big] * 4100)}))
    except BaseException as e:
        print(
            i,
            type(e).__name__,
            str(e)[:120],
            "| engine:",
            type(s.engine.loop.failure).__name__,
            str(s.engine.loop.failure)[:120],
        )
        break
    print(
        i,
        "ok journal",
        s.engine.loop.durable_state.size.untrimmed >> 20,
        "MB rss",
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        flush=True,
    )
s._lock.close()
try:
    s.upkeep.close(checkpoint=False)
    s.engine.loop.close()
except BaseException as e:
    print("close", type(e).__name__)
try:
    s = mk()
    print("reopened", s.engine.view.lsn)
except BaseException as e:
    print("REOPEN FAILS:", type(e).__name__, str(e)[:150])
shutil.rmtree(d, ignore_errors=True)
