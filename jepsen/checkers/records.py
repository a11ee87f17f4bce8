"""Records of Kafka held against tables and dead letters.

A record of the source is `[partition, offset, key, number, kind]`, a row of a table `[partition, offset, key, number]`,
a dead letter `[partition, offset]`, a change `[key, change, number]`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import Call, Kind

Place = tuple[int, int]
ROW, TOMBSTONE, POISON = "row", "tombstone", "poison"


class Source:
    """A topic as a consumer of committed records reads it at the end."""

    def __init__(self, call: Call) -> None:
        self.topic: str = call.value["topic"]
        self.at = (call.invoked.index,)
        self.records = {(p, o): (key, number, kind) for p, o, key, number, kind in call.value["source"]}
        self.expected = folded(call.value["source"])
        self.order = [(key, number, kind) for _, _, key, number, kind in sorted(call.value["source"])]

    def of_kind(self, kind: str) -> set[Place]:
        """The places of all records of a kind."""
        return {place for place, (_, _, found) in self.records.items() if found == kind}


def is_settled(value: dict[str, Any], *, keyed: bool) -> bool:
    """Whether tables and dead letters have all that they should."""
    poison = {(partition, offset) for partition, offset, _, _, kind in value["source"] if kind == POISON}
    rows = {(partition, offset) for partition, offset, _, _, kind in value["source"] if kind == ROW}
    found = {tuple(row[:2]) for row in value["rows"]}
    whole = {row[2]: row[3] for row in value["rows"]} == folded(value["source"]) if keyed else rows <= found
    return whole and poison <= {tuple(letter) for letter in value["letters"]}


def folded(source: Sequence[list[Any]]) -> dict[int, int]:
    """Key to number, as the records leave them; all records of a key are in one partition."""
    rows: dict[int, int] = {}
    for _, _, key, number, kind in sorted(source):
        if kind == ROW:
            rows[key] = number
        elif kind == TOMBSTONE:
            rows.pop(key, None)
    return rows


def check(history: History, keyed: str) -> Sequence[Anomaly]:
    """All anomalies; `keyed` is the topic whose table has a key."""
    anomalies: list[Anomaly] = []
    for call in history.calls("settle"):
        if call.kind is not Kind.OK:
            continue
        source = Source(call)
        if not call.value["done"]:
            said = f"the bridges do not come to the end of {source.topic} once everything has healed"
            anomalies.append(Anomaly("unfinished", said, source.at))
        anomalies += _aborted(history, source)
        anomalies += [each for read in _reads(history, source) for each in _seen(source, read)]
        anomalies += _letters(source, call.value)
        anomalies += _keyed(source, call.value) if source.topic == keyed else _logged(source, call.value)
        anomalies += _vanished(history, source, call, keyed=source.topic == keyed)
    return anomalies


def _reads(history: History, source: Source) -> list[Call]:
    calls = history.calls("read", "settle")
    return [call for call in calls if call.kind is Kind.OK and call.value["topic"] == source.topic]


def _aborted(history: History, source: Source) -> Iterator[Anomaly]:
    """Records of aborted transactions in a table or among the dead letters."""
    aborted: dict[int, int] = {}
    for call in history.calls("transact"):
        if call.kind is Kind.OK and not call.value["commit"]:
            aborted.update({number: call.invoked.index for _, _, number, _ in call.value["records"]})
    for call in _reads(history, source):
        seen = {row[3] for row in call.value["rows"]} | {change[2] for change in call.value.get("changes", [])}
        for number in sorted(seen & aborted.keys()):
            said = f"{number} of an aborted transaction is in the table of {source.topic}"
            yield Anomaly("aborted-read", said, (aborted[number], call.invoked.index))


def _seen(source: Source, call: Call) -> Iterator[Anomaly]:
    """Rows that no record is for, or another one, or that are there twice."""
    at, rows = (call.invoked.index,), [tuple(row) for row in call.value["rows"]]
    letters = [tuple(letter) for letter in call.value["letters"]]
    for partition, offset, key, number in rows:
        place = partition, offset
        if place not in source.records:
            yield Anomaly(
                "phantom", f"{number} of {place} of {source.topic} is in the table, and there is no such record", at
            )
        elif source.records[place] != (key, number, ROW):
            said = f"{place} of {source.topic} is {source.records[place]}, and in the table {(key, number)}"
            yield Anomaly("wrong-record", said, at)
    for place in letters:
        if place not in source.records:
            yield Anomaly("phantom", f"{place} of {source.topic} is a dead letter, and there is no such record", at)
        elif source.records[place][2] != POISON:
            yield Anomaly("wrong-letter", f"{source.records[place]} at {place} is a dead letter", at)
    twice = [place for place, count in Counter([row[:2] for row in rows] + letters).items() if count > 1]
    if twice:
        yield Anomaly("twice", f"{len(twice)} records of {source.topic} are there twice, as {twice[0]}", at)


def _letters(source: Source, value: dict[str, Any]) -> Iterator[Anomaly]:
    """Records that nobody can read and that are no dead letters."""
    lost = source.of_kind(POISON) - {tuple(letter) for letter in value["letters"]}
    if lost:
        yield Anomaly(
            "letter-lost", f"{len(lost)} records of {source.topic} are no dead letters, as {min(lost)}", source.at
        )


def _logged(source: Source, value: dict[str, Any]) -> Iterator[Anomaly]:
    """Records that have no row."""
    lost = source.of_kind(ROW) - {tuple(row[:2]) for row in value["rows"]}
    if lost:
        yield Anomaly("record-lost", f"{len(lost)} records of {source.topic} are lost, as {min(lost)}", source.at)


def _keyed(source: Source, value: dict[str, Any]) -> Iterator[Anomaly]:
    """Tables that are not what the records make, and keys whose changes came in another order than their records."""
    expected = source.expected
    sequence: dict[int, list[int | None]] = defaultdict(list)
    for key, number, kind in source.order:
        if kind != POISON:
            sequence[key].append(number if kind == ROW else None)
    rows = {row[2]: row[3] for row in value["rows"]}
    if rows != expected:
        keys = sorted(key for key in {*rows, *expected} if rows.get(key) != expected.get(key))
        said = f"key {keys[0]} of {source.topic} is {rows.get(keys[0])} and should be {expected.get(keys[0])}"
        yield Anomaly("wrong-row", f"{said}; {len(keys)} keys are wrong", source.at)
    changes: dict[int, list[int | None]] = defaultdict(list)
    for key, change, number in value["changes"]:
        changes[key].append(None if change == "-D" else number)
    for key, found in changes.items():
        if not _is_part(found, sequence[key]):
            order = f"the order {found[:20]}, its records are {sequence[key][:20]}"
            said = f"key {key} of {source.topic} was changed in {order}"
            yield Anomaly("key-order", said, source.at)


def _is_part(found: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether one sequence is another one, less some of its parts."""
    rest = iter(whole)
    return all(any(each == other for other in rest) for each in found)


def _vanished(history: History, source: Source, last: Call, *, keyed: bool) -> Iterator[Anomaly]:
    """Rows and dead letters that were read once and are not there at the end."""
    names = ("letters",) if keyed else ("rows", "letters")
    at_end = {name: {tuple(each) for each in last.value[name]} for name in names}
    for call in _reads(history, source):
        for name in names:
            gone = {tuple(each) for each in call.value[name]} - at_end[name]
            if gone:
                said = f"{len(gone)} {name} of {source.topic} were read and are gone, as {min(gone)}"
                yield Anomaly("vanished", said, (call.invoked.index,))
