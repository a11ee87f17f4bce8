# mypy: ignore-errors
"""Conditions whose types differ, on scans, streams and the command line; decimals against floats."""

import decimal
import subprocess

import pyarrow as pa

import lakestore as ls
from tests.repro.user.shop import Shop

shop = Shop("p8", filled=True)
shop.accounts()


D = decimal.Decimal


def run(c):
    r = subprocess.run(c, shell=True, capture_output=True, text=True)
    return (r.stdout + r.stderr).strip()[-600:]


lake = ls.connect(shop.address)
o = lake.table("cdc.accounts")
for w in ["seen >= TIMESTAMP '2026-01-01 00:00:00'", "cast(name as int) = 3", "cast(balance as int) = 10"]:
    try:
        print(w, "scan:", o.scan(where=w).count())
    except Exception as e:
        print(w, "scan:", type(e).__module__, type(e).__name__, str(e)[:150], isinstance(e, ls.LakestoreError))
    try:
        print(w, "changes:", [len(b) for b in o.changes(where=w, until="now")])
    except Exception as e:
        print(w, "changes:", type(e).__module__, type(e).__name__, str(e)[:300])
    print("CLI read:", run(f'lakestore read cdc.accounts --where "{w}" --count'))
try:
    t = lake.create_table(
        "t.dec",
        schema=pa.schema([("id", pa.int64()), ("a", pa.decimal128(12, 2)), ("f", pa.float64())]),
        primary_key=["id"],
    )
except ls.Conflict:
    t = lake.table("t.dec")
t.upsert([{"id": 1, "a": D("0.35"), "f": 0.35}, {"id": 2, "a": D("0.50"), "f": 0.5}])


def said(ask):
    try:
        return ask()
    except ls.Invalid as e:
        return f"refused: {e}"


print("scan", said(lambda: t.scan(where="a = f").count()))
print("sql", lake.sql("select count(*) n from t.dec where a = f").to_arrow().to_pylist())
print("changes", said(lambda: [len(b) for b in t.changes(where="a = f", until="now")]))
shop.close()
