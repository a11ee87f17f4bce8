"""The checker of records, against histories of every anomaly."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jepsen.workloads.bridge import KEYED, LOG, Bridged
from tests.jepsen.hand_made import Written, names

LOGGED = [[0, 0, 3, 10, "row"], [0, 1, 3, 11, "poison"], [1, 0, 4, 12, "row"]]
OF_KEYS = [[0, 0, 3, 20, "row"], [0, 1, 3, 21, "row"], [1, 0, 4, 22, "row"], [1, 2, 4, 23, "tombstone"]]
CHANGES = [[3, "+I", 20], [4, "+I", 22], [3, "+U", 21], [4, "-D", None]]


def _settled(topic: str = LOG, **more: Any) -> Written:
    """What is right, with some of it replaced."""
    right: dict[str, Any] = (
        {"source": LOGGED, "rows": [[0, 0, 3, 10], [1, 0, 4, 12]], "letters": [[0, 1]], "changes": []}
        if topic == LOG
        else {"source": OF_KEYS, "rows": [[0, 1, 3, 21]], "letters": [], "changes": CHANGES}
    )
    told = Written().call(0, "transact", None, {"records": [[LOG, 3, 99, "row"]], "commit": False})
    return told.call(0, "settle", None, {"topic": topic, "done": True, **right, **more})


def _names(told: Written) -> set[str]:
    return names(Bridged(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    assert _names(_settled()) == _names(_settled(KEYED)) == set()
    folded = [[3, "+I", 21]]
    assert _names(_settled(KEYED, changes=folded)) == set()
    told = Written().unknown(0, "produce", {"records": [[LOG, 3, 98, "row"]]})
    told.unknown(0, "transact", {"records": [[LOG, 3, 97, "row"]], "commit": False})
    source = [*LOGGED, [1, 1, 3, 98, "row"], [1, 2, 3, 97, "row"]]
    rows = [[0, 0, 3, 10], [1, 0, 4, 12], [1, 1, 3, 98], [1, 2, 3, 97]]
    told.call(0, "read", None, {"topic": LOG, "rows": [], "letters": []})
    right = {"topic": LOG, "done": True, "source": source, "rows": rows, "letters": [[0, 1]], "changes": []}
    assert _names(told.call(0, "settle", None, right)) == set()


BAD = {
    "record-lost": _settled(rows=[[0, 0, 3, 10]]),
    "letter-lost": _settled(letters=[]),
    "twice": _settled(rows=[[0, 0, 3, 10], [0, 0, 3, 10], [1, 0, 4, 12]]),
    "wrong-letter": _settled(letters=[[0, 1], [0, 0]], rows=[[0, 0, 3, 10], [1, 0, 4, 12]]),
    "wrong-record": _settled(rows=[[0, 0, 3, 12], [0, 1, 3, 11], [1, 0, 4, 12]]),
    "phantom": _settled(rows=[[0, 0, 3, 10], [1, 0, 4, 12], [2, 0, 4, 50]]),
    "aborted-read": _settled(rows=[[0, 0, 3, 10], [1, 0, 4, 12], [2, 0, 3, 99]]),
    "wrong-row": _settled(KEYED, rows=[[0, 0, 3, 20]]),
    "key-order": _settled(KEYED, changes=[[3, "+I", 21], [3, "+U", 20], [3, "+U", 21]]),
    "unfinished": _settled(done=False),
}


@pytest.mark.parametrize("name", BAD)
def test_an_anomaly(name: str) -> None:
    assert name in _names(BAD[name])


def test_a_deleted_row_that_comes_back() -> None:
    assert _names(_settled(KEYED, rows=[[0, 1, 3, 21], [1, 0, 4, 22]])) == {"wrong-row"}


def test_a_row_that_was_read_and_is_gone() -> None:
    told = Written().call(0, "read", None, {"topic": LOG, "rows": [[0, 0, 3, 10]], "letters": []})
    right = {"topic": LOG, "done": True, "source": LOGGED, "letters": [[0, 1]], "changes": []}
    assert _names(told.call(0, "settle", None, {**right, "rows": [[1, 0, 4, 12]]})) == {"record-lost", "vanished"}
