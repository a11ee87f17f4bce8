# mypy: ignore-errors
"""A server with auth and TLS: modes of its files, what its health, its console and its status say."""

import pyarrow as pa

from tests.repro.security.lib import TOK, Srv

s = Srv("probe", secure=True, tls=True)
print(s.gport, s.hport, s.rss())

lk = s.lake("admin")
for n in ("shop.pub", "shop.secret", "hr.salaries"):
    t = lk.create_table(n, schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
    t.upsert([{"id": i, "v": "x"} for i in range(10)])
print(s.http("GET", "/healthz"), s.http("GET", "/", token=TOK["reader"]))
for f in sorted((s.dir).rglob("*")):
    print(oct(f.stat().st_mode & 0o7777), f)
for w in ("none", "reader"):
    print(w, s.lake(w).status() if hasattr(s.lake(w), "status") else "")
print(s.stop())
print(s.log.read_text()[-600:])
