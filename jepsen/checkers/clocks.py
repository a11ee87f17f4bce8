"""The spans of a history in which the server may have trusted a wrong clock; checks by time are weaker there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen.history import History
from jepsen.operation import NEVER, Operation
from jepsen.schedule import is_left_out

CLOCKS = "clock"
"""Faults of the server's clock begin with this; one that tells `confirm`, the seconds for which a jump has to stand, is
held to it."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A span in which the server's clock was wrong, and the time that the server needs to trust it."""

    begun: int
    """The index of the fault's beginning."""
    over: float
    """The index from which on the right time is believed again; infinite if that never came."""
    seconds: float
    """The farthest that the clock was told to jump, either way."""


def believed(history: History) -> list[Wrong]:
    """The spans. Overlapping faults of one kind are one span."""
    found, begun = list[Wrong](), dict[str, list[Operation]]()
    for each in history.faults():
        kind, _, how = each.f.rpartition("-")
        if not each.f.startswith(CLOCKS) or is_left_out(each.value):
            continue
        if how == "begin":
            begun.setdefault(kind, []).append(each)
        elif kind in begun:
            found += _wrong(history, begun.pop(kind), each)
    return found + [wrong for begins in begun.values() for wrong in _wrong(history, begins, None)]


def _wrong(history: History, begins: Sequence[Operation], end: Operation | None) -> Iterator[Wrong]:
    told: list[dict[str, Any]] = [each.value if isinstance(each.value, dict) else {} for each in begins]
    confirm = float(told[0].get("confirm", 0.0))
    seconds = max(abs(float(each.get("seconds", 0.0))) for each in told)
    if end is None:
        yield Wrong(begins[0].index, NEVER, seconds)
    elif (end.time - begins[0].time) / 1e9 >= confirm:
        right = end.time + confirm * 1e9
        over = next((each.index for each in history.operations if each.time > right), NEVER)
        yield Wrong(begins[0].index, over, seconds)
