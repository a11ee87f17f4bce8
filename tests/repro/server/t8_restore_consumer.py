# mypy: ignore-errors
"""T8: a consumer of a named subscription lives through a restore: rows of the new history that have offsets it saw in
the lost one are dropped by its client.
"""

import shutil
import subprocess
import sys
import threading
import time

import pyarrow as pa

import lakestore as ls
from tests.repro.place import LAKESTORE as LS
from tests.repro.server.common import Srv

s = Srv("t8").start()
with ls.connect(s.addr) as lake:
    t = lake.create_table("a.log", schema=pa.schema([("n", pa.string())]), buckets=1)
    t.append([{"n": f"old-{i}"} for i in range(10)])
    got = []
    problem = []
    consumer = ls.connect(s.addr)
    shared = len(sys.argv) > 1

    def consume():
        try:
            kw = dict(shared=True, member="m1") if shared else {}
            while True:
                try:
                    for b in consumer.table("a.log").changes("earliest", subscription="sub", **kw):
                        got.extend(b.to_arrow().column("n").to_pylist())
                        b.ack()
                except ls.errors.OtherTimeline as e:  # told once, by name; then the subscription is opened again
                    print("consumer told:", type(e).__name__, e)
        except Exception as e:
            problem.append(e)

    th = threading.Thread(target=consume, daemon=True)
    th.start()
    time.sleep(2)
    out = subprocess.run([LS, "backup", "--server", s.addr, f"{s.dir}/bak"], capture_output=True, text=True)
    print(out.stdout.strip(), out.stderr[-300:])
    t.append([{"n": f"lost-{i}"} for i in range(20)])
    time.sleep(2)
    print("consumer has", len(got), "rows, newest", got[-1])
s.stop()
shutil.move(f"{s.dir}/data", f"{s.dir}/data.lost")
out = subprocess.run([LS, "restore", f"{s.dir}/bak", "--data", f"{s.dir}/data"], capture_output=True, text=True)
print(out.stdout.strip(), out.stderr[-300:])
s.start()
with ls.connect(s.addr) as lake:
    time.sleep(1)
    lake.table("a.log").append([{"n": f"new-{i}"} for i in range(25)])
    time.sleep(6)
    new = [x for x in got if x.startswith("new")]
    print(
        "consumer problem:",
        problem,
        "| rows of the new history in the table:",
        lake.scan("a.log").count() - 10 if hasattr(lake, "scan") else lake.table("a.log").scan().count() - 10,
        "| handed to the consumer:",
        len(new),
        new[:3],
    )
    st = lake.transport.list_subscriptions(
        __import__("lakestore.v1.lakestore_pb2", fromlist=["x"]).ListSubscriptionsRequest()
    )
    print("subscription is behind by", st.subscriptions[0].behind)
consumer.close()
s.stop()
