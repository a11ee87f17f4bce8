"""The plan's executor in Arrow: lake rows that are alive, then live rows of the hot ranges.

The condition meets only rows that are alive at the cut, on both sides, so it never sees an old version of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid, PlanExpired
from lakestore.model.columns import LAKE_OFFSET
from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.rows.condition import RowFilter
from lakestore.union import plan
from lakestore.union.cut import Cut
from lakestore.union.plan import TableScan

BATCH_ROWS_MAX = 131_072


def schema(table: Table, columns: Sequence[str] | None) -> pa.Schema:
    """The Arrow schema of a read of these columns, or `Invalid`."""
    names = table.selected(list(columns or ()))
    if len(set(names)) != len(names):
        raise Invalid(f"table {table.name}: a column is named twice")
    if "__change" in names:
        raise Invalid(f"table {table.name}: a scan has rows, not changes; __change comes with changes()")
    return table.read_schema(names)


def execute(
    cut: Cut, scan: TableScan, columns: Sequence[str], condition: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """The table's rows at the cut that meet the condition, in batches of bounded size.

    No columns at all give batches that only have a number of rows.
    """
    needed = list(dict.fromkeys([*columns, *(condition.columns if condition else ())])) or [LAKE_OFFSET]
    wanted = list(columns)
    for batch in _alive(cut, scan, needed, condition):
        cut.keep()
        kept = condition.apply(batch) if condition else batch
        if kept.num_rows:
            yield from _pieces(kept.select(wanted) if wanted else kept)


def _alive(cut: Cut, scan: TableScan, needed: list[str], condition: RowFilter | None) -> Iterator[pa.RecordBatch]:
    if scan.in_lake:
        from lakestore.union import lake_files  # PyIceberg takes half a second to import, and a server never needs it

        yield from lake_files.read(scan, needed, condition)
    yield from hot(cut, scan, needed)


def hot(cut: Cut, scan: TableScan, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Live rows of the hot ranges."""
    declared = scan.table.read_schema(list(columns))
    for split in scan.hot_splits():
        cut.keep()
        for batch in _rows_of(cut, scan, split, columns):
            yield _declared(batch, declared)


def _rows_of(cut: Cut, scan: TableScan, split: plan.Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a split, each once, also if the lease is lost meanwhile and the same rows are leased again."""
    given = 0
    while True:
        again = given
        try:
            for message in cut.transport.fetch(plan.fetch_request(scan, split, columns, cut.plan.lease)):
                for batch in ipc.decode_trusted(message.rows, crc=message.crc32c):
                    left = batch.slice(again)
                    again -= batch.num_rows - left.num_rows
                    given += left.num_rows
                    if left.num_rows:
                        yield left
        except PlanExpired as error:
            cut.hold_again(error)
        else:
            return


def _declared(batch: pa.RecordBatch, declared: pa.Schema) -> pa.RecordBatch:
    arrays = [_typed(batch.column(field.name), field.type) for field in declared]
    return pa.RecordBatch.from_arrays(arrays, schema=declared)


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else pc.cast(array, kind)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
        yield batch.slice(start, BATCH_ROWS_MAX)
