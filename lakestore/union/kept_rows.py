"""The first rows of an answer, which are kept; those behind them are counted, or never made."""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa


def first(reader: pa.RecordBatchReader, rows: int) -> pa.Table:
    """The first rows of an answer; the others are not made."""
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < rows:
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            break
    return pa.Table.from_batches(batches, reader.schema).slice(0, rows)


def kept(reader: pa.RecordBatchReader, rows: int, nbytes: int | None) -> tuple[pa.Table, int]:
    """The first rows of an answer, and the number of the others, one batch of which is held at a time."""
    batches: list[pa.RecordBatch] = []
    taken = behind = 0
    for batch in reader:
        mine = batch.slice(0, rows - taken)
        if nbytes is not None:
            mine = _fitting(mine, nbytes, first=not taken)
            nbytes -= mine.nbytes
        if mine.num_rows:
            batches.append(mine)
        taken += mine.num_rows
        behind += batch.num_rows - mine.num_rows
        if mine.num_rows < batch.num_rows:
            rows = taken
    return pa.Table.from_batches(batches, reader.schema), behind


def _fitting(batch: pa.RecordBatch, nbytes: int, *, first: bool) -> pa.RecordBatch:
    """The first rows of a batch within so many bytes, copied if they are not all; with `first` one row at least."""
    if batch.nbytes <= nbytes:
        return batch
    fits = bisect_right(range(1, batch.num_rows + 1), nbytes, key=lambda rows: batch.slice(0, rows).nbytes)
    return batch.take(pa.array(range(max(fits, int(first))), pa.int64()))
