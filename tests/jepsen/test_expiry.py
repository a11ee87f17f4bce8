"""The checker of rows that expire, against histories of every anomaly."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jepsen.schedule import LEFT_OUT
from jepsen.workloads.expiry import Expiring
from tests.jepsen.hand_made import Written, names

NOW = 1_000_000.0
Change = dict[str, Any]


def _change(offset: int, change: str, key: int, v: int, seen: float | None, stamp: float) -> Change:
    place = {"__bucket": 0, "__offset": offset, "__change": change, "__timestamp": stamp}
    return {**place, "id": key, "v": v, "seen": seen}


WRITTEN = [
    _change(0, "+I", 1, 10, NOW, NOW),
    _change(1, "+I", 2, 11, None, NOW),
    _change(2, "+I", 3, 12, NOW + 9e4, NOW),
]
ANEW = [_change(3, "-U", 1, 10, NOW, NOW + 1), _change(3, "+U", 1, 13, NOW + 1, NOW + 1)]
DIED = [_change(4, "-D", 1, 13, NOW + 1, NOW + 3.5)]


def _told(changes: list[Change], scanned: list[list[int]] | None = None) -> Written:
    told = Written().call(0, "upsert", [[1, 10, 0.0], [2, 11, None]], [[1, 10, NOW], [2, 11, None]])
    told.unknown(1, "upsert", [[3, 12, 9e4]]).unknown(1, "upsert", [[1, 13, 1.0]]).failed(2, "upsert", [[7, 70, 1.0]])
    if scanned is not None:
        told.call(0, "scan", None, scanned)
    return told.call(0, "changelog", None, {"now": NOW + 10, "changes": changes})


def _names(told: Written) -> set[str]:
    return names(Expiring(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    assert _names(_told([*WRITTEN, *ANEW, *DIED], [[0, 1, 2, 11], [0, 2, 3, 12], [0, 3, 1, 13]])) == set()
    assert _names(_told(WRITTEN, [])) == set()


FAR = _change(5, "-D", 3, 12, NOW + 9e4, NOW + 9.5e4)
BAD = {
    "early": [*WRITTEN, *ANEW, _change(4, "-D", 1, 13, NOW + 1, NOW + 2.5)],
    "undying": [*WRITTEN, _change(4, "-D", 2, 11, None, NOW + 9)],
    "too-early": [*WRITTEN, FAR],
    "wrong-image": [*WRITTEN, *ANEW, _change(4, "-D", 1, 10, NOW, NOW + 3)],
    "stamp-fell": [*WRITTEN, *ANEW, *DIED, _change(5, "+I", 1, 13, NOW + 1, NOW + 3)],
    "lost": WRITTEN[1:],
    "torn": [_change(0, "+I", 1, 10, NOW + 1, NOW), *WRITTEN[1:]],
    "aborted": [*WRITTEN, _change(4, "+I", 7, 70, NOW + 1, NOW + 1)],
    "phantom": [*WRITTEN, _change(4, "+I", 8, 80, NOW + 1, NOW + 1)],
}


@pytest.mark.parametrize("name", BAD)
def test_an_anomaly(name: str) -> None:
    assert _names(_told(BAD[name])) == {name}


def test_rows_that_were_never_there_together() -> None:
    assert _names(_told([*WRITTEN, *ANEW], [[0, 0, 1, 10], [0, 3, 1, 13]])) == {"no-state"}


@pytest.mark.parametrize(("confirm", "found"), [(300, {"too-early"}), (0, set())])
def test_a_jump_excuses_a_deletion_if_it_can_have_been_believed(confirm: int, found: set[str]) -> None:
    told = Written().call(0, "upsert", [[1, 10, 0.0], [2, 11, None]], [[1, 10, NOW], [2, 11, None]])
    told.unknown(1, "upsert", [[3, 12, 9e4]])
    told.fault("clock-begin", f"{LEFT_OUT}no clock to turn").fault("clock-end", "left out")
    told.fault("clock-begin", {"seconds": 9e4, "confirm": confirm}).fault("clock-end", "true")
    told.call(0, "changelog", None, {"now": NOW + 10, "changes": [*WRITTEN, FAR]})
    assert _names(told) == found
