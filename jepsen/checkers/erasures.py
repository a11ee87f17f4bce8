"""Checks erasures: once one is done, no read finds a row of it, and no other row is lost.

- A row is `[number, version]`; a log table has each number once, with version 0.
- A process writes a row no more once it has asked for its erasure. A write without an answer may come later, so its
  rows may be there.
- A delete in a change stream has the number alone, and the version `DELETED`.
- An erasure without an answer may happen or not: its rows may be there or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import NEVER, Call, Kind

DELETED = -2
_NEVER_WRITTEN = NEVER, NEVER
WHOLE = "scan", "cut"
"""Ways to read that show all rows of the newest state."""


@dataclass(slots=True)
class Row:
    """The writes of one row, and its erasure."""

    written: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Version to the places of the write's invocation and acknowledgement."""
    is_unsure: bool = False
    """Whether a write of it has no answer."""
    asked: float = NEVER
    """The place at which its erasure was asked for."""
    erasure: str = ""
    """The id of its erasure; empty if there is none, or nobody knows it."""

    def expected(self, place: int) -> int:
        """The newest version that a read from this place on must show; -1 for none."""
        return max((version for version, (_, acknowledged) in self.written.items() if acknowledged < place), default=-1)


Rows = dict[tuple[str, int], Row]
"""By table and number."""


def check(history: History) -> Iterator[Anomaly]:
    """All anomalies."""
    rows, done = known_rows(history), ends(history)
    for call in history.calls("read", "bytes", "verified", "settle"):
        if call.kind is not Kind.OK:
            continue
        match call.f:
            case "read":
                yield from _of_read(call, rows, done)
            case "bytes":
                yield from _of_bytes(call, rows, done)
            case "verified":
                for finding in call.value["findings"]:
                    yield Anomaly("finding", f"a scan after the certificate: {finding}", (call.invoked.index,))
            case _:
                for number, why in call.value["waiting"].items():
                    yield Anomaly("unfinished", f"erasure {number} has not ended: {why}", (call.invoked.index,))


def known_rows(history: History) -> Rows:
    """The rows that anybody wrote."""
    rows: Rows = {}
    for call in history.calls("write"):
        for number, version in call.invoked.value["rows"]:
            row = rows.setdefault((call.invoked.value["table"], number), Row())
            if call.kind is not Kind.FAIL:
                row.written[version] = call.invoked.index, call.acknowledged
            row.is_unsure |= call.kind is Kind.INFO
    for call in history.calls("erase"):
        for number in call.invoked.value["ids"] if call.kind is not Kind.FAIL else ():
            row = rows.setdefault((call.invoked.value["table"], number), Row())
            row.asked, row.erasure = call.invoked.index, call.value.get("erasure", "")
    return rows


def ends(history: History) -> dict[str, float]:
    """The place of the history from which on an erasure is known to be done."""
    done: dict[str, float] = {}
    for call in history.calls("ended", "settle"):
        for number in call.value["done"] if call.kind is Kind.OK else ():
            done[number] = min(done.get(number, NEVER), call.acknowledged)
    return done


def _is_gone(row: Row, done: dict[str, float], place: int) -> bool:
    """Whether no read from a place on may find a row."""
    return bool(row.erasure) and not row.is_unsure and done.get(row.erasure, NEVER) < place


def _of_read(call: Call, rows: Rows, done: dict[str, float]) -> Iterator[Anomaly]:
    table, way, found = call.value["table"], call.value["way"], call.value["rows"]
    begin, end = call.invoked.index, call.acknowledged
    places = (begin,)
    counts = Counter(number for number, _ in found)
    for number, version in found:
        row = rows.get((table, number))
        if row is None or (version != DELETED and row.written.get(version, _NEVER_WRITTEN)[0] > end):
            yield Anomaly("phantom", f"{way} of {table} has row {number} with version {version}", places)
        elif _is_gone(row, done, begin):
            yield Anomaly("still-there", f"{way} of {table} has row {number} after its erasure was done", places)
    if way == "changes":
        return
    for number in (number for number, count in counts.items() if count > 1):
        yield Anomaly("twice", f"{way} of {table} has row {number} {counts[number]} times", places)
    if way in WHOLE:
        yield from _lost(call, {name: row for (of, name), row in rows.items() if of == table}, found)
    elif way == "lookup":
        yield from _lost(call, {each: rows[table, each] for each in call.value["ids"] if (table, each) in rows}, found)


def _lost(call: Call, wanted: dict[int, Row], found: Sequence[Sequence[int]]) -> Iterator[Anomaly]:
    shown, places = {number: version for number, version in found}, (call.invoked.index,)
    for number, row in wanted.items():
        expected = row.expected(call.invoked.index)
        if expected < 0 or row.asked < call.acknowledged:
            continue
        if number not in shown:
            yield Anomaly("lost", f"{call.value['way']} of {call.value['table']} lacks row {number}", places)
        elif shown[number] < expected:
            yield Anomaly("stale", f"{call.value['way']} has version {shown[number]} of row {number}", places)


def _of_bytes(call: Call, rows: Rows, done: dict[str, float]) -> Iterator[Anomaly]:
    there = set(call.value["ids"] or ())
    for (table, number), row in rows.items():
        if number in there and _is_gone(row, done, call.invoked.index):
            sentence = f"a file has bytes of row {number} of {table} after its erasure was done"
            yield Anomaly("bytes-left", sentence, (call.invoked.index,))
