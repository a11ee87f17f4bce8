"""The expiry duty: deletes rows of keyed tables whose TTL is over, by ordinary deletes in the log. It also
ends names that columns had before a rename.

- `ExpiryBounds` finds blocks with due rows, so a round costs as much as there are due and new rows.
- A delete applies only if the row is still live when it is committed: a row that was refreshed stays.
- The merge engine and the table's rule for deletes do not apply. A clock in doubt pauses the duty.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Conflict, Exhausted, LakestoreError, NotFound, Stopped, Unavailable
from lakestore_server.catalog.owners import Decision
from lakestore_server.catalog.tables import altered_copy
from lakestore_server.commit.engine import Engine
from lakestore_server.host.worker import Worker
from lakestore_server.read import exact_deletes
from lakestore_server.read.exact_deletes import FoundRows
from lakestore_server.read.rows import sent_bytes
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState

BLOCK_ROWS = 4096
SPARE_BLOCKS = 4096
LAST_US = (1 << 63) - 1
_DAY_US = 86_400_000_000


@dataclass(slots=True)
class ExpiryBounds:
    """For each block of a bucket's offsets a lower bound of the times in it."""

    upto: int = 0
    """Offsets below are covered."""
    blocks: Ints = field(default_factory=lambda: _NONE)
    """The blocks that hold a time, ascending."""
    bounds: Ints = field(default_factory=lambda: _NONE)
    """The lowest time of each block."""
    done: tuple[int, int] = (0, 0)
    """(offset, time): every row below this offset with at most this time is dead."""

    def fresh(self, offsets: Ints, times: Ints, limit: int) -> npt.NDArray[np.bool_]:
        """Which rows are due at the limit and not known to be dead."""
        upto, until = self.done
        due: npt.NDArray[np.bool_] = (times <= limit) & ((offsets >= upto) | (times > until))
        return due

    def finish(self, limit: int) -> None:
        """Note that every row due at the limit was deleted."""
        if not self.done[0] or limit >= self.done[1]:
            self.done = self.upto, limit

    def add(self, offsets: Ints, times: Ints) -> None:
        """Cover more rows; offsets ascending."""
        if not len(offsets):
            return
        blocks, lowest = _lowest(offsets, times)
        if len(self.blocks) and self.blocks[-1] == blocks[0]:
            lowest[0] = min(lowest[0], self.bounds[-1])
            self.blocks, self.bounds = self.blocks[:-1], self.bounds[:-1]
        self.blocks = np.concatenate([self.blocks, blocks])
        self.bounds = np.concatenate([self.bounds, lowest])

    def until(self, limit: int) -> Ints:
        """Blocks that may hold a time at or below the limit."""
        found: Ints = self.blocks[self.bounds <= limit]
        return found

    def settle(self, first: int, last: int, offsets: Ints, times: Ints) -> None:
        """Replace the bounds of these blocks by the rows that are left in them."""
        low, high = np.searchsorted(self.blocks, [first, last + 1])
        blocks, lowest = _lowest(offsets, times) if len(offsets) else (_NONE, _NONE)
        self.blocks = np.concatenate([self.blocks[:low], blocks, self.blocks[high:]])
        self.bounds = np.concatenate([self.bounds[:low], lowest, self.bounds[high:]])

    def outgrown(self, rows: int) -> bool:
        """True if most blocks have lost their rows: the bucket should then be read again."""
        return len(self.blocks) > SPARE_BLOCKS + 4 * (rows // BLOCK_ROWS)

    @property
    def next(self) -> int | None:
        """The lowest bound; None if no row has a time."""
        bounds = self.bounds  # figures are read by another thread than the rounds
        return int(bounds.min()) if len(bounds) else None


def _lowest(offsets: Ints, times: Ints) -> tuple[Ints, Ints]:
    block_of = offsets // BLOCK_ROWS
    starts = np.concatenate([[0], np.flatnonzero(np.diff(block_of)) + 1])
    return block_of[starts], np.minimum.reduceat(times, starts)


def runs(blocks: Ints, length_max: int) -> list[tuple[int, int]]:
    """(first, last) of neighbouring blocks, at most `length_max` in each pair."""
    if not len(blocks):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(blocks) > 1) + 1).tolist(), len(blocks)]
    return [
        (int(blocks[at]), int(blocks[min(at + length_max, end) - 1]))
        for start, end in pairwise(cuts)
        for at in range(start, end, length_max)
    ]


def limit_of(now_us: int, seconds: int, kind: pa.DataType) -> int:
    """The highest time in a column of this type whose rows have expired."""
    limit = now_us - seconds * 1_000_000
    return limit // _DAY_US if pa.types.is_date(kind) else limit


def moment_of(time: int, seconds: int, kind: pa.DataType) -> int:
    """The microsecond at which a row with this time expires."""
    return min((time * _DAY_US if pa.types.is_date(kind) else time) + seconds * 1_000_000, LAST_US)


def times_of(column: pa.Array) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Times of a column in its own unit, and a mask of the rows that have one."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    plain = column.view(pa.int32()) if pa.types.is_date(column.type) else column.view(pa.int64())
    return plain.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False), there


log = logging.getLogger("lakestore.expiry")
Ints = npt.NDArray[np.int64]
_RUN_BLOCKS = 16
_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ExpiredRows:
    """Rows of a bucket in the newest version, with the columns that expiry needs."""

    offsets: Ints
    batch: pa.RecordBatch
    """The columns of a delete."""
    times: Ints
    """In the unit of the TTL's column."""

    @property
    def found(self) -> FoundRows:
        return FoundRows(self.offsets, self.batch)

    def take(self, rows: npt.NDArray[np.bool_] | Ints) -> ExpiredRows:
        mask = pa.array(rows)
        batch = self.batch.filter(mask) if rows.dtype == np.bool_ else self.batch.take(mask)
        return ExpiredRows(self.offsets[rows], batch, self.times[rows])


@dataclass(frozen=True, slots=True)
class Figures:
    """The expiry of one table, as status and metrics show it."""

    expired: int
    """Rows deleted since the start of the server."""
    next_us: int | None
    """Time before which nothing is due, in microseconds; None if no row has a time."""


class Expiry:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(self, engine: Engine, check_seconds: float) -> None:
        self._engine = engine
        self._running = threading.Lock()
        self._due: dict[tuple[str, int, int], ExpiryBounds] = {}
        """By table uuid, bucket and id of the TTL's column."""
        self._expired: Counter[str] = Counter()
        self._duty = Worker(
            supervisor=engine.supervisor, name="expiry", work=self.run_once, failed=_failed, every=check_seconds
        )
        self._duty.start()

    def close(self) -> None:
        self._duty.close()

    def figures(self, state: TableState) -> Figures | None:
        """The figures of a table; None if it has no TTL."""
        table = state.table
        if table.ttl is None:
            return None
        column = table.column(table.ttl.column)
        held = [self._due.get((table.uuid, bucket, column.id)) for bucket in range(table.buckets)]
        times = [time for part in held if part is not None and (time := part.next) is not None]
        moment = moment_of(min(times), table.ttl.seconds, column.arrow.type) if times else None
        return Figures(self._expired[table.uuid], moment)

    def run_once(self) -> None:
        with self._running:
            now = self._engine.time.read()
            if not (now.may_delete and self._engine.is_leading):
                return
            view = self._engine.view
            for uuid, state in view.tables.items():
                if any(old.until_us <= now.time_us for old in state.table.old_names) and not view.is_copy(uuid):
                    end_old_names(self._engine, uuid, now.time_us)
            # Rows of a copy expire in its source, whose deletes the copy follows.
            tables = [state for uuid, state in view.tables.items() if state.table.ttl and not view.is_copy(uuid)]
            self._forget({state.table.uuid for state in tables})
            for state in tables:
                if not self._tried(state, now.time_us):
                    return

    def _tried(self, state: TableState, now_us: int) -> bool:
        try:
            _Round(
                engine=self._engine,
                state=state,
                now_us=now_us,
                known=self._due,
                counted=self._counted,
                is_over=lambda: self._duty.is_closing,
            ).run()
        except (Exhausted, Unavailable) as error:
            log.info("rows expire later: %s", error)
            return False
        except (Conflict, NotFound):
            return True  # the table was altered or dropped
        except LakestoreError as error:
            log.error("rows of table %s do not expire: %s", state.table.name, error)
        return True

    def _counted(self, uuid: str, rows: int) -> None:
        self._expired[uuid] += rows

    def _forget(self, tables: set[str]) -> None:
        for key in [key for key in self._due if key[0] not in tables]:
            del self._due[key]


def end_old_names(engine: Engine, uuid: str, now_us: int) -> None:
    """End the names that columns had before a rename and whose time is over. The end is a commit, so readers need no
    clock: a definition has the names that are in force at its cut."""

    def plan(state: State, record: CommitRecord) -> None:
        table = state.view.present(uuid).table
        kept = tuple(old for old in table.old_names if old.until_us > now_us)
        over = ", ".join(old.name for old in table.old_names if old not in kept)
        if not over:
            raise Conflict("they have ended")
        made = replace(table, old_names=kept)
        record.alter += [made, *altered_copy(state.view, made)]
        Decision.of_caller("end old names", over).add(state.view, record, made)

    with suppress(Conflict, NotFound):  # the table was dropped meanwhile
        engine.operate(plan)


def _failed(error: Exception) -> None:
    log.error("a round of expiry failed and will be tried again: %s", error)


class _Round:
    """One round over one table."""

    def __init__(
        self,
        *,
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
        self._limit = limit_of(now_us, table.ttl.seconds, self._column.arrow.type)
        self._carried = exact_deletes.carried(table)

    def run(self) -> None:
        for bucket, held in enumerate(self._state.logs):
            part = self._part(bucket)
            self._learn(part, bucket)
            for first, last in runs(part.until(self._limit), _RUN_BLOCKS):
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
        head = self._state.logs[bucket].head
        while part.upto < head and not self._is_over():
            end = min(part.upto + _RUN_BLOCKS * BLOCK_ROWS, head)
            part.add(*_joined(list(self._rows(bucket, part.upto, end))))
            part.upto = end

    def _rows(self, bucket: int, start: int, end: int) -> Iterator[ExpiredRows]:
        versions, table = self._state.versions, self._table
        held = self._state.logs[bucket]
        for offsets, batch, schema_id in held.stored(start, end, BLOCK_ROWS * _RUN_BLOCKS):
            arrays = versions.projection(schema_id, table).columns(batch, [*self._carried, self._column])
            times, there = times_of(arrays[-1])
            there &= batch.column(CHANGE).to_numpy() != DELETE
            names = [column.name for column in self._carried]
            carried = pa.RecordBatch.from_arrays(arrays[:-1], names=names)
            yield ExpiredRows(offsets, carried, times).take(there)

    def _expire(self, bucket: int, rows: ExpiredRows) -> None:
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
    return np.concatenate([_NONE, *(p.offsets for p in parts)]), np.concatenate([_NONE, *(p.times for p in parts)])
