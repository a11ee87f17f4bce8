# mypy: ignore-errors
"""T2: an idle client whose producer was forgotten (or whose server was restored) can never write again."""

import shutil
import subprocess

import pyarrow as pa

import lakestore as ls
from tests.repro.place import LAKESTORE as LS
from tests.repro.server.common import Srv

s = Srv("t2", limits={"producers": 20}).start()
lake = ls.connect(s.addr)
t = lake.create_table("a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
for i in range(5):
    t.upsert([{"id": i, "v": "a"}])
for i in range(25):  # other short-lived clients, each with a producer of its own
    with ls.connect(s.addr) as other:
        other.table("a.t").upsert([{"id": 100 + i, "v": "b"}])
for i in range(3):
    try:
        print("upsert after", t.upsert([{"id": 7, "v": "c"}]))
    except Exception as e:
        print("A. LRU: attempt", i, type(e).__name__, getattr(e, "applied", ""), e)
lake.close()
s.stop()

s = Srv("t2b").start()
lake = ls.connect(s.addr)
t = lake.create_table("a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
w = t.writer()
for i in range(5):
    t.upsert([{"id": i, "v": "a"}])
w.upsert([{"id": 100, "v": "w"}])
w.flush()
print(subprocess.run([LS, "backup", "--help"], capture_output=True, text=True).stdout[:600])
out = subprocess.run([LS, "backup", "--server", s.addr, f"{s.dir}/bak"], capture_output=True, text=True)
print(out.stdout[-200:], out.stderr[-300:])
for i in range(5):
    t.upsert([{"id": 50 + i, "v": "a"}])
w.upsert([{"id": 101, "v": "w"}])
w.flush()
s.stop()
shutil.move(f"{s.dir}/data", f"{s.dir}/data.lost")
out = subprocess.run([LS, "restore", f"{s.dir}/bak", "--data", f"{s.dir}/data"], capture_output=True, text=True)
print(out.stdout[-200:], out.stderr[-300:])
s.start()
for i in range(3):
    try:
        print("upsert after restore", t.upsert([{"id": 7, "v": "c"}]))
    except Exception as e:
        print("B. restore: attempt", i, type(e).__name__, getattr(e, "applied", ""), e)
try:
    w.upsert([{"id": 102, "v": "w"}])
    print("writer", w.flush())
except Exception as e:
    print("B. writer:", type(e).__name__, getattr(e, "applied", ""), e)
try:
    print("lookup", t.lookup([{"id": 50}]).to_pylist(), t.scan().count())
except Exception as e:
    print("B. read by old client:", type(e).__name__, e)
lake.close()
s.stop()
