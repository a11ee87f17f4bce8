"""The rows of an erasure: every stored version of the keys that meet its condition, in a table and its dead letters.

- Of a log table every row that meets the condition. Rows below the log start are read from the lake.
- A key is erased if any stored version of it meets the condition: one that is live, replaced or deleted.
- The live version of such a key is deleted by an ordinary commit, so consumers read the delete. Rules of the table
  about deletes do not count.
- A dead letter is erased if its value is a JSON object whose columns meet the condition, or whose key is erased. A
  letter of another form is counted: the condition cannot judge it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakestore.errors import Conflict, Invalid, Stopped
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET, LAKE_TIMESTAMP, Column
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.commit.engine import Engine
from lakestore_server.read import exact_deletes, rows
from lakestore_server.read.exact_deletes import FoundRows
from lakestore_server.read.parsed_conditions import PARSED
from lakestore_server.read.plan import Plans
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.view import TableState

LETTER_VALUE = "value"
BATCH_ROWS = 65_536
_NUMBER = "__row"
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Match = Callable[[pa.RecordBatch, Flags], Flags]
"""From a batch and a mask of its deletes to the mask of the rows that meet the condition. A delete has only its key."""


@dataclass(slots=True)
class ErasedKeys:
    """The keys of one table to erase, and where their versions are."""

    keys: pa.Table
    """The columns of the primary key; no key twice."""
    gone: list[BitMap64] = field(default_factory=list)
    """By bucket: offsets of all stored versions."""

    @property
    def rows(self) -> int:
        return sum(map(len, self.gone))


def stored(gone: Sequence[BitMap64]) -> tuple[str, ...]:
    """Offsets as texts."""
    return tuple(b64encode(part.serialize()).decode() for part in gone)


class Search:
    """The search in one table. It deletes what it finds, until nothing that it finds is live."""

    def __init__(
        self, engine: Engine, uuid: str, match: Match, columns: list[str], is_over: Callable[[], bool]
    ) -> None:
        """`columns` are the ones that `match` reads. `Stopped` is raised once `is_over`."""
        self._engine, self._uuid, self._match, self._is_over = engine, uuid, match, is_over
        self._columns = columns

    def run(self, also: pa.Table | None = None) -> ErasedKeys:
        """Delete the rows. `also` are keys to erase in any case."""
        state = self._engine.view.by_uuid(self._uuid)
        erased = ErasedKeys(_keys_of(state.table).empty_table() if also is None else also)
        erased.gone = [BitMap64() for _ in state.logs]
        looked = [0] * len(state.logs)
        while True:
            state = self._engine.view.by_uuid(self._uuid)
            heads, keys = state.heads(), self._found(state, erased.keys, looked)
            since = looked if keys.num_rows == erased.keys.num_rows and any(looked) else [0] * len(heads)
            erased.keys, looked = keys, heads
            if not self._deleted(state, erased, since):
                return erased

    def _found(self, state: TableState, keys: pa.Table, looked: list[int]) -> pa.Table:
        """The keys, with the ones of matching rows above `looked`."""
        names = list(dict.fromkeys([*state.table.primary_key, *self._columns]))
        parts = [keys]
        for bucket, (start, end) in enumerate(zip(looked, state.heads(), strict=True)):
            for _, batch, deletes in self._stored(state, bucket, start, end, names):
                chosen = self._match(batch, deletes)
                if chosen.any():
                    part = batch.select(list(state.table.primary_key)).filter(pa.array(chosen))
                    parts.append(pa.Table.from_batches([part]).cast(keys.schema))
        every = pa.concat_tables(parts)
        return every if len(parts) == 1 else every.group_by(every.schema.names).aggregate([])

    def _deleted(self, state: TableState, erased: ErasedKeys, since: list[int]) -> bool:
        """Note all versions of the keys from `since` on, and delete the live ones. Whether one was live."""
        if not erased.keys.num_rows:
            return False
        names, is_any = [column.name for column in exact_deletes.carried(state.table)], False
        for bucket, (start, end) in enumerate(zip(since, state.heads(), strict=True)):
            for offsets, batch, deletes in self._stored(state, bucket, start, end, names):
                chosen = _of_keys(batch, erased.keys)
                erased.gone[bucket] |= BitMap64(offsets[chosen])
                candidates = chosen & ~deletes
                if not candidates.any():
                    continue
                found = FoundRows(offsets[candidates], batch.filter(pa.array(candidates)))
                found = found.take(exact_deletes.live(self._engine, state.table, found))
                for part in exact_deletes.commits(state, bucket, found, rows.sent_bytes(self._engine.limits)):
                    exact_deletes.delete(self._engine, state.table, bucket, part)
                    is_any = True
        return is_any

    def _stored(
        self, state: TableState, bucket: int, start: int, end: int, names: list[str]
    ) -> Iterator[tuple[Ints, pa.RecordBatch, Flags]]:
        """(offsets, columns, which are deletes) of the stored rows of a range, in the present version."""
        table, log, versions = state.table, state.logs[bucket], state.versions
        for offsets, batch, schema_id in log.stored(start, end, BATCH_ROWS):
            if self._is_over():
                raise Stopped("the server is shutting down")
            change = batch.column(CHANGE).to_numpy()
            timed = LAKE_TIMESTAMP in names
            times = log.times_at(offsets) if timed else np.zeros(len(offsets), dtype=np.int64)
            part = rows.Rows(batch, offsets, times, change, schema_id)
            yield offsets, rows.project(versions.projection(schema_id, table), part, names, bucket), change == DELETE


class LogSearch:
    """The search in a log table: a union read at one cut, then the rows that came since."""

    def __init__(self, engine: Engine, plans: Plans, uuid: str, where: str, is_over: Callable[[], bool]) -> None:
        """`Stopped` is raised once `is_over`."""
        self._engine, self._uuid, self._is_over = engine, uuid, is_over
        self._transport = _OwnReads(engine, plans)
        table = engine.view.by_uuid(uuid).table
        self._condition = PARSED.filter_of(where, table.name, table.columns)
        self.gone = [BitMap64() for _ in range(table.buckets)]
        """By bucket: offsets of the rows."""
        self._looked = [0] * table.buckets

    def run(self) -> None:
        """Find the rows of one cut."""
        name = self._engine.view.by_uuid(self._uuid).table.name
        with Cut(self._transport, [name]) as cut:
            scan = cut.plan.scan(name)
            for batch in arrow.execute(cut, scan, [LAKE_BUCKET, LAKE_OFFSET], self._condition):
                self._check_over()
                buckets, offsets = (batch.column(at).to_numpy() for at in (0, 1))
                for bucket in np.unique(buckets).tolist():
                    self.gone[bucket] |= BitMap64(offsets[buckets == bucket])
            self._looked = [part.head for part in scan.buckets]

    def add_newer(self, state: TableState) -> None:
        """Find the rows that came since. `Conflict` if some of them have left the log."""
        if any(looked < log.base.end for looked, log in zip(self._looked, state.logs, strict=True)):
            raise Conflict(f"the log of table {state.table.name}, which moved on during the search")
        names = list(self._condition.columns)
        for bucket, log in enumerate(state.logs):
            pieces = rows.read(log, self._looked[bucket], log.head, rows.ReadOptions(BATCH_ROWS))
            for part in pieces:
                self._check_over()
                shape = state.versions.projection(part.schema_id, state.table)
                chosen = self._condition.mask(rows.project(shape, part, names, bucket))
                self.gone[bucket] |= BitMap64(part.offsets[chosen])

    def _check_over(self) -> None:
        if self._is_over():
            raise Stopped("the server is shutting down")


class _OwnReads:
    """The calls of a union read, answered by this server itself."""

    def __init__(self, engine: Engine, plans: Plans) -> None:
        self.server = pb.HelloAnswer(protocol=rpc.PROTOCOL)
        self._engine = engine
        self.plan, self.fetch = plans.plan, plans.fetch
        self.renew_lease, self.release_lease = plans.renew_lease, plans.release_lease

    def lookup(self, _: pb.LookupRequest, /) -> pb.RowBatch:
        """A log table has no keys."""
        raise Invalid("rows of a log table are not looked up")

    def store_key(self, _: pb.StoreKeyRequest, /) -> pb.StoreKeyAnswer:
        """The server opens its store by its own key."""
        return pb.StoreKeyAnswer()


def of_condition(table: Table, where: str) -> tuple[Match, list[str]]:
    """The match of a condition, and its columns. A delete meets a condition on key columns only."""
    condition = PARSED.filter_of(where, table.name, table.columns)
    is_of_key = set(condition.columns) <= set(table.primary_key)

    def match(batch: pa.RecordBatch, deletes: Flags) -> Flags:
        mask = condition.mask(batch)
        return mask if is_of_key else mask & ~deletes

    return match, list(condition.columns)


class Letters:
    """The match of dead letters. `unjudged` counts the letters whose form is another one."""

    def __init__(self, table: Table, where: str, keys: pa.Table | None) -> None:
        """`keys` are the erased keys; None for a log table."""
        self._condition: RowFilter = PARSED.filter_of(where, table.name, table.columns)
        self._keys = keys
        self._key_columns = [table.column(name) for name in table.primary_key]
        self._columns = [table.column(name) for name in self._condition.columns if name not in (LAKE_TIMESTAMP,)]
        self.unjudged = 0

    def match(self, batch: pa.RecordBatch, deletes: Flags) -> Flags:
        """The mask of the letters whose row is to be erased."""
        values = batch.column(LETTER_VALUE).to_pylist()
        return np.array([not gone and self._is_erased(value) for value, gone in zip(values, deletes, strict=True)])

    def _is_erased(self, value: bytes | None) -> bool:
        row = _object(value)
        met = row and _row(row, self._columns)
        key = _row(row, self._key_columns) if row and self._keys is not None else None
        if not met and not key:
            self.unjudged += 1
            return False
        if met and bool(self._condition.mask(met)[0]):
            return True
        return bool(key and self._keys is not None and self._keys.num_rows and _of_keys(key, self._keys)[0])


def _object(value: bytes | None) -> dict[str, object] | None:
    try:
        found = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _row(row: dict[str, object], columns: list[Column]) -> pa.RecordBatch | None:
    """A batch of one row; None if a column is missing or its value has another type."""
    try:
        arrays = [pa.array([row[column.name]]).cast(column.arrow.type) for column in columns]
    except (KeyError, OverflowError, pa.ArrowException):  # pyarrow raises OverflowError for an integer above 64 bits
        return None
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _keys_of(table: Table) -> pa.Schema:
    return pa.schema([pa.field(name, table.column(name).arrow.type) for name in table.primary_key])


def _of_keys(batch: pa.RecordBatch, keys: pa.Table) -> Flags:
    """The mask of the rows that have one of the keys."""
    names = keys.schema.names
    if len(names) == 1:
        column = batch.column(names[0]).cast(keys.schema.field(0).type)
        return np.asarray(pc.is_in(column, keys.column(0)).to_numpy(zero_copy_only=False), dtype=np.bool_)
    numbers = pa.array(np.arange(batch.num_rows, dtype=np.int64))
    plain = pa.table([batch.column(name) for name in names], names=names).cast(keys.schema)
    held = plain.append_column(_NUMBER, numbers).join(keys, names, join_type="left semi")
    chosen = np.zeros(batch.num_rows, dtype=np.bool_)
    chosen[held.column(_NUMBER).to_numpy()] = True
    return chosen
