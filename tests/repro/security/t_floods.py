# mypy: ignore-errors
"""One principal with rights on ONE table: what can it take from everyone?"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa

from lakestore.model.token import LogPosition
from lakestore.rows.ipc import crc32c, encode
from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.security.lib import Srv, md

L = "/lakestore.v1.Lakestore/"
s = Srv("floods", secure=True, data_limit_gb=8)
lk = s.lake("admin")
sch = pa.schema([("id", pa.int64()), ("v", pa.string())])
for n in ("shop.pub", "hr.salaries"):
    lk.create_table(n, schema=sch, primary_key=["id"]).upsert([{"id": 1, "v": "x"}])
ch = s.channel()


def call(who, m, req, timeout=60, **k):
    try:
        return "OK", ch.unary_unary(L + m)(req.SerializeToString(), metadata=md(who), timeout=timeout)
    except grpc.RpcError as e:
        return e.code().name, e.details()


pool = ThreadPoolExecutor(32)
# A. victim's producer, mid-flight
P = pb.ProducerInfo.FromString(call("admin", "OpenProducer", pb.OpenProducerRequest(producer="victim"))[1])
row = encode(sch, [pa.record_batch([pa.array([7]), pa.array(["victim"])], schema=sch)])


def commit(who, t, seq, ep, prod, prog=""):
    return call(
        who,
        "Commit",
        pb.CommitRequest(
            changes=[pb.Change(table=t, kind=pb.UPSERT, rows=row, crc32c=crc32c(row))],
            producer=prod,
            epoch=ep,
            sequence=seq,
            progress=prog,
        ),
    )


print("victim seq 1:", commit("admin", "hr.salaries", 1, P.epoch, "victim")[0])
t = time.time()
base = s.rss()
done = list(
    pool.map(lambda i: call("writer", "OpenProducer", pb.OpenProducerRequest(producer=f"p{i}"))[0], range(20500))
)
print(
    f"A. writer of shop.pub opened 20500 producers in {time.time() - t:.0f}s:",
    {d: done.count(d) for d in set(done)},
    "rss",
    base,
    "->",
    s.rss(),
)
print(
    "   victim (another principal, another table) retries seq 1:",
    commit("admin", "hr.salaries", 1, P.epoch, "victim"),
    "; goes on with seq 2:",
    commit("admin", "hr.salaries", 2, P.epoch, "victim")[:2],
)
# B. progress of 1 MB each
base = s.rss()
k = 400
prog = "z" * (1 << 20)


def prog1(i):
    c, a = call("writer", "OpenProducer", pb.OpenProducerRequest(producer=f"q{i}"))
    return commit("writer", "shop.pub", 1, pb.ProducerInfo.FromString(a).epoch, f"q{i}", prog)[0] if c == "OK" else c


done = list(pool.map(prog1, range(k)))
print(
    f"B. {k} producers with 1 MB progress:",
    {d: done.count(d) for d in set(done)},
    "rss",
    base,
    "->",
    s.rss(),
    "MB (limit is 20000 producers)",
)
# C. leases
t = time.time()
plan = pb.PlanRequest(tables=["shop.pub"], lease_seconds=86400)
done = list(pool.map(lambda i: call("reader", "Plan", plan)[0], range(10050)))
print(f"C. reader of shop.pub took leases of a day in {time.time() - t:.0f}s:", {d: done.count(d) for d in set(done)})
try:
    print("   admin scans hr.salaries:", lk.table("hr.salaries").scan().count())
except Exception as e:
    print("   admin scans hr.salaries:", type(e).__name__, str(e)[:100])
# D. subscriptions
t = time.time()


def sub(i):
    try:
        list(
            ch.unary_stream(L + "Changes")(
                pb.ChangesRequest(
                    tables=["shop.pub"], subscription=f"s{i}", until="now", start="latest"
                ).SerializeToString(),
                metadata=md("reader"),
                timeout=60,
            )
        )
        return "OK"
    except grpc.RpcError as e:
        return e.code().name


done = list(pool.map(sub, range(10050)))
print(f"D. reader made subscriptions in {time.time() - t:.0f}s:", {d: done.count(d) for d in set(done)})
try:
    ch.unary_stream(L + "Changes")(
        pb.ChangesRequest(tables=["hr.salaries"], subscription="billing", until="now").SerializeToString(),
        metadata=md("admin"),
        timeout=20,
    ).__next__()
    print("   admin's new subscription: ok")
except StopIteration:
    print("   admin's new subscription: ok")
except grpc.RpcError as e:
    print("   admin's new subscription:", e.code().name, e.details()[:90])
# E. streams
st = [
    ch.unary_stream(L + "Changes")(
        pb.ChangesRequest(tables=["shop.pub"], start="latest").SerializeToString(), metadata=md("reader")
    )
    for _ in range(405)
]
time.sleep(3)
try:
    list(
        ch.unary_stream(L + "Changes")(
            pb.ChangesRequest(tables=["hr.salaries"], until="now").SerializeToString(), metadata=md("admin"), timeout=10
        )
    )
    r = "ok"
except grpc.RpcError as e:
    r = e.code().name + " " + e.details()[:80]
print("E. reader holds 400 streams; admin's change stream:", r)
[x.cancel() for x in st]
time.sleep(2)
# F. waiting for a position that never comes, thread each
tok = pb.StatusAnswer.FromString(call("admin", "Status", pb.StatusRequest())[1]).status
tl = json.loads(tok)["timeline"]

future = str(LogPosition(tl, 10**12))
key = encode(pa.schema([("id", pa.int64())]), [pa.record_batch([pa.array([1])], names=["id"])])
f = [
    ch.unary_unary(L + "Lookup").future(
        pb.LookupRequest(table="shop.pub", keys=key, at_least=future).SerializeToString(), metadata=md("reader")
    )
    for _ in range(515)
]
time.sleep(3)
print(
    "F. reader's 515 look-ups at a position of the far future; admin's status:",
    call("admin", "Status", pb.StatusRequest(), 5)[0],
    "health:",
    end=" ",
)
try:
    ch.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
    print("ok")
except grpc.RpcError as e:
    print(e.code().name, e.details()[:50])
[x.cancel() for x in f]
print("rss", s.rss(), "alive", s.alive())
t = time.time()
s.stop()
print("stop", round(time.time() - t, 1))
# does what B left survive a restart?
s2 = Srv("floods", secure=True, fresh=False, data_limit_gb=8)
print("after restart rss", s2.rss())
s2.stop()
