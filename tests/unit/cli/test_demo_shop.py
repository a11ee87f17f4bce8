"""The demo's shop: steps, events and the state they lead to agree with each other."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.model import table
from lakestore_demo.shop import ORDERS, Shop, State, cents, definitions, hashes_of, money, orders


def test_the_tables_of_the_example_can_be_made() -> None:
    made = {entry["name"]: table.define(**entry) for entry in definitions()}
    assert made[ORDERS].keyed
    none = np.empty(0, dtype=np.int64)
    assert orders(none, none).schema.types == made[ORDERS].schema.types


def test_money_is_exact() -> None:
    assert money(np.array([1, -1, 12345, -98765])).to_pylist() == [
        Decimal("0.01"), Decimal("-0.01"), Decimal("123.45"), Decimal("-987.65")
    ]  # fmt: skip


def test_steps_fold_to_the_state_and_events_to_its_sum() -> None:
    shop, folded, total = Shop(1), State(), Decimal(0)
    for number in range(30):
        step = shop.step(50, 40 if number else 0, 10 if number else 0)
        assert not set(step.changed["order_id"].to_pylist()) & set(step.deleted["order_id"].to_pylist())
        folded.put(step.changed["order_id"].to_numpy(), hashes_of(step.changed))
        folded.put(step.deleted["order_id"].to_numpy(), np.zeros(step.deleted.num_rows, dtype=np.uint64))
        total += pc.sum(step.events["delta"]).as_py()
    assert folded.same(shop.state())
    assert total == Decimal(shop.total_cents) / 100
    assert shop.state().rows == 30 * 50 - 29 * 10


def test_one_wrong_value_is_another_state() -> None:
    numbers, versions = np.arange(5), np.zeros(5, dtype=np.int64)
    right, wrong = orders(numbers, versions), orders(numbers, versions + (numbers == 3))
    assert State.of(right).same(State.of(right))
    assert not State.of(right).same(State.of(wrong))
    assert not State.of(right).same(State.of(right.slice(1)))
    assert cents(numbers, versions).min() > 0
    assert isinstance(right, pa.Table)
