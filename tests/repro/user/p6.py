# mypy: ignore-errors
"""A shared subscription on the command line: members, hand-over, resumption; an epoch taken over in Python."""

import signal
import subprocess
import time

import lakestore as ls
from tests.repro.user.shop import Shop

shop = Shop("p6", filled=True)
shop.accounts()


def run(c):
    r = subprocess.run(c, shell=True, capture_output=True, text=True)
    return (r.stdout + r.stderr).strip()


lake = ls.connect(shop.address)
a = lake.table("cdc.accounts")


def sp(m):
    return subprocess.Popen(
        [
            "lakestore",
            "changes",
            "cdc.accounts",
            "-f",
            "--subscription",
            "billing",
            "--shared",
            "--member",
            m,
            "--json",
        ],
        stdout=open(f"m_{m}.out", "w"),
        stderr=open(f"m_{m}.err", "w"),
    )


L, R = sp("left"), sp("right")
time.sleep(4)
a.upsert([{"id": i, "name": f"n{i}"} for i in range(100, 300)])
time.sleep(2)
print(run("lakestore subscriptions"))
print(run("wc -l m_left.out m_right.out"))
L.kill()
time.sleep(2.5)
a.upsert([{"id": i, "name": f"n{i}"} for i in range(300, 400)])
time.sleep(1.5)
print(run("wc -l m_left.out m_right.out"))
print(run("lakestore subscriptions"))
R.send_signal(signal.SIGINT)
R.wait()
print("rc on INT", R.returncode, open("m_right.err").read()[-300:])
a.upsert([{"id": 1000, "name": "while away"}])
print(run("lakestore subscriptions"))
print("resume:", run("lakestore changes cdc.accounts --subscription billing --json"))
print("resume shared:", run("lakestore changes cdc.accounts --subscription billing --shared --json"))
print(
    "again with --start earliest:",
    run("lakestore changes cdc.accounts --subscription billing --start earliest --json | wc -l"),
)
print("other table:", run("lakestore changes shop.customers --subscription billing --json"))
print(
    "drop:",
    run("lakestore subscriptions --drop billing"),
    "| drop again:",
    run("lakestore subscriptions --drop billing"),
    run("lakestore subscriptions"),
)
# python: batch, ack, take over
s1 = a.changes(subscription="py")
b = next(iter(s1))
print(len(b), b.token[:20], [x for x in dir(b) if not x.startswith("_")])
s2 = a.changes(subscription="py")
b2 = next(iter(s2))
print("second got", len(b2))
try:
    b.ack()
except Exception as e:
    print(type(e), e)
try:
    for x in s1:
        print("s1 got", len(x))
        break
except Exception as e:
    print(type(e), e)
shop.close()
