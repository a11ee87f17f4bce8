# mypy: ignore-errors
"""State that one principal with rights on mine.* / shop.pub only can make the server keep for ever."""

import time

import pyarrow as pa

from tests.repro.security.lib import TOK, Srv

A = "/iceberg/v1"
s = Srv("growth", secure=True, data_limit_gb=8)
lk = s.lake("admin")


def ice(name):
    return {
        "name": name,
        "schema": {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
        },
    }


def ask(who, m, p, b=None):
    return s.http(m, p, b, {}, token=TOK[who], timeout=60)


ask("admin", "POST", A + "/namespaces", {"namespace": ["mine"]})
ask("admin", "POST", A + "/namespaces/mine/tables", ice("t"))
r0 = s.rss()
out = [
    ask("mineadmin", "POST", A + "/namespaces/mine/properties", {"updates": {f"k{i}": "v" * (30 << 20)}})[0]
    for i in range(5)
]
print(
    "5 x 30 MB namespace properties (admin on mine.*):",
    out,
    "rss",
    r0,
    "->",
    s.rss(),
    "journal",
    sum(p.stat().st_size for p in (s.dir / "data").glob("journal*")) >> 20,
    "MB",
)
r0 = s.rss()
out = [
    ask(
        "fwriter",
        "POST",
        A + "/namespaces/mine/tables/t",
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {f"k{i}": "v" * (40 << 20)}}]},
    )[0]
    for i in range(5)
]
print(
    "5 commits of a 40 MB property to mine.t (write on mine.*):",
    out,
    "rss",
    r0,
    "->",
    s.rss(),
    "warehouse",
    sum(p.stat().st_size for p in (s.dir / "data/warehouse").rglob("*.json")) >> 20,
    "MB",
)
r0 = s.rss()
t = time.time()
n = 6
for i in range(n):
    s.lake("mineadmin").create_table(
        f"mine.t{i}", schema=pa.schema([("id", pa.int64())]), primary_key=None or [], buckets=4096
    )
print(f"{n} log tables of 4096 buckets: {time.time() - t:.1f}s rss {r0} -> {s.rss()}")
r0 = s.rss()
t = time.time()
try:
    lk.table("mine.t0")
    st = lk.status() if hasattr(lk, "status") else None
    print("status", round(time.time() - t, 2))
except Exception as e:
    print(repr(e)[:100])
t = time.time()
s.stop()
print(
    "stop",
    round(time.time() - t, 1),
    "checkpoint",
    sum(p.stat().st_size for p in (s.dir / "data").glob("checkpoint*")) >> 20,
    "MB",
)
t = time.time()
s2 = Srv("growth", secure=True, fresh=False)
print("restart", round(time.time() - t, 1), "s rss", s2.rss())
s2.stop()
