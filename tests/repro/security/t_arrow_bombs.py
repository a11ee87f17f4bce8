# mypy: ignore-errors
# ruff: noqa: B023, E501
"""Writer of one table sends Arrow IPC that is small on the wire and large when unfolded. RLIMIT_DATA 8 GB."""

import struct
import sys
import threading
import time

import grpc
import numpy as np
import pyarrow as pa

from lakestore.rows.ipc import crc32c, encode
from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.security.lib import Srv, md

NC = 100


def field(md, table, n):
    vt = table - struct.unpack_from("<i", md, table)[0]
    size = struct.unpack_from("<H", md, vt)[0]
    at = 4 + 2 * n
    o = struct.unpack_from("<H", md, vt + at)[0] if at < size else 0
    return table + o if o else 0


def overlap(schema, rows, body_bytes):
    """all columns of all int64 point to one body buffer of rows*8 bytes"""
    b = pa.record_batch([pa.array([1], f.type) for f in schema], schema=schema)
    sm = schema.serialize().to_pybytes()
    rb = b.serialize().to_pybytes()
    _, mlen = struct.unpack_from("<Ii", rb)
    md = bytearray(rb[8 : 8 + mlen])
    root = struct.unpack_from("<I", md)[0]
    hp = field(md, root, 2)
    header = hp + struct.unpack_from("<I", md, hp)[0]
    bl = field(md, root, 3)
    struct.pack_into("<q", md, bl, body_bytes)
    struct.pack_into("<q", md, field(md, header, 0), rows)
    np_ = field(md, header, 1)
    nv = np_ + struct.unpack_from("<I", md, np_)[0]
    nn = struct.unpack_from("<I", md, nv)[0]
    for i in range(nn):
        struct.pack_into("<qq", md, nv + 4 + 16 * i, rows, 0)
    bp = field(md, header, 2)
    bv = bp + struct.unpack_from("<I", md, bp)[0]
    bn = struct.unpack_from("<I", md, bv)[0]
    for i in range(bn):
        struct.pack_into("<qq", md, bv + 4 + 16 * i, 0, 0 if i % 2 == 0 else body_bytes)
    return sm + rb[:8] + bytes(md) + bytes(body_bytes) + b"\xff\xff\xff\xff\0\0\0\0"


def run(name, cols, make, kind=pb.APPEND, key=(), merge=None, n=1, limit=8, buckets=4):
    s = Srv("bomb", secure=True, data_limit_gb=limit)
    lk = s.lake("admin")
    kw = {"merge": merge} if merge else {}
    lk.create_table(
        "shop.pub", schema=pa.schema(cols), **({"primary_key": list(key)} if key else {}), buckets=buckets, **kw
    )
    data = make()
    peak = [s.rss()]
    base = s.rss()
    stop = threading.Event()

    def watch():
        while not stop.wait(0.02):
            peak[0] = max(peak[0], s.rss())

    threading.Thread(target=watch, daemon=True).start()
    res = []
    ch = s.channel()

    def go():
        t = time.time()
        try:
            ch.unary_unary("/lakestore.v1.Lakestore/Commit")(
                pb.CommitRequest(
                    changes=[pb.Change(table="shop.pub", kind=kind, rows=data, crc32c=crc32c(data))]
                ).SerializeToString(),
                metadata=md("writer"),
                timeout=120,
            )
            res.append(f"OK {time.time() - t:.1f}s")
        except grpc.RpcError as e:
            res.append(f"{e.code().name} {e.details()[:110]} {time.time() - t:.1f}s")

    ts = [threading.Thread(target=go) for _ in range(n)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    stop.set()
    print(
        f"{name}: wire {len(data) / 1e6:.1f} MB x{n}; rss {base} -> peak {peak[0]} now {s.rss()}; alive {s.alive()} rc {s.p.poll()}; {res[:2]}",
        flush=True,
    )
    s.stop()
    if s.p.returncode:
        print(s.log.read_text()[-300:])


which = sys.argv[1:]


def w(n):
    return not which or n in which


i64 = [(f"c{i}", pa.int64()) for i in range(NC)]
if w("overlap"):
    run("overlap 100 int64 columns on one 8 MB buffer", i64, lambda: overlap(pa.schema(i64), 1_000_000, 8_000_000))
if w("overlapkey"):
    run(
        "overlap keyed",
        [pa.field("id", pa.int64(), False), *i64],
        lambda: overlap(pa.schema([("id", pa.int64()), *i64]), 500_000, 4_000_000),
        kind=pb.UPSERT,
        key=["id"],
    )
if w("overlapbig"):
    run("overlap 15 MB buffer x 100 columns (1.5 GB)", i64, lambda: overlap(pa.schema(i64), 1_900_000, 15_200_000))
if "overlaphuge" in which:  # the whole limit of a message: 6.3 GB in the server
    run("overlap 31 MB buffer x 100 columns (3 GB)", i64, lambda: overlap(pa.schema(i64), 3_900_000, 31_200_000))
if w("dict"):
    big = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000_000, np.int8)), pa.array(["x" * 1_000_000]))
    run(
        "dictionary 1 MB string x 1M rows (1 TB)",
        [("v", pa.string())],
        lambda: encode(pa.schema([("v", big.type)]), [pa.record_batch([big], names=["v"])]),
    )
if w("ree"):
    try:
        r = pa.RunEndEncodedArray.from_arrays(pa.array([4_000_000], pa.int32()), pa.array(["x" * 1_000_000]))
        run(
            "run-end 4M x 1 MB",
            [("v", pa.string())],
            lambda: encode(pa.schema([("v", r.type)]), [pa.record_batch([r], names=["v"])]),
        )
    except Exception as e:
        print("ree", e)
if w("view"):
    try:
        v = pa.array(["y" * 1_000_000], pa.string_view())
        v = v.take(pa.array(np.zeros(1_000_000, np.int64)))
        run(
            "string_view 1M x 1 MB",
            [("v", pa.string())],
            lambda: encode(pa.schema([("v", v.type)]), [pa.record_batch([v], names=["v"])]),
        )
    except Exception as e:
        print("view", e)
if w("listview"):
    try:
        lv = pa.ListViewArray.from_arrays(
            pa.array(np.zeros(1_000_000), pa.int32()),
            pa.array(np.full(1_000_000, 1000), pa.int32()),
            pa.array(np.zeros(1000, np.int64)),
        )
        run(
            "list_view 1M rows x 1000 shared values",
            [("v", pa.list_(pa.int64()))],
            lambda: encode(pa.schema([("v", lv.type)]), [pa.record_batch([lv], names=["v"])]),
        )
    except Exception as e:
        print("listview", e)
if w("nulls"):
    run(
        "null column 4M rows x 100 columns",
        i64,
        lambda: encode(
            pa.schema([(f"c{i}", pa.null()) for i in range(NC)]),
            [pa.record_batch([pa.nulls(3_900_000) for _ in range(NC)], names=[f"c{i}" for i in range(NC)])],
        ),
    )
if w("rows0"):
    run(
        "2^60 rows without columns",
        [("v", pa.int64())],
        lambda: encode(pa.schema([("v", pa.null())]), [pa.record_batch([pa.nulls(4_000_000)], names=["v"])]),
    )
if w("manybatches"):
    e = pa.record_batch([pa.array([], pa.int64())], names=["v"])
    run("400k empty batches", [("v", pa.int64())], lambda: encode(e.schema, [e] * 200_000))
if w("schema"):
    sc = pa.schema([("v", pa.int64())], metadata={f"k{i}": "v" * 1000 for i in range(30000)})
    run("30 MB schema metadata", [("v", pa.int64())], lambda: encode(sc, [pa.record_batch([pa.array([1])], schema=sc)]))
if w("deep"):
    t = pa.int64()
    for _ in range(5000):
        t = pa.list_(t)
    try:
        run(
            "nesting 5000",
            [("v", pa.int64())],
            lambda: pa.schema([("v", t)]).serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0",
        )
    except Exception as e:
        print("deep", repr(e)[:100])
if w("zstd"):

    def z(c):
        sink = pa.BufferOutputStream()
        b = pa.record_batch([pa.array(np.zeros(4_000_000, np.int64))], names=["v"])
        with pa.ipc.new_stream(sink, b.schema, options=pa.ipc.IpcWriteOptions(compression=c)) as wr:
            wr.write_batch(b)
        return bytes(sink.getvalue())

    for c in ("zstd", "lz4"):
        run(c, [("v", pa.int64())], lambda: z(c))
