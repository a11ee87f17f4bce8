"""Checks a table whose rows an administrator deletes: rows that were not deleted are there, and deleted rows stay away.

A call takes effect between its invocation and its answer, one without an answer at any time after its invocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.history import History
from jepsen.operation import Call, Kind


def check(history: History, parts: int) -> Iterator[Anomaly]:
    """All anomalies; a delete takes rows whose number has its part as the rest by `parts`."""
    writes = {number: call for call in history.calls("write") for number in call.invoked.value["rows"]}
    # A delete by a condition goes on in commits: one that fails, for the table is dropped meanwhile, has taken some.
    takes = [call for call in history.calls("truncate", "delete") if call.kind is not Kind.FAIL or call.f == "delete"]
    undone = [call for call in history.calls("undrop") if call.kind is Kind.OK and call.value.get("done")]
    changes = history.calls("write", "truncate", "delete", "drop", "rename")
    freshness = Freshness(history, [*changes, *undone])
    for read in history.calls("read"):
        if read.kind is not Kind.OK:
            continue
        found: list[int] = read.value["rows"]
        bound = freshness.bound(read)
        yield from _dropped(history, read, bound)
        yield from _surplus(read, found, writes, takes, parts, bound)
        yield from _lost(read, set(found), writes, takes, parts, bound)


def _surplus(
    read: Call, found: list[int], writes: dict[int, Call], takes: list[Call], parts: int, bound: Bound
) -> Iterator[Anomaly]:
    index = read.invoked.index
    if len(set(found)) < len(found):
        yield Anomaly("twice", "a read has a row twice", (index,))
    for number in found:
        write = writes.get(number)
        if write is None or write.kind is Kind.FAIL or write.invoked.index > _end(read):
            yield Anomaly("never-written", f"a read has row {number}, which nobody has written by then", (index,))
            return
        for take in takes:
            is_between = write.acknowledged < take.invoked.index and bound.covers(take)
            if take.kind is Kind.OK and is_between and _takes(take, number, parts):
                sentence = f"a read has row {number}, which a {take.f} has taken away"
                yield Anomaly("back-again", sentence, (index, take.invoked.index))
                return


def _lost(
    read: Call, found: set[int], writes: dict[int, Call], takes: list[Call], parts: int, bound: Bound
) -> Iterator[Anomaly]:
    for number, write in writes.items():
        if number in found or not bound.covers(write):
            continue
        may = (each for each in takes if each.acknowledged > write.invoked.index and each.invoked.index < _end(read))
        if not any(_takes(each, number, parts) for each in may):
            sentence = f"a read lacks row {number}, which was acknowledged and which nothing took away"
            yield Anomaly("lost", sentence, (read.invoked.index, write.invoked.index))
            return


def _dropped(history: History, read: Call, bound: Bound) -> Iterator[Anomaly]:
    """A table that is dropped for certain, and that nobody may have had back, is not read."""
    index = read.invoked.index
    for drop in history.calls("drop"):
        if bound.covers(drop):
            backs = (each for each in history.calls("undrop") if each.kind is not Kind.FAIL)
            if not any(back.acknowledged > drop.invoked.index and back.invoked.index < _end(read) for back in backs):
                yield Anomaly(
                    "served-dropped", "a read has rows of a table that was dropped", (index, drop.invoked.index)
                )
                return


def _takes(take: Call, number: int, parts: int) -> bool:
    asked: dict[str, Any] = take.invoked.value
    return take.f == "truncate" or number % parts == asked["part"]


def _end(call: Call) -> float:
    return call.completed.index if call.completed else float("inf")
