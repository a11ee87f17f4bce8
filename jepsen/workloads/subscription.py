"""Named subscriptions, read alone and shared: at least once, and nothing again that was acknowledged.

Each process appends unique numbers and reads by turns of several sorts: it opens a stream, takes batches, acknowledges
some of them, and leaves: by closing, by a connection that ends without a word, or as a zombie that rests with its
batches in hand and acknowledges them when others have read on. Subscriptions are dropped and made anew meanwhile.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import positions
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.rows import PLACED, listed
from jepsen.workload import SPACING, TROUBLES, Target, trouble

TABLE = "jepsen.subscribed"
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
COLUMNS = (*PLACED, "n")
ALONE, SHARED, EITHER = "alone", "shared", "either"
"""The subscriptions, named after the way in which they are read."""
NAMES = (ALONE, SHARED, SHARED, EITHER)
LEAVES = ("close", "break", "rest")
WAIT_SECONDS = 0.2
DRAIN_SECONDS = 40.0
BEHIND_SECONDS = 0.5
"""A drain looks so often whether anything is left."""


class Subscribed:
    """Appends, and consumers that come and go."""

    name = "subscription"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2, 3, 5))
        self._keyed = chance.random() < 0.5
        self._drops = chance.choice((0.0, 0.0, 0.02))
        self._rest_seconds = chance.choice((0.1, 0.5, 1.5))
        self._names = chance.choice((NAMES, NAMES, (SHARED,)))
        self._longest = chance.choice((2, 8))
        """Polls of a turn: many short turns hand more buckets over."""
        self._acks = chance.choice((0.2, 0.6, 0.6))
        self._leaves = chance.choice((LEAVES, LEAVES, ("rest",)))
        self._late = chance.choice((0.0, 0.3))
        """The share of batches behind which one that rests acknowledges what it has, before its successor does."""

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        key = ["n"] if self._keyed else None
        lake.create_table(TABLE, SCHEMA, primary_key=key, buckets=self._buckets)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Turns of a consumer, with appends between them."""
        numbers = itertools.count(process * SPACING)
        for turn in itertools.count():
            name = chance.choice(self._names)
            shared = name == SHARED or (name == EITHER and chance.random() < 0.5)
            told = {"subscription": name, "shared": shared, "turn": turn}
            for _ in range(chance.randint(1, self._longest)):
                yield _append(numbers, chance)
                yield Invocation("poll", told)
                if chance.random() < self._late:
                    yield Invocation("ack-late")
                if chance.random() < self._acks:
                    yield Invocation("ack", {**told, "which": chance.choice((0, -1, -1))})
                if not shared and chance.random() < 0.2:
                    yield Invocation("ack-again", told)
            yield from self._end_of_turn(told, numbers, chance)

    def _end_of_turn(self, told: dict[str, Any], numbers: Iterator[int], chance: random.Random) -> Iterator[Invocation]:
        yield Invocation("leave", {**told, "how": chance.choice(self._leaves)})
        if chance.random() < 0.3:
            yield Invocation("list")
        if chance.random() < 0.2:
            yield Invocation("pause", round(chance.uniform(0.0, self._rest_seconds), 3))
            yield _append(numbers, chance)
        if chance.random() < (0.1 if self._late else 0.5):
            yield Invocation("ack-late")
        if chance.random() < self._drops:
            yield Invocation("drop", {"subscription": told["subscription"]})

    def last(self, process: int) -> Iterator[Invocation]:
        """All read what is left of the shared subscription; the first one of all others too, and the whole log."""
        yield Invocation("drain", {"subscription": SHARED, "shared": True})
        if process == 0:
            yield Invocation("drain", {"subscription": ALONE, "shared": False})
            yield Invocation("drain", {"subscription": EITHER, "shared": False})
            yield Invocation("read")

    def client(self, target: Target, process: int) -> SubscriptionClient:
        """A consumer, and a producer."""
        return SubscriptionClient(target, process, keyed=self._keyed)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that can be wrong with positions."""
        return positions.check(history)


def _append(numbers: Iterator[int], chance: random.Random) -> Invocation:
    return Invocation("append", list(itertools.islice(numbers, chance.randint(1, 4))))


@dataclass(slots=True)
class _Reader:
    """One open stream with what it was given and has not acknowledged."""

    told: dict[str, Any]
    number: int
    lake: ls.Lake
    stream: ls.ChangeStream
    pending: list[ls.ChangeBatch] = field(default_factory=list)
    acked: list[ls.ChangeBatch] = field(default_factory=list)

    @property
    def said(self) -> dict[str, Any]:
        """The names by which the history knows the reader."""
        return {"subscription": self.told["subscription"], "shared": self.told["shared"], "reader": self.number}

    def take(self) -> list[list[int]]:
        """The next batch's rows; none if none comes soon."""
        batch = self.stream.next(WAIT_SECONDS)
        if batch is None:
            return []
        self.pending.append(batch)
        return listed(batch.table, *COLUMNS)

    def ack(self, which: int) -> dict[str, Any]:
        """Acknowledge one of the batches at hand: the rows that it covers, and those that it may cover.

        A batch whose commit goes on in the next one has its token before its rows, so that they may come again.
        """
        batch = self.pending[which]
        place = self.pending.index(batch) + 1
        covered = [batch] if self.told["shared"] else self.pending[:place]
        refused: set[int] = set()
        try:
            batch.ack()
        except ls.Fenced as error:
            if not error.buckets:
                raise
            refused = {bucket for _, bucket in error.buckets}
        passed, self.pending = self.pending[:place], self.pending[place:]
        self.acked += passed
        whole = max((number for number, each in enumerate(covered) if each.whole), default=-1) + 1
        sure, rest = _ends(covered[:whole]), _ends(covered[whole:])
        counted = {bucket: offset for bucket, offset in sure.items() if int(bucket) not in refused}
        late = {bucket: offset for bucket, offset in sure.items() if bucket not in counted}
        return {**self.said, "upto": counted, "refused": {**late, **rest}, "passed": _ends(passed)}


def _ends(batches: Sequence[ls.ChangeBatch]) -> dict[str, int]:
    """Per bucket the last offset."""
    ends: dict[str, int] = {}
    for bucket, offset, _ in (row for each in batches for row in listed(each.table, *COLUMNS)):
        ends[str(bucket)] = max(ends.get(str(bucket), -1), offset)
    return ends


class SubscriptionClient:
    """One process: a stream that it reads, and those that rest. Each stream has a connection of its own."""

    def __init__(self, target: Target, process: int, *, keyed: bool) -> None:
        self._target, self._process, self._keyed = target, process, keyed
        self._lake = target.connect(process)
        self._readers = itertools.count()
        self._reading: _Reader | None = None
        self._resting: list[_Reader] = []

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        value = invocation.value
        match invocation.f:
            case "append":
                return self._append(value)
            case "poll":
                reader = self._reader(value)
                return {**reader.said, "rows": self._guarded(reader, reader.take)}
            case "ack":
                return self._ack(value)
            case "ack-again" | "ack-late":
                return self._ack_again() if invocation.f == "ack-again" else self._ack_late()
            case "leave":
                return self._leave(value["how"])
            case "list":
                return _subscriptions(self._lake)
            case "pause":
                time.sleep(value)
                return value
            case "drop":
                self._lake.drop_subscription(value["subscription"])
                return value
            case "drain":
                return self._drain(value)
            case _:
                return self._read()

    def _append(self, numbers: list[int]) -> list[int]:
        table, rows = self._lake.table(TABLE), [{"n": n} for n in numbers]
        if self._keyed:
            table.upsert(rows)
        else:
            table.append(rows)
        return numbers

    def _reader(self, told: dict[str, Any]) -> _Reader:
        if self._reading is None or self._reading.told != told:
            self._let_go()
            self._reading = self._opened(told)
        return self._reading

    def _opened(self, told: dict[str, Any]) -> _Reader:
        lake = self._target.connect(self._process)
        stream = lake.table(TABLE).changes(subscription=told["subscription"], shared=told["shared"])
        return _Reader(told, next(self._readers), lake, stream)

    def _guarded(self, reader: _Reader, call: Any) -> Any:
        """A stream that has failed is over."""
        try:
            return call()
        except ls.LakestoreError:
            if reader is self._reading:
                self._let_go()
            raise

    def _ack(self, told: dict[str, Any]) -> dict[str, Any]:
        reader = self._reading
        if reader is None or not reader.pending:
            return {**told, "upto": {}, "refused": {}}
        which = told["which"]
        return dict(self._guarded(reader, lambda: reader.ack(which)))

    def _ack_again(self) -> int:
        """An acknowledgement of a batch before the newest one that was acknowledged: nothing may come of it."""
        reader = self._reading
        if reader is None or len(reader.acked) < 2:
            return 0
        self._guarded(reader, reader.acked[0].ack)
        return len(reader.acked)

    def _ack_late(self) -> dict[str, Any]:
        """The late deed of a zombie that comes back; it says no more."""
        if not self._resting:
            return {"upto": {}, "refused": {}}
        zombie = self._resting.pop(0)
        try:
            return zombie.ack(-1)
        finally:
            _end(zombie)

    def _leave(self, how: str) -> str:
        reader, self._reading = self._reading, None
        if reader is None:
            return "nobody"
        if how == "close":
            _end(reader)
        elif how == "rest" and reader.pending:
            self._resting.append(reader)
        else:
            reader.lake.close()
        return how

    def _let_go(self) -> None:
        reader, self._reading = self._reading, None
        if reader is not None:
            _end(reader)

    def _drain(self, told: dict[str, Any]) -> dict[str, Any]:
        """Read and acknowledge until nothing is left. Rows that were taken are told whatever goes wrong."""
        polls: list[dict[str, Any]] = []
        done, troubles = False, list[str]()
        deadline, look = time.monotonic() + DRAIN_SECONDS, 0.0
        while not done and time.monotonic() < deadline:
            try:
                reader = self._reader(told)
                rows = reader.take()
                if rows:
                    polls.append({"reader": reader.number, "rows": rows})
                    reader.ack(-1)
                elif time.monotonic() >= look:
                    look = time.monotonic() + BEHIND_SECONDS
                    done = all(
                        each.behind == 0 for each in self._lake.subscriptions() if each.name == told["subscription"]
                    )
            except ls.LakestoreError as error:
                troubles.append(trouble(error))
                self._let_go()
                time.sleep(WAIT_SECONDS)
        self._let_go()
        return {**told, "polls": polls, "done": done, TROUBLES: troubles}

    def _read(self) -> list[list[int]]:
        return [row for batch in self._lake.table(TABLE).changes(until="now") for row in listed(batch.table, *COLUMNS)]

    def close(self) -> None:
        """End all streams and connections without a word."""
        for reader in [*self._resting, *([self._reading] if self._reading else [])]:
            with suppress(ls.LakestoreError):
                reader.lake.close()
        self._lake.close()


def _end(reader: _Reader) -> None:
    with suppress(ls.LakestoreError):
        reader.stream.close()
        reader.lake.close()


def _subscriptions(lake: ls.Lake) -> list[dict[str, Any]]:
    return [
        {
            "subscription": each.name,
            "shared": each.shared,
            "members": {member.name: [bucket for _, bucket in member.buckets] for member in each.members},
        }
        for each in lake.subscriptions()
    ]
