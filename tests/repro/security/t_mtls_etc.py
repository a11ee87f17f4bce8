# mypy: ignore-errors
# ruff: noqa: PERF401
"""mTLS identities, TLS versions, revocation of tokens mid-stream, foreign subscriptions/leases, leases full,
argv/env, file modes of the lake's rows.
"""

import fcntl
import json
import os
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pyarrow as pa

from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.security.lib import PKI, TOK, Srv, md

L = "/lakestore.v1.Lakestore/"
s = Srv("mtls", secure=True, tls=True, mtls=True)


def g(cert, who=None, m="Status"):
    try:
        ch = s.channel(cert)
        ch.unary_unary(L + m)(pb.StatusRequest().SerializeToString(), metadata=md(who), timeout=6)
        ch.close()
        return "OK"
    except grpc.RpcError as e:
        return e.code().name


print(
    "grpc: no cert",
    g(None, "admin"),
    "| cert reader",
    g("c_reader"),
    "| stranger",
    g("c_stranger"),
    "| stranger+admin token",
    g("c_stranger", "admin"),
    "| other CA cn=admin",
    g("c_evil"),
    "| two principals in one cert",
    g("c_two"),
    "| server's own cert as client",
    g("server"),
)


def h(cert, who=None):
    try:
        return s.http("GET", "/iceberg/v1/config", token=TOK.get(who), cert=cert, timeout=6)[0]
    except Exception as e:
        return type(e).__name__


print(
    "http: none",
    h(None),
    "| reader",
    h("c_reader"),
    "| stranger",
    h("c_stranger"),
    "| evil",
    h("c_evil"),
    "| two",
    h("c_two"),
    "| bad token + good cert",
    s.http("GET", "/iceberg/v1/config", token="x", cert="c_reader")[0],
)
for v in ("tls1", "tls1_1", "tls1_2", "tls1_3"):
    out = []
    for p in (s.gport, s.hport):
        r = subprocess.run(
            [
                "openssl",
                "s_client",
                "-connect",
                f"127.0.0.1:{p}",
                f"-{v}",
                "-CAfile",
                str(PKI / "ca.pem"),
                "-cert",
                str(PKI / "c_reader.pem"),
                "-key",
                str(PKI / "c_reader.key"),
                "-cipher",
                "ALL:@SECLEVEL=0",
                "-alpn",
                "h2",
            ],
            input=b"",
            capture_output=True,
            timeout=10,
        )
        m = re.search(rb"Cipher is (\S+)", r.stdout)
        out.append(m[1].decode() if m else "refused")
    print("  ", v, "grpc/http:", out)
s.stop()
s = Srv("own", secure=True, tls=True)
lk = s.lake("admin")
sch = pa.schema([("id", pa.int64())])
for n in ("shop.pub", "hr.salaries"):
    lk.create_table(n, schema=sch).append([{"id": 1}])
ch = s.channel()


def call(who, m, req, stream=False):
    try:
        return (
            ("OK", list(ch.unary_stream(L + m)(req.SerializeToString(), metadata=md(who), timeout=10)))
            if stream
            else ("OK", ch.unary_unary(L + m)(req.SerializeToString(), metadata=md(who), timeout=10))
        )
    except grpc.RpcError as e:
        return e.code().name, e.details()[:110]


print(
    "rw opens sub:",
    call("rw", "Changes", pb.ChangesRequest(tables=["shop.pub"], subscription="billing", until="now"), True)[0],
    call("admin", "Changes", pb.ChangesRequest(tables=["hr.salaries"], subscription="secretsub", until="now"), True)[0],
)
for name in ("rw/billing", "billing", "secretsub", "../rw/billing", "/rw/billing", "rw/../rw/billing", ""):
    print(
        "   reader on",
        repr(name),
        "drop:",
        call("reader", "DropSubscription", pb.DropSubscriptionRequest(subscription=name)),
        "ack:",
        call("reader", "Ack", pb.AckRequest(subscription=name, epoch=1, token="x"))[0],
    )
print(
    "   subs of rw after:",
    [
        i.name
        for i in pb.ListSubscriptionsAnswer.FromString(
            call("rw", "ListSubscriptions", pb.ListSubscriptionsRequest())[1]
        ).subscriptions
    ],
    "of reader:",
    [
        i.name
        for i in pb.ListSubscriptionsAnswer.FromString(
            call("reader", "ListSubscriptions", pb.ListSubscriptionsRequest())[1]
        ).subscriptions
    ],
)
lease = pb.PlanAnswer.FromString(call("rw", "Plan", pb.PlanRequest(tables=["shop.pub"], lease_seconds=60))[1]).lease
raw = lease.rsplit(".", 1)[0]
for shown in (lease, raw, raw + "." + "0" * 32, lease + "x", "." + raw, lease.upper()):
    print(
        "   reader on rw's lease:",
        call("reader", "RenewLease", pb.LeaseRequest(lease=shown, seconds=5))[0],
        call("reader", "ReleaseLease", pb.LeaseRequest(lease=shown))[0],
        end=";",
    )
print(" rw still:", call("rw", "RenewLease", pb.LeaseRequest(lease=lease, seconds=5))[0])
# status of reader: names of other principals' subscriptions
call("admin", "Changes", pb.ChangesRequest(tables=["shop.pub"], subscription="audit-of-bob", until="now"), True)
st = pb.StatusAnswer.FromString(call("reader", "Status", pb.StatusRequest(tables=["shop.pub"]))[1]).status
print("   reader's status shows held_by:", json.loads(st)["tables"][0].get("held_by"))
# revoke mid-stream
got = []


def follow():
    try:
        for _ in ch.unary_stream(L + "Changes")(
            pb.ChangesRequest(tables=["shop.pub"]).SerializeToString(), metadata=md("reader")
        ):
            got.append(1)
    except grpc.RpcError as e:
        got.append(e.code().name)


threading.Thread(target=follow, daemon=True).start()
time.sleep(1)
a = json.loads((s.dir / "auth.yaml").read_text())
a["principals"]["reader"]["grants"] = [{"rights": ["read"], "tables": ["other.x"]}]
(s.dir / "auth.yaml").write_text(json.dumps(a))
time.sleep(1.5)
lk.table("shop.pub").append([{"id": 2}])
time.sleep(1.5)
print("stream after the right was taken away:", got)
# all leases taken by one reader

done = list(
    ThreadPoolExecutor(16).map(
        lambda i: call("rw", "Plan", pb.PlanRequest(tables=["shop.pub"], lease_seconds=86400))[0], range(10001)
    )
)
for lbl, f in (
    ("scan", lambda: lk.table("hr.salaries").scan().to_arrow().num_rows),
    ("sql", lambda: lk.sql("SELECT * FROM hr.salaries").to_arrow().num_rows),
    (
        "snapshot stream",
        lambda: sum(b.table.num_rows for b in lk.table("hr.salaries").changes(start="snapshot", until="now")),
    ),
):
    t = time.time()
    try:
        print("   10000 leases held by rw; admin", lbl, "on hr.salaries:", f())
    except Exception as e:
        print(
            "   10000 leases held by rw; admin",
            lbl,
            "on hr.salaries:",
            type(e).__name__,
            str(e)[:80],
            f"{time.time() - t:.0f}s",
        )
p = s.p.pid
kids = subprocess.run(["pgrep", "-P", str(p)], capture_output=True, text=True).stdout.split()
print("argv:", [Path(f"/proc/{x}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-90:] for x in (p, *kids)])
for x in kids:
    print(
        "   child fds:",
        sorted({os.readlink(f"/proc/{x}/fd/{f}").split(":")[0][-60:] for f in os.listdir(f"/proc/{x}/fd")}),
    )

s.stop()
f = open(s.dir / "data/lock")
fcntl.flock(f, fcntl.LOCK_EX)  # opened for reading only, as any local user can (0644)
try:
    Srv("own", secure=True, tls=True, fresh=False)
    print("lock: server starts although another user holds flock on data/lock")
except SystemExit as e:
    print("lock: server does not start:", str(e)[:150])
