"""The expiry duty: rows of primary-key tables whose time is over are deleted, by ordinary deletes in the log.

What is due is found by the bounds of `Due`, so that a round costs what is due and what is new. A delete holds only if
the very row that was found is still the live one when it is committed: a row that was refreshed meanwhile stays.
The merge engine and the table's rule for deletes have no say. A clock that is in doubt pauses the duty.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Conflict, Exhausted, LakestoreError, NotFound, Stopped, Unavailable
from lakestore_server.commit.engine import Engine
from lakestore_server.duties import expiry_bounds
from lakestore_server.duties.expiry_bounds import BLOCK_ROWS, ExpiryBounds
from lakestore_server.host.worker import Worker
from lakestore_server.read import exact_deletes
from lakestore_server.read.exact_deletes import FoundRows
from lakestore_server.read.rows import sent_bytes
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.view import TableState

log = logging.getLogger("lakestore.expiry")
Ints = npt.NDArray[np.int64]
_RUN_BLOCKS = 16
_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ExpiredRows:
    """Rows of a bucket in the newest version, as far as expiry needs them."""

    offsets: Ints
    batch: pa.RecordBatch
    """The columns that a delete carries."""
    times: Ints
    """In the unit of the TTL's column."""

    @property
    def found(self) -> FoundRows:
        """The same without times."""
        return FoundRows(self.offsets, self.batch)

    def take(self, rows: npt.NDArray[np.bool_] | Ints) -> ExpiredRows:
        """Some of them."""
        mask = pa.array(rows)
        batch = self.batch.filter(mask) if rows.dtype == np.bool_ else self.batch.take(mask)
        return ExpiredRows(self.offsets[rows], batch, self.times[rows])


@dataclass(frozen=True, slots=True)
class Figures:
    """The expiry of one table, as status and metrics show it."""

    expired: int
    """Rows since the start."""
    next_us: int | None
    """Before this time nothing is due; None if no row has a time."""


class Expiry:
    """One round at a time, in its own thread or called by `run_once`."""

    def __init__(self, engine: Engine, check_seconds: float) -> None:
        self._engine = engine
        self._running = threading.Lock()
        self._due: dict[tuple[str, int, int], ExpiryBounds] = {}
        """By table uuid, bucket and id of the TTL's column."""
        self._expired: Counter[str] = Counter()
        self._duty = Worker(engine.supervisor, "expiry", self.run_once, _failed, check_seconds)
        self._duty.start()

    def close(self) -> None:
        """Stop after the commit that runs."""
        self._duty.close()

    def figures(self, state: TableState) -> Figures | None:
        """The figures of a table that has a TTL; None for one without."""
        table = state.table
        if table.ttl is None:
            return None
        column = table.column(table.ttl.column)
        held = [self._due.get((table.uuid, bucket, column.id)) for bucket in range(table.buckets)]
        times = [time for part in held if part is not None and (time := part.next) is not None]
        moment = expiry_bounds.moment_of(min(times), table.ttl.seconds, column.arrow.type) if times else None
        return Figures(self._expired[table.uuid], moment)

    def run_once(self) -> None:
        """One round over all tables."""
        with self._running:
            now = self._engine.time.read()
            if not now.may_delete:
                return
            tables = [state for state in self._engine.view.tables.values() if state.table.ttl]
            self._forget({state.table.uuid for state in tables})
            for state in tables:
                if not self._tried(state, now.time_us):
                    return

    def _tried(self, state: TableState, now_us: int) -> bool:
        """One table; whether the round should go on."""
        try:
            _Round(self._engine, state, now_us, self._due, self._counted, lambda: self._duty.is_closing).run()
        except (Exhausted, Unavailable) as error:
            log.info("rows expire later: %s", error)
            return False
        except (Conflict, NotFound):
            return True  # the table was altered or dropped meanwhile
        except LakestoreError as error:
            log.error("rows of table %s do not expire: %s", state.table.name, error)
        return True

    def _counted(self, uuid: str, rows: int) -> None:
        self._expired[uuid] += rows

    def _forget(self, tables: set[str]) -> None:
        """Drop the bounds of tables that have no TTL any more."""
        for key in [key for key in self._due if key[0] not in tables]:
            del self._due[key]


def _failed(error: Exception) -> None:
    log.error("a round of expiry failed and will be tried again: %s", error)


class _Round:
    """One round over one table."""

    def __init__(
        self,
        engine: Engine,
        state: TableState,
        now_us: int,
        known: dict[tuple[str, int, int], ExpiryBounds],
        counted: Callable[[str, int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._engine, self._state, self._known, self._counted, self._is_over = engine, state, known, counted, is_over
        table = self._table = state.table
        assert table.ttl is not None
        self._column = table.column(table.ttl.column)
        self._limit = expiry_bounds.limit_of(now_us, table.ttl.seconds, self._column.arrow.type)
        self._carried = exact_deletes.carried(table)

    def run(self) -> None:
        """Look at every bucket."""
        for bucket, held in enumerate(self._state.logs):
            part = self._part(bucket)
            self._learn(part, bucket)
            for first, last in expiry_bounds.runs(part.until(self._limit), _RUN_BLOCKS):
                if self._is_over():
                    return
                end = min((last + 1) * BLOCK_ROWS, held.head)
                found = list(self._rows(bucket, first * BLOCK_ROWS, end))
                for rows in found:
                    self._expire(bucket, rows.take(part.fresh(rows.offsets, rows.times, self._limit)))
                left = [rows.take(rows.times > self._limit) for rows in found]
                part.settle(first, last, *_joined(left))
            part.finish(self._limit)

    def _part(self, bucket: int) -> ExpiryBounds:
        key = self._table.uuid, bucket, self._column.id
        part = self._known.get(key, ExpiryBounds())
        if part.outgrown(sum(chunk.rows for chunk in self._state.logs[bucket].chunks)):
            part = ExpiryBounds(done=part.done)
        self._known[key] = part
        return part

    def _learn(self, part: ExpiryBounds, bucket: int) -> None:
        """Count in what came since the last round."""
        head = self._state.logs[bucket].head
        while part.upto < head and not self._is_over():
            end = min(part.upto + _RUN_BLOCKS * BLOCK_ROWS, head)
            part.add(*_joined(list(self._rows(bucket, part.upto, end))))
            part.upto = end

    def _rows(self, bucket: int, start: int, end: int) -> Iterator[ExpiredRows]:
        """The rows of [start, end) that have a time."""
        versions, table = self._state.versions, self._table
        held = self._state.logs[bucket]
        for offsets, batch, schema_id in held.stored(start, end, BLOCK_ROWS * _RUN_BLOCKS):
            arrays = versions.projection(schema_id, table).columns(batch, [*self._carried, self._column])
            times, there = expiry_bounds.times_of(arrays[-1])
            there &= batch.column(CHANGE).to_numpy() != DELETE
            names = [column.name for column in self._carried]
            carried = pa.RecordBatch.from_arrays(arrays[:-1], names=names)
            yield ExpiredRows(offsets, carried, times).take(there)

    def _expire(self, bucket: int, rows: ExpiredRows) -> None:
        """Delete those that are live."""
        if not len(rows.offsets):
            return
        engine, state, table = self._engine, self._state, self._table
        found = rows.found
        found = found.take(exact_deletes.live(engine, table, found))
        for part in exact_deletes.commits(state, bucket, found, sent_bytes(engine.limits)):
            if self._is_over():
                raise Stopped("the server is shutting down")
            count, _ = exact_deletes.delete(engine, table, bucket, part, lambda now: now.ttl == table.ttl)
            self._counted(table.uuid, count)


def _joined(parts: Sequence[ExpiredRows]) -> tuple[Ints, Ints]:
    """Offsets and times of all of them."""
    return np.concatenate([_NONE, *(p.offsets for p in parts)]), np.concatenate([_NONE, *(p.times for p in parts)])
