# mypy: ignore-errors
# ruff: noqa: B023
"""Acks with forged positions: does one end the server?"""

import base64
import json
import logging
import shutil
import traceback
import zlib

import pyarrow as pa

import lakestore as ls
from lakestore.errors import LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


N = 0


def enc(data):
    text = json.dumps(data).encode()
    return base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4, "big") + text).rstrip(b"=").decode()


def fresh():
    global N
    N += 1
    dd = str(BASE / f"poisonack{N}")
    shutil.rmtree(dd, ignore_errors=True)
    lake = ls.open(dd)
    t = lake.create_table(
        "a.t", schema=pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"], buckets=2
    )
    t.upsert([{"id": i, "v": "x"} for i in range(50)])
    return lake, t


lake, t = fresh()

print([(k, type(v).__name__) for k, v in vars(lake).items()])


def engine_of(lake):
    return lake._on_close.__self__.engine


bad = []


def attempt(label, fn, lake):
    try:
        fn()
        r = "ok"
    except LakestoreError as e:
        r = type(e).__name__ + ": " + e.message[:90]
    except Exception as e:
        r = "RAW " + type(e).__name__ + ": " + str(e)[:100]
    fail = engine_of(lake).loop.failure
    if fail is not None:
        tb = traceback.extract_tb(fail.__traceback__)[-1]
        print("KILLED by", label, "->", type(fail).__name__, str(fail)[:80], tb.filename.split("/")[-1], tb.lineno)
        return True
    if r.startswith("RAW") or r == "ok":
        print(label, r)
    return False


def decode(tok):
    raw = base64.urlsafe_b64decode(tok + "=" * (-len(tok) % 4))
    return json.loads(raw[4:])


weird = [10**30, -(10**30), 2**63, 2**64, 1.5, "x", None, [], {}, True, float("nan"), float("inf"), -1]
print("--- alone, position in snapshot")
for shared in (False, True):
    for w in weird:
        for where in (
            "lsn",
            "place.bucket",
            "place.offset",
            "part.table",
            "part.bucket",
            "part.begin",
            "part.end",
            "part.cut",
            "part.run",
            "tables",
        ):
            lake_, t_ = lake, t
            name = f"s{shared:d}{weird.index(w)}{where}"
            kw = dict(subscription=name, start="snapshot")
            if shared:
                kw.update(shared=True, member="m")
            try:
                st = t.changes(**kw)
                b = next(st)
            except Exception as e:
                print("open", e)
                continue
            d = decode(b.token)
            if not shared and len(d) < 4:
                d = d[:3] + [None] * (3 - len(d)) + [[d[2][0], 0, 1]]
            if not shared and d[3] is None:
                d[3] = [d[2][0], 0, 1]
            if where == "lsn":
                d[1] = w
            elif where == "place.bucket" and not shared:
                d[3][1] = w
            elif where == "place.offset" and not shared:
                d[3][2] = w
            elif where == "tables":
                d[2] = [w]
            elif where.startswith("part") and shared:
                i = ["table", "bucket", "begin", "end", "cut", "run"].index(where[5:])
                for p in d[4]:
                    p[i] = w
            else:
                st.close()
                continue
            tok = enc(d)
            req = st._request if hasattr(st, "_request") else None
            asked = pb.AckRequest(subscription=name, epoch=st._epoch, token=tok)
            if shared:
                asked.member, asked.session = "m", st._request.session
            killed = attempt(f"{name} {where}={w!r}", lambda: lake.transport.ack(asked), lake)
            if killed:
                lake, t = fresh()
            else:
                try:
                    attempt(
                        f"   list after {name}",
                        lambda: lake.transport.list_subscriptions(pb.ListSubscriptionsRequest()),
                        lake,
                    )
                except Exception as e:
                    print(e)
                try:
                    lake._on_close.__self__.upkeep.checkpoint()
                except Exception as e:
                    print("   CHECKPOINT fails after", name, type(e).__name__, e)
                st.close()
                try:
                    lake.transport.drop_subscription(pb.DropSubscriptionRequest(subscription=name))
                except Exception as e:
                    print("   drop", e)
            if engine_of(lake).loop.failure is not None:
                print("DEAD after", name)
                lake, t = fresh()
