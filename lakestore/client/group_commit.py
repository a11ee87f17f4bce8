"""Combines single writes of many threads into one commit: while some commits are in flight, later writes wait and go
together.

A single thread never waits. Errors are not shared: the writes of a refused group are sent again one by one, each by its
thread. Writes inside `within` and large writes go alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import pyarrow as pa

from lakestore.client.producer import ProducerPool
from lakestore.client.retry import has_deadline, is_passing
from lakestore.client.transport import PROCESS
from lakestore.client.writer import NO_MARKS, Marks, change_to
from lakestore.errors import Internal, LakestoreError, Unavailable
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb

SMALL_BYTES_MAX = 64 << 10
"""A larger write gains nothing from a group."""
GROUP_WRITES_MAX = 64
ON_THE_WAY = 2
"""Commits of one lake in flight before writes wait for a group."""


@dataclass(frozen=True, slots=True)
class Write:
    """Rows of one call."""

    table: Table
    """In the version whose names the rows use."""
    kind: pb.ChangeKind.ValueType
    batch: pa.RecordBatch
    wants_rows: bool = False
    """True if the result must include the rows of the keys after the commit."""
    marks: Marks = NO_MARKS


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The outcome of one call's rows."""

    token: str
    result: pb.ChangeResult


@dataclass(slots=True)
class _Waiting:
    write: Write
    woken: threading.Event = field(default_factory=threading.Event)
    leads: bool = False
    """This write's thread sends the next group."""
    outcome: WriteOutcome | LakestoreError | None = None
    refused: bool = False
    """The group was refused, maybe because of another write. Nothing is stored."""


class Combiner:
    """Combines all single writes of a lake. Thread-safe."""

    def __init__(self, producers: ProducerPool, *, on_the_way_max: int = ON_THE_WAY) -> None:
        self._producers, self._on_the_way_max = producers, on_the_way_max
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        """Writes in no group that do not lead one."""
        self._on_the_way = 0

    def commit(self, write: Write) -> WriteOutcome:
        PROCESS.check()
        if not _is_small(write.batch) or has_deadline():
            return self._alone(write)
        mine = _Waiting(write)
        with self._lock:
            mine.leads = self._on_the_way < self._on_the_way_max
            if mine.leads:
                self._on_the_way += 1
            else:
                self._waiting.append(mine)
        if not mine.leads:
            mine.woken.wait()
        if mine.leads:
            self._lead(mine)
        if mine.refused:
            return self._alone(write)
        if isinstance(mine.outcome, WriteOutcome):
            return mine.outcome
        raise mine.outcome or Internal("a commit ended without an answer", applied="unknown")

    def _alone(self, write: Write) -> WriteOutcome:
        answer = self._producers.commit([_joined([write])])
        return WriteOutcome(answer.token, answer.results[0])

    def _lead(self, mine: _Waiting) -> None:
        """Send this write with the waiting ones. Then a later write leads."""
        group = [mine]
        with self._lock:
            while self._waiting and len(group) < GROUP_WRITES_MAX and _may_join(self._waiting[0].write, group):
                group.append(self._waiting.popleft())
        for each in group[1:]:
            each.outcome = Unavailable("the call that carried this commit was interrupted", applied="unknown")
        try:
            for each, outcome in zip(group, self._sent([each.write for each in group]), strict=True):
                each.outcome = outcome
        except LakestoreError as error:
            refused = len(group) > 1 and error.applied == "no" and not is_passing(error)
            for each in group:
                each.outcome, each.refused = copy(error), refused  # each thread raises its own
        finally:
            self._hand_over(group)

    def _hand_over(self, group: Sequence[_Waiting]) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._on_the_way -= 1
        if following is not None:
            following.leads = True
            following.woken.set()
        for each in group:
            each.woken.set()

    def _sent(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        together = _together(writes)
        answer = self._producers.commit([_joined([writes[i] for i in members]) for members in together])
        written = {
            i: WriteOutcome(answer.token, _share(writes[i], result))
            for members, result in zip(together, answer.results, strict=True)
            for i in members
        }
        return [written[i] for i in range(len(writes))]


def _may_join(write: Write, group: Sequence[_Waiting]) -> bool:
    """True if a write may join a group. A write that returns rows (after its commit) may only join writes of its
    table that change no existing row.
    """
    mine = _identity(write.table)[:2]
    for other in (each.write for each in group if _identity(each.write.table)[:2] == mine):
        if write.wants_rows != other.wants_rows or (write.wants_rows and write.table.merge.engine == "versioned"):
            return False
    return True


def _is_small(batch: pa.RecordBatch) -> bool:
    """True if rows gain from a group. Measures whole buffers only; measuring a slice costs too much."""
    return bool(batch.get_total_buffer_size() <= SMALL_BYTES_MAX or batch.nbytes <= SMALL_BYTES_MAX)


def _identity(table: Table) -> tuple[str, str, int]:
    return table.name, table.uuid, table.schema_id


def _together(writes: Sequence[Write]) -> list[list[int]]:
    if len(writes) == 1:
        return [[0]]
    groups: dict[object, list[int]] = {}
    for i, write in enumerate(writes):
        is_joined = write.kind == pb.APPEND and write.table.contract is None  # dead letters are counted by change
        alike = (*_identity(write.table), write.batch.schema) if is_joined else i
        groups.setdefault(alike, []).append(i)
    return list(groups.values())


def _joined(writes: Sequence[Write]) -> pb.Change:
    first = writes[0]
    made = change_to(first.table, first.kind, [write.batch for write in writes], first.marks)
    made.want_rows = first.wants_rows
    return made


def _share(write: Write, result: pb.ChangeResult) -> pb.ChangeResult:
    is_ruled = result.dead_letters or result.ignored
    if write.kind != pb.APPEND or result.inserted == write.batch.num_rows or is_ruled:
        return result  # its table got a contract just now, so the counts are of the whole group
    own = pb.ChangeResult()
    own.CopyFrom(result)
    own.inserted = write.batch.num_rows
    return own
