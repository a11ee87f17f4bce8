"""Rows of equal numbers are found, also where numbers differ in their last bits alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakestore_server.arrays.grouping import first_places, last_of_group, linked, ordered

NUMBERS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 9).map(lambda n: n << 60 | n & 1)), min_size=1)


@given(NUMBERS)
def test_rows_of_one_number_are_linked_in_their_order(numbers: list[int]) -> None:
    order, same = ordered(np.array(numbers, dtype=np.uint64))
    assert order.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)
    assert first_places(order, same).tolist() == [numbers.index(number) for number in numbers]
    last: dict[int, int] = {}
    wanted = []
    for row, number in enumerate(numbers):
        wanted.append(last.get(number, -1))
        last[number] = row
    assert linked(order, same).tolist() == wanted


@given(NUMBERS)
def test_each_row_knows_the_last_row_of_its_number(numbers: list[int]) -> None:
    is_last, of = last_of_group(np.array(numbers, dtype=np.uint64))
    last = {number: row for row, number in enumerate(numbers)}
    assert np.flatnonzero(is_last).tolist() == sorted(last.values())
    assert np.flatnonzero(is_last)[of].tolist() == [last[number] for number in numbers]
