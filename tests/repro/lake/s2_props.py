# mypy: ignore-errors
# ruff: noqa: B023, E501
"""Each table property that another engine may set, then rounds, foreign rewrites, our compaction, expiry; all
readers.
"""

import sys

import pyarrow as pa

from lakestore.union.verify import verify
from lakestore_tiering import Tierer
from lakestore_tiering import orphans as ex
from tests.repro.lake.world import World, short

w = World("s2")
SC = pa.schema([("id", pa.int64()), ("v", pa.string())])
PROPS = [
    ("write.format.default", "orc"),
    ("write.format.default", "avro"),
    ("write.delete.format.default", "avro"),
    ("gc.enabled", "false"),
    ("history.expire.max-ref-age-ms", "1"),
    ("write.metadata.compression-codec", "gzip"),
    ("write.metadata.metrics.default", "none"),
    ("write.metadata.metrics.column.__offset", "none"),
    ("write.wap.enabled", "true"),
    ("write.distribution-mode", "range"),
    ("commit.manifest-merge.enabled", "false"),
    ("write.object-storage.enabled", "true"),
    ("write.delete.granularity", "partition"),
    ("write.metadata.previous-versions-max", "1"),
    ("write.parquet.compression-codec", "gzip"),
    ("write.spark.accept-any-schema", "true"),
    ("schema.name-mapping.default", '[{"field-id":2,"names":["id"]},{"field-id":1,"names":["v"]}]'),
    ("format-version", "3"),
    ("write.manifest-lists.enabled", "false"),
    ("write.parquet.row-group-size-bytes", "1"),
    ("history.expire.min-snapshots-to-keep", "100"),
]
only = sys.argv[1:]
for n, (k, val) in enumerate(PROPS):
    if only and k not in only:
        continue
    T = f"shop.p{n}"
    w.lake.create_table(T, SC, primary_key=["id"], buckets=2)
    tab = w.lake.table(T)
    model = {}

    def up(lo, hi, tag):
        rows = [{"id": i, "v": f"{tag}-{i}"} for i in range(lo, hi)]
        tab.upsert(rows)
        model.update({r["id"]: r for r in rows})
        tab.delete([{"id": lo}])
        model.pop(lo, None)

    errs = []

    def step(name, f):
        try:
            return f()
        except Exception as e:
            errs.append(f"{name}: {short(e)}")

    t = Tierer(w.lake, w.spark)
    up(0, 20, "a")
    t.run_once(T, compaction=False)
    step("set", lambda: w.q(f"ALTER TABLE lake.{T} SET TBLPROPERTIES ('{k}'='{val}')"))
    if errs:
        print(f"{k}={val}: REFUSED {errs[0][:160]}")
        t.close()
        continue
    up(5, 30, "b")
    step("round1", lambda: t.run_once(T, compaction=False))
    up(8, 12, "c")
    step("round2", lambda: t.run_once(T, compaction=False))
    a = w.check(T, model.values(), model.values() if not errs else None, f"{k} rounds")
    step(
        "rewrite",
        lambda: w.q(f"CALL lake.system.rewrite_data_files(table => '{T}', options => map('rewrite-all','true'))"),
    )
    b = w.check(T, model.values(), model.values() if not errs else None, f"{k} rewrite")
    up(1, 9, "d")
    step("round3", lambda: t.run_once(T, compaction=False))
    step("compaction", lambda: t.run_once(T, compaction=True))
    step(
        "expire",
        lambda: errs.append(
            f"(expired {ex.expire(t.tools, w.lake.transport and next(x for x in t._tables() if x.name == T), keep_last=1, keep_seconds=0)})"
        ),
    )
    c = w.check(T, model.values(), model.values() if not [e for e in errs if "(" != e[0]] else None, f"{k} compaction")
    try:
        v = verify(w.lake.transport, T)
        same = v.same
    except Exception as e:
        same = short(e)
    print(f"{k}={val}: {'ok' if a and b and c else 'PROBLEM'} verify={same} {errs}")
    t.close()
w.close()
