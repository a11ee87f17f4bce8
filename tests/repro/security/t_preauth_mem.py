# mypy: ignore-errors
# ruff: noqa: E501
"""Without any token: memory. Server has RLIMIT_DATA 6 GB so that the machine is safe."""

import sys
import threading
import time

import grpc

from tests.repro.security.lib import Srv

s = Srv("preauthmem", secure=True, tls=True, data_limit_gb=float(sys.argv[1]) if len(sys.argv) > 1 else 5)
peak = [s.rss()]
stop = threading.Event()


def watch():
    while not stop.wait(0.05):
        peak[0] = max(peak[0], s.rss())


threading.Thread(target=watch, daemon=True).start()
base = s.rss()


def fire(n, msg, comp, label, path="/lakestore.v1.Lakestore/Commit"):
    peak[0] = s.rss()
    res = {}
    chans = [s.channel(opts=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(n)]

    def one(ch):
        try:
            ch.unary_unary(path)(msg, timeout=60, compression=comp)
            r = "OK"
        except grpc.RpcError as e:
            r = e.code().name + ": " + e.details()[:70]
        except Exception as e:
            r = repr(e)[:80]
        res[r] = res.get(r, 0) + 1

    ts = [threading.Thread(target=one, args=(c,)) for c in chans]
    t = time.time()
    [x.start() for x in ts]
    [x.join() for x in ts]
    [c.close() for c in chans]
    time.sleep(1)
    print(
        f"{label}: {n} calls, {len(msg) >> 20} MB each; RSS before {base} peak {peak[0]} now {s.rss()} MB; {time.time() - t:.1f}s; answers {res}; alive {s.alive()}",
        flush=True,
    )


def zeros(mb):
    return b"\x12" + bytes([0]) + b""  # placeholder


def pbytes(mb):
    n = mb << 20
    v = b""
    m = n
    while True:
        b = m & 127
        m >>= 7
        v += bytes([b | (128 if m else 0)])
        if not m:
            break
    return b"\x52" + v + bytes(n)  # unknown field 10, length delimited: kept by protobuf as unknown


fire(1, pbytes(60), grpc.Compression.NoCompression, "plain 60MB")
fire(1, pbytes(60), grpc.Compression.Gzip, "gzip 60MB (60 KB on the wire)")
fire(1, pbytes(600), grpc.Compression.Gzip, "gzip 600MB (600 KB on the wire; limit is 64 MB)")
fire(12, pbytes(60), grpc.Compression.Gzip, "gzip 60MB x12")
if s.alive():
    fire(4, pbytes(900), grpc.Compression.Gzip, "gzip 900MB x4 (limit is 64 MB)")
stop.set()
print("alive", s.alive(), "rc", s.p.poll())
s.stop()
print(s.log.read_text()[-500:])
