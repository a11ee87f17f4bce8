# mypy: ignore-errors
"""CSRF / DNS rebinding on the default server, location squatting, idempotency keys, log lines, forged tokens, local
files.
"""

import http.client
import json
import time

import grpc
import pyarrow as pa

from lakestore.model.token import LogPosition, Place, SnapshotPosition
from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.security.lib import TOK, Srv, md

A = "/iceberg/v1"


def ice(name, **k):
    return {
        "name": name,
        "schema": {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
        },
        **k,
    }


print("== default server (no auth, 127.0.0.1): what a web page can do with a simple request, and after DNS rebinding")
s = Srv("default")
lk = s.lake()
sch = pa.schema([("id", pa.int64())])
lk.create_table("shop.orders", schema=sch).append([{"id": 1}])
ev = {"Host": f"evil.example:{s.hport}", "Origin": "http://evil.example", "Content-Type": "text/plain"}
print(
    " POST namespace, text/plain, Origin evil:",
    s.http("POST", A + "/namespaces", json.dumps({"namespace": ["pwned"]}).encode(), ev),
)
print(" POST create table:", s.http("POST", A + "/namespaces/pwned/tables", json.dumps(ice("t")).encode(), ev)[0])
print(
    " POST commit (set-properties):",
    s.http(
        "POST",
        A + "/transactions/commit",
        json.dumps(
            {
                "table-changes": [
                    {
                        "identifier": {"namespace": ["pwned"], "name": "t"},
                        "requirements": [],
                        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
                    }
                ]
            }
        ).encode(),
        ev,
    )[0],
)
print(
    " POST rename:",
    s.http(
        "POST",
        A + "/tables/rename",
        json.dumps(
            {"source": {"namespace": ["pwned"], "name": "t"}, "destination": {"namespace": ["pwned"], "name": "gone"}}
        ).encode(),
        ev,
    )[0],
)
print(
    " GET with foreign Host (rebinding):", s.http("GET", A + "/namespaces", None, ev), s.http("GET", "/", None, ev)[0]
)
print(
    " tables.properties of OUR table by page:",
    s.http(
        "POST",
        A + "/namespaces/shop/tables/orders",
        json.dumps(
            {"requirements": [], "updates": [{"action": "set-properties", "updates": {"comment": "<script>"}}]}
        ).encode(),
        ev,
    )[0],
)
r = s.http("POST", A + "/namespaces", json.dumps({"namespace": ["x<script>alert(1)</script>"]}).encode())
print(" odd namespace", r[0], r[1][:80])
hd = http.client.HTTPConnection("127.0.0.1", s.hport)
hd.request("GET", "/")
rr = hd.getresponse()
print(" console headers:", dict(rr.getheaders()))
rr.read()
print(
    " world-readable in data:",
    [
        str(p.relative_to(s.dir))
        for p in (s.dir / "data").rglob("*")
        if p.is_file()
        and p.stat().st_mode & 0o004
        and all(q.stat().st_mode & 0o001 for q in p.parents if str(q).startswith(str(s.dir)))
    ][:6],
)
s.stop()
print("== secure server")
s = Srv("misc", secure=True)
lk = s.lake("admin")
for n in ("shop.pub", "hr.salaries"):
    lk.create_table(n, schema=sch, primary_key=None or []).append([{"id": 1}])


def ask(who, m, p, b=None, h=None):
    return s.http(m, p, b, h, token=TOK[who])


ask("admin", "POST", A + "/namespaces", {"namespace": ["mine"]})
ask("admin", "POST", A + "/namespaces", {"namespace": ["fin"]})
ask("admin", "POST", A + "/namespaces/mine/tables", ice("t"))
wh = f"file://{s.dir}/data/warehouse"
print(
    " fwriter (write on mine.*) moves mine.t's location onto namespace fin's folder:",
    ask(
        "fwriter",
        "POST",
        A + "/namespaces/mine/tables/t",
        {"requirements": [], "updates": [{"action": "set-location", "location": wh + "/fin"}]},
    )[0],
)
print(
    "   admin of fin then creates a foreign table fin.x:", ask("admin", "POST", A + "/namespaces/fin/tables", ice("x"))
)
try:
    t = lk.create_table("fin.ours", schema=sch)
    print(
        "   Lakestore's own fin.ours:",
        "created in",
        [str(p.relative_to(s.dir)) for p in (s.dir / "data/warehouse/fin").rglob("*metadata.json")],
    )
except Exception as e:
    print("   own table:", repr(e)[:150])
print(
    "   commit of mine.t now:",
    ask(
        "fwriter",
        "POST",
        A + "/namespaces/mine/tables/t",
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"z": "1"}}]},
    )[0],
)
print(
    " oracle: location onto hr (has tables)/ nothing:",
    [
        ask(
            "fwriter",
            "POST",
            A + "/namespaces/mine/tables/t",
            {"requirements": [], "updates": [{"action": "set-location", "location": f"{wh}/{n}"}]},
        )[1][:150]
        for n in ("hr", "qqq")
    ],
)
print(
    " kind oracle, reader:",
    [
        ask("reader", "POST", f"{A}/namespaces/{n}/tables/{t}", {})[1].split("right ")[1][:8]
        for n, t in (("hr", "salaries"), ("mine", "t"), ("no", "such"))
    ],
)
k = {"Idempotency-Key": "0192-same"}
print(
    " idempotency: fwriter",
    ask(
        "fwriter",
        "POST",
        A + "/namespaces/mine/tables/t",
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"p": "fwriter"}}]},
        k,
    )[0],
    "; admin with the same key creates a namespace:",
    ask("admin", "POST", A + "/namespaces", {"namespace": ["lost"]}, k),
    "exists:",
    ask("admin", "GET", A + "/namespaces/lost")[0],
)
print(
    " register outside / traversal / symlinkish:",
    [
        ask("mineadmin", "POST", A + "/namespaces/mine/register", {"name": "r", "metadata-location": at})[0]
        for at in (
            "/etc/passwd",
            wh + "/../access-token.key",
            wh + "/%2e%2e/access-token.key",
            "file:" + wh[7:] + "/../../auth.yaml",
            wh + "/nope.json",
            "http://127.0.0.1:1/x",
            "s3://b/x",
        )
    ],
)
print(
    " create with location outside:",
    [
        ask("mineadmin", "POST", A + "/namespaces/mine/tables", ice("q", location=at))[0]
        for at in (
            "/tmp/x",
            wh,
            wh + "/..",
            wh + "/mine/../../x",
            wh + "evil/x",
            "FILE:///tmp/x",
            "file://evil" + wh[7:] + "/y",
        )
    ],
)
print(
    " names:",
    [
        ask("admin", "POST", A + "/namespaces/mine/tables", ice(n))[0]
        for n in ("../x", "a/b", "..", ".x", "a\\b", "a\nb", "a b", "é", "x" * 256, "a'b\"c")
    ],
)
# JSON bombs
deep = '{"a":' * 200000 + "1" + "}" * 200000
for lbl, b in (
    ("deep 200k", deep),
    (
        "deep arr in schema",
        json.dumps(ice("dd")).replace('"long"', '{"type":"list","element-id":2,"element":' * 900 + '"int"' + "}" * 900),
    ),
    ("huge int", '{"name": ' + "9" * 1000000 + "}"),
    ("1e400", '{"requirements":[],"updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":1e400}}]}'),
    ("dup keys 2M", "{" + ",".join('"a":1' for _ in range(2000000)) + "}"),
):
    t = time.time()
    r = ask("fwriter", "POST", A + "/namespaces/mine/tables/t", b, {"Content-Type": "application/json"})
    print("  json", lbl, r[0], r[1][:90], f"{time.time() - t:.1f}s rss", s.rss())
# forged tokens
ch = s.channel()
L = "/lakestore.v1.Lakestore/"
st = json.loads(pb.StatusAnswer.FromString(ch.unary_unary(L + "Status")(b"", metadata=md("admin"))).status)
u = {t["name"]: t["uuid"] for t in st["tables"]}
tl = st["timeline"]


def changes(**k):
    try:
        return "ok", len(
            list(
                ch.unary_stream(L + "Changes")(
                    pb.ChangesRequest(tables=["shop.pub"], until="now", **k).SerializeToString(),
                    metadata=md("reader"),
                    timeout=5,
                )
            )
        )
    except grpc.RpcError as e:
        return e.code().name, e.details()[:100]


for lbl, tk in (
    ("place bucket 99", SnapshotPosition(tl, 3, (u["shop.pub"],), Place(u["shop.pub"], 99, 0))),
    ("place bucket -1", SnapshotPosition(tl, 3, (u["shop.pub"],), Place(u["shop.pub"], -1, 0))),
    ("place offset 2^62", SnapshotPosition(tl, 3, (u["shop.pub"],), Place(u["shop.pub"], 0, 2**62))),
    ("place other table", SnapshotPosition(tl, 3, (u["shop.pub"],), Place(u["hr.salaries"], 0, 0))),
    ("lsn -1", LogPosition(tl, -1)),
    ("tables other", LogPosition(tl, 3, (u["hr.salaries"],))),
):
    print("  token", lbl, changes(start=str(tk)), "subscription:", changes(start=str(tk), subscription="s" + lbl[-3:]))
list(
    ch.unary_stream(L + "Changes")(
        pb.ChangesRequest(tables=["shop.pub"], until="now", start="snapshot", subscription="good").SerializeToString(),
        metadata=md("reader"),
        timeout=5,
    )
)
for lbl, tk in (
    ("bucket 99", SnapshotPosition(tl, 5, (u["shop.pub"],), Place(u["shop.pub"], 99, 0))),
    ("lsn ahead", LogPosition(tl, 10**9, (u["shop.pub"],))),
):
    for ep in (1, 2, 3):
        try:
            ch.unary_unary(L + "Ack")(
                pb.AckRequest(subscription="good", epoch=ep, token=str(tk)).SerializeToString(),
                metadata=md("reader"),
                timeout=5,
            )
            print("  ack", lbl, ep, "OK")
        except grpc.RpcError as e:
            print("  ack", lbl, ep, e.code().name, e.details()[:90])
print("  then:", changes(subscription="good"), "alive", s.alive())
# log: unauthenticated lines, injection
b = s.log.stat().st_size
c = http.client.HTTPConnection("127.0.0.1", s.hport)
s.http("GET", "/x%0a2026-01-01T00:00:00+00:00%20info%20access%20granted%20who=admin%1b[31m")
for _i in range(50):
    try:
        s.http("GET", "/" + "A" * 30000)
    except Exception:
        pass
print(" log grew by", s.log.stat().st_size - b, "bytes for 51 requests without a token")
print("   injected:", [line[:160] for line in s.log.read_text().splitlines() if "granted" in line])
print(s.alive(), s.stop())
s2 = Srv("misc", secure=True, fresh=False)
print("restart ok", s2.alive())
s2.stop()
