"""Sums of a table's rows, by bucket: they are equal if the rows are, in whatever order and pieces they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows import row_hash
from lakestore.rows.live_sum import mixed
from lakestore.union.lake_files import gathered
from lakestore.union.plan import TableScan


@dataclass(slots=True)
class Sums:
    """The sums of one side of a bucket."""

    rows: int = 0
    offsets: int = 0
    values: int | None = None
    """Sum over all columns; None if it was not computed."""


def summed(batches: Iterable[pa.RecordBatch], scan: TableScan, names: Sequence[str]) -> list[Sums]:
    """The sums of each bucket. The batches have bucket, offset, and the named columns whose values are summed."""
    sums = [Sums(values=0) for _ in scan.buckets]
    # To sum a batch of ten rows takes as long as to sum one of thousands.
    for batch in gathered(batches):
        buckets = batch.column(LAKE_BUCKET).to_numpy()
        offsets = mixed(batch.column(LAKE_OFFSET).to_numpy())
        hashes = row_hash.hashes([offsets, *(row_hash.column(batch.column(name)) for name in names)])
        for bucket in np.unique(buckets).tolist():
            mine = buckets == bucket
            _add(sums[bucket], int(mine.sum()), _total(offsets[mine]), _total(hashes[mine]))
    return sums


def joined(parts: Sequence[Sequence[Sums]]) -> list[Sums]:
    """The sums of each bucket over all parts of a table."""
    sums = [Sums(values=0) for _ in parts[0]]
    for part in parts:
        for total, more in zip(sums, part, strict=True):
            _add(total, more.rows, more.offsets, more.values or 0)
    return sums


def _total(numbers: npt.NDArray[np.uint64]) -> int:
    return int(numbers.sum(dtype=np.uint64))


def _add(sums: Sums, rows: int, offsets: int, values: int) -> None:
    sums.rows += rows
    sums.offsets = (sums.offsets + offsets) % (1 << 64)
    sums.values = ((sums.values or 0) + values) % (1 << 64)
