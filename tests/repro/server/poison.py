# mypy: ignore-errors
# ruff: noqa: B023
"""Requests that end the commit loop: fuzz the JSON of AlterTable / CreateTable / tokens of Ack."""

import json
import logging
import shutil
import traceback

import pyarrow as pa

import lakestore as ls
from lakestore.errors import LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


N = 0


def fresh():
    global N
    N += 1
    d = BASE / f"poison{N}"
    shutil.rmtree(d, ignore_errors=True)
    failure = []
    s = Server(Settings(data=d), on_fatal=lambda e: failure.append(e))
    return s, failure, d


weird = [
    "\ud800",
    10**30,
    -(10**30),
    1e400,
    float("nan"),
    [],
    {},
    [[]],
    {"a": 1},
    "",
    "x" * 300,
    5,
    -1,
    True,
    None,
    2**63,
    2**64,
    "\x00",
    "9999999999999999d",
    "1" * 5000 + "d",
    {"age": "\ud800"},
    {"bytes": 10**30},
    {"age": 10**30},
    {"column": "v", "after": 10**30},
    {"column": "v", "after": "\ud800"},
    {"column": [], "after": 5},
    {"age": []},
    {"bytes": []},
    {"after": {}},
    {"column": "t", "after": "1000000000d"},
]
types = [
    "int64",
    "string",
    "float64",
    "timestamp",
    "date",
    "decimal(10,2)",
    "list<int64>",
    "binary",
    "bool",
    "struct<a: int64>",
    "uint64",
    "fixed(4)",
]


def table_def(**kw):
    cols = [
        {"id": 1, "name": "id", "type": "int64", "required": True},
        {"id": 2, "name": "v", "type": "string", "required": False},
        {"id": 3, "name": "t", "type": "timestamp", "required": False},
    ]
    d = dict(
        name="a.t",
        columns=cols,
        primary_key=["id"],
        buckets=2,
        bucket_key=["id"],
        merge={"engine": "upsert"},
        lake={"freshness": "1m", "partition_by": [], "sort_by": [], "format_version": 3, "target_file_bytes": 1 << 27},
        uuid="",
        number=0,
        schema_id=0,
    )
    d.update(kw)
    return d


s, f, d = fresh()
shutil.rmtree(str(BASE / "poison_def"), ignore_errors=True)
lake = ls.open(str(BASE / "poison_def"))
lake.create_table(
    "a.t",
    schema=pa.schema([("id", pa.int64()), ("v", pa.string()), ("t", pa.timestamp("us"))]),
    primary_key=["id"],
    buckets=2,
)
definition = (
    json.loads(lake._transport.get_table(pb.TableRequest(table="a.t")).definition)
    if hasattr(lake, "_transport")
    else None
)
if definition is None:
    tr = next(v for v in vars(lake).values() if hasattr(v, "get_table"))
    definition = json.loads(tr.get_table(pb.TableRequest(table="a.t")).definition)
lake.close()
print(json.dumps(definition)[:400])


def svc(s):
    return s.service


def mk(s, **kw):
    return s.service.verbs["CreateTable"](pb.CreateTableRequest(definition=json.dumps({**definition, **kw})))


bad = []


def attempt(label, fn):
    global s, f, d
    try:
        fn()
        r = "ok"
    except LakestoreError as e:
        r = type(e).__name__ + ": " + e.message[:80]
    except Exception as e:
        r = "RAW " + type(e).__name__ + ": " + str(e)[:100]
    if s.engine.loop.failure is not None:
        err = s.engine.loop.failure
        tb = traceback.extract_tb(err.__traceback__)[-1]
        bad.append(
            (label, f"{type(err).__name__}: {str(err)[:80]}", f"{tb.filename.split('lakestore')[-1]}:{tb.lineno}")
        )
        print("KILLED", bad[-1], flush=True)
        s._lock.close()
        s, f, d = fresh()
        mk(s)
        return "killed"
    if r.startswith("RAW"):
        print("raw", label, r)
    return r


mk(s)


def alter(steps):
    cur = json.loads(s.service.verbs["GetTable"](pb.TableRequest(table="a.t")).definition)["schema_id"]
    return s.service.verbs["AlterTable"](pb.AlterTableRequest(table="a.t", alteration=json.dumps(steps), schema_id=cur))


n = 0
for w in weird:
    for opt in ["lake", "retention", "deletes", "skip_unchanged", "ttl", "tombstone_ttl", "merge"]:
        attempt(f"options {opt}={str(w)[:40]!r}", lambda: alter([{"step": "options", opt: w}]))
    for k in ["freshness", "target_file_bytes"]:
        attempt(f"options lake.{k}={str(w)[:40]!r}", lambda: alter([{"step": "options", "lake": {k: w}}]))
    for ty in types:
        n += 1
        attempt(
            f"add default {ty}={str(w)[:40]!r}",
            lambda: alter([{"step": "add", "name": f"c{n}", "type": ty, "default": w}]),
        )
    if isinstance(w, str):
        attempt(f"add name {w[:10]!r}", lambda: alter([{"step": "add", "name": w, "type": "int64"}]))
        attempt(f"add type {w[:10]!r}", lambda: alter([{"step": "add", "name": "q", "type": w}]))
        attempt(
            f"add nested {w[:10]!r}", lambda: alter([{"step": "add", "name": f"q{n}", "type": f"struct<{w}: int64>"}])
        )
        attempt(f"rename {w[:10]!r}", lambda: alter([{"step": "rename", "name": "v", "to": w}]))
        attempt("rename back", lambda: alter([{"step": "rename", "name": w, "to": "v"}]))
m = 0
for w in weird:
    for k in definition:
        if k in ("columns",):
            continue
        m += 1
        attempt(
            f"create {k}={str(w)[:40]!r}",
            lambda: s.service.verbs["CreateTable"](
                pb.CreateTableRequest(definition=json.dumps({**definition, "name": f"a.x{m}", k: w}))
            ),
        )
    for k in definition["lake"]:
        m += 1
        attempt(
            f"create lake.{k}={str(w)[:40]!r}",
            lambda: s.service.verbs["CreateTable"](
                pb.CreateTableRequest(
                    definition=json.dumps({**definition, "name": f"a.x{m}", "lake": {**definition["lake"], k: w}})
                )
            ),
        )
    for k in [*definition["columns"][1], "default", "initial", "nested"]:
        m += 1
        cols = [definition["columns"][0], {**definition["columns"][1], k: w}, definition["columns"][2]]
        attempt(
            f"create col.{k}={str(w)[:40]!r}",
            lambda: s.service.verbs["CreateTable"](
                pb.CreateTableRequest(definition=json.dumps({**definition, "name": f"a.x{m}", "columns": cols}))
            ),
        )
    if isinstance(w, str):
        attempt(
            f"create db {w[:10]!r}",
            lambda: s.service.verbs["CreateTable"](
                pb.CreateTableRequest(definition=json.dumps({**definition, "name": f"{w}.t"}))
            ),
        )
print("killed by", len(bad), "of", m, "+ alterations")
s.close()
