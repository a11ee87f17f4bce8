"""Conditions that say the whole primary key: the rows are looked up at the cut by the server's index, not scanned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakestore.errors import Invalid, LakestoreError, PositionExpired, Unavailable
from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.rows.condition import AllOf, AnyOf, Comparison, RowFilter, Skip
from lakestore.union.cut import Cut
from lakestore.union.figures import Figures
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc

KEYS_MAX = 4_096
"""Keys that are looked up; more of them are read by a scan."""
PROTOCOL_MIN = rpc.FIELDS_SINCE["LookupRequest"]["at"]
_NOT_SO: tuple[type[LakestoreError], ...] = (Invalid, PositionExpired, Unavailable)
"""Errors of a look-up at a cut that is behind the log, of a key that is none, or while the index is rebuilt."""


def keys_of(condition: RowFilter | None, table: Table) -> pa.RecordBatch | None:
    """The keys of which alone rows can meet the condition; None where it does not say so, or names too many."""
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
    """Column to the values that rows can have in it, of columns of which the condition says so."""
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
    """The rows of these keys at the cut; None where the server cannot look them up there."""
    if cut.transport.server.protocol < PROTOCOL_MIN:
        return None
    try:
        with figures.timed("hot_seconds"):
            found = list(_rows(cut, scan, keys, columns, figures))
    except _NOT_SO:
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
        yield from ipc.decode_trusted(answer.rows, crc=answer.crc32c)
        # A server that does not answer in parts answers all, and says no cut.
        following += answer.answered if answer.token else part.num_rows
