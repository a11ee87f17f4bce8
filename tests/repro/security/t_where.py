# mypy: ignore-errors
# ruff: noqa: E501
"""`where` bombs by a reader of one table; server default settings + auth."""

import sys
import threading
import time

import grpc
import pyarrow as pa

from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.security.lib import Srv, md


def run(label, text, timeout=90):
    s = Srv("where", secure=True)
    lk = s.lake("admin")
    t = lk.create_table("shop.pub", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
    t.upsert([{"id": i, "v": "x" * 100} for i in range(1000)])
    ch = s.channel()
    res = []

    def go():
        t0 = time.time()
        try:
            n = sum(
                1
                for _ in ch.unary_stream("/lakestore.v1.Lakestore/Changes")(
                    pb.ChangesRequest(
                        tables=["shop.pub"], start="earliest", until="now", where=text
                    ).SerializeToString(),
                    metadata=md("reader"),
                    timeout=timeout,
                )
            )
            res.append(f"ok {n} batches {time.time() - t0:.1f}s")
        except grpc.RpcError as e:
            res.append(f"{e.code().name} {e.details()[:90]} {time.time() - t0:.1f}s")

    th = threading.Thread(target=go)
    th.start()
    lat = []
    while th.is_alive() and s.alive():
        t0 = time.time()
        try:
            lk.table("shop.pub").lookup([{"id": 1}])
            lat.append(time.time() - t0)
        except Exception:
            lat.append(99)
        time.sleep(0.05)
    th.join(5)
    print(
        f"{label} ({len(text)} chars): {res} | server alive={s.alive()} rc={s.p.poll()} rss={s.rss()} | other client's lookup max {max(lat or [0]):.2f}s",
        flush=True,
    )
    s.stop()


N = 1 << 20
which = sys.argv[1:]
bombs = {
    "or-chain-3k": "id=1" + " OR id=1" * 3000,
    "or-chain-6k": "id=1" + " OR id=1" * 6000,
    "or-chain-10k": "id=1" + " OR id=1" * 10000,
    "or-chain-1k": "id=1" + " OR id=1" * 1000,
    "or-chain-20k": "id=1" + " OR id=1" * 20000,
    "or-chain-130k": "id=1" + " OR id=1" * ((N - 10) // 8),
    "in-100k": "id IN (" + ",".join(str(i) for i in range(100000)) + ")",
    "in-inexact-50k": "id IN (" + ",".join(f"{i}.5" for i in range(50000)) + ")",
    "in-max": "id IN (" + "1," * 520000 + "1)",
    "parens-100": "(" * 100 + "id=1" + ")" * 100,
    "parens-100k": "(" * 100000 + "id=1" + ")" * 100000,
    "not-10k": "NOT " * 10000 + "id=1",
    "not-300": "NOT " * 300 + "id=1",
    "neg-5k": "id=" + "- " * 5000 + "1",
    "alternating-150": "".join("(id=1 AND (id=2 OR " for _ in range(150)) + "id=3" + "))" * 150,
    "like-bomb": "v LIKE '" + "%a_" * 300000 + "'",
    "like-1m": "v LIKE '%" + "_" * 1000000 + "'",
    "cast-chain": "CAST(" * 200 + "id" + " AS BIGINT)" * 200 + "=1",
    "cast-chain-5k": "CAST(" * 5000 + "id" + " AS BIGINT)" * 5000 + "=1",
    "number": "id=" + "9" * 1000000,
    "number-e": "id=1e" + "9" * 100000,
    "dec": "id=1." + "9" * 100000,
    "string-1m": "v='" + "x" * 1000000 + "'",
    "tokens": "a " * 500000,
    "comment": "id=1 " + "/*" * 400000,
    "dollar": "v = $$" + "x" * 100000 + "$$",
}
for k, v in bombs.items():
    if not which or k in which:
        run(k, v)
