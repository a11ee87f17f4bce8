"""Look-ups by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakestore import keys, rows
from lakestore.errors import Invalid
from lakestore.projection import Projection, now_named, renamed
from lakestore.schema import Table
from lakestore.server import reads
from lakestore.server.engine import Engine
from lakestore.server.index import table_prefix
from lakestore.server.positions import parse_token, reached
from lakestore.server.slots import Asked
from lakestore.server.state import TableState
from lakestore.v1 import lakestore_pb2 as pb


class Lookups:
    """Rows by key. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def lookup(self, request: pb.LookupRequest) -> pb.RowBatch:
        """The rows of many keys, in the order of the keys; absent keys give no row."""
        if request.at_least:
            reached(self._engine, parse_token(request.at_least, self._engine).lsn)
        batch = rows.decode(request.keys, limits=self._engine.limits)

        wanted: list[pa.RecordBatch] = []

        def encode(state: TableState) -> Asked:
            table, source = state.table, _asked(state, request)
            if not table.keyed:
                raise Invalid(f"table {table.name} has no primary key to look up")
            named = batch.select([name for name in source.primary_key if name in batch.schema.names])
            asked = renamed(named, source, table)
            wanted.append(rows.conform(asked, table, keys_only=True, limits=self._engine.limits))
            columns = wanted[-1].columns
            prefix, bytes_max = table_prefix(table.number), self._engine.limits.key_bytes
            return Asked(keys.encode(columns, prefix, bytes_max), lambda: columns)

        view, offsets = self._engine.lookup(request.table, encode)
        state = view.named(request.table)
        columns = now_named(list(request.columns), _asked(state, request), state.table)
        found = _rows_at(state, wanted[-1], offsets, state.table.selected(columns))
        answer = reads.message(found)
        answer.schema_id = state.table.schema_id
        return answer


def _asked(state: TableState, request: pb.LookupRequest) -> Table:
    """The version whose names the request uses."""
    return state.versions.numbered(request.schema_id) if request.HasField("schema_id") else state.table


def _rows_at(
    state: TableState, wanted: pa.RecordBatch, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], columns: list[str]
) -> pa.RecordBatch:
    """Rows at the live offsets of keys, in the keys' order."""
    table = state.table
    found = np.flatnonzero(offsets >= 0)
    at = {name: i for i, name in enumerate(table.primary_key)}
    buckets = keys.buckets([wanted.column(at[name]) for name in table.bucket_key], table.buckets)[found]
    parts, places = [], []
    for bucket in np.unique(buckets):
        here = np.flatnonzero(buckets == bucket)
        log = state.logs[int(bucket)]
        row_offsets = offsets[found[here]]
        taken = log.take(row_offsets, state.versions.shown_as(table))
        times = log.times_at(row_offsets) if "__timestamp" in columns else np.zeros(len(here), dtype=np.int64)
        change = taken.column(0).to_numpy()
        found_rows = reads.Rows(taken, row_offsets, times, change, table.schema_id)
        parts.append(reads.project(Projection(table, table), found_rows, columns, int(bucket)))
        places.append(here)
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=table.read_schema(columns))
    joined = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    order = np.argsort(np.concatenate(places), kind="stable")
    return joined.take(pa.array(order)) if len(parts) > 1 else joined
