# mypy: ignore-errors
"""Without any token: (1) unary calls whose request never comes, (2) Health/Watch, (3) memory by big / compressed
messages.
"""

import threading
import time

import grpc
import pyarrow as pa

from tests.repro.security.lib import Srv, md

s = Srv("preauth", secure=True, tls=True)
lk = s.lake("admin")

lk.create_table("shop.pub", schema=pa.schema([("id", pa.int64())]), primary_key=["id"])


def probe():
    """what a legitimate client with a token sees, and a health check; at 5 s each"""
    out = []
    ch = s.channel()
    for name, path, msg, m in (
        ("Status as admin", "/lakestore.v1.Lakestore/Status", b"", md("admin")),
        ("health", "/grpc.health.v1.Health/Check", b"", ()),
    ):
        t = time.time()
        try:
            ch.unary_unary(path)(msg, timeout=5, metadata=m)
            out.append((name, "ok", round(time.time() - t, 2)))
        except grpc.RpcError as e:
            out.append((name, e.code().name, e.details()[:60], round(time.time() - t, 2)))
    ch.close()
    return out


print("before:", probe(), "rss", s.rss())
hold = threading.Event()


def never():
    hold.wait()
    return
    yield b""


# (1)
ch = s.channel()
calls = [ch.stream_unary("/lakestore.v1.Lakestore/Hello").future(never()) for _ in range(520)]
time.sleep(4)
print("(1) 520 calls without token and without request, ONE connection, ~0 bytes:", probe(), "rss", s.rss())
time.sleep(30)
print("    30 s later:", probe())
print("    done calls:", sum(c.done() for c in calls))
hold.set()
for c in calls:
    c.cancel()
ch.close()
time.sleep(2)
print("    after attacker left:", probe())
# (2)
ch = s.channel()
w = [ch.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(520)]
time.sleep(4)
print("(2) 520 Health/Watch without token:", probe(), "rss", s.rss())
for x in w:
    x.cancel()
ch.close()
time.sleep(2)
print("    after attacker left:", probe())
print("alive", s.alive())
print(s.stop())
