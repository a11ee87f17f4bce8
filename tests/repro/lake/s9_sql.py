# mypy: ignore-errors
# ruff: noqa: B023
"""SQL forms over union reads, and schema evolution between rounds with reads at every token."""

import pyarrow as pa

from lakestore.union.verify import verify
from lakestore_tiering import Tierer
from tests.repro.lake.world import World, attempt, norm, rows_of, short

w = World("s9")
A, B = "shop.a", "shop.b"
w.lake.create_table(
    A,
    pa.schema([("id", pa.int64()), ("g", pa.string()), ("v", pa.int64())]),
    primary_key=["id"],
    buckets=2,
    lake={"partition_by": ["g"]},
)
w.lake.create_table(B, pa.schema([("id", pa.int64()), ("w", pa.string())]), primary_key=["id"], buckets=2)
a, b = w.lake.table(A), w.lake.table(B)
t = Tierer(w.lake, w.spark)
a.upsert([{"id": i, "g": "ab"[i % 2], "v": i} for i in range(20)])
b.upsert([{"id": i, "w": f"w{i}"} for i in range(20)])
t.run_once(compaction=False)
t0 = a.upsert([{"id": i, "g": "c", "v": i * 10} for i in range(5)])
a.delete([{"id": 19}])
b.delete([{"id": 3}])
sl = w.sl
Q = [
    "SELECT count(*) c FROM shop.a",
    "SELECT count(*) c FROM shop.a WHERE g='a'",
    "SELECT count(*) c FROM shop.a WHERE g='c'",
    "SELECT * FROM shop.a ORDER BY id LIMIT 3",
    "SELECT count(*) c FROM shop.a x JOIN shop.b y ON x.id=y.id",
    "SELECT count(*) c FROM shop.a x JOIN shop.a y ON x.v=y.v",
    "WITH q AS (SELECT * FROM shop.a) SELECT g,count(*) c FROM q GROUP BY g ORDER BY g",
    "SELECT count(*) c FROM shop.a WHERE id IN (SELECT id FROM shop.b)",
    "SELECT shop.a.id FROM shop.a WHERE shop.a.id<3 ORDER BY 1",
    "SELECT 'shop.a' s, count(*) c FROM shop.a -- shop.b",
    "SELECT count(*) c FROM `shop`.`a`",
    "SELECT count(*) c FROM shop.a TABLESAMPLE (100 PERCENT)",
    "SELECT max(v) m,min(v) n FROM shop.a",
    "SELECT a.g FROM shop.a GROUP BY a.g ORDER BY 1",
    "SELECT g, sum(v) OVER (PARTITION BY g) s FROM shop.a ORDER BY 1,2 LIMIT 2",
    "SELECT count(*) c FROM shop.a WHERE v > 5 AND g IS NOT NULL",
    "SELECT count(*) c FROM shop.a LEFT ANTI JOIN shop.b USING (id)",
    "SELECT count(*) c FROM shop.a UNION ALL SELECT count(*) FROM shop.b",
    "SELECT __offset IS NOT NULL x, count(*) c FROM shop.a GROUP BY 1",
    "EXPLAIN SELECT * FROM shop.a",
    "FROM shop.a SELECT count(*)",
    "TABLE shop.a",
    "DESCRIBE shop.a",
    "SELECT count(*) c FROM SHOP.A",
    "SELECT count(*) FROM shop.a VERSION AS OF 1",
    "SELECT * FROM shop.a |> AGGREGATE count(*) AS c",
    "SELECT count(*) c FROM lake.shop.a",
    "SELECT count(*) FROM shop.a.snapshots",
    "SHOW TABLES IN shop",
    "SELECT transform(collect_list(id), shop -> shop+1)[0] x FROM shop.a",
    "CACHE TABLE zz AS SELECT * FROM shop.a",
    "SELECT count(*) c FROM zz",
    "CREATE TEMP VIEW vv AS SELECT * FROM shop.a",
    "SELECT count(*) c FROM vv",
    "CREATE TABLE lake.shop.ctas USING iceberg AS SELECT * FROM shop.a",
    "SELECT count(*) c FROM lake.shop.ctas",
    "INSERT INTO lake.shop.ctas SELECT * FROM shop.a",
    "INSERT INTO shop.a SELECT * FROM shop.a",
    "CREATE VIEW lake.shop.vw AS SELECT 1 x",
    "MERGE INTO lake.shop.ctas t USING shop.a s ON t.id=s.id WHEN MATCHED THEN DELETE",
    "SELECT count(*) c FROM lake.shop.ctas",
    "DROP TABLE lake.shop.ctas PURGE",
]
for q in Q:
    try:
        r = sl.sql(q).collect()
        print("ok  ", q[:75], "=>", str([tuple(x) for x in r])[:110].replace("\n", " "))
    except Exception as e:
        print("FAIL", q[:75], "=>", short(e)[:170])
ct = list((w.dir / "data/warehouse/shop").glob("ctas*"))
print("after PURGE files left:", sum(1 for c in ct for _ in c.rglob("*") if _.is_file()))
# self join by DataFrame; a cached frame; a frame kept over rounds
d = sl.table(A)
attempt("df self join", lambda: d.alias("x").join(d.alias("y"), "id").count())
c = sl.table(A).cache()
n0 = c.count()
keep = sl.table(A)
many = sl.table(A)
m0 = sorted(map(tuple, keep.collect()))
for k in range(9):
    a.upsert([{"id": i, "g": "ab"[k % 2], "v": 1000 + k} for i in range(k, k + 6)])
    t.run_once(A, compaction=(k % 3 == 2))
w.q(f"CALL lake.system.rewrite_data_files(table=>'{A}',options=>map('rewrite-all','true'))")
attempt(
    "foreign expire while frames are held",
    lambda: w.q(
        f"CALL lake.system.expire_snapshots(table=>'{A}',retain_last=>1,older_than=>TIMESTAMP '2100-01-01 00:00:00')"
    ),
)
attempt(
    "kept frame equal",
    lambda: (sorted(map(tuple, keep.collect())) == m0, sorted(map(tuple, many.collect())) == m0, c.count() == n0),
)
attempt(
    "stream",
    lambda: (
        w.spark.readStream.table(f"lake.{A}")
        .writeStream.format("memory")
        .queryName("qq")
        .trigger(availableNow=True)
        .start()
        .awaitTermination(60)
    ),
)
attempt(
    "stream skip",
    lambda: (
        w.spark.readStream.option("streaming-skip-overwrite-snapshots", "true")
        .option("streaming-skip-delete-snapshots", "true")
        .table(f"lake.{A}")
        .writeStream.format("memory")
        .queryName("qq2")
        .trigger(availableNow=True)
        .start()
        .awaitTermination(60)
    ),
)
# evolution
E = "shop.e"
w.lake.create_table(
    E,
    pa.schema(
        [("id", pa.int32()), ("x", pa.int32()), ("f", pa.float32()), ("dc", pa.decimal128(5, 2)), ("s", pa.string())]
    ).set(0, pa.field("id", pa.int32(), False)),
    primary_key=["id"],
    buckets=1,
    lake={"format_version": 3},
)
e = w.lake.table(E)
hist = []


def snap(tok, rows, cols):
    hist.append((tok, sorted((tuple(norm(r.get(c)) for c in cols) for r in rows), key=repr), cols))


D = __import__("decimal").Decimal
rows = {i: {"id": i, "x": i, "f": i / 2, "dc": D("1.25"), "s": f"s{i}"} for i in range(6)}
snap(e.upsert(list(rows.values())), rows.values(), ["id", "x", "f", "dc", "s"])
t.run_once(E, compaction=False)


def step(alter, change, cols, tier, upd):
    global e
    e = e.alter(**alter)
    for r in rows.values():
        change(r)
    tok = None
    for i in upd:
        rows[i] = {**{c: None for c in cols}, **{k: v for k, v in rows.get(i, {}).items() if k in cols}, "id": i}
    tok = e.upsert([{c: rows[i].get(c) for c in cols} for i in upd])
    snap(tok, rows.values(), cols)
    if tier:
        t.run_once(E, compaction=(tier == 2))


def ren(o, n):
    return lambda r: r.__setitem__(n, r.pop(o, None))


attempt(
    "rename+add",
    lambda: step(
        {"rename": {"x": "y"}, "add": {"n": pa.string()}}, ren("x", "y"), ["id", "y", "f", "dc", "s", "n"], 0, [1, 7]
    ),
)
attempt(
    "widen",
    lambda: step(
        {"widen": {"y": pa.int64(), "f": pa.float64(), "dc": pa.decimal128(20, 2)}},
        lambda r: None,
        ["id", "y", "f", "dc", "s", "n"],
        1,
        [2, 8],
    ),
)
attempt("drop", lambda: step({"drop": ["s"]}, lambda r: r.pop("s", None), ["id", "y", "f", "dc", "n"], 0, [3]))
attempt(
    "re-add same name",
    lambda: step(
        {"add": {"s": pa.int64()}}, lambda r: r.__setitem__("s", None), ["id", "y", "f", "dc", "n", "s"], 2, [4, 9]
    ),
)
attempt(
    "swap names", lambda: step({"rename": {"y": "tmp"}}, ren("y", "tmp"), ["id", "tmp", "f", "dc", "n", "s"], 0, [5])
)
attempt("swap2", lambda: step({"rename": {"n": "y"}}, ren("n", "y"), ["id", "tmp", "f", "dc", "y", "s"], 0, [1]))
attempt("tier", lambda: t.run_once(E, compaction=False))
for k, (tok, want, cols) in enumerate(hist):
    for nm, f in (
        ("arrow", lambda: w.lake.table(E).scan(at=tok).to_arrow()),
        ("spark", lambda: sl.at(tok).table(E).toArrow()),
        ("sparksql", lambda: sl.at(tok).sql(f"SELECT * FROM {E}").toArrow()),
    ):
        try:
            g = f()
            got = rows_of(g, cols)
            if got != want:
                print("EVO WRONG", k, nm, [x for x in got if x not in want][:2], [x for x in want if x not in got][:2])
            if set(g.column_names) != set(cols):
                print("EVO COLS", k, nm, g.column_names, cols)
        except Exception as ex:
            print("EVO FAIL", k, nm, short(ex))
try:
    want, cols = hist[-1][1:]
    for r in ("l_spark", "l_pyice", "l_duck"):
        try:
            got = getattr(w, r)(E, cols)
            print(
                "evo lake",
                r,
                got == want,
                [] if got == want else ([x for x in got if x not in want][:2], [x for x in want if x not in got][:2]),
            )
        except Exception as ex:
            print("evo lake", r, short(ex))
except Exception as ex:
    print(short(ex))
print("verify", verify(w.lake.transport, E).same, verify(w.lake.transport, A).same)
t.close()
w.close()
