# mypy: ignore-errors
"""T20: one unexpected exception in the checkpoint duty (injected once: KeyError) and the thread is gone: the server
says it is serving and refuses every write for ever.
"""

import json
import logging
import os
import shutil
import threading

import pyarrow as pa

from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore.client.retry import within
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import new_segment
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)
threading.excepthook = lambda a: print("   thread ended silently:", a.thread.name, a.exc_type.__name__)


d = BASE / "t20"
shutil.rmtree(d, ignore_errors=True)
s = Server(Settings(data=d, limits=Limits(journal_checkpoint_bytes=50_000, journal_bytes=200_000)))
lake = Lake(local_transport(s.service), "x")
t = lake.create_table("a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
real = new_segment.write
n = [0]


def once(*a, **k):
    n[0] += 1
    if n[0] == 1:
        raise KeyError("injected once")
    return real(*a, **k)


new_segment.write = once
for i in range(60):
    try:
        with within(6):
            t.upsert([{"id": i, "v": "x" * 5000}])
    except Exception as e:
        print("write", i, type(e).__name__, e)
        break
st = json.loads(s.service.verbs["Status"](pb.StatusRequest()).status)
print(
    {k: st[k] for k in ("health", "checkpoints_failed", "journal_bytes")},
    "checkpoint thread alive:",
    s.upkeep.checkpointer._duty._thread.is_alive(),
)

os._exit(0)
