"""Orders of eight columns like the peers', as many as `LAKESTORE_BENCH_ROWS` says: ten millions if it says nothing.

All other sizes go with that one, so that a small run does the same things in a minute; its figures mean nothing.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakestore
from lakestore.client import writer

MILLION = 1_000_000
_FULL = 10 * MILLION
ROWS = int(os.environ.get("LAKESTORE_BENCH_ROWS", _FULL))
IS_SMALL = ROWS != _FULL
DAYS = 500
SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("status", pa.string()),
        ("amount", pa.float64()),
        ("quantity", pa.int32()),
        ("price", pa.float64()),
        ("created_at", pa.timestamp("us")),
        ("note", pa.string()),
    ]
)
_STATUS = pa.array(["new", "paid", "sent", "done"])
_BEGIN_US, _DAY_US = 1_750_000_000_000_000, 86_400_000_000
_STEP_US = max(DAYS * _DAY_US // ROWS, 1)
Ids = npt.NDArray[np.int64]


def scaled(count: int) -> int:
    """So many rows of ten millions, in a run of `ROWS`."""
    return max(count * ROWS // _FULL, 1)


def told(count: float) -> str:
    """A number of rows as figures name it."""
    for size, unit in ((MILLION, " M"), (1_000, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def orders(ids: Ids, seed: int) -> pa.RecordBatch:
    """Orders with these ids, the older the smaller, over 500 days; other values depend on the seed."""
    rng = np.random.default_rng(seed)
    count = len(ids)
    created = _BEGIN_US + ids * _STEP_US + rng.integers(0, 60_000_000, count)
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array(rng.integers(0, 100_000, count)).cast(pa.string()),
            _STATUS.take(pa.array(rng.choice(4, count, p=(0.1, 0.2, 0.2, 0.5)))),
            pa.array(np.round(rng.gamma(2.0, 40.0, count), 2)),
            pa.array(rng.integers(1, 9, count).astype(np.int32)),
            pa.array(np.round(rng.random(count) * 50, 2)),
            pa.array(created, pa.timestamp("us")),
            pa.array(rng.integers(0, 20_000, count)).cast(pa.string()),
        ],
        schema=SCHEMA,
    )


def write(table: lakestore.Table, ids: Ids, seed: int) -> None:
    """Upsert orders, as fast as one writer does."""
    with table.writer() as out:
        for at in range(0, len(ids), writer.COMMIT_ROWS_MAX):
            out.upsert(orders(ids[at : at + writer.COMMIT_ROWS_MAX], seed + at))
