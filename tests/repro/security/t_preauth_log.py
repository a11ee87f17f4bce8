# mypy: ignore-errors
# ruff: noqa: E501
"""No token: what one request costs in log lines (a malformed message is decoded before the caller is asked)."""

import re
import socket
import time

import grpc

from tests.repro.security.http2 import Connection
from tests.repro.security.lib import TOK, Srv

s = Srv("prelog", secure=True)
ch = s.channel()
b = s.log.stat().st_size
for _i in range(200):
    try:
        ch.unary_unary("/lakestore.v1.Lakestore/Commit")(b"\xff\xff\xff", timeout=5)
    except grpc.RpcError as e:
        c = e.code().name, e.details()[:60]
time.sleep(1)
print(
    "200 malformed messages without token:",
    c,
    "log grew by",
    s.log.stat().st_size - b,
    "bytes, tracebacks",
    s.log.read_text().count("Traceback"),
)
b = s.log.stat().st_size
for _i in range(200):
    try:
        ch.unary_unary("/lakestore.v1.Lakestore/Commit")(b"", timeout=5)
    except grpc.RpcError:
        pass
time.sleep(1)
print(
    "200 well-formed without token: log grew by",
    s.log.stat().st_size - b,
    "bytes (each refusal is a line; Calls._refuse has a limit, Admission has none)",
)
# header bombs / many streams / RST flood on gRPC without token
t = time.time()
for n in (100, 2000):
    try:
        ch.unary_unary("/lakestore.v1.Lakestore/Hello")(
            b"", timeout=5, metadata=tuple((f"x{i}", "y" * 400) for i in range(n))
        )
    except grpc.RpcError as e:
        print("metadata", n, e.code().name, e.details()[:70])

c = Connection(s.gport)
n = 0
r0 = s.rss()
t = time.time()
try:
    for _i in range(20000):  # rapid reset
        c.reset(c.call("/lakestore.v1.Lakestore/Hello"))
        n += 1
except Exception as e:
    print("rapid reset ended by", repr(e)[:60], end=" ")
print(f"rapid reset: {n} streams in {time.time() - t:.1f}s rss {r0} -> {s.rss()} alive {s.alive()}", end="; ")
c.close()
try:
    s.channel().unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
    print("health ok")
except grpc.RpcError as e:
    print("health", e.code().name)
c = Connection(s.gport)
n = 0
try:
    for _i in range(5000):
        c.ping()
        n += 1
except Exception as e:
    print("ping flood ended after", n, repr(e)[:50])
time.sleep(1)
c.socket.settimeout(2)
try:
    d = c.socket.recv(1 << 20)
    print("ping flood of", n, "answered by", b"too_many_pings" in d, len(d), "bytes")
except Exception as e:
    print(repr(e)[:60])
c.close()


# HTTP: smuggling and heads
def rawhttp(b, wait=1.5):
    c = socket.create_connection(("127.0.0.1", s.hport))
    c.settimeout(wait)
    c.sendall(b)
    out = b""
    try:
        while True:
            d = c.recv(65536)
            if not d:
                break
            out += d
    except Exception:
        pass
    c.close()
    return re.findall(rb"HTTP/1\.1 (\d+)", out)


G = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
for lbl, b in (
    (
        "CL+TE",
        b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + G
        + b"\r\n",
    ),
    (
        "two CL",
        b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    ),
    (
        "TE xchunked",
        b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunk ext 40k",
        b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;"
        + b"a" * 40000
        + b"\r\na\r\n0\r\n\r\n",
    ),
    (
        "space before colon",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer " + TOK["admin"].encode() + b"\r\n\r\n",
    ),
    (
        "obs-fold",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: a\r\n Authorization: Bearer " + TOK["admin"].encode() + b"\r\n\r\n",
    ),
    (
        "two Authorization",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nAuthorization: Bearer "
        + TOK["admin"].encode()
        + b"\r\n\r\n",
    ),
    ("bare LF", b"GET /healthz HTTP/1.1\nHost: x\n\n"),
    ("64k header", G + b"X: " + b"a" * 70000 + b"\r\n\r\n"),
    ("10k headers", G + b"".join(b"a%d: b\r\n" % i for i in range(10000)) + b"\r\n"),
    ("no host", b"GET /healthz HTTP/1.1\r\n\r\n"),
    ("negative CL", b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
    (
        "gzip body",
        b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ),
    (
        "upgrade ws",
        G
        + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ),
    ("pipelined 100", (G + b"\r\n") * 100),
    ("65k body", b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b"a" * 70000),
):
    r = rawhttp(b)
    print("  http", lbl, r[:4], len(r), end=";")
print("\nalive", s.alive(), s.rss(), s.stop())
