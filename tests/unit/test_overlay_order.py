"""Keys above all that an overlay holds of their table are known to be new, and no others are."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakestore import keys
from lakestore.server.index import table_prefix
from lakestore.server.index_order import KeyOrder, Overlay

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


def test_keys_that_are_being_put_in_order_are_not_taken_for_all_there_are() -> None:
    prefix, lock = table_prefix(1), threading.Lock()
    overlay = Overlay()
    overlay.put([prefix + b"a", prefix + b"b"], [1, 2])
    seen: list[list[bytes] | None] = []

    class Watched(KeyOrder):
        def fill(self, keys: Iterable[bytes], prefix: bytes) -> None:
            with lock:
                seen.append(overlay.between(prefix, prefix + b"z", 9))
            super().fill(keys, prefix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakestore.server.index_order.KeyOrder", Watched)
        overlay.arrange(prefix, lock)
    assert seen == [None]
    assert overlay.between(prefix, prefix + b"z", 9) == [prefix + b"a", prefix + b"b"]
