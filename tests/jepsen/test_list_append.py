"""The list workload's own checks: reads of the past, what only a run shows, and Elle's form."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from jepsen.workloads.list_append import ListAppend
from tests.jepsen.hand_made import Written, names


def checked(made: Written) -> set[str]:
    return names(ListAppend(random.Random(1)), made)


def past(made: Written, of: list[int], *read: tuple[int, list[int]]) -> None:
    made.call(1, "past", {"back": 0, "keys": []}, {"of": of, "read": [["r", key, held] for key, held in read]})


def test_unknown_outcomes_and_reads_of_the_past_are_no_anomaly() -> None:
    made = Written()
    made.call(0, "append", [["append", 1, 10], ["append", 2, 11]])
    made.unknown(0, "append", [["append", 1, 12]])
    made.call(4, "append", [["append", 1, 13]])
    made.failed(1, "append", [["append", 1, 14]])
    past(made, [1, 10], (1, [10]), (2, [11]))
    made.begin(2, "append", [["append", 1, 15]])
    made.call(1, "once", [["r", 3, None], ["append", 3, 16]], [["r", 3, []], ["append", 3, 16]])
    made.call(1, "once", [["r", 3, None], ["append", 3, 17]], [["r", 3, [16]]])
    made.call(1, "lookup", [["r", 1, None]], [["r", 1, [10, 13, 15]]])
    made.call(1, "everything", None, [["r", 1, [10, 13, 15, 12]], ["r", 2, [11]], ["r", 3, [16]]])
    assert checked(made) == set()


def test_a_token_s_cut_shows_nothing_later_and_nothing_less() -> None:
    for read in ([10, 12], []):
        made = Written()
        made.call(0, "append", [["append", 1, 10]])
        made.call(0, "append", [["append", 1, 12]])
        past(made, [1, 10], (1, read))
        assert "not-the-cut" in checked(made)


def test_commits_that_become_durable_together_share_a_token() -> None:
    made = Written()
    made.begin(1, "append", [["append", 1, 13]])
    made.call(0, "append", [["append", 1, 10]])
    past(made, [1, 10], (1, [10, 13]))
    assert checked(made) == set()


def test_a_token_s_cut_has_what_had_ended_before_its_commit() -> None:
    made = Written()
    made.call(0, "append", [["append", 2, 9]])
    made.call(0, "append", [["append", 1, 10]])
    past(made, [1, 10], (1, [10]), (2, []))
    assert any(name.startswith("G-single") for name in checked(made))


def test_a_lost_acknowledged_append_is_told_by_name() -> None:
    made = Written()
    made.call(0, "append", [["append", 1, 10]])
    made.call(1, "everything", None, [])
    made.call(1, "snapshot", [["r", 1, None]], [["r", 1, []]])
    assert {"lost", "G-single-realtime"} <= checked(made)


def test_two_winners_of_one_key_are_a_lost_update() -> None:
    made = Written()
    made.begin(0, "once", [["r", 3, None], ["append", 3, 16]])
    made.call(1, "once", [["r", 3, None], ["append", 3, 17]], [["r", 3, []], ["append", 3, 17]])
    made.end(0, "once", [["r", 3, []], ["append", 3, 16]])
    made.call(1, "lookup", [["r", 3, None]], [["r", 3, [17]]])
    assert {"lost-update", "lost"} <= checked(made)


@pytest.mark.parametrize(("late", "found"), [([9], set()), ([], {"G-single"})])
def test_of_an_unknown_outcome_a_key_may_be_missing_only_where_another_was_first(
    late: list[int], found: set[str]
) -> None:
    absent, taken, made = 3, 4, Written()
    if late:
        made.call(0, "once", [["r", taken, None], ["append", taken, 9]], [["r", taken, []], ["append", taken, 9]])
    made.unknown(0, "once", [["r", absent, None], ["append", absent, 10], ["r", taken, None], ["append", taken, 11]])
    made.call(1, "snapshot", [["r", absent, None], ["r", taken, None]], [["r", absent, [10]], ["r", taken, late]])
    assert checked(made) == found


@pytest.mark.parametrize("was_read", [True, False])
def test_half_of_an_unknown_commit_is_a_cycle_though_another_was_first_later(*, was_read: bool) -> None:
    absent, taken, made = 3, 4, Written()
    made.unknown(0, "once", [["r", absent, None], ["append", absent, 10], ["r", taken, None], ["append", taken, 11]])
    if was_read:
        made.call(1, "snapshot", [["r", absent, None], ["r", taken, None]], [["r", absent, [10]], ["r", taken, []]])
    else:
        made.call(1, "snapshot", [["r", absent, None]], [["r", absent, [10]]])
    made.call(2, "once", [["r", taken, None], ["append", taken, 9]], [["r", taken, []], ["append", taken, 9]])
    made.call(1, "snapshot", [["r", taken, None]], [["r", taken, [9]]])
    assert checked(made) & {"G-single", "G1c-realtime", "G-single-realtime"}


def test_half_of_a_commit_over_tables_is_a_cycle() -> None:
    made = Written()
    made.begin(0, "append", [["append", 1, 10], ["append", 2, 11]])
    made.call(1, "snapshot", [["r", 1, None], ["r", 2, None]], [["r", 1, [10]], ["r", 2, []]])
    made.end(0, "append", [["append", 1, 10], ["append", 2, 11]])
    assert checked(made) == {"G-single"}


def test_values_are_unique_and_one_seed_replays() -> None:
    for seed in range(20):
        first, again = (
            [*itertools.islice(ListAppend(random.Random(seed)).operations(1, random.Random(2)), 300)] for _ in "ab"
        )
        assert first == again
        values = [
            micro[2] for each in first if isinstance(each.value, list) for micro in each.value if micro[0] == "append"
        ]
        assert len(values) == len(set(values)) > 100
        assert all(each.value or each.f == "everything" for each in first)


def test_elle_reads_the_micro_operations(tmp_path: Path) -> None:
    made = Written()
    made.call(0, "append", [["append", 1, 10]])
    made.call(0, "lookup", [["r", 1, None]], [["r", 1, [10]]])
    made.history().dump_edn(tmp_path / "history.edn")
    lines = (tmp_path / "history.edn").read_text().splitlines()
    assert ":type :ok, :f :append, :value [[:append 1 10]]" in lines[1]
    assert "[[:r 1 nil]]" in lines[2]
    assert "[[:r 1 [10]]]" in lines[3]
