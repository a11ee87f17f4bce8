"""The checker of a table with a contract, against histories of every anomaly."""

from __future__ import annotations

import random

import pytest

from jepsen.checkers.contracts import BAD, GOOD
from jepsen.operation import Kind
from jepsen.workloads.contract import Contracted
from tests.jepsen.hand_made import Written, names


def _wrote() -> Written:
    """Two rows, one of them above the first limit of 500; a refused write; a late row; a write without an answer."""
    told = Written().call(0, "write", {"rows": [[0, 10, False], [1, 900, False]], "status": GOOD})
    told = told.failed(1, "write", {"rows": [[2, 10, False]], "status": BAD})
    told = told.call(3, "write", {"rows": [[9, 10, True]], "status": GOOD})
    return told.unknown(2, "write", {"rows": [[3, 10, False], [4, 10, False]], "status": GOOD})


def _read(told: Written, rows: list[int], letters: list[int]) -> Written:
    return told.call(0, "read", {}, {"rows": rows, "letters": letters})


def _names(told: Written) -> set[str]:
    return names(Contracted(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    assert _names(_read(_read(_wrote(), [0], [1, 9]), [0, 3, 4], [1, 9])) == set()


def test_a_write_obeys_one_of_the_contracts_that_it_may_have_met() -> None:
    def written(told: Written) -> Written:
        return told.call(0, "write", {"rows": [[5, 300, False], [6, 700, False]], "status": GOOD})

    tighter = written(Written().call(1, "apply", {"limit": 100}))
    assert _names(_read(tighter, [], [5, 6])) == set()
    tighter = written(Written().call(1, "apply", {"limit": 100}))
    assert _names(_read(tighter, [5], [6])) == {"stored-violation"}
    unknown = written(Written().unknown(1, "apply", {"limit": 100}))
    assert _names(_read(unknown, [], [5, 6])) == set(), "the change may have happened"
    unknown = written(Written().unknown(1, "apply", {"limit": 100}))
    assert _names(_read(unknown, [5], [6])) == set(), "or not yet"
    unknown = written(Written().unknown(1, "apply", {"limit": 100}).unknown(2, "apply", {"limit": 800}))
    assert _names(_read(unknown, [6], [5])) == {"mixed-contracts"}
    failed = written(Written().failed(1, "apply", {"limit": 100}))
    assert _names(_read(failed, [], [5, 6])) == {"wrong-letter"}
    twice = written(Written().call(1, "apply", {"limit": 100}).call(1, "apply", {"limit": 800}))
    assert _names(_read(twice, [5, 6], [])) == set()


BAD_HISTORIES = {
    "lost": _read(_wrote(), [], [9]),
    "half-commit": _read(_wrote(), [0], [9]),
    "twice": _read(_wrote(), [0], [1, 1, 9]),
    "aborted-read": _read(_wrote(), [0, 2], [1, 9]),
    "phantom": _read(_wrote(), [0, 8], [1, 9]),
    "stored-violation": _read(_wrote(), [0, 1], [9]),
    "wrong-letter": _read(_wrote(), [], [0, 1, 9]),
    "not-refused": Written().call(0, "write", {"rows": [[0, 10, False]], "status": BAD}),
    "wrong-refusal": Written()
    .begin(0, "write", {"rows": [[0, 10, False]], "status": GOOD})
    .end(0, "write", {}, Kind.FAIL, "Invalid: no"),
}


@pytest.mark.parametrize("name", BAD_HISTORIES)
def test_every_anomaly_is_found(name: str) -> None:
    assert _names(BAD_HISTORIES[name]) == {name}


def test_a_late_row_is_a_dead_letter_whatever_its_amount() -> None:
    assert _names(_read(_wrote(), [0, 9], [1])) == {"stored-violation"}
