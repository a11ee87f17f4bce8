# mypy: ignore-errors
"""No token: does memory come back when the connections are closed?"""

import time

import grpc

from tests.repro.security.lib import Srv

s = Srv("leak2", secure=True)
out = [s.rss()]
for k in range(12):
    c = s.channel(opts=[("grpc.use_local_subchannel_pool", 1), ("x", k)])
    f = c.unary_unary("/lakestore.v1.Lakestore/Commit")
    for _i in range(1000):
        try:
            f(b"\xff\xff\xff", timeout=5)
        except grpc.RpcError:
            pass
    c.close()
    time.sleep(0.3)
    out.append(s.rss())
time.sleep(5)
print("rss after each 1000 malformed requests without token, connection closed:", out, "5 s later", s.rss())
c = s.channel(opts=[("x", 99)])
r = s.rss()
f = c.unary_unary("/lakestore.v1.Lakestore/Hello")
for _i in range(4000):
    try:
        f(b"", timeout=5)
    except grpc.RpcError:
        pass
print("control: 4000 well-formed refused ones:", r, "->", s.rss(), s.stop())
