# ruff: noqa: E501
"""What the scripts of this folder find: a server, the tables and files of a small shop, a shell beside them."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import lakestore as ls
from jepsen.system.server import free_port
from tests.repro.place import LAKESTORE, room

ORDERS = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("status", pa.string()),
        ("amount", pa.float64()),
        ("discount", pa.decimal128(10, 2)),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("local_time", pa.timestamp("us")),
        ("ship_date", pa.date32()),
        ("address", pa.struct([("city", pa.string()), ("zip", pa.string())])),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int32())]))),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("gift", pa.bool_()),
    ]
)
EVENTS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("order_id", pa.int64()), ("step", pa.string())])
ROWS = 60_000
LOG_ROWS = 150_000


def order(n: int) -> dict[str, object]:
    """One row of shop.orders."""
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n)
    return {
        "order_id": n,
        "customer": f"customer-{n % 997}",
        "status": ("new", "paid", "sent")[n % 3],
        "amount": n % 1000 + 0.5,
        "discount": Decimal(n % 100) / 100,
        "created_at": at,
        "local_time": at.replace(tzinfo=None),
        "ship_date": at.date(),
        "address": {"city": f"city-{n % 50}", "zip": str(10_000 + n % 90)},
        "items": [{"sku": f"sku-{n % 40}", "qty": n % 5 + 1}],
        "attributes": [("channel", "web")],
        "gift": n % 7 == 0,
    }


def as_json(row: dict[str, object]) -> str:
    """The row as a line of JSON."""
    return json.dumps(row | {"attributes": {"channel": "web"}}, default=str)


ACCOUNTS = r"""
cat > cdc.yaml <<'Y'
tables:
  - name: cdc.accounts
    primary_key: [id]
    columns:
      - {name: id, type: int64}
      - {name: name, type: string}
      - {name: balance, type: "decimal(12,2)"}
      - {name: seen, type: timestamptz}
      - {name: day, type: date}
      - {name: loc, type: timestamp}
      - {name: tags, type: "list<string>"}
Y
lakestore apply -f cdc.yaml >/dev/null
cat > c1.jsonl <<'J'
{"id":1,"name":"ann","balance":"10.50","seen":"2026-01-01T00:00:00.123456Z","day":"2026-01-01","loc":"2026-01-01T10:00:00","tags":["a"]}
{"id":2,"name":"bob","balance":"5.00","seen":null,"day":null,"loc":null,"tags":null}
J
echo '{"id":1,"name":"ann2","balance":"11.50"}' > c2.jsonl
echo '{"id":2}' > c3.jsonl
lakestore write cdc.accounts c1.jsonl; lakestore write cdc.accounts c2.jsonl; lakestore write --delete cdc.accounts c3.jsonl
"""


class Shop:
    """A server of its own (address in LAKESTORE_SERVER), whose work lies in one folder."""

    def __init__(self, name: str, *, filled: bool = False) -> None:
        self.folder = room(f"user/{name}")
        self.port, self.http = free_port(), free_port()
        self.address = f"localhost:{self.port}"
        os.environ["LAKESTORE_SERVER"] = self.address
        os.environ["PATH"] = f"{Path(LAKESTORE).parent}:{os.environ['PATH']}"
        os.environ |= {"PORT": str(self.port), "HTTP_PORT": str(self.http)}
        os.chdir(self.folder)
        self.process: subprocess.Popen[bytes] | None = None
        if filled:
            self.serve()
            self.fill()

    def serve(self) -> None:
        """Start the server and wait until it answers."""
        command = [LAKESTORE, "serve", "--data", "./data", "--port", str(self.port), "--http-port", str(self.http)]
        with open("server.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(300):
            try:
                with ls.connect(self.address) as lake:
                    lake.tables()
                    return
            except ls.LakestoreError:
                time.sleep(0.1)
        raise SystemExit("the server does not start")

    def fill(self) -> None:
        """The tables shop.orders, shop.events, shop.customers, t.logorders and the files beside them."""
        rows = [order(n) for n in range(ROWS)]
        with ls.connect(self.address) as lake:
            orders = lake.create_table("shop.orders", ORDERS, primary_key=["order_id"])
            orders.upsert(pa.Table.from_pylist(rows[:5000], schema=ORDERS))
            lake.create_table("shop.events", EVENTS).append([{"order_id": 1, "step": "placed"}])
            customers = pa.schema([("id", pa.int64()), ("name", pa.string())])
            lake.create_table("shop.customers", customers, primary_key=["id"]).upsert([{"id": 1, "name": "ann"}])
            lake.create_table("t.logorders", pa.schema([("order_id", pa.int64())]))
        pq.write_table(pa.Table.from_pylist(rows[:1000], schema=ORDERS), "orders.parquet")
        Path("orders.jsonl").write_text("".join(as_json(row) + "\n" for row in rows))
        Path("seed.jsonl").write_text("".join(json.dumps({"id": n, "s": "seed"}) + "\n" for n in range(10)))
        Path("log2.yaml").write_text(
            "tables:\n  - name: t.log2\n    columns:\n      - {name: order_id, type: int64}\n"
            '      - {name: items, type: "list<struct<sku: string, qty: int32>>"}\n'
        )
        with open("logslow.jsonl", "w") as file:  # nested, which takes its time: Ctrl-C meets it at work
            for n in range(LOG_ROWS):
                file.write(json.dumps({"order_id": n, "items": [{"sku": f"sku-{n % 40}", "qty": n % 5}]}) + "\n")

    def accounts(self) -> None:
        """The table cdc.accounts, two rows, a change and a delete."""
        self.shell(ACCOUNTS)

    def shell(self, text: str) -> None:
        """Run a script of the shell in the folder, its output among ours."""
        sys.stdout.flush()
        subprocess.run(["/bin/sh", "-c", text], stderr=subprocess.STDOUT, check=False)

    def close(self) -> None:
        """Stop the server."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
