# mypy: ignore-errors
"""No token: malformed protobuf on one connection. From about the 1024th on, every RPC of that connection is refused.
Memory?
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from tests.repro.security.lib import Srv, md

s = Srv("leak", secure=True)


def bad(ch, n):
    c = {}
    for _i in range(n):
        try:
            ch.unary_unary("/lakestore.v1.Lakestore/Commit")(b"\xff\xff\xff", timeout=5)
        except grpc.RpcError as e:
            k = e.code().name + " " + e.details()[:50]
            c[k] = c.get(k, 0) + 1
    return c


def good(ch):
    try:
        ch.unary_unary("/lakestore.v1.Lakestore/Status")(b"", timeout=5, metadata=md("admin"))
        return "ok"
    except grpc.RpcError as e:
        return e.code().name + " " + e.details()[:60]


a = s.channel(opts=[("grpc.use_local_subchannel_pool", 1)])
r0 = s.rss()
print("1100 malformed:", bad(a, 1100))
print(
    "same connection, good call:",
    good(a),
    "| another connection:",
    good(s.channel(opts=[("grpc.use_local_subchannel_pool", 1), ("x", 1)])),
    "rss",
    r0,
    "->",
    s.rss(),
)
time.sleep(20)
print("20 s later, same connection:", good(a))
a.close()
time.sleep(1)
for k in range(6):
    c = s.channel(opts=[("grpc.use_local_subchannel_pool", 1), ("x", 10 + k)])
    bad(c, 1000)
    c.close()
time.sleep(1)
print("after 6 more connections of 1000 each, closed: rss", s.rss(), "alive", s.alive(), s.stop())
# is it grpcio itself? a bare server with one handler whose deserializer raises


def boom(_):
    raise ValueError


logging.disable(logging.CRITICAL)
sv = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_concurrent_streams", 100)])
sv.add_generic_rpc_handlers(
    (
        grpc.method_handlers_generic_handler(
            "t.T", {"M": grpc.unary_unary_rpc_method_handler(lambda r, c: b"", request_deserializer=boom)}
        ),
    )
)
p = sv.add_insecure_port("127.0.0.1:0")
sv.start()
c = grpc.insecure_channel(f"127.0.0.1:{p}")
out = {}
for _i in range(150):
    try:
        c.unary_unary("/t.T/M")(b"x", timeout=5)
    except grpc.RpcError as e:
        k = e.code().name + " " + e.details()[:40]
        out[k] = out.get(k, 0) + 1
print("bare grpcio server, limit 100 streams:", out)
sv.stop(0)
