"""The price of a freshness. The rounds are made by formulas, so the right price is known."""

from __future__ import annotations

import pytest

from lakestore.errors import Invalid
from lakestore.model.freshness_price import PAUSE_SECONDS, PastRewrite, PastRound, Price, priced

RATE, PLACES = 100.0, 40
"""Changes in a second, and the data files upon which they fall."""


def met(changes: float) -> float:
    found: float = PLACES * (1 - (1 - 1 / PLACES) ** changes)
    return found


def rounds(every: float, count: int = 20) -> list[PastRound]:
    """Rounds at this interval, whose lengths vary a little so that the parts of a cost can be told apart."""
    found, at = [], 1_000.0
    for number in range(count):
        interval = every * (1 + (number % 3 - 1) / 4)
        at += interval
        changes = RATE * interval
        files = 4 + met(changes)
        found.append(
            PastRound(
                at, 0.2 + changes / 10_000, round(changes), 4, round(met(changes)), round(files * 3_000 + changes * 50)
            )
        )
    return found


def of(prices: list[Price], freshness: int) -> Price:
    return next(each for each in prices if each.freshness == freshness)


@pytest.mark.parametrize("every", [1.0, 10.0, 60.0])
def test_a_price_is_what_the_rounds_of_that_freshness_cost(every: float) -> None:
    """Whatever freshness the table has had."""
    rate, prices = priced(rounds(every), [], [2, 30])
    assert rate.changes == pytest.approx(RATE, rel=0.05)
    for price in prices:
        took = 0.2 + RATE * (price.freshness - 0.25) / 10_000
        interval = price.freshness - took
        changes = RATE * interval
        files = 4 + met(changes)
        assert price.rounds == pytest.approx(3_600 / interval, rel=0.1)
        assert price.files == pytest.approx(files * price.rounds, rel=0.25)
        assert price.requests == pytest.approx((8 + 3 * files) * price.rounds, rel=0.25)
        assert price.bytes == pytest.approx((files * 3_000 + changes * 50) * price.rounds, rel=0.25)
        assert price.age == pytest.approx(price.freshness, rel=0.01)


def test_rounds_that_are_longer_than_the_promise_say_how_old_the_lake_gets() -> None:
    slow = [PastRound(10.0 * n, 4.0, 1_000, 1, 0, 1_000) for n in range(10)]
    _, prices = priced(slow, [], [1, 60])
    assert of(prices, 1).rounds == pytest.approx(3_600 / (4 + PAUSE_SECONDS))
    assert of(prices, 1).age == pytest.approx(8 + PAUSE_SECONDS)
    assert of(prices, 60).age == 60


def test_compaction_goes_with_the_files_that_rounds_write() -> None:
    _, prices = priced(rounds(10.0), [PastRewrite(6.0, 4_000_000)], [2, 10, 60])
    for price in prices:
        written = sum(each.files + each.delete_files for each in rounds(10.0)[1:])
        assert price.rewrite_seconds == pytest.approx(6.0 * price.files / written)
        assert price.rewrite_bytes == pytest.approx(4_000_000 * price.files / written)


def test_every_change_has_a_delete_file_of_its_own_if_rounds_have_few() -> None:
    """Ten deletes in ten files do not say how many files there are, so sixty are taken to need sixty."""
    few = [PastRound(10.0 * n, 0.0, 10, 1, 10, 10_000) for n in range(10)]
    _, prices = priced(few, [], [10, 60])
    assert [round(each.files / each.rounds) for each in prices] == [11, 61]


def test_rounds_of_one_size_do_not_make_files_of_bytes_alone() -> None:
    """By chance the rounds with three files are a little larger: a round of a seventh has no files of megabytes."""
    same = [PastRound(15.0 * n, 0.5, 75_000, 2 + n % 2, 0, 8_000_000 + n % 2 * 1_000_000) for n in range(11)]
    _, prices = priced(same, [], [2, 15])
    assert prices[0].bytes == pytest.approx(prices[1].bytes, rel=0.1)


def test_rounds_of_an_older_release_have_no_seconds() -> None:
    old = [PastRound(10.0 * n, 0.0, 100, 1, 0, 1_000) for n in range(10)]
    _, (price,) = priced(old, [], [30])
    assert (price.age, price.rounds) == (30, 120)


@pytest.mark.parametrize("found", [[], rounds(10.0, 1), rounds(10.0, 5)])
def test_too_few_rounds_have_no_price(found: list[PastRound]) -> None:
    with pytest.raises(Invalid, match="a price needs 6: let `lakestore tier` run"):
        priced(found, [], [1])


@pytest.mark.parametrize("step", [0.0, -10.0])
def test_rounds_of_a_clock_that_was_set_back_have_no_price(step: float) -> None:
    found = [PastRound(100.0 + step * n, 0.1, 5, 1, 0, 9) for n in range(9)]
    with pytest.raises(Invalid, match="the last of the 9 rounds that the lake remembers is not later than the first"):
        priced(found, [], [1])
