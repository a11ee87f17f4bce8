# mypy: ignore-errors
# ruff: noqa: E501
"""Harness: a server in process, one Spark, a dict model, every reader compared."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension
from pyiceberg.catalog.rest import RestCatalog

import lakestore as ls
from lakestore.spark import attach, session
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.place import room

CONF = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.log.level": "OFF"}


def norm(v):
    import datetime
    import decimal
    import math

    if isinstance(v, dict):
        return tuple(sorted((k, norm(x)) for k, x in v.items()))
    if isinstance(v, (list, tuple)):
        return tuple(norm(x) for x in v)
    if isinstance(v, float) and math.isnan(v):
        return "NaN"
    if isinstance(v, datetime.datetime) and v.tzinfo:
        return v.astimezone(datetime.UTC).isoformat()
    if isinstance(v, decimal.Decimal):
        return str(v.normalize())
    if isinstance(v, bytearray):
        return bytes(v)
    return v


def rows_of(table: pa.Table, cols):
    return sorted((tuple(norm(r[c]) for c in cols) for r in table.select(cols).to_pylist()), key=repr)


class World:
    def __init__(self, name, **settings):
        self.dir = Path(tempfile.mkdtemp(prefix=f"lb-{name}-", dir=room("lake")))
        self.settings = settings
        self.start()

    def start(self):
        kw = dict(port=getattr(self, "port", 0), http_port=getattr(self, "hport", 0), lease_grace_seconds=0.0)
        kw.update(self.settings)
        self.server = Server(Settings(self.dir / "data", **kw))
        self.server.start()
        self.port = int(self.server.about["grpc"].rsplit(":")[-1])
        self.hport = int(self.server.about["http"].rsplit(":")[-1])
        self.addr = self.server.about["grpc"]
        self.lake = ls.connect(self.addr)
        self.spark = session(self.addr, master="local[2]", conf=CONF)
        self.sl = attach(self.spark, self.addr)

    def restart(self):
        self.sl.close()
        self.lake.close()
        self.server.close()
        self.start()

    def close(self):
        self.sl.close()
        self.lake.close()
        self.server.close()

    @property
    def endpoint(self):
        return f"http://{self.server.about['http']}/iceberg"

    def pyice(self):
        return RestCatalog("lake", uri=self.endpoint)

    # readers
    def u_spark_sql(self, t, cols, where=""):
        return rows_of(self.sl.sql(f"SELECT * FROM {t} {where}").toArrow(), cols)

    def u_spark_df(self, t, cols, where=""):
        d = self.sl.table(t)
        if where:
            d = d.where(where.replace("WHERE ", "", 1))
        return rows_of(d.toArrow(), cols)

    def u_arrow(self, t, cols, where=""):
        return rows_of(self.lake.table(t).scan().to_arrow(), cols)

    def u_duck(self, t, cols, where=""):
        return rows_of(self.lake.sql(f"SELECT * FROM {t} {where}").to_arrow(), cols)

    def l_spark(self, t, cols):
        return rows_of(self.spark.sql(f"SELECT * FROM lake.{t}").toArrow(), cols)

    def l_pyice(self, t, cols):
        return rows_of(self.pyice().load_table(t).scan().to_arrow(), cols)

    def l_duck(self, t, cols):
        with duckdb.connect() as c:
            for n in ("avro", "httpfs", "iceberg"):
                import_extension(n, con=c)
                c.execute(f"LOAD {n}")
            c.execute(f"ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{self.endpoint}', AUTHORIZATION_TYPE 'none')")
            return rows_of(c.execute(f"SELECT * FROM lake.{t}").to_arrow_table(), cols)

    def check(
        self,
        t,
        model,
        lakemodel=None,
        what="",
        cols=None,
        lake_readers=("l_spark", "l_duck", "l_pyice"),
        union=("u_spark_sql", "u_spark_df", "u_arrow", "u_duck"),
    ):
        cols = cols or self.lake.table(t).schema.names if not cols else cols
        ok = True
        for m, rs in ((model, union), (lakemodel, lake_readers)):
            if m is None:
                continue
            want = sorted((tuple(norm(r[c]) for c in cols) for r in m), key=repr)
            for r in rs:
                try:
                    got = getattr(self, r)(t, cols)
                except Exception as e:
                    ok = False
                    print(f"  FAIL {what} {t} {r}: {type(e).__name__}: {str(e)[:300]}")
                    continue
                if got != want:
                    ok = False
                    a, b = set(map(repr, got)), set(map(repr, want))
                    print(
                        f"  WRONG {what} {t} {r}: got {len(got)} want {len(want)}; extra {list(a - b)[:3]} missing {list(b - a)[:3]}"
                    )
        return ok

    def q(self, text):
        return self.spark.sql(text).collect()


def short(e):
    return f"{type(e).__name__}: {str(e).splitlines()[0][:260]}"


def attempt(what, f):
    t = time.time()
    try:
        r = f()
        print(f"[ok   {time.time() - t:5.1f}s] {what}: {str(r)[:200]}")
        return r
    except Exception as e:
        print(f"[FAIL {time.time() - t:5.1f}s] {what}: {short(e)}")
        return e


logging.getLogger("py4j").setLevel(logging.CRITICAL)
logging.getLogger().setLevel(logging.ERROR)
