# mypy: ignore-errors
"""No token: N raw HTTP/2 streams, each announces a 60 MB gzip-free message, sends all but its last byte, then waits.
Held memory?
"""

import struct
import sys
import threading
import time

from tests.repro.security.http2 import Connection
from tests.repro.security.lib import Srv

lim = float(sys.argv[2]) if len(sys.argv) > 2 else 5
s = Srv("preauthoom", secure=True, data_limit_gb=lim)
print("rss before", s.rss())
MB = 60
SIZE = MB << 20


def worker(i, out, hold):
    c = Connection(s.gport)
    sid = c.call("/lakestore.v1.Lakestore/Commit")
    left = 5 + SIZE - 1
    first = True
    c.socket.settimeout(8)
    sent = 0
    try:
        while left:
            w = min(c.room(sid), left)
            if w <= 0:
                c.receive()
                continue
            chunk = bytes(w)
            if first:
                chunk = (b"\0" + struct.pack(">I", SIZE) + bytes(w))[:w]
                first = False
            c.data(sid, chunk)
            left -= w
            sent += w
    except Exception as e:
        out.append(repr(e)[:50])
    out.append(sent >> 20)
    hold.wait()
    c.close()


hold = threading.Event()
out = []
ts = []
for i in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
    t = threading.Thread(target=worker, args=(i, out, hold), daemon=True)
    t.start()
    ts.append(t)
for _k in range(40):
    time.sleep(1)
    if not s.alive() or len(out) >= len(ts):
        break
print("sent per stream (MB):", sorted(map(str, out)))
time.sleep(20)
print("20 s after the last byte: rss", s.rss(), "alive", s.alive(), "rc", s.p.poll())
try:
    print("healthz", s.http("GET", "/healthz", timeout=5))
    s.channel().unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
    print("grpc health ok")
except Exception as e:
    print("health:", repr(e)[:120])
hold.set()
time.sleep(2)
print("after they left: rss", s.rss(), s.alive())
s.stop()
print(s.log.read_text()[-400:])
