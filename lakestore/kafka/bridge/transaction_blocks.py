"""Assembles source transactions from topics, so that each is one commit.

Debezium writes BEGIN and END of each transaction to a topic; END has the number of events of each table. The assembler
registers records as they are read and returns units that can be committed.
- Units are in the order of the ENDs. A unit is one transaction, or several that interleave in a partition.
- A unit takes the next records of each partition, so progress moves past whole transactions only. A record without a
  transaction (a snapshot row, a tombstone, a heartbeat) is committed with the records before it.
- An unreadable record counts as one missing event of its topic's table. A duplicate event counts once.
- A transaction is committed in parts if its BEGIN and END precede what was read, or if it exceeds the bounds.
- Tables without a topic in the bridge are not waited for. After a crash records are read again from the floors.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow.compute as pc

from lakestore.kafka.bridge.outcome import DecodedBlock
from lakestore.kafka.bridge.records import Ints, Records

FRAME_BYTES = 5
"""A zero byte and a schema number, before the JSON of Confluent's converters."""
COUNTED = ("truncate", "message")
"""Reasons of skipped records that count as events of a transaction."""

_WITH_LSN = r"^([0-9]+):[0-9]+$"
"""Ids of PostgreSQL's connector: the transaction's number, and an LSN that BEGIN, each event and END have another of.
No other connector's ids look so: GTIDs begin with a UUID, SQL Server's have three parts."""


def runs(records: Records, decoded: DecodedBlock) -> dict[Place, list[Run]]:
    """The runs of each partition. Events without a row have no known transaction."""
    count = len(records)
    names, orders = np.full(count, "", object), np.full(count, -1, np.int64)
    if decoded.envelope is not None and len(decoded.record):
        block = pc.struct_field(decoded.envelope, "transaction")
        ids = pc.replace_substring_regex(pc.struct_field(block, "id").fill_null(""), _WITH_LSN, r"\1")
        names[decoded.record] = ids.to_numpy(zero_copy_only=False)
        orders[decoded.record] = pc.struct_field(block, "data_collection_order").fill_null(-1).to_numpy()
    unread = np.zeros(count, bool)
    unread[[reject.record for reject in decoded.rejects]] = True
    for reason in COUNTED:
        unread[decoded.passed.get(reason, np.zeros(0, np.int64))] = True
    unread &= records.values.is_valid().to_numpy(zero_copy_only=False)
    sizes = pc.binary_length(records.values).fill_null(0).to_numpy(zero_copy_only=False)
    found: dict[Place, list[Run]] = {}
    for partition in np.unique(records.partition).tolist():
        rows = np.flatnonzero(records.partition == partition)
        found[records.topic, partition] = _runs(
            records.offset[rows], names[rows], orders[rows], unread[rows], sizes[rows]
        )
    return found


def _runs(
    offsets: Ints, names: npt.NDArray[np.object_], orders: Ints, unread: npt.NDArray[np.bool_], sizes: Ints
) -> list[Run]:
    edges = np.flatnonzero((names[1:] != names[:-1]) | (unread[1:] != unread[:-1])) + 1
    made = []
    for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(offsets)], strict=True):
        numbered = bool((orders[start:end] >= 0).all())
        order = orders[start:end] if numbered else None
        made.append(Run(offsets[start:end], names[start], order, int(sizes[start:end].sum()), bool(unread[start])))
    return made


def register_marks(transactions: Transactions, records: Records) -> list[int]:
    """Register BEGIN and END records in JSON, with or without their schema. Returns the rows that are neither."""
    others = []
    for row, text in enumerate(records.values.to_pylist()):
        place, offset = (records.topic, int(records.partition[row])), int(records.offset[row])
        value = _parsed(text)
        if not register_mark(transactions, place, offset, value):
            transactions.events(place, [Run(np.array([offset]))])
            others.append(row)
    return others


def register_decoded_marks(transactions: Transactions, records: Records, decoded: DecodedBlock) -> None:
    """Register BEGIN and END records that a decoder has read."""
    values: list[Mapping[str, Any]] = [{} for _ in range(len(records))]
    for row, value in zip(decoded.record.tolist(), decoded.values.to_pylist(), strict=True):
        values[row] = value or {}
    for row, value in enumerate(values):
        place, offset = (records.topic, int(records.partition[row])), int(records.offset[row])
        if not register_mark(transactions, place, offset, value):
            transactions.events(place, [Run(np.array([offset]))])


def register_mark(transactions: Transactions, place: Place, offset: int, value: Mapping[str, Any]) -> bool:
    """Register one BEGIN or END; False for any other value."""
    name = value.get("id")
    if not isinstance(name, str):
        return False
    name = re.sub(_WITH_LSN, r"\1", name)
    if value.get("status") == "BEGIN":
        transactions.begun(place, offset, name)
        return True
    if value.get("status") != "END":
        return False
    listed = value.get("data_collections")
    counts: dict[str, int] = {}
    for part in listed if isinstance(listed, list) else []:
        if isinstance(part, dict) and str(part.get("event_count")).isdigit():
            counts[str(part.get("data_collection"))] = int(part["event_count"])
    transactions.ended(place, offset, TransactionEnd(name, counts))
    return True


def _parsed(text: bytes | None) -> Mapping[str, Any]:
    framed = text is not None and text[:1] == b"\0"
    try:
        value = orjson.loads((text[FRAME_BYTES:] if framed and text else text) or b"null")
    except orjson.JSONDecodeError:
        return {}
    if isinstance(value, dict) and isinstance(value.get("payload"), dict):
        value = value["payload"]
    return value if isinstance(value, dict) else {}


Place = tuple[str, int]
"""A topic and a partition of it."""
LACKING_MAX = 100
_NO_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")
FINISHED_MAX = 10_000
"""Finished transactions that are remembered to recognise late copies."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records of a partition with one transaction, or without one."""

    offsets: Ints
    transaction: str = ""
    orders: Ints | None = None
    """The `data_collection_order` of each event, which identifies copies."""
    nbytes: int = 0
    unread: bool = False
    """Whether the records could not be read, so that their transaction is unknown."""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """An END: the number of events of each table, by the source's table name."""

    transaction: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Unit:
    """Records to commit together."""

    offsets: Mapping[Place, Ints]
    """The ascending offsets of each partition, without gaps in the registered records."""
    transactions: tuple[str, ...] = ()
    parts: str = ""
    """Why transactions of the unit come in parts, as a sentence; empty: all are complete."""


@dataclass(slots=True)
class _Open:
    """A transaction that is not finished."""

    seen: dict[Place, set[int]] = field(default_factory=dict)
    """The orders of a topic's events, under partition -1; offsets of a partition's where events have no order."""
    counts: Mapping[str, int] | None = None
    """None: END has not come."""
    begun: bool = False
    loose: bool = False
    """Whether the transaction is delivered in parts."""
    last: dict[Place, int] = field(default_factory=dict)
    """Place to the number of its last run there, of all runs that ever were."""


class Transactions:
    """The assembler. `bridged` returns the topics with a table's events; no topics: the table is not waited for."""

    def __init__(
        self, bridged: Callable[[str], Sequence[str]], *, rows_max: int = 1_000_000, bytes_max: int = 256 << 20
    ) -> None:
        self._bridged = bridged
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._queues: dict[Place, deque[Run]] = {}
        self._open: dict[str, _Open] = {}
        self._finished: dict[str, None] = {}
        self._ends: deque[str] = deque()
        self._gone: dict[Place, int] = {}
        """Released runs of each place."""
        self._rows = self._bytes = self._unread = 0
        self._weights: dict[Place, tuple[int, int]] = {}
        """Waiting records and bytes of each place."""

    def events(self, place: Place, runs: Iterable[Run]) -> None:
        for run in runs:
            state = self._queue(place, run)
            if state is None or state.loose:
                continue
            if run.orders is None:
                state.seen.setdefault(place, set()).update(run.offsets.tolist())
            else:
                state.seen.setdefault((place[0], -1), set()).update(run.orders.tolist())

    def begun(self, place: Place, offset: int, transaction: str) -> None:
        state = self._queue(place, Run(np.array([offset]), transaction))
        if state is not None:
            state.begun = True

    def ended(self, place: Place, offset: int, end: TransactionEnd) -> None:
        state = self._queue(place, Run(np.array([offset]), end.transaction))
        if state is None:
            return
        if state.counts is None and not state.loose:
            self._ends.append(end.transaction)
        state.counts = end.counts

    def floor(self, place: Place) -> int | None:
        """The lowest waiting offset of a partition, which progress must not pass; None: nothing waits."""
        queue = self._queues.get(place)
        return int(queue[0].offsets[0]) if queue else None

    @property
    def held(self) -> int:
        return self._rows

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(name for name, state in self._open.items() if not state.loose)

    @property
    def ends(self) -> Sequence[str]:
        """Incomplete transactions whose END has arrived."""
        return self._ends

    def crowded(self, rows: int, nbytes: int) -> list[Place]:
        """The partitions with more waiting records or bytes than given."""
        return [place for place, held in self._weights.items() if held[0] > rows or held[1] > nbytes]

    def lacking(self) -> dict[str, tuple[set[str], str]]:
        """Transactions with an END and missing events: topics of these events, and a part of a sentence."""
        found = {}
        for name in islice(self._ends, LACKING_MAX):
            state = self._open[name]
            short = [table for table, count in (state.counts or {}).items() if self._missing(state, table, count) > 0]
            if short:
                found[name] = ({topic for table in short for topic in self._bridged(table)}, self._short(state))
        return found

    def loosen(self, name: str, why: str) -> Unit:
        """Deliver a transaction in parts from now on."""
        return self._loosened(name, why)

    def ready(self) -> list[Unit]:
        """The units that can be committed now, in order."""
        units: list[Unit] = []
        while True:
            unit = self._free() or self._first_whole() or self._orphan() or self._oversized()
            if unit is None:
                return units
            units.append(unit)

    def _queue(self, place: Place, run: Run) -> _Open | None:
        queue = self._queues.setdefault(place, deque())
        queue.append(run)
        self._weigh(place, len(run.offsets), run.nbytes)
        self._unread += run.unread
        if not run.transaction or run.transaction in self._finished:
            return None
        state = self._open.setdefault(run.transaction, _Open())
        state.last[place] = self._gone.get(place, 0) + len(queue)
        return state

    def _weigh(self, place: Place, rows: int, nbytes: int) -> None:
        self._rows += rows
        self._bytes += nbytes
        before = self._weights.get(place, (0, 0))
        self._weights[place] = before[0] + rows, before[1] + nbytes

    def _free(self) -> Unit | None:
        ends = {}
        for place, queue in self._queues.items():
            count = 0
            while count < len(queue) and self._is_free(queue[count]):
                count += 1
            if count:
                ends[place] = count
        return self._taken(ends, set()) if ends else None

    def _is_free(self, run: Run) -> bool:
        if run.unread:
            return not self._awaited()
        state = self._open.get(run.transaction)
        return state is None or state.loose

    def _awaited(self) -> bool:
        return any(not state.loose for state in self._open.values())

    def _first_whole(self) -> Unit | None:
        if not self._ends or not self._whole(self._ends[0]):
            return None
        group, ends = self._closure(self._ends[0])
        return self._taken(ends, group) if all(map(self._whole, group)) else None

    def _closure(self, name: str) -> tuple[set[str], dict[Place, int]]:
        """The transactions that must commit together, and the number of runs that they take from each partition."""
        group, todo, ends = {name}, [name], dict[Place, int]()
        while todo:
            for place, last in self._open[todo.pop()].last.items():
                queue, start = self._queues[place], ends.get(place, 0)
                ends[place] = max(start, last - self._gone.get(place, 0))
                for run in islice(queue, start, ends[place]):
                    state = self._open.get(run.transaction)
                    if state is not None and not state.loose and run.transaction not in group:
                        group.add(run.transaction)
                        todo.append(run.transaction)
        return group, {place: self._with_followers(place, count) for place, count in ends.items()}

    def _with_followers(self, place: Place, count: int) -> int:
        queue = self._queues[place]
        while count < len(queue) and not queue[count].transaction and not queue[count].unread:
            count += 1
        return count

    def _whole(self, name: str) -> bool:
        state = self._open[name]
        if state.counts is None:
            return False
        return all(self._missing(state, table, count) <= 0 for table, count in state.counts.items())

    def _missing(self, state: _Open, table: str, count: int) -> int:
        topics = self._bridged(table)
        if not topics:
            return 0
        missing = count - sum(len(orders) for place, orders in state.seen.items() if place[0] in topics)
        if missing <= 0 or not self._unread:
            return missing
        places = [place for place in self._queues if place[0] in topics]
        return missing - sum(self._unread_beside(state, place) for place in places)

    def _unread_beside(self, state: _Open, place: Place) -> int:
        """Unreadable records that no other transaction's record separates from this transaction."""
        count, pending, mine = 0, 0, False
        for run in self._queues[place]:
            if run.unread:
                pending += len(run.offsets)
            elif run.transaction:
                now = self._open.get(run.transaction) is state
                count += pending if mine or now else 0
                pending, mine = 0, now
        return count + pending

    def _orphan(self) -> Unit | None:
        """A transaction without BEGIN and END that precedes a transaction with an END. Its own END will never come."""
        for queue in self._queues.values():
            before = None
            for run in queue:
                state = self._open.get(run.transaction)
                if state is None or state.loose:
                    continue
                if state.counts is not None and not state.begun:
                    why = f"transaction {run.transaction} is committed in parts: its BEGIN lies before what was read"
                    return self._loosened(run.transaction, why)
                if state.counts is not None and before is not None:
                    why = f"transaction {before} is committed in parts: its END lies before what is kept of its topic"
                    return self._loosened(before, why)
                if state.counts is None and not state.begun and before is None:
                    before = run.transaction
        return None

    def _oversized(self) -> Unit | None:
        if self._rows <= self._rows_max and self._bytes <= self._bytes_max:
            return None
        for queue in self._queues.values():
            for run in queue:
                state = self._open.get(run.transaction)
                if state is not None and not state.loose and any(state.seen.values()):
                    why = (
                        f"transaction {run.transaction} is committed in parts: {self._rows} records of {self._bytes} "
                        f"bytes are held, more than may be{self._short(state)}"
                    )
                    return self._loosened(run.transaction, why)
        return None

    def _short(self, state: _Open) -> str:
        lacking = [
            f"{missing} of {table}"
            for table, count in (state.counts or {}).items()
            if (missing := self._missing(state, table, count)) > 0
        ]
        return f"; it waits for {', '.join(lacking)}" if lacking else ""

    def _loosened(self, name: str, why: str) -> Unit:
        self._open[name].loose = True
        self._open[name].seen.clear()
        if name in self._ends:
            self._ends.remove(name)
        unit = self._free()
        return Unit(unit.offsets if unit else {}, (name,), why)

    def _taken(self, ends: Mapping[Place, int], group: set[str]) -> Unit:
        offsets = {}
        for place, count in ends.items():
            queue = self._queues[place]
            runs = [queue.popleft() for _ in range(count)]
            offsets[place] = np.concatenate([run.offsets for run in runs])
            self._weigh(place, -len(offsets[place]), -sum(run.nbytes for run in runs))
            self._unread -= sum(run.unread for run in runs)
            self._gone[place] = self._gone.get(place, 0) + count
        names = tuple(name for name in self._open if name in group)
        for name in group:
            self._finish(name)
        return Unit(offsets, names)

    def _finish(self, name: str) -> None:
        del self._open[name]
        if name in self._ends:
            self._ends.remove(name)
        self._finished[name] = None
        while len(self._finished) > FINISHED_MAX:
            del self._finished[next(iter(self._finished))]


def topics_of(table: str, topics: Iterable[str]) -> list[str]:
    """The topics of a table's events: Debezium's prefix and the table's name or a suffix, with underscores."""
    parts = _NO_TOPIC.sub("_", table).split(".")
    names = [".".join(parts[at:]) for at in range(max(len(parts) - 1, 1))]
    return [topic for topic in topics if any(topic == name or topic.endswith("." + name) for name in names)]
