"""Histories of counters, judged: what a row has counted is told by its list of increments, of which all else follows.

`add`     {form, adds: [[key, increment's number]…]} -> {}
`read`    {keys, by} -> {rows: {key: row}}; a row is {ids, total, n, hi, lo, first, last, any}
`changes` -> {steps: {key: [[before, after]…]}}: the row before and after each change of the stream, in order
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen.anomaly import Anomaly, few
from jepsen.checkers.freshness import Freshness
from jepsen.history import History
from jepsen.operation import Call, Kind

DELTA_MAX = 1_000
EMPTY: dict[str, Any] = {"ids": None}


def delta(number: int) -> int:
    """The amount of an increment, which is positive."""
    return 1 + number * 2_654_435_761 % DELTA_MAX


def row_of(numbers: Sequence[int]) -> dict[str, Any]:
    """The row that these increments make, in their order."""
    amounts = [delta(number) for number in numbers]
    return {
        "ids": " ".join(map(str, numbers)),
        "total": sum(amounts),
        "n": len(amounts),
        "hi": max(amounts),
        "lo": min(amounts),
        "first": amounts[0],
        "last": amounts[-1],
        "any": any(amount % 7 == 0 for amount in amounts),
    }


def numbers_of(row: dict[str, Any] | None) -> list[int]:
    """The increments of a row, in their order."""
    return [int(each) for each in ((row or EMPTY)["ids"] or "").split()]


@dataclass(frozen=True)
class Add:
    """One increment of one key."""

    key: str
    number: int
    call: Call


@dataclass
class Facts:
    """The facts that checks ask for."""

    freshness: Freshness
    adds: dict[str, dict[int, Add]] = field(default_factory=lambda: defaultdict(dict))
    """By key and number."""
    reads: list[tuple[Call, str, dict[str, Any] | None]] = field(default_factory=list)
    """Every key of every read, in the order of their ends."""
    streams: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, history: History) -> Facts:
        """The facts of a history."""
        made, reads = cls(Freshness(history, history.calls("add"))), list[Call]()
        for call in history.calls():
            if call.f == "add":
                for key, number in call.invoked.value["adds"]:
                    made.adds[key][number] = Add(key, number, call)
            elif call.kind is Kind.OK:
                (reads if call.f == "read" else made.streams).append(call)
        for call in sorted(reads, key=_ended):
            keys = call.invoked.value["keys"]
            for key in made.adds if keys is None else keys:
                made.reads.append((call, key, call.value["rows"].get(key)))
        return made


def _ended(call: Call) -> int:
    assert call.completed is not None
    return call.completed.index


def check(history: History) -> list[Anomaly]:
    """All anomalies, of each name the first few."""
    facts = Facts.of(history)
    return few(anomaly for each in CHECKS for anomaly in each(facts))


def wrong_increments(facts: Facts) -> Iterator[Anomaly]:
    """A row has an increment twice, one that failed, one that nobody sent, or one before it was sent."""
    for call, key, row in facts.reads:
        numbers, adds, operations = numbers_of(row), facts.adds.get(key, {}), (call.invoked.index,)
        if doubled := [number for number, count in Counter(numbers).items() if count > 1]:
            yield Anomaly("counted-twice", f"key {key} has counted {doubled[0]} twice", operations)
        for number in numbers:
            add = adds.get(number)
            if add is None or add.call.invoked.index > _ended(call):
                yield Anomaly("phantom-increment", f"key {key} has counted {number}, which nobody had sent", operations)
            elif add.call.kind is Kind.FAIL:
                said = f"key {key} has counted {number}, whose commit failed"
                yield Anomaly("aborted-increment", said, (*operations, add.call.invoked.index))


def lost_increment(facts: Facts) -> Iterator[Anomaly]:
    """A row lacks an increment that the read must show."""
    for call, key, row in facts.reads:
        there, bound = set(numbers_of(row)), facts.freshness.bound(call)
        for number, add in facts.adds.get(key, {}).items():
            if bound.covers(add.call) and number not in there:
                said = f"key {key} has not counted {number}, which was acknowledged before it was read"
                yield Anomaly("lost-increment", said, (add.call.invoked.index, call.invoked.index))


def wrong_total(facts: Facts) -> Iterator[Anomaly]:
    """A column is not what the row's increments make."""
    for call, key, row in facts.reads:
        yield from _misfits(key, row, call)
    for call in facts.streams:
        for key, steps in call.value["steps"].items():
            for _, after in steps:
                yield from _misfits(key, after, call)


def _misfits(key: str, row: dict[str, Any] | None, call: Call) -> Iterator[Anomaly]:
    numbers = numbers_of(row)
    wanted = row_of(numbers) if numbers else None
    if row is not None and row != wanted:
        wrong = [name for name in row if wanted is None or row[name] != wanted[name]]
        said = f"key {key} has {wrong[0]} {row[wrong[0]]}, which is not that of its increments {row['ids']}"
        yield Anomaly("wrong-total", said, (call.invoked.index,))


def other_order(facts: Facts) -> Iterator[Anomaly]:
    """Two reads of a key have its increments in different orders."""
    longest: dict[str, tuple[list[int], Call]] = {}
    for call, key, row in facts.reads:
        numbers = numbers_of(row)
        held, earlier = longest.get(key, ([], call))
        shorter = min(len(numbers), len(held))
        if numbers[:shorter] != held[:shorter]:
            said = f"key {key} has counted {numbers} and {held}"
            yield Anomaly("other-order", said, (earlier.invoked.index, call.invoked.index))
        if len(numbers) > len(held):
            longest[key] = numbers, call


def goes_back(facts: Facts) -> Iterator[Anomaly]:
    """A read at the leader that began when another one had ended has counted less."""
    ended: dict[str, list[tuple[int, int, Call]]] = defaultdict(list)
    for call, key, row in facts.reads:
        known = [each for each in ended[key] if each[0] < call.invoked.index]
        count = len(numbers_of(row))
        if known and count < known[-1][1] and not facts.freshness.bound(call).is_late:
            said = f"key {key} had counted {known[-1][1]} increments, and has {count} later"
            yield Anomaly("goes-back", said, (known[-1][2].invoked.index, call.invoked.index))
        if not ended[key] or count > ended[key][-1][1]:
            ended[key].append((_ended(call), count, call))


def torn_add(facts: Facts) -> Iterator[Anomaly]:
    """A read has one key's increment of a commit, and not that of another key."""
    by_call: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    rows = {(call.invoked.index, key): set(numbers_of(row)) for call, key, row in facts.reads}
    for key, adds in facts.adds.items():
        for number, add in adds.items():
            by_call[add.call.invoked.index][key].add(number)
    several = {operation: keys for operation, keys in by_call.items() if len(keys) > 1}
    for read in dict.fromkeys(call.invoked.index for call, _, _ in facts.reads):
        for operation, keys in several.items():
            mine = [(numbers, rows[read, key]) for key, numbers in keys.items() if (read, key) in rows]
            there = {number in counted for numbers, counted in mine for number in numbers}
            if len(there) > 1:
                said = f"a read has counted some of one commit's increments, and not those of {sorted(keys)} all"
                yield Anomaly("torn-add", said, (operation, read))


def stream_differs(facts: Facts) -> Iterator[Anomaly]:
    """A change's row before is not the row after the change before, or they are not what is read in the end."""
    last = {key: row or EMPTY for call, key, row in facts.reads if call.invoked.value["keys"] is None}
    for call in facts.streams:
        bound = facts.freshness.bound(call)
        for key, steps in call.value["steps"].items():
            held: dict[str, Any] | None = None
            for before, after in steps:
                if before != held:
                    said = f"key {key}: a change of {before} comes behind {held}"
                    yield Anomaly("changelog-differs", said, (call.invoked.index,))
                if numbers_of(after)[: len(numbers_of(held))] != numbers_of(held):
                    said = f"key {key}: {after} does not go on from {held}"
                    yield Anomaly("changelog-differs", said, (call.invoked.index,))
                held = after
        for key, adds in facts.adds.items():
            told = call.value["steps"].get(key)
            counted = numbers_of(told[-1][1] if told else None)
            missing = [n for n, add in adds.items() if bound.covers(add.call) and n not in counted]
            if missing or counted != numbers_of(last.get(key))[: len(counted)]:
                said = f"key {key} is {last.get(key, EMPTY)['ids']}, and by its changes {counted}"
                yield Anomaly("changelog-differs", said, (call.invoked.index,))


CHECKS: Sequence[Callable[[Facts], Iterator[Anomaly]]] = (
    wrong_increments,
    lost_increment,
    wrong_total,
    other_order,
    goes_back,
    torn_add,
    stream_differs,
)
