"""The server's clock in a history: what goes by time may be otherwise where a jump was believed."""

from __future__ import annotations

from jepsen.history import History
from jepsen.schedule import is_left_out

CLOCKS = "clock"
"""Faults of the server's clock begin with this; one that tells `confirm`, the seconds for which a jump has to stand, is
held to it."""


def may_be_believed(history: History) -> bool:
    """Whether the server's clock was wrong for as long as it takes to be believed."""
    faults = [each for each in history.faults() if each.f.startswith(CLOCKS) and not is_left_out(each.value)]
    begun: dict[str, tuple[int, float]] = {}
    for each in faults:
        kind, _, how = each.f.rpartition("-")
        if how == "begin":
            value = each.value if isinstance(each.value, dict) else {}
            begun.setdefault(kind, (each.time, float(value.get("confirm", 0.0))))
        elif kind in begun:
            began, confirm = begun.pop(kind)
            if (each.time - began) / 1e9 >= confirm:
                return True
    return bool(begun)
