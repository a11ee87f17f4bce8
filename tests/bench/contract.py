"""Upserts under a contract of ten rules against upserts without one: what rules cost at a write.

Orders of eight columns, uniform keys, batches of 10,000 rows, one writer over gRPC, a synced journal. The runs of both
tables take turns, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.evolution import SetContract
from tests.bench.orders import SCHEMA, orders
from tests.bench.report import Figure
from tests.bench.streaming import written
from tests.support.contract_texts import column, document, no_rows
from tests.support.process import ServerProcess

KEYS, BATCHES, BATCH_ROWS, RUNS = 200_000, 100, 10_000, 7
BAR = 0.8
_STATUS = [{"value": value} for value in ("new", "paid", "sent", "done")]
COLUMNS = (
    column("order_id", primaryKey=True, required=True),
    column("customer", required=True, logicalTypeOptions={"pattern": "^[0-9]{1,6}$"}),
    column("status", enum=_STATUS),
    column("amount", logicalTypeOptions={"minimum": 0, "maximum": 1_000_000}),
    column("quantity", logicalTypeOptions={"minimum": 1}),
    column("created_at", required=True),
    column("note", logicalTypeOptions={"maxLength": 10}),
)
CONDITION = "status = 'paid' AND amount < quantity * -1"


def measure(folder: Path) -> Iterator[Figure]:
    """Rates with and without rules, and their ratio; with one row of a thousand as a dead letter too."""
    rng = np.random.default_rng(1)
    text = document(COLUMNS, "dead_letter", [no_rows(CONDITION)])
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        free = lake.create_table("bench.free", SCHEMA, primary_key=["order_id"])
        ruled = lake.create_table("bench.orders", SCHEMA, primary_key=["order_id"]).alter(SetContract(text, "orders"))
        contract = ruled.definition.contract
        assert contract is not None
        rules = len(contract.rules.at_write)
        good = [orders(rng.integers(0, KEYS, BATCH_ROWS), seed) for seed in range(BATCHES)]
        bad = [_with_bad(batch) for batch in good]
        rates: dict[str, list[float]] = {"free": [], "good": [], "bad": []}
        for table, batches, name in _turns(free, ruled, good, bad):
            rates[name].append(written(table, lakestore.Writer.upsert, batches))
        letters = lake.table("bench.orders__dlq").scan().count()
    assert letters == (RUNS + 1) * BATCHES * BATCH_ROWS // 1_000
    shown = {name: statistics.median(runs[1:]) for name, runs in rates.items()}
    yield Figure("1 M upserts without a contract", f"{shown['free']:,.0f} rows/s", "", None)
    for name, what in (("good", f"{rules} rules"), ("bad", f"{rules} rules, one row of 1,000 a dead letter")):
        ratio = shown[name] / shown["free"]
        yield Figure(f"1 M upserts, {what}", f"{shown[name]:,.0f} rows/s", "", None)
        bar = f"≥ {BAR}x" if name == "good" else ""
        yield Figure(f"{what} over no contract", f"{ratio:.2f}x", bar, ratio >= BAR if bar else None)


def _turns(
    free: lakestore.Table, ruled: lakestore.Table, good: list[pa.RecordBatch], bad: list[pa.RecordBatch]
) -> Iterator[tuple[lakestore.Table, Sequence[pa.RecordBatch], str]]:
    for _ in range(RUNS + 1):  # the first run of each fills its table
        yield free, good, "free"
        yield ruled, good, "good"
        yield ruled, bad, "bad"


def _with_bad(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with one row of a thousand out of its range."""
    amounts = batch.column("amount").to_numpy().copy()
    amounts[::1_000] = -1.0
    return batch.set_column(batch.schema.get_field_index("amount"), batch.schema.field("amount"), pa.array(amounts))
