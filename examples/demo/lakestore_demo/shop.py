"""The demo's orders. Their content follows from number and version, so it is known without a read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import yaml

from lakestore.errors import NotFound
from lakestore.model.types import arrow_type
from lakestore.rows import row_hash

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

ORDERS, EVENTS = "shop.orders", "shop.events"
TABLES_FILE = Path(__file__).resolve().parents[2] / "shop" / "tables.yaml"
CUSTOMERS = 5_000
_STATUS = pa.array(["new", "paid", "packed", "sent"])
_CUSTOMER = pa.array([f"c{i:04d}" for i in range(CUSTOMERS)])
EPOCH_US = 1_767_225_600_000_000
_KINDS = ("insert", "update", "delete")


def definitions(path: Path = TABLES_FILE) -> list[dict[str, Any]]:
    """Arguments of `create_table` for each table of examples/shop."""
    if not path.exists():
        raise NotFound(f"{path} is missing: the demo runs in a checkout of Lakestore (make demo)")
    return [_arguments(entry) for entry in yaml.safe_load(path.read_text())["tables"]]


def _arguments(entry: dict[str, Any]) -> dict[str, Any]:
    fields = [pa.field(column["name"], arrow_type(column["type"])) for column in entry.pop("columns")]
    return {**entry, "schema": pa.schema(fields)}


def orders(numbers: Numbers, versions: Numbers) -> pa.Table:
    """Orders in these versions."""
    return pa.table(
        {
            "order_id": numbers,
            "customer": _CUSTOMER.take(pa.array(numbers * 7919 % CUSTOMERS)),
            "status": _STATUS.take(pa.array(np.minimum(versions, len(_STATUS) - 1))),
            "amount": money(cents(numbers, versions)),
            "created_at": pa.array(EPOCH_US + numbers * 1_000_003, pa.timestamp("us", tz="UTC")),
        }
    )


def cents(numbers: Numbers, versions: Numbers) -> Numbers:
    """Amounts of orders in these versions."""
    return (numbers * 31 + versions * 17) % 50_000 + 1


def money(amounts: Numbers) -> pa.Array:
    """Cents as decimal(12, 2), computed without floats."""
    words = np.empty((len(amounts), 2), dtype=np.int64)
    words[:, 0] = amounts
    words[:, 1] = amounts >> 63
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(amounts), [None, pa.py_buffer(words.tobytes())])


def hashes_of(table: pa.Table) -> Hashes:
    """One hash for each order over all columns."""
    batch = table.combine_chunks().to_batches()[0]
    return row_hash.hashes([row_hash.column(batch.column(name)) for name in orders(*_NOTHING).column_names])


_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


class State:
    """The orders: hash of the row by number, 0 for none."""

    def __init__(self) -> None:
        self.hashes: Hashes = np.zeros(1 << 20, dtype=np.uint64)

    def put(self, numbers: Numbers, hashes: Hashes) -> None:
        """Set rows in order. The last row of a number wins."""
        if len(numbers):
            self._grow(int(numbers.max()) + 1)
            self.hashes[numbers] = hashes

    def _grow(self, size: int) -> None:
        if size > len(self.hashes):
            self.hashes = np.concatenate([self.hashes, np.zeros(size, dtype=np.uint64)])

    @property
    def rows(self) -> int:
        return int(np.count_nonzero(self.hashes))

    def same(self, other: State) -> bool:
        short, long = sorted((self.hashes, other.hashes), key=len)
        return bool((long[: len(short)] == short).all() and not long[len(short) :].any())

    @staticmethod
    def of(table: pa.Table) -> State:
        """The state in a read of the whole table. Raises for a duplicate number."""
        state = State()
        if table.num_rows:
            numbers = table.column("order_id").to_numpy()
            if len(np.unique(numbers)) != len(numbers):
                raise ValueError("an order is there twice")
            state.put(numbers, hashes_of(table))
        return state


@dataclass(frozen=True, slots=True)
class Step:
    """The rows of one commit."""

    changed: pa.Table
    deleted: pa.Table
    events: pa.Table

    @property
    def rows(self) -> int:
        return int(self.changed.num_rows + self.deleted.num_rows + self.events.num_rows)


class Shop:
    """Creates steps and remembers the state they lead to."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._versions: Numbers = np.empty(0, dtype=np.int64)
        self._alive: npt.NDArray[np.bool_] = np.empty(0, dtype=np.bool_)

    def step(self, inserts: int, updates: int, deletes: int) -> Step:
        """The next step: new, changed and removed orders, all different."""
        alive = np.flatnonzero(self._alive)
        picked = self._random.choice(alive, min(updates + deletes, len(alive)), replace=False)
        updated, deleted = np.sort(picked[:updates]), np.sort(picked[updates:])
        new = np.arange(len(self._versions), len(self._versions) + inserts, dtype=np.int64)
        known = np.concatenate([updated, deleted])
        before = cents(known, self._versions[known])
        self._versions = np.concatenate([self._versions, np.zeros(inserts, dtype=np.int64)])
        self._alive = np.concatenate([self._alive, np.ones(inserts, dtype=np.bool_)])
        self._versions[updated] += 1
        self._alive[deleted] = False
        changed = np.concatenate([new, updated])
        after = cents(changed, self._versions[changed])
        none = np.zeros(inserts, dtype=np.int64), np.zeros(len(deleted), dtype=np.int64)
        delta = np.concatenate([after, none[1]]) - np.concatenate([none[0], before])
        kinds = np.repeat(np.arange(len(_KINDS)), [inserts, len(updated), len(deleted)])
        steps = pa.array(_KINDS).take(pa.array(kinds))
        events = {"order_id": np.concatenate([changed, deleted]), "step": steps, "delta": money(delta)}
        return Step(orders(changed, self._versions[changed]), pa.table({"order_id": deleted}), pa.table(events))

    def state(self) -> State:
        state = State()
        alive = np.flatnonzero(self._alive)
        if len(alive):
            state.put(alive, hashes_of(orders(alive, self._versions[alive])))
        return state

    def alive(self) -> pa.Array:
        return pa.array(np.flatnonzero(self._alive))

    @property
    def total_cents(self) -> int:
        alive = np.flatnonzero(self._alive)
        return int(cents(alive, self._versions[alive]).sum())
