# mypy: ignore-errors
"""How does a service stop a subscriber that waits for a quiet table?"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow as pa

import lakestore as ls
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
t = lake.create_table("t.l", pa.schema([("n", pa.int64())]))
s = t.changes("earliest", subscription="x")
box = {}


def run():
    try:
        for _b in s:
            pass
        box["end"] = "ended quietly"
    except BaseException as e:
        box["end"] = f"{type(e).__name__}: {e}"


th = threading.Thread(target=run, daemon=True)
th.start()
time.sleep(1.5)
try:
    s.close()
    print("close() from another thread: fine")
except BaseException as e:
    print("close() from another thread:", type(e).__name__, e)
th.join(3)
print("reader:", box.get("end", "still waiting"))
lake.close()
th.join(75)
print("75 s after lake.close(), reader:", box.get("end", "still waiting"))
lake = ls.connect(f"127.0.0.1:{port}")
s2 = lake.table("t.l").changes("earliest")
began = time.monotonic()


def bounded():
    try:
        with lake.within(2):
            next(s2)
    except BaseException as e:
        box["w"] = f"{type(e).__name__} {e} after {time.monotonic() - began:.1f}"


th = threading.Thread(target=bounded, daemon=True)
th.start()
th.join(8)
print("within(2) around next(stream):", box.get("w", "still waiting after 8 s"))
p.kill()
p.wait()
os._exit(0)
