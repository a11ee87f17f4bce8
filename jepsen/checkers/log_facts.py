"""The facts of a log's history: what was sent, what is where, and when which of it was known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from jepsen.checkers.freshness import Freshness
from jepsen.history import History
from jepsen.operation import NEVER, Call, Kind

Part = Sequence[Any]
"""[table, first number, how many]."""
LANES = 3
"""A number's lane, by which streams and scans are filtered, is its rest by this."""


@dataclass(frozen=True)
class Send:
    """One call that appends. Places are those of the history's lines."""

    operation: int
    process: int | str
    begins: int
    ends: float
    """The place of the completion; infinite if any of it is unknown."""
    acknowledged_ns: float
    form: str
    acked: Sequence[Part]
    failed: Sequence[Part]
    unknown: Sequence[Part]
    token: str
    error: str = ""

    @staticmethod
    def numbers(parts: Iterable[Part]) -> list[int]:
        """The numbers of parts, in order."""
        return [number for _, first, count in parts for number in range(first, first + count)]

    @property
    def batches(self) -> list[list[Part]]:
        """The parts that happen together, or not."""
        parts = [*self.acked, *self.unknown]
        return [[each] for each in parts] if self.form == "writer" else [parts] if parts else []

    @classmethod
    def of(cls, call: Call) -> Send:
        """The send of a call."""
        parts, told = call.invoked.value["parts"], call.value if call.kind is Kind.OK else {}
        failed = parts if call.kind is Kind.FAIL else told.get("failed", [])
        unknown = parts if call.kind is Kind.INFO else told.get("unknown", [])
        completed = call.completed if call.kind is Kind.OK else None
        return cls(
            operation=call.invoked.index,
            process=call.process,
            begins=call.invoked.index,
            ends=call.acknowledged,
            acknowledged_ns=completed.time if completed else NEVER,
            form=call.invoked.value["form"],
            acked=told.get("acked", []),
            failed=failed,
            unknown=unknown,
            token=told.get("token", ""),
            error=call.completed.error if call.completed and call.kind is not Kind.OK else "",
        )


class Span(NamedTuple):
    """The rows of one commit in one key."""

    first: int
    last: int
    rows: int


@dataclass
class Consumer:
    """One assignment with all of its polls."""

    number: int
    tables: Sequence[str]
    start: str
    lane: int | None
    polls: list[Call] = field(default_factory=list)
    """The first is the assignment."""


@dataclass
class Facts:
    """Everything that checks ask for."""

    sends: list[Send]
    consumers: list[Consumer]
    cuts: list[Call]
    final: list[set[int]]
    """The numbers of each read of the end."""
    final_begun: int
    """The place where the last one of these has begun; before all places without any."""
    truth: dict[str, dict[int, int]]
    """By key: offset to number."""
    contradictions: dict[tuple[str, int], set[int]]
    places: dict[int, tuple[str, int]]
    """Number to key and offset."""
    doubled: dict[int, set[tuple[str, int]]]
    first_read: dict[int, tuple[int, int]]
    """Number to the place where the first stream that gave it had ended, and that call's operation."""
    torn: list[tuple[int, list[int]]]
    freshness: Freshness

    @classmethod
    def of(cls, history: History) -> Facts:
        """The facts of a history."""
        acked = [call for call in history.calls("send") if call.kind is Kind.OK and call.value.get("acked")]
        made = cls([], [], [], [], -1, {}, {}, {}, {}, {}, [], Freshness(history, acked))
        consumers: dict[int, Consumer] = {}
        for call in history.calls():
            if call.f == "send":
                made.sends.append(Send.of(call))
            elif call.kind is Kind.OK and call.f != "wake":
                made._take(call, consumers)
        made.consumers = list(consumers.values())
        return made

    def _take(self, call: Call, consumers: dict[int, Consumer]) -> None:
        value, completed = call.value, call.completed
        assert completed is not None
        if value["torn"]:
            self.torn.append((call.invoked.index, value["torn"]))
        if call.f == "cut":
            self.cuts.append(call)
            return
        for key, rows in value["rows"].items():
            for offset, number in rows:
                self._see(key, offset, number, completed.index, call.invoked.index)
        if call.f == "read":
            self.final.append({number for rows in value["rows"].values() for _, number in rows})
            self.final_begun = max(self.final_begun, call.invoked.index)
        elif call.f == "assign":
            asked = call.invoked.value
            made = Consumer(value["consumer"], asked["tables"], value["start"], asked["lane"], [call])
            consumers[made.number] = made
        elif value["consumer"] in consumers:
            consumers[value["consumer"]].polls.append(call)

    def _see(self, key: str, offset: int, number: int, ended: int, operation: int) -> None:
        held = self.truth.setdefault(key, {}).setdefault(offset, number)
        if held != number:
            self.contradictions.setdefault((key, offset), {held}).add(number)
        place = self.places.setdefault(number, (key, offset))
        if place != (key, offset):
            self.doubled.setdefault(number, {place}).add((key, offset))
        if number not in self.first_read or ended < self.first_read[number][0]:
            self.first_read[number] = (ended, operation)

    @cached_property
    def send_by_number(self) -> dict[int, Send]:
        """The send of each number."""
        every = ((each, [*each.acked, *each.failed, *each.unknown]) for each in self.sends)
        return {number: send for send, parts in every for number in send.numbers(parts)}

    @cached_property
    def table_by_number(self) -> dict[int, str]:
        """The table that each number was sent to."""
        every = (part for each in self.sends for part in (*each.acked, *each.failed, *each.unknown))
        return {number: part[0] for part in every for number in Send.numbers([part])}

    @cached_property
    def acknowledged(self) -> set[int]:
        """All acknowledged numbers."""
        return {number for each in self.sends for number in each.numbers(each.acked)}

    @cached_property
    def commits(self) -> dict[int, tuple[int, int]]:
        """Number to the commit that it was in, as (operation, batch)."""
        return {
            number: (send.operation, at)
            for send in self.sends
            for at, batch in enumerate(send.batches)
            for number in send.numbers(batch)
        }

    @cached_property
    def spans(self) -> dict[tuple[int, int], dict[str, Span]]:
        """Commit to the least and the greatest offset of its rows in each key, and how many they are."""
        found: dict[tuple[int, int], dict[str, Span]] = {}
        for commit, places in self.members.items():
            mine = found[commit] = {}
            for key, offset in places:
                span = mine.get(key, Span(offset, offset, 0))
                mine[key] = Span(min(span.first, offset), max(span.last, offset), span.rows + 1)
        return found

    @cached_property
    def members(self) -> dict[tuple[int, int], list[tuple[str, int]]]:
        """Commit to the places of its rows."""
        found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
        for number, commit in self.commits.items():
            if number in self.places:
                found[commit].append(self.places[number])
        return dict(found)

    def send_of(self, number: int) -> tuple[int, ...]:
        """The operation that sent a number, if there is one."""
        send = self.send_by_number.get(number)
        return (send.operation,) if send else ()

    @cached_property
    def windows(self) -> dict[str, Window]:
        """By key: which offsets a read must and may show, by the places between which it was."""
        return {key: Window.of(self, rows) for key, rows in self.truth.items()}

    def least(self, key: str, call: Call) -> int:
        """The fewest rows of a key that a read of the newest state may show."""
        bound = self.freshness.bound(call)
        least = self.windows[key].least(bound.place)
        if not bound.is_late:
            return least
        if (key, call.process) not in self._own_windows:
            mine = {o: n for o, n in self.truth[key].items() if self._sender(n) == call.process}
            self._own_windows[key, call.process] = Window.of(self, mine)
        return max(least, self._own_windows[key, call.process].least(call.invoked.index))

    @cached_property
    def _own_windows(self) -> dict[tuple[str, int | str], Window]:
        return {}

    def _sender(self, number: int) -> int | str | None:
        send = self.send_by_number.get(number)
        return None if send is None else send.process

    @cached_property
    def given(self) -> dict[str, tuple[int, float]]:
        """Token to the places between which its position was the newest: within every call that was told of it anew."""
        found: dict[str, tuple[int, float]] = {}
        said = [(each.token, each.begins, each.ends) for each in self.sends if each.token]
        for call in self.cuts:
            assert call.completed is not None
            if call.invoked.value["by"] == "snapshot":
                said.append((call.value["token"], self.freshness.bound(call).place, call.completed.index))
        for token, begins, ends in said:
            before, until = found.get(token, (-1, NEVER))
            found[token] = max(before, begins), min(until, ends)
        return found

    @cached_property
    def senders(self) -> dict[str, Send]:
        """Token to a send that was answered with it."""
        return {send.token: send for send in self.sends if send.token}

    def own(self, token: str, key: str) -> int:
        """The count of a key's rows that those of the token's send take."""
        send = self.senders.get(token)
        places = (self.places.get(number) for number in send.numbers(send.acked)) if send else ()
        return max((place[1] + 1 for place in places if place and place[0] == key), default=0)


@dataclass(frozen=True)
class Window:
    """Bounds of a key's count of rows, by time."""

    ends: Sequence[float]
    """Places of acknowledgements, ascending."""
    acked: Sequence[int]
    """The count that the rows acknowledged up to each of them take."""
    begins: Sequence[int]
    """Places of invocations, descending."""
    coming: Sequence[int]
    """The least offset of rows that were sent at each of them or later."""

    @classmethod
    def of(cls, facts: Facts, rows: dict[int, int]) -> Window:
        """The bounds of a key."""
        sends, acknowledged = facts.send_by_number, facts.acknowledged
        by_end = sorted((sends[n].ends, offset) for offset, n in rows.items() if n in acknowledged)
        by_begin = sorted(((sends[n].begins, offset) for offset, n in rows.items() if n in sends), reverse=True)
        return cls(
            [end for end, _ in by_end],
            list(accumulate((offset + 1 for _, offset in by_end), max)),
            [begin for begin, _ in by_begin],
            list(accumulate((offset for _, offset in by_begin), min)),
        )

    def least(self, place: float) -> int:
        """A read that begins at a place shows so many rows at least."""
        before = bisect_left(self.ends, place)
        return self.acked[before - 1] if before else 0

    def most(self, place: float) -> float:
        """A read that ends at a place shows so many rows at most."""
        behind = bisect_right([-begin for begin in self.begins], -place - 0.5)
        return self.coming[behind - 1] if behind else NEVER
