# mypy: ignore-errors
"""T11: after a restore the epoch of a named producer is handed out a second time: the old process is not fenced, and
the new one is acknowledged rows that are not stored.
"""

import shutil
import subprocess

import pyarrow as pa

import lakestore as ls
from tests.repro.place import LAKESTORE as LS
from tests.repro.server.common import Srv

s = Srv("t11").start()
lake = ls.connect(s.addr)
t = lake.create_table("a.log", schema=pa.schema([("who", pa.string())]), buckets=1)
with t.writer(producer="ingest") as w:
    w.append([{"who": "first"}])
out = subprocess.run([LS, "backup", "--server", s.addr, f"{s.dir}/bak"], capture_output=True, text=True)
print(out.stdout.strip(), out.stderr[-300:])
A = ls.connect(s.addr)
wa = A.table("a.log").writer(producer="ingest")  # after the backup: epoch 2
for i in range(2):
    wa.append([{"who": f"A{i}"}])
    wa.flush()
s.stop()
shutil.move(f"{s.dir}/data", f"{s.dir}/data.lost")
subprocess.run([LS, "restore", f"{s.dir}/bak", "--data", f"{s.dir}/data"], capture_output=True)
s.start()
B = ls.connect(s.addr)
wb = B.table("a.log").writer(producer="ingest")  # the successor: should fence A
for i in range(2):
    wb.append([{"who": f"B{i}"}])
    wb.flush()
for i in (2,):
    try:
        wa.append([{"who": f"A{i}"}])
        print("A, which should be Fenced:", wa.flush())
    except Exception as e:
        print("A:", type(e).__name__, e)
for i in (2,):
    try:
        wb.append([{"who": f"B{i}"}])
        print("B acknowledged:", wb.flush())
    except Exception as e:
        print("B:", type(e).__name__, e)
with ls.connect(s.addr) as c:
    print("stored:", [r["who"] for r in c.table("a.log").scan().to_arrow().to_pylist()])
for x in (A, B, lake):
    try:
        x.close()
    except Exception:
        pass
s.stop()
