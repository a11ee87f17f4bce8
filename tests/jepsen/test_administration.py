"""The checker of a table that rows are taken away from, against histories of every anomaly."""

from __future__ import annotations

import random

import pytest

from jepsen.workloads.administration import Administered
from tests.jepsen.hand_made import Written, names


def _told() -> Written:
    told = Written().call(0, "write", {"rows": [0, 1, 2]}).unknown(1, "write", {"rows": [3]})
    return told.failed(2, "write", {"rows": [4]})


def _read(told: Written, *rows: int) -> Written:
    return told.call(0, "read", {"by": "scan"}, {"by": "scan", "rows": list(rows)})


def _names(told: Written) -> set[str]:
    return names(Administered(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    assert _names(_read(_read(_told(), 0, 1, 2), 0, 1, 2, 3)) == set()
    taken = _told().call(0, "truncate", {})
    assert _names(_read(_read(taken), 3)) == set(), "a write without an answer may come after it"
    assert _names(_read(_told().call(0, "delete", {"part": 1}), 0, 2)) == set()
    unknown = _told().unknown(0, "delete", {"part": 1})
    assert _names(_read(_read(unknown, 0, 1, 2), 0, 2)) == set()
    broken_off = _told().failed(0, "delete", {"part": 1})
    assert _names(_read(_read(broken_off, 0, 1, 2), 0, 2)) == set(), "the commits that it made stay"
    begun = _told().begin(1, "truncate", {})
    assert _names(_read(_read(begun, 0, 1, 2)).end(1, "truncate", {})) == set()
    back = _told().call(0, "drop", {}).call(1, "undrop", {})
    assert _names(_read(back, 0, 1, 2)) == set()


BAD = {
    "lost": _read(_told(), 0, 1),
    "twice": _read(_told(), 0, 1, 2, 2),
    "never-written": _read(_told(), 0, 1, 2, 4),
    "back-again": _read(_told().call(0, "truncate", {}), 1),
    "served-dropped": _read(_told().call(0, "drop", {}).failed(1, "undrop", {}), 0, 1, 2),
}


@pytest.mark.parametrize("name", BAD)
def test_every_anomaly_is_found(name: str) -> None:
    assert _names(BAD[name]) == {name}


def test_a_delete_takes_its_own_part_alone() -> None:
    assert _names(_read(_told().call(0, "delete", {"part": 1}), 0)) == {"lost"}
    assert _names(_read(_told().call(0, "delete", {"part": 1}), 0, 1, 2)) == {"back-again"}
