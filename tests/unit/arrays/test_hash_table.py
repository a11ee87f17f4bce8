"""The hash table of numbers says what a dictionary says, however its places collide and whenever it grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore_server.arrays import hash_table
from lakestore_server.arrays.hash_table import MISS, HashTable
from tests.support.seeds import examples

LAST = (1 << 64) - 1
ABSENT, FLAG = -1, 1 << 62
NUMBERS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 40).map(lambda n: LAST - n),
    st.integers(0, 40).map(lambda n: (1 << 63) + n),
    st.integers(0, 40).map(lambda n: n << 48),
    st.integers(0, LAST),
)
VALUES = st.one_of(st.just(ABSENT), st.integers(0, 5), st.integers(0, 5).map(lambda n: FLAG | n))
PUTS = st.lists(st.lists(st.tuples(NUMBERS, VALUES), min_size=1, max_size=40), max_size=8)
Numbers = npt.NDArray[np.uint64]


def numbers_of(numbers: list[int]) -> Numbers:
    """As the table takes them."""
    return np.array(numbers, dtype=np.uint64)


@pytest.fixture(params=[lambda _: 0, lambda n: (n & 3) << 62, lambda _: LAST, None], ids=["one", "four", "end", "real"])
def _hash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers on one place, on four, on the last one; or as they are scattered really."""
    weak: Callable[[int], int] | None = request.param
    if weak is not None:
        monkeypatch.setattr(hash_table, "scattered_number", weak)
        monkeypatch.setattr(hash_table, "scattered", lambda numbers: numbers_of(list(map(weak, numbers.tolist()))))


@pytest.mark.usefixtures("_hash")
@settings(max_examples=examples(50))
@given(puts=PUTS, grows=st.sets(st.integers(0, 7)), others=st.lists(NUMBERS, max_size=30))
def test_what_was_put_last_is_found_and_nothing_else(
    puts: list[list[tuple[int, int]]], grows: set[int], others: list[int]
) -> None:
    table, model = HashTable(), dict[int, int]()
    for at, pairs in enumerate(puts):
        if at in grows:
            before, table = table, table.grown(len(pairs))
            assert not table.needs_more(len(pairs))
            assert len(before) == len(model), "a reader may still have it"
        table.put(numbers_of([n for n, _ in pairs]), np.array([value for _, value in pairs]))
        model.update(pairs)
        assert len(table) == len(model)
    asked = [*others, *model, 0, LAST]
    wanted = [model.get(n, MISS) for n in asked]
    assert table.get(numbers_of(asked)).tolist() == wanted, "many at once"
    assert [int(table.get(numbers_of([n]))[0]) for n in asked] == wanted, "one by one"
    numbers, values = table.entries()
    assert dict(zip(numbers.tolist(), values.tolist(), strict=True)) == model
    assert len(numbers) == len(model)
    for n in asked:
        assert table.is_below(numbers_of([n])) == (n > max(model, default=-1))


@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_numbers_go_to_the_same_place_alone_and_with_others(numbers: list[int]) -> None:
    assert hash_table.scattered(numbers_of(numbers)).tolist() == [hash_table.scattered_number(n) for n in numbers]


@pytest.mark.parametrize("step", [1, 2, 4096, 1 << 32, 1 << 44, -1])
def test_keys_at_even_distances_do_not_crowd(step: int) -> None:
    """A key would be looked for in long rounds."""
    table, count = HashTable(), 20_000
    numbers = np.arange(count, dtype=np.uint64) * np.uint64(step & LAST)
    table.put(numbers, np.arange(count))
    assert len(table) == count
    places = hash_table.scattered(numbers) >> np.uint64(table._shift)
    _, crowds = np.unique(places, return_counts=True)
    assert crowds.max() <= 12
    assert table.get(numbers).tolist() == list(range(count))
