# mypy: ignore-errors
"""which column makes JSON lines 100x slower"""

import json
import re
import subprocess

from tests.repro.user.shop import Shop

shop = Shop("t_jsonspeed", filled=True)

cols = [
    "order_id",
    "customer",
    "status",
    "amount",
    "discount",
    "created_at",
    "local_time",
    "ship_date",
    "address",
    "items",
    "attributes",
    "gift",
]
rows = [json.loads(line) for _, line in zip(range(60000), open("orders.jsonl"), strict=False)]
for _drop in [[], *[[c] for c in cols[1:]]]:
    pass


def t(keep, label):
    with open("sp.jsonl", "w") as f:
        for r in rows:
            f.write(json.dumps({k: r[k] for k in keep}) + "\n")
    p = subprocess.run(["lakestore", "write", "shop.orders", "sp.jsonl", "--again"], capture_output=True, text=True)
    print(label, re.findall(r"\(.*\)", p.stderr)[-1:] or p.stderr[-200:])


for c in cols[1:]:
    t(["order_id", c], c)
shop.close()
