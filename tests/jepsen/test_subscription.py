"""The checker of named subscriptions, against histories of every anomaly."""

from __future__ import annotations

import random
from typing import Any, Self

import pytest

from jepsen.workloads.subscription import ALONE, SHARED, Subscribed
from tests.jepsen.hand_made import Written, names

ROWS = [[0, 0, 10], [0, 1, 11], [1, 0, 12]]


class _Told(Written):
    """The calls of the workload, told shortly."""

    def poll(self, process: int, reader: int, rows: list[list[int]], name: str = ALONE) -> Self:
        told = {"subscription": name, "shared": name == SHARED, "turn": 0}
        self.call(process, "poll", told, {**told, "reader": reader, "rows": rows})
        return self

    def ack(self, process: int, reader: int, upto: dict[str, int], name: str = ALONE, **refused: int) -> Self:
        told = {"subscription": name, "shared": name == SHARED, "turn": 0}
        self.call(process, "ack", told, {**told, "reader": reader, "upto": upto, "refused": refused})
        return self

    def drain(self, process: int, reader: int, rows: list[list[int]], name: str = ALONE, *, done: bool = True) -> Self:
        told = {"subscription": name, "shared": name == SHARED}
        answer = {**told, "polls": [{"reader": reader, "rows": rows}], "done": done, "troubles": []}
        self.call(process, "drain", told, answer)
        return self

    def listed(self, *subscriptions: dict[str, Any]) -> Self:
        self.call(7, "list", None, list(subscriptions))
        return self

    def read(self, rows: list[list[int]]) -> Self:
        self.call(7, "read", None, rows)
        return self


def _told() -> _Told:
    told = _Told()
    told.call(0, "append", [10, 11]).call(1, "append", [12])
    return told


def _names(told: Written) -> set[str]:
    return names(Subscribed(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    told = _told().poll(0, 0, ROWS[:2]).ack(0, 0, {"0": 0}).poll(1, 0, ROWS[1:])
    told.unknown(1, "ack", {"subscription": ALONE}).poll(2, 0, [])
    told.unknown(0, "append", [13]).failed(0, "append", [14])
    told.poll(2, 1, ROWS, SHARED).ack(2, 1, {"1": 0}, SHARED, **{"0": 1}).poll(3, 0, [[0, 0, 10], [0, 1, 11]], SHARED)
    told.fault("kill-begin").fault("kill-end")
    told.drain(4, 0, [[1, 1, 13]]).drain(4, 1, [[1, 1, 13]], SHARED).read([*ROWS, [1, 1, 13]])
    assert _names(told) == set()


def test_rows_come_again_that_were_not_acknowledged_or_after_a_drop() -> None:
    told = _told().poll(0, 0, ROWS).ack(0, 0, {"0": 1, "1": 0}).poll(0, 0, [])
    told.call(3, "drop", {"subscription": ALONE}).poll(1, 0, ROWS).poll(2, 0, ROWS)
    assert _names(told.drain(2, 0, []).read(ROWS)) == set()


def test_an_invented_number() -> None:
    assert _names(_told().poll(0, 0, [[0, 0, 99]])) == {"phantom"}


def test_a_number_of_a_refused_append() -> None:
    told = _told()
    told.failed(0, "append", [20])
    assert _names(told.poll(0, 0, [[0, 0, 20]])) == {"aborted"}


def test_a_place_that_holds_two_numbers() -> None:
    assert _names(_told().poll(0, 0, [[0, 0, 10]]).poll(1, 0, [[0, 0, 11]])) == {"two-values"}


def test_a_number_at_two_places() -> None:
    assert _names(_told().poll(0, 0, [[0, 0, 10], [0, 1, 10]])) == {"two-places"}


def test_a_row_that_was_given_and_is_gone() -> None:
    told = _told()
    told.unknown(0, "append", [13])
    assert _names(told.poll(0, 0, [[2, 0, 13]]).read(ROWS)) == {"vanished"}


def test_an_acknowledged_append_that_is_not_in_the_log() -> None:
    assert _names(_told().read(ROWS[:2])) == {"lost"}


def test_rows_out_of_order() -> None:
    assert _names(_told().poll(0, 0, [[0, 0, 10]], SHARED).poll(0, 1, [[0, 1, 11], [0, 0, 10]])) >= {"disorder"}
    alone = _told().poll(0, 0, ROWS[:2]).poll(0, 0, [[0, 0, 10]])
    assert _names(alone) == {"disorder"}


def test_a_row_that_was_passed_over() -> None:
    assert _names(_told().poll(0, 0, [[0, 1, 11]])) == {"skipped"}
    assert _names(_told().poll(0, 0, [[0, 0, 10]]).poll(1, 0, [[0, 1, 11]])) == {"skipped"}
    refused = _told().poll(0, 0, [[0, 0, 10]], SHARED).poll(1, 0, [[0, 1, 11]], SHARED)
    assert _names(refused) == {"skipped"}


def test_a_row_before_which_an_acknowledgement_of_unknown_outcome_lies() -> None:
    told = _told().poll(0, 0, [[0, 0, 10]])
    told.unknown(0, "ack", {"subscription": ALONE})
    assert _names(told.poll(1, 0, [[0, 1, 11]])) == set()


def test_an_append_that_nobody_was_given() -> None:
    told = _told().poll(0, 0, ROWS[:2]).drain(1, 0, [[0, 0, 10], [0, 1, 11]])
    assert _names(told.read(ROWS)) == {"unread"}


def test_an_acknowledged_row_that_is_given_to_the_next_reader() -> None:
    told = _told().poll(0, 0, ROWS).ack(0, 0, {"0": 1, "1": 0})
    assert _names(told.poll(1, 0, ROWS[:2])) == {"again"}
    told = _told().poll(0, 0, ROWS, SHARED).ack(0, 0, {"0": 1, "1": 0}, SHARED)
    assert _names(told.poll(1, 0, ROWS[:2], SHARED)) == {"again"}


@pytest.mark.parametrize(
    ("seconds", "confirm", "found"), [(-2_592_000, 0, set()), (-2_592_000, 300, {"again"}), (86_400, 0, {"again"})]
)
def test_a_jump_excuses_a_forgotten_position_if_it_is_long_and_can_have_been_believed(
    seconds: int, confirm: int, found: set[str]
) -> None:
    told = _told().poll(0, 0, ROWS).ack(0, 0, {"0": 1, "1": 0})
    told.fault("clock-begin", {"how": "jump", "seconds": seconds, "confirm": confirm}).fault("clock-end", "true")
    assert _names(told.poll(1, 0, ROWS[:2])) == found


def test_a_jump_that_was_over_excuses_nothing() -> None:
    jump = {"how": "jump", "seconds": 2_592_000, "confirm": 0}
    before = _told().fault("clock-begin", jump).fault("clock-end", "true")
    before.poll(0, 0, ROWS).ack(0, 0, {"0": 1, "1": 0})
    assert _names(before.poll(1, 0, ROWS[:2])) == {"again"}
    behind = _told().poll(0, 0, ROWS).ack(0, 0, {"0": 1, "1": 0}).poll(1, 0, ROWS[:2])
    assert _names(behind.fault("clock-begin", jump).fault("clock-end", "true")) == {"again"}


def test_an_acknowledgement_of_a_zombie_that_moves_the_position_back() -> None:
    told = _told().poll(0, 0, ROWS[:1]).poll(1, 0, ROWS[:2]).ack(1, 0, {"0": 1})
    told.failed(0, "ack-late")
    assert _names(told.poll(2, 0, [[0, 1, 11]])) == {"again"}


def test_an_acknowledged_row_that_comes_to_its_own_reader() -> None:
    told = _told().poll(0, 0, ROWS, SHARED).ack(0, 0, {"0": 1}, SHARED)
    assert _names(told.poll(0, 0, ROWS[:2], SHARED)) == {"again"}


def test_two_acknowledgements_that_count_for_one_row() -> None:
    told = _told().poll(0, 0, ROWS[:2]).poll(1, 0, ROWS[:2]).ack(0, 0, {"0": 1}).ack(1, 0, {"0": 1})
    assert _names(told) == {"acked-twice"}
    told = _told().fault("kill-begin").poll(0, 0, ROWS[:2]).poll(1, 0, ROWS[:2])
    assert _names(told.ack(0, 0, {"0": 1}).ack(1, 0, {"0": 1})) == set()


def test_an_acknowledgement_that_counts_though_a_later_reader_has_the_rows() -> None:
    told = _told().poll(0, 0, ROWS[:2], SHARED).poll(1, 0, ROWS[:2], SHARED).ack(0, 0, {"0": 1}, SHARED)
    assert _names(told) == {"former-reader"}
    told = _told().poll(0, 0, ROWS[:2], SHARED).poll(1, 0, ROWS[:2], SHARED).ack(0, 0, {}, SHARED, **{"0": 1})
    assert _names(told.ack(1, 0, {"0": 1}, SHARED)) == set()
    told = _told().poll(0, 0, ROWS[:2], SHARED).poll(1, 0, [], SHARED).poll(1, 0, ROWS[:2], SHARED)
    assert _names(told.ack(0, 0, {"0": 1}, SHARED)) == {"former-reader"}
    told = _told().poll(1, 0, [], SHARED).poll(0, 0, ROWS[:2], SHARED).poll(1, 0, ROWS[:2], SHARED)
    assert _names(told.ack(0, 0, {"0": 1}, SHARED)) == set(), "the rows of who came earlier may have been older"


def test_a_bucket_with_two_readers() -> None:
    listed = {"subscription": SHARED, "shared": True, "members": {"a": [0, 1], "b": [1]}}
    assert _names(_told().listed(listed)) == {"two-readers"}


def test_a_subscription_that_is_forgotten() -> None:
    assert _names(_told().poll(0, 0, ROWS).listed()) == {"forgotten"}
    told = _told().poll(0, 0, ROWS)
    told.unknown(1, "drop", {"subscription": ALONE})
    assert _names(told.listed()) == set()


def test_a_subscription_that_does_not_come_to_its_end() -> None:
    assert _names(_told().drain(0, 0, ROWS, done=False).read(ROWS)) == {"unfinished"}


def test_its_operations_are_the_same_for_the_same_seed() -> None:
    def drawn() -> list[Any]:
        workload = Subscribed(random.Random(5))
        operations = workload.operations(1, random.Random(6))
        return [next(operations) for _ in range(200)]

    assert drawn() == drawn()
