"""Keys above all that an overlay holds of their table are known to be new, and no others are."""

from __future__ import annotations

import threading

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lakestore import keys
from lakestore.server.index import table_prefix
from lakestore.server.index_order import Overlay

NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=6)


@example(puts=[(1, [5]), (2, [9])], table=1, asked=[6, 5], joined=False)
@example(puts=[(1, [5]), (2, [9])], table=1, asked=[6, 7], joined=False)
@given(
    puts=st.lists(st.tuples(st.integers(1, 2), NUMBERS), max_size=6),
    table=st.integers(1, 2),
    asked=NUMBERS,
    joined=st.booleans(),
)
def test_keys_that_lie_above_all_others_of_their_table_are_not_in_an_overlay(
    puts: list[tuple[int, list[int]]], table: int, asked: list[int], joined: bool
) -> None:
    overlay, held = Overlay(), dict[int, set[int]]()
    for number, numbers in puts:
        overlay.put(keys.encode([pa.array(numbers)], table_prefix(number)), numbers)
        held.setdefault(number, set()).update(numbers)
    if joined:
        overlay = Overlay(overlay | {})
    below = overlay.is_below(keys.encode([pa.array(asked)], table_prefix(table)))
    assert not below or min(asked) > max(held.get(table, {-1}))
    if not joined:
        assert below == (min(asked) > max(held.get(table, {-1})))
    overlay.arrange(table_prefix(table), threading.Lock())
