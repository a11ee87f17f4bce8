"""The shop's payments as JSON records of a topic: known from their number and version alone; some records are bad."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.demo.shop import EPOCH_US, TABLES_FILE, Numbers, cents, money

PAYMENTS = TOPIC = "shop.payments"
PARTITIONS = 3
LETTERS = f"{PAYMENTS}__dlq"
BRIDGE_FILE = TABLES_FILE.with_name("bridge.yaml")
ADDRESS_VARIABLE = "SHOP_KAFKA"
"""The variable in `BRIDGE_FILE` for the broker's address."""
_STATUS = ("open", "paid", "refunded")
_BAD = (
    '{{"payment_id": {0}, "order_id": ',
    '{{"payment_id": {0}, "order_id": 1, "status": "open", "amount": "much"}}',
    '{{"payment_id": {0}, "order_id": 1, "status": "open"}}',
)
"""Records that end early, have an amount that is none, have no amount."""

Record = tuple[bytes, bytes]
"""Key and value."""


class Payments:
    """Makes records, and remembers what the table must be after them. Each record pays one of the first `orders`."""

    def __init__(self, orders: int, seed: int = 11) -> None:
        self._random = np.random.default_rng(seed)
        self._orders = orders
        self._versions: Numbers = np.empty(0, dtype=np.int64)
        self._bad = 0

    def step(self, opened: int, changed: int) -> list[Record]:
        """Records of new payments, and of others that go on: all of different payments."""
        old = self._random.choice(len(self._versions), min(changed, len(self._versions)), replace=False)
        new = np.arange(len(self._versions), len(self._versions) + opened, dtype=np.int64)
        self._versions = np.concatenate([self._versions, np.zeros(opened, dtype=np.int64)])
        self._versions[old] += 1
        rows = self._table(np.concatenate([np.sort(old), new])).to_pydict()
        times = rows["opened_at"]
        return [
            (
                str(number).encode(),
                f'{{"payment_id": {number}, "order_id": {order}, "status": "{status}", "amount": "{amount}", '
                f'"opened_at": {round(at.timestamp() * 1_000)}}}'.encode(),
            )
            for number, order, status, amount, at in zip(
                rows["payment_id"], rows["order_id"], rows["status"], rows["amount"], times, strict=True
            )
        ]

    def bad(self) -> Record:
        """A record of a payment that is there, which does not fit."""
        self._bad += 1
        number = self._bad % max(len(self._versions), 1)
        return str(number).encode(), _BAD[self._bad % len(_BAD)].format(number).encode()

    def table(self) -> pa.Table:
        """The payments as they must be now, by number."""
        return self._table(np.arange(len(self._versions), dtype=np.int64))

    def joined(self, alive: pa.Array) -> tuple[int, int]:
        """Number and cents of the payments whose order is among those that are `alive`."""
        found = self.table().filter(pc.is_in(self.table().column("order_id"), alive))
        total = pc.sum(found.column("amount")).as_py()
        return found.num_rows, int(total * 100) if total is not None else 0

    def _table(self, numbers: Numbers) -> pa.Table:
        versions = self._versions[numbers]
        return pa.table(
            {
                "payment_id": numbers,
                "order_id": numbers * 7919 % self._orders,
                "status": pa.array(_STATUS).take(pa.array(np.minimum(versions, len(_STATUS) - 1))),
                "amount": money(cents(numbers, versions)),
                "opened_at": pa.array(EPOCH_US + numbers * 1_000, pa.timestamp("us", tz="UTC")),
            }
        )
