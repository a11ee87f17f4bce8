"""An explanation says of each part of a read how it was read, and no more."""

from __future__ import annotations

from lakestore.union.explanation import Explanation, Figures


def test_a_count_by_the_sum_of_live_rows_says_nothing_of_log_and_lake() -> None:
    told = str(Explanation("shop.orders", "t", (), "", 3, 3, Figures()))
    assert "nothing was read" in told
    assert "newer than the lake" not in told
    assert "row groups" not in told


def test_rows_that_were_read_are_told_by_part() -> None:
    figures = Figures()
    figures.add(hot_offsets=4, hot_rows=3)
    told = str(Explanation("shop.orders", "t", ("id",), "", 3, 3, figures))
    assert "4 offsets behind the lake; 3 rows came" in told
    assert "nothing was read" not in told
