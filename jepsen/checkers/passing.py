"""A table that is dropped and made anew: each table of the name has its own history, told by its column's tag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.checkers.versions import tag_of
from jepsen.history import History
from jepsen.operation import Call, Kind

FIRST = 1
"""The tag of the table that was there from the start."""


def check(history: History, freshness: Freshness) -> Iterator[Anomaly]:
    """All anomalies of the passing table."""
    creates = [call for call in history.calls("create") if call.kind is Kind.OK and call.value["tag"] is not None]
    writes = history.calls("pass-write")
    for call in history.calls("pass-read", "pass-stream"):
        if call.kind is not Kind.OK or call.value["tag"] is None:
            continue
        tag, index, bound = call.value["tag"], call.invoked.index, freshness.bound(call)
        answers = [call.value] if call.f == "pass-read" else call.value["answers"]
        found = [row for answer in answers for row in _rows(answer)]
        for by, tags in found:
            if tags - {tag}:
                sentence = f"a handle of the table with column {tag} was given row {by} of {sorted(tags)}"
                yield Anomaly("another-history", sentence, (index,))
        if call.f == "pass-stream" and call.value["of"] not in (None, tag):
            sentence = f"a position of the table with column {call.value['of']} was served by that with {tag}"
            yield Anomaly("served-position", sentence, (index,))
        yield from _dropped(call, creates, bound)
        if call.f == "pass-read":
            yield from _lost(call, {by for by, _ in found}, writes, bound)


def _rows(answer: dict[str, Any]) -> Iterator[tuple[int, set[int]]]:
    by, own = answer["names"].index("by"), [n for n, name in enumerate(answer["names"]) if name not in ("id", "by")]
    for row in answer["rows"]:
        yield row[by], {tag_of(row[place]) for place in own if row[place] is not None}


def _dropped(call: Call, creates: list[Call], bound: Bound) -> Iterator[Anomaly]:
    """A handle answers no more once another table of the name is known to have taken its table's place."""
    mine = [each for each in creates if each.value["tag"] == call.value["tag"]]
    for each in creates:
        came_later = all(own.completed and own.completed.index < each.invoked.index for own in mine)
        was_there = bound.covers(each)
        is_known = bool(mine) or call.value["tag"] == FIRST
        if each.value["tag"] != call.value["tag"] and is_known and came_later and was_there:
            sentence = f"the table with column {call.value['tag']} answered behind the one with {each.value['tag']}"
            yield Anomaly("served-dropped", sentence, (call.invoked.index, each.invoked.index))
            return


def _lost(call: Call, found: set[int], writes: list[Call], bound: Bound) -> Iterator[Anomaly]:
    """Rows of this very table that the read must show."""
    for write in writes:
        if not bound.covers(write) or write.value["tag"] != call.value["tag"]:
            continue
        if lacking := set(write.value["rows"]) - found:
            sentence = f"a read of the passing table lacks row {min(lacking)}, which was acknowledged before"
            yield Anomaly("lost", sentence, (call.invoked.index, write.invoked.index))
            return
