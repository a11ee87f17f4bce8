# mypy: ignore-errors
"""Threads of one lake while the server hangs (SIGSTOP): how long past `within(1)` does each wait?"""

import os
import re
import signal
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
ls.connect(f"127.0.0.1:{port}").create_table("t.x", pa.schema([("k", pa.int64())]), primary_key=["k"])


def trial(what, lake, bound):
    os.kill(p.pid, signal.SIGSTOP)
    took = []

    def run():
        began = time.monotonic()
        try:
            if bound:
                with lake.within(bound):
                    lake.table("t.x")
            else:
                lake.table("t.x")
        except ls.errors.LakestoreError:
            pass
        took.append(round(time.monotonic() - began, 1))

    ts = [threading.Thread(target=run) for _ in range(8)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    os.kill(p.pid, signal.SIGCONT)
    print(what, sorted(took), flush=True)


lake = ls.connect(f"127.0.0.1:{port}")
lake.table("t.x")
trial("greeted, within(1):          ", lake, 1)
lake = ls.connect(f"127.0.0.1:{port}")
trial("not greeted yet, within(1):  ", lake, 1)
lake = ls.connect(f"127.0.0.1:{port}", timeout=2)
trial("not greeted, connect(timeout=2):", lake, None)
p.kill()
