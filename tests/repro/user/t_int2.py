# mypy: ignore-errors
"""Ctrl-C while `lakestore write` is at work, and the same command again."""

import signal
import subprocess

from tests.repro.user.shop import Shop

shop = Shop("t_int2", filled=True)


def run(c):
    r = subprocess.run(c, shell=True, capture_output=True, text=True)
    return r.stdout + r.stderr


open("log4.yaml", "w").write(open("log2.yaml").read().replace("t.log2", "t.log4"))
run("lakestore apply -f log4.yaml")
p = subprocess.Popen(
    "exec lakestore write t.log4 logslow.jsonl", shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
)
n = 0
while True:
    n = int(run("lakestore read t.log4 --count").strip())
    if n > 0:
        break
    if p.poll() is not None:
        break
p.send_signal(signal.SIGINT)
o, e = p.communicate()
print("rc", p.returncode, "OUT", repr(o), "ERR", repr(e))
print("after ctrl-c:", run("lakestore read t.log4 --count"))
print(run("lakestore write t.log4 logslow.jsonl"))
print("after re-run:", run("lakestore sql 'select count(*) n, count(distinct order_id) d from t.log4'"))
shop.close()
