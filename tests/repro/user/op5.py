# mypy: ignore-errors
"""What the command line and Python say to calls that are natural and not there, or wrong."""

import subprocess

import lakestore as ls
from tests.repro.user.shop import Shop

shop = Shop("op5", filled=True)


lake = ls.connect(shop.address)


def run(c):
    r = subprocess.run(c, shell=True, capture_output=True, text=True)
    return (r.stdout + r.stderr).strip()


def t(label, f):
    try:
        print(f"[ok]  {label}: {str(f())[:300]}")
    except BaseException as e:
        print(f"[ERR] {label}: {type(e).__name__}: {str(e)[:300]}")


for c in [
    "drop t.logorders",
    "truncate shop.events",
    "rename t.log2 t.x",
    "alter shop.events",
    "delete shop.orders --where 'order_id<5'",
    "consume shop.orders",
    "load",
    "export",
    "producers",
    "log",
    "top",
    "shell",
    "version",
]:
    print("$ lakestore", c.split()[0], "->", run("lakestore " + c).split("\n")[-1])
t("drop via python", lambda: lake.drop_table("t.logorders"))
t("drop again", lambda: lake.drop_table("t.logorders"))
o = lake.table("shop.orders")
t("delete where", lambda: o.delete(where="order_id<5"))
t("truncate", lambda: o.truncate())
t("alter rename table", lambda: o.alter(name="shop.orders2"))
t("alter typo", lambda: o.alter(drop=["nope"]))
t("alter drop key", lambda: o.alter(drop=["order_id"]))
t("alter nested add", lambda: o.alter(add={"address.country": "string"}))
t("alter type narrow", lambda: o.alter(widen={"order_id": "int32"}))
t("alter buckets", lambda: o.alter(buckets=8))
t("delete-by-scan (the way)", lambda: o.delete(o.scan(columns=["order_id"], where="order_id<5").to_arrow()))
print(o.last_result)
t("delete on log", lambda: lake.table("shop.events").delete([{"order_id": 1}]))
# named producer fencing
a = lake.table("shop.events").writer(producer="etl-1")
a.append([{"order_id": 1, "step": "p"}])
a.flush()
b = ls.connect(shop.address).table("shop.events").writer(producer="etl-1")
b.append([{"order_id": 2, "step": "p"}])
b.flush()
t("fenced first", lambda: (a.append([{"order_id": 3, "step": "p"}]), a.flush()))
print(run("lakestore status shop.orders --json")[:1500])
print(run("lakestore tables --json")[:300])
shop.close()
