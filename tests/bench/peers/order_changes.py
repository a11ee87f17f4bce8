"""Tables of orders that lakes fill and change, and what they must hold afterwards.

- Every system reads the same Parquet files, whose reading is part of its time.
- The changed rows are known from the size of the table and the number of the change, so they are the same for all.
- After every change the count and the sum of the quantities are compared with what they must be, outside of the time.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.orders import MILLION, SCHEMA, orders, told
from tests.bench.peers.contest import Failed

SUMS = "sum(amount), sum(quantity), sum(price), count(*)"
"""What a scan asks for: three sums, and the count that the check needs."""
SQL_MERGE = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


class Slow(RuntimeError):
    """A change had not ended after the contestant's limit; the contestant ended it."""


@dataclass(frozen=True, slots=True)
class Change:
    """Seconds of a change since it was begun."""

    readable: float
    """Until it is durable and every query sees it."""
    in_lake: float
    """Until the files of the lake have it."""

    @staticmethod
    def of(seconds: float) -> Change:
        """The change of a system that writes into its lake at once."""
        return Change(seconds, seconds)


@dataclass(frozen=True, slots=True)
class Sums:
    """The whole numbers among `SUMS`."""

    rows: int
    quantity: int


class OrderLake(Protocol):
    """What a contestant of these workloads does."""

    def fill(self, name: str, file: Path) -> None:
        """Make a table with the key `order_id` of a file's orders."""

    def change(self, name: str, file: Path) -> Change:
        """Upsert a file's orders. Raises `Slow`."""

    def sums(self, name: str) -> Sums:
        """Scan the table for `SUMS`."""


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lakestore-orders-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def order_file(rows: int) -> Path:
    """The Parquet file of the first `rows` orders; made once a process."""
    file = _folder() / f"orders-{rows}.parquet"
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as out:
        for start in range(0, rows, MILLION):
            out.write_batch(orders(np.arange(start, min(start + MILLION, rows)), start))
    return file


@cache
def change_file(rows: int, changed: int, number: int) -> Path:
    """The Parquet file of change `number`: new values of `changed` of the `rows` orders, each order at most once."""
    file = _folder() / f"change-{rows}-{changed}-{number}.parquet"
    ids = np.random.default_rng((rows, changed, number)).choice(rows, changed, replace=False)
    pq.write_table(pa.Table.from_batches([orders(ids, 1_000_000_007 + number)]), file, compression="zstd")
    return file


class OrderTable:
    """A table in a system, and its changes."""

    def __init__(self, system: OrderLake, rows: int, changed: int, *, suffix: str = "") -> None:
        """The table, whose name ends with `suffix`, is filled, changed and read once, so that the system is warm."""
        self._system, self._rows, self._changed = system, rows, changed
        self._name, self._number = f"orders_{rows}_{changed}{suffix}", 0
        file = order_file(rows)
        system.fill(self._name, file)
        self._quantities = pq.read_table(file, columns=["quantity"]).column(0).to_numpy().copy()
        self.is_slow = False
        """A change did not end within the contestant's limit: the table is given up."""
        self.change()

    def change(self) -> Change | None:
        """The next change; None if the system is too slow. Raises `Failed` if the table is wrong afterwards."""
        if self.is_slow:
            return None
        file, self._number = change_file(self._rows, self._changed, self._number), self._number + 1
        try:
            seconds = self._system.change(self._name, file)
        except Slow:
            self.is_slow = True
            return None
        rows = pq.read_table(file, columns=["order_id", "quantity"])
        self._quantities[rows.column(0).to_numpy()] = rows.column(1).to_numpy()
        self.scan()
        return seconds

    def scan(self) -> float:
        """Seconds of a scan. Raises `Failed` if it is wrong."""
        began = time.perf_counter()
        sums = self._system.sums(self._name)
        seconds = time.perf_counter() - began
        right = Sums(self._rows, int(self._quantities.sum(dtype=np.int64)))
        if sums != right:
            raise Failed(f"the table of {told(self._rows)} rows has {sums} instead of {right}")
        return seconds


def measures_of(tables: Mapping[str, OrderTable]) -> dict[str, float]:
    """Change every table once; the seconds by the names of the measures."""
    found: dict[str, float] = {}
    for name, table in tables.items():
        if (change := table.change()) is not None:
            found |= {f"{name}, readable": change.readable, f"{name}, in the lake": change.in_lake}
    return found
