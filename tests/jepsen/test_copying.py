"""The checker of copies, against histories of every anomaly."""

from __future__ import annotations

import itertools
import random
from typing import Self

from jepsen.checkers.copied import LAST
from jepsen.workloads.copying import Copying
from tests.jepsen.hand_made import Written, names

WHOLE = [[0, 0, 2, 7], [0, 2, 3, 8]]
"""Two copies of partition 0."""


class _Told(Written):
    """The calls of the workload, told shortly."""

    def open(self, process: int, reader: int, at: int, partition: int = 0) -> Self:
        told = {"reader": reader, "partitions": [partition]}
        self.call(process, "open", told, {**told, "at": [[partition, at]]})
        return self

    def copy(self, process: int, reader: int, by: int, begin: int, end: int) -> Self:
        told = {"by": by, "moves": [[0, end - begin]], "late": False}
        self.call(process, "copy", told, {**told, "reader": reader, "spans": [[0, begin, end]]})
        return self

    def read(self, at: int, log: list[list[int]], keyed: list[list[int]] | None = None) -> Self:
        value = {"first": 0, "at": [[0, at]], "log": log, "keyed": log if keyed is None else keyed}
        self.call(9, "read", {"first": 0}, value)
        return self


def _told() -> _Told:
    """Two records by the copy 7, and one by 8."""
    return _Told().open(1, 1, 0).copy(1, 1, 7, 0, 2).copy(1, 1, 8, 2, 3)


def _names(told: Written) -> set[str]:
    return names(Copying(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    told = _told().read(3, WHOLE).open(2, 2, 3)
    told.failed(1, "copy", {"by": 9, "moves": [[0, 1]], "late": False})
    told.unknown(2, "copy", {"by": 10, "moves": [[0, 1]], "late": False})
    told.read(3, WHOLE).read(3, [*WHOLE, [0, 3, 4, 10]]).open(3, LAST, 4).copy(3, LAST, LAST, 4, 5)
    assert _names(told.read(5, [*WHOLE, [0, 3, 4, 10], [0, 4, 5, LAST]])) == set()


def test_a_copy_that_may_be_under_way_makes_no_read_the_last_one() -> None:
    told = _told().open(3, LAST, 3)
    told.unknown(3, "copy", {"by": LAST, "moves": None, "late": False})
    assert _names(told.read(3, [*WHOLE, [0, 3, 4, LAST]])) == set()


def test_a_last_copy_of_unknown_outcome_may_have_happened_though_its_second_try_copies_nothing() -> None:
    def told(*, first_is_known: bool) -> _Told:
        asked = {"by": LAST, "moves": None, "late": False}
        written = _told().open(3, LAST, 3)
        (written.failed if first_is_known else written.unknown)(3, "copy", asked)
        written.call(6, "copy", asked, {**asked, "reader": None, "spans": []})
        return written.read(4, [*WHOLE, [0, 3, 4, LAST]])

    assert _names(told(first_is_known=False)) == set()
    assert _names(told(first_is_known=True)) == {"torn-commit"}


def test_a_record_that_was_copied_twice() -> None:
    assert _names(_told().read(3, [*WHOLE, [0, 2, 3, 8]])) == {"twice"}


def test_a_record_that_was_passed_over() -> None:
    told = _Told().open(1, 1, 0)
    told.unknown(1, "copy", {"by": 7, "moves": [[0, 2]], "late": False})
    assert _names(told.read(0, [[0, 1, 3, 7]])) == {"gap"}


def test_a_record_in_one_of_two_tables() -> None:
    assert _names(_told().read(3, WHOLE, WHOLE[:1])) == {"half-commit"}


def test_rows_that_nobody_made_or_that_were_refused() -> None:
    assert _names(_told().read(3, [*WHOLE, [0, 3, 4, 99]])) == {"phantom"}
    told = _told()
    told.failed(1, "copy", {"by": 9, "moves": [[0, 1]], "late": False})
    assert _names(told.read(3, [*WHOLE, [0, 3, 4, 9]])) == {"aborted"}


def test_an_acknowledged_copy_that_is_gone_or_has_more_rows() -> None:
    assert _names(_told().read(3, WHOLE[:1])) == {"lost", "apart"}
    assert _names(_told().read(3, [[0, 0, 2, 7], [0, 2, 4, 8]])) == {"torn-commit"}


def test_a_position_that_goes_back() -> None:
    assert _names(_told().open(2, 2, 2)) == {"position-back"}
    assert _names(_told().read(3, WHOLE).read(2, WHOLE)) == {"position-back"}
    assert _names(_told().open(2, 2, 3).open(2, 3, 3)) == set()


def test_a_copy_of_who_was_fenced() -> None:
    assert _names(_told().open(2, 2, 3).copy(1, 1, 9, 3, 4)) == {"fenced-moved"}
    assert _names(_told().open(2, 2, 0, partition=1).copy(1, 1, 9, 3, 4)) == set(), "of another partition"
    assert _names(_told().open(2, 2, 3).copy(2, 2, 9, 3, 4)) == set()


def test_a_position_that_is_apart_from_the_rows() -> None:
    told = _Told().open(1, 1, 0)
    told.unknown(1, "copy", {"by": 7, "moves": [[0, 2]], "late": False})
    assert _names(told.read(2, [])) == {"apart"}
    told = _told().open(3, LAST, 3).copy(3, LAST, LAST, 3, 4)
    assert _names(told.read(3, [*WHOLE, [0, 3, 4, LAST]])) == {"apart", "position-back"}


def test_its_operations_are_the_same_for_the_same_seed() -> None:
    def drawn() -> list[object]:
        workload = Copying(random.Random(3))
        return list(itertools.islice(workload.operations(1, random.Random(4)), 100))

    assert drawn() == drawn()
