"""Data folders of earlier releases: unpacking one, and recording that of this release.

`python -m tests.support.golden` writes tests/golden/data-<release>.tar.xz and .json; see the README there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import tarfile
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakestore as ls
from lakestore.client.lake import Lake
from lakestore.release import RELEASE
from tests.support.process import ServerProcess

FOLDER = Path(__file__).resolve().parent.parent / "golden"
TABLES = ("shop.orders", "shop.events")
ORDERS = pa.schema([("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(12, 2))])
EVENTS = pa.schema([("order_id", pa.int64()), ("kind", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


def unpacked(archive: Path, into: Path) -> Path:
    """The data folder of an archive."""
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return folder


def contents(lake: Lake) -> dict[str, Any]:
    """Per table the number of live rows and a hash over them, in any order."""
    found = {}
    for name in TABLES:
        rows = sorted(
            json.dumps(row, default=str, sort_keys=True) for row in lake.table(name).scan().to_arrow().to_pylist()
        )
        found[name] = {"rows": len(rows), "sha256": hashlib.sha256("\n".join(rows).encode()).hexdigest()}
    return found


def create(lake: Lake) -> None:
    """The tables, empty."""
    lake.create_table("shop.orders", ORDERS, primary_key=["order_id"], buckets=2)
    lake.create_table("shop.events", EVENTS, buckets=1)


def write(lake: Lake, steps: range) -> None:
    """Rows, updates and deletes."""
    orders, events = lake.table("shop.orders"), lake.table("shop.events")
    for step in steps:
        ids = range(step * 60, step * 60 + 120)
        orders.upsert([{"order_id": i, "customer": f"c{i % 7}", "amount": Decimal(i * step) / 100} for i in ids])
        orders.delete([{"order_id": i} for i in ids if i % 10 == step])
        moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        events.append([{"order_id": i, "kind": "seen", "at": moment + dt.timedelta(seconds=i)} for i in ids])


def record(release: str, into: Path = FOLDER) -> Path:
    """Write the archive of this release: a checkpoint by an orderly end, a journal tail as a kill leaves it."""
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / f"data-{release}"
        with ServerProcess(data) as server, ls.connect(server.address) as lake:
            create(lake)
            write(lake, range(4))
        server = ServerProcess(data)
        with ls.connect(server.address) as lake:
            write(lake, range(4, 6))
            said = contents(lake)
        server.kill()
        archive = into / f"data-{release}.tar.xz"
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(data, data.name, filter=lambda entry: None if entry.name.endswith("/lock") else entry)
        archive.with_name(f"data-{release}.json").write_text(json.dumps(said, indent=2) + "\n")
        return archive


if __name__ == "__main__":
    record(RELEASE)
