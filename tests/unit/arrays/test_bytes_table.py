"""The hash table of byte strings says what a dictionary says, however hashes collide and whenever it grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore_server.arrays import bytes_table
from lakestore_server.arrays.bytes_table import BytesTable
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.arrays.padded_bytes import PaddedBytes

ABSENT, FLAG = -1, 1 << 62
STRING = st.one_of(
    st.text("ab\0", max_size=4).map(str.encode),
    st.integers(0, 60).map(lambda n: b"key-%03d" % n),
    st.integers(0, 5).map(lambda n: b"long" * 100 + bytes([n])),
    st.binary(max_size=20),
)
VALUE = st.one_of(st.just(ABSENT), st.integers(0, 5), st.integers(0, 5).map(lambda n: FLAG | n))
PUTS = st.lists(st.lists(st.tuples(STRING, VALUE), min_size=1, max_size=40), max_size=8)
PLACES = st.sets(st.integers(0, 7))
Weak = Callable[[bytes], int] | None


@pytest.fixture(params=[lambda _: 0, len, lambda s: sum(s) & 3, None], ids=["one", "length", "four", "real"])
def weak(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hash of all strings, few hashes, or the real ones."""
    chosen: Weak = request.param
    if chosen is not None:
        monkeypatch.setattr(bytes_table, "hash_of", chosen)
        hashed = lambda strings: np.array(list(map(chosen, strings.listed())), dtype=np.uint64)  # noqa: E731
        monkeypatch.setattr(PaddedBytes, "hashes", hashed)


@pytest.mark.usefixtures("weak")
@given(
    puts=PUTS, grows=st.sets(st.integers(0, 7)), alone=st.sets(st.integers(0, 7)), others=st.lists(STRING, max_size=30)
)
def test_what_was_put_last_is_found_and_nothing_else(
    puts: list[list[tuple[bytes, int]]], grows: set[int], alone: set[int], others: list[bytes]
) -> None:
    table, model = BytesTable(), dict[bytes, int]()
    for at, pairs in enumerate(puts):
        strings = PaddedBytes.of([string for string, _ in pairs])
        if at in grows:
            words = int(strings.starts[-1])
            table = table.grown(len(pairs), words)
            assert not table.needs_more(len(pairs), words)
        if at in alone:
            for string, value in pairs:
                table.put_one(string, value)
        else:
            table.put(strings, strings.hashes(), np.array([value for _, value in pairs]))
        model.update(pairs)
        assert len(table) == len(model)
        assert table.highest == max(model)
    asked = [*others, *model, b"", b"\xff" * 30]
    wanted = [model.get(string, MISS) for string in asked]
    strings = PaddedBytes.of(asked)
    assert table.get(strings, strings.hashes()).tolist() == wanted, "many at once"
    assert [table.one(string) for string in asked] == wanted, "one by one"
    held, values = table.entries()
    assert dict(zip(held.listed(), values.tolist(), strict=True)) == model
    assert len(held) == len(model)


def test_many_strings_in_many_puts_grow_the_table_and_stay() -> None:
    table, rng = BytesTable(), np.random.default_rng(3)
    model: dict[bytes, int] = {}
    for value in range(30):
        some = [b"region-%d\0\0customer-%d" % (n % 100, n) for n in rng.integers(0, 20_000, 1_000).tolist()]
        strings = PaddedBytes.of(some)
        table.put(strings, strings.hashes(), np.full(len(some), value))
        model.update(dict.fromkeys(some, value))
    strings = PaddedBytes.of(list(model))
    assert table.get(strings, strings.hashes()).tolist() == list(model.values())
    assert len(table) == len(model)
