"""The checker of logs that are let go, against histories of every anomaly."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jepsen.workloads.retention import Retained
from tests.jepsen.hand_made import Written, names

ROWS = [[0, 0, 10], [0, 1, 11], [0, 2, 12]]
LATE = {"subscription": "late"}


def _told() -> Written:
    return Written().call(0, "append", [10, 11]).unknown(1, "append", [12]).failed(2, "append", [13])


def _took(told: Written, rows: list[list[int]], acked: str = "yes", f: str = "take", expired: str = "") -> Written:
    return told.call(0, f, None, {**LATE, "rows": rows, "acked": acked, "expired": expired})


def _snapped(told: Written, rows: list[list[int]], expired: str = "") -> Written:
    return told.call(1, "snapshot", None, {"rows": rows, "expired": expired})


def _resumed(**value: Any) -> Written:
    return _told().call(0, "resume", 0, {"ends": {"0": 0}, "rows": [], "expired": False, "earliest": True, **value})


def _held(**value: Any) -> Written:
    return _told().call(0, "hold", 1, {"first": 3, "lost": "", "same": True, **value})


def _names(told: Written) -> set[str]:
    return names(Retained(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    told = _took(_told(), ROWS[:2], "unknown").call(1, "earliest", None, ROWS).call(1, "earliest", None, ROWS[1:])
    _snapped(_snapped(_took(_took(told, ROWS[:2]), ROWS[2:], f="drain"), ROWS), ROWS[:2])
    assert _names(told) == set()
    assert _names(_resumed(rows=ROWS[1:])) == _names(_resumed(expired=True)) == _names(_held()) == set()
    broken = _told().fault("kill-begin").call(0, "hold", 1, {"first": 3, "lost": "NotFound", "same": False})
    assert _names(_snapped(broken, [], "gone")) == set()
    forgotten = _took(_told(), ROWS[:1]).unknown(0, "forget", {**LATE, "always": False})
    assert _names(_took(_took(forgotten, [], expired="gone"), ROWS[2:], f="drain")) == set()


BAD = {
    "gap": _told().call(0, "earliest", None, [ROWS[0], ROWS[2]]),
    "start-back": _told().call(0, "earliest", None, ROWS[1:]).call(0, "earliest", None, ROWS),
    "no-earliest": _resumed(expired=True, earliest=False),
    "silent-gap": _resumed(rows=ROWS[2:]),
    "lease-broken": _held(lost="PlanExpired: gone", same=False),
    "cut-changed": _held(same=False),
    "lost": _snapped(_told(), ROWS[1:]),
    "unreadable": _snapped(_told(), [], "no snapshot fits"),
    "twice": _snapped(_told(), [*ROWS, ROWS[0]]),
    "let-go": _took(_took(_told(), ROWS[:1]), ROWS[2:]),
    "let-go, not forgotten": _took(
        _took(_told(), ROWS[:1]).call(0, "forget", {**LATE, "always": False}, {**LATE, "done": False}), ROWS[2:]
    ),
    "let-go, and told": _took(_took(_told(), ROWS[:1]), [], expired="the log starts later"),
    "unreadable, healed": _snapped(_told().fault("kill-begin").fault("healed"), [], "no snapshot fits"),
    "again": _took(_took(_told(), ROWS[:2]), ROWS[1:]),
    "phantom": _told().call(0, "earliest", None, [[0, 3, 99]]),
    "aborted": _told().call(0, "earliest", None, [[0, 3, 13]]),
}


@pytest.mark.parametrize("name", BAD)
def test_an_anomaly(name: str) -> None:
    assert _names(BAD[name]) == {name.partition(",")[0]}
