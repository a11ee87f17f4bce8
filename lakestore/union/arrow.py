"""Executes plans in Arrow: first the live rows of the lake, then the live rows of the hot ranges.

A condition is applied to rows that are alive at the cut, never to an old version of a row: here for lake rows, on the
server for hot rows. A condition that fixes the whole key becomes a look-up at the cut, without a scan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid, LakestoreError, PlanExpired, PositionExpired, Unavailable
from lakestore.model.columns import LAKE_OFFSET
from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.rows.condition import AllOf, AnyOf, Comparison, RowFilter, Skip
from lakestore.union import plan
from lakestore.union.cut import Cut
from lakestore.union.explanation import Figures
from lakestore.union.lake_files import LakeRead
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc

KEYS_MAX = 4_096
"""The most keys that a read looks up. With more keys it scans."""
_SCAN_INSTEAD: tuple[type[LakestoreError], ...] = (Invalid, PositionExpired, Unavailable)
"""Errors that make a read scan instead: the cut is too far behind the log for a look-up, the key is not valid, or
the index is being rebuilt.
"""


def keys_of(condition: RowFilter | None, table: Table) -> pa.RecordBatch | None:
    """The only keys whose rows can meet the condition. None if the condition does not fix the key, or lists too many
    keys.
    """
    if condition is None or not table.keyed:
        return None
    said = _values_of(condition.skip)
    values = [said.get(name) for name in table.primary_key]
    if any(each is None for each in values):
        return None
    known = [each for each in values if each is not None]
    if math.prod(map(len, known)) > KEYS_MAX:
        return None
    rows = list(itertools.product(*known))
    kinds = table.read_schema(list(table.primary_key))
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(arrays, names=kinds.names)


def _values_of(skip: Skip) -> dict[str, frozenset[object]]:
    """The possible values of each column that the condition restricts to a list of values."""
    if isinstance(skip, Comparison) and skip.sign in ("=", "in"):
        return {skip.column: frozenset(skip.values)}
    if isinstance(skip, AllOf):
        found: dict[str, frozenset[object]] = {}
        for part in skip.parts:
            for name, values in _values_of(part).items():
                found[name] = found[name] & values if name in found else values
        return found
    if isinstance(skip, AnyOf) and skip.parts:
        each = [_values_of(part) for part in skip.parts]
        names = set(each[0]).intersection(*each[1:])
        return {name: frozenset().union(*(part[name] for part in each)) for name in names}
    return {}


def looked_up(
    cut: Cut, scan: TableScan, keys: pa.RecordBatch, columns: Sequence[str], figures: Figures
) -> list[pa.RecordBatch] | None:
    """The rows of these keys at the cut, or None if the server cannot look keys up at this cut."""
    try:
        with figures.timed("hot_seconds"):
            found = list(_rows(cut, scan, keys, columns, figures))
    except _SCAN_INSTEAD:
        return None
    figures.add(keys=keys.num_rows, hot_rows=sum(batch.num_rows for batch in found))
    return found


def _rows(
    cut: Cut, scan: TableScan, keys: pa.RecordBatch, columns: Sequence[str], figures: Figures
) -> Iterator[pa.RecordBatch]:
    following = 0
    while following < keys.num_rows:
        part = keys.slice(following)
        answer = cut.transport.lookup(
            pb.LookupRequest(
                table=scan.table.name,
                table_uuid=scan.table.uuid,
                keys=ipc.encode(part.schema, [part]),
                columns=list(columns),
                schema_id=scan.table.schema_id,
                at=cut.token,
                in_parts=True,
            )
        )
        figures.add(hot_bytes=len(answer.rows))
        yield from ipc.decode_server_rows(answer.rows, crc=answer.crc32c)
        # A server that does not split its answer answers every key, and its answer has no token.
        following += answer.answered if answer.token else part.num_rows


BATCH_ROWS_MAX = 131_072
WHERE_SINCE = rpc.FIELDS_SINCE["FetchRequest"]["where"]


def schema(table: Table, columns: Sequence[str] | None) -> pa.Schema:
    """The Arrow schema of a read of these columns. Raises `Invalid` for an unknown column."""
    names = table.selected(list(columns or ()))
    if len(set(names)) != len(names):
        raise Invalid(f"table {table.name}: a column is named twice")
    if "__change" in names:
        raise Invalid(f"table {table.name}: a scan has rows, not changes; __change comes with changes()")
    return table.read_schema(names)


def execute(
    cut: Cut,
    scan: TableScan,
    columns: Sequence[str],
    condition: RowFilter | None = None,
    figures: Figures | None = None,
) -> Iterator[pa.RecordBatch]:
    """The table's rows at the cut that meet the condition, in batches of bounded size.

    If `columns` is empty, the batches have no columns, only a number of rows.
    """
    noted = Figures() if figures is None else figures
    for batch in _found(cut, scan, list(columns), condition, noted):
        cut.keep()
        if batch.num_rows:
            yield from _pieces(batch)


def _found(
    cut: Cut, scan: TableScan, columns: list[str], condition: RowFilter | None, figures: Figures
) -> Iterator[pa.RecordBatch]:
    by_key = _by_key(cut, scan, columns, condition, figures)
    if by_key is not None:
        yield from by_key
        return
    yield from LakeRead.of(scan, condition, figures).batches(columns, cut.keep)
    yield from hot(cut, scan, columns, condition, figures)


def _by_key(
    cut: Cut, scan: TableScan, columns: list[str], condition: RowFilter | None, figures: Figures
) -> list[pa.RecordBatch] | None:
    """The rows of a condition that fixes the key. None if the table has to be scanned."""
    keys = keys_of(condition, scan.table) if scan.part is None else None
    if keys is None or condition is None:
        return None
    needed = list(dict.fromkeys([*columns, *condition.columns]))
    found = looked_up(cut, scan, keys, needed, figures)
    if found is None:
        return None
    declared = scan.table.read_schema(needed)
    kept = (condition.apply(_declared(batch, declared)) for batch in found)
    return [_selected(batch, columns) for batch in kept]


def count(cut: Cut, scan: TableScan, condition: RowFilter | None, figures: Figures | None = None) -> int:
    """The number of rows that meet the condition. Files are read only if their statistics do not decide it."""
    if condition is None and scan.part is None:
        return scan.live_rows
    noted = Figures() if figures is None else figures
    by_key = _by_key(cut, scan, [], condition, noted)
    if by_key is not None:
        return sum(int(batch.num_rows) for batch in by_key)
    left, found = LakeRead.of(scan, condition, noted).counted()
    for batch in left.batches([], cut.keep):
        cut.keep()
        found += int(batch.num_rows)
    return found + sum(int(batch.num_rows) for batch in hot(cut, scan, [], condition, noted))


def hot(
    cut: Cut,
    scan: TableScan,
    columns: Sequence[str],
    condition: RowFilter | None = None,
    figures: Figures | None = None,
) -> Iterator[pa.RecordBatch]:
    """The live rows of the hot ranges that meet the condition."""
    noted = Figures() if figures is None else figures
    splits = scan.hot_splits()
    noted.add(hot_offsets=sum(split.end - split.start for split in splits))
    on_server = condition is not None and bool(condition.text) and cut.transport.server.protocol >= WHERE_SINCE
    asked = list(columns)
    if condition is not None and not on_server:
        asked = list(dict.fromkeys([*columns, *condition.columns]))
    hot_range = _HotRange(cut, scan, asked or [LAKE_OFFSET], condition.text if condition and on_server else "", noted)
    declared = scan.table.read_schema(asked or [LAKE_OFFSET])
    for split in splits:
        cut.keep()
        for batch in hot_range.rows(split):
            made = _declared(batch, declared)
            kept = made if condition is None or on_server else condition.apply(made)
            yield _selected(kept, columns)


@dataclass(frozen=True, slots=True)
class _HotRange:
    """Fetches the hot ranges of one table."""

    cut: Cut
    scan: TableScan
    columns: list[str]
    where: str
    figures: Figures

    def rows(self, split: plan.Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split, each exactly once, even if the lease is lost in between and the rows are leased
        again.
        """
        given = 0
        while True:
            again = given
            try:
                for batch in self._fetched(split):
                    left = batch.slice(again)
                    again -= batch.num_rows - left.num_rows
                    given += left.num_rows
                    if left.num_rows:
                        yield left
            except PlanExpired as error:
                self.cut.hold_again(error)
            else:
                return

    def _fetched(self, split: plan.Split) -> Iterator[pa.RecordBatch]:
        asked = plan.fetch_request(self.scan, split, self.columns, self.cut.plan.lease, self.where)
        messages = self.cut.transport.fetch(asked)
        while True:
            with self.figures.timed("hot_seconds"):
                message = next(messages, None)
            if message is None:
                return
            rows = message.rows
            self.figures.add(hot_bytes=len(rows), hot_tested=message.tested, hot_passed_over=message.passed_over)
            if rows:
                for batch in ipc.decode_server_rows(rows, crc=message.crc32c):
                    self.figures.add(hot_rows=batch.num_rows)
                    yield batch


def _selected(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    return batch.select(list(columns)) if columns else batch


def _declared(batch: pa.RecordBatch, declared: pa.Schema) -> pa.RecordBatch:
    arrays = [_typed(batch.column(field.name), field.type) for field in declared]
    return pa.RecordBatch.from_arrays(arrays, schema=declared)


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else pc.cast(array, kind)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= BATCH_ROWS_MAX:
        yield batch
        return
    for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
        yield batch.slice(start, BATCH_ROWS_MAX)
