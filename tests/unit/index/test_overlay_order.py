"""Keys above all that an overlay holds of their table are known to be new, and no others are; ranges come in order."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakestore.rows import keys
from lakestore_server.arrays.hash_table import MISS, HashTable
from lakestore_server.index.entry import ABSENT, FLAG, table_prefix
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys, encoded
from lakestore_server.index.overlay import KeyOrder, Overlay, combined

NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=6)
KINDS = (pa.int64(), pa.string())
"""Keys as numbers, and as bytes."""


def keys_of(kind: pa.DataType, table: int, numbers: list[int]) -> IndexKeys:
    """Ordered as the numbers are."""
    return encoded(
        [pa.array(numbers if kind == pa.int64() else [f"{n:02d}" for n in numbers], kind)], table_prefix(table)
    )


@pytest.mark.parametrize("kind", KINDS)
@example(puts=[(1, [5]), (2, [9])], table=1, asked=[6, 5], joined=False)
@example(puts=[(1, [5]), (2, [9])], table=1, asked=[6, 7], joined=False)
@given(
    puts=st.lists(st.tuples(st.integers(1, 2), NUMBERS), max_size=6),
    table=st.integers(1, 2),
    asked=NUMBERS,
    joined=st.booleans(),
)
def test_keys_that_lie_above_all_others_of_their_table_are_not_in_an_overlay(
    kind: pa.DataType, puts: list[tuple[int, list[int]]], table: int, asked: list[int], joined: bool
) -> None:
    overlay, held = Overlay(), dict[int, set[int]]()
    for number, numbers in puts:
        overlay.put(keys_of(kind, number, numbers), np.array(numbers))
        held.setdefault(number, set()).update(numbers)
    if joined:
        overlay = combined(overlay, Overlay())
    below = overlay.is_below(keys_of(kind, table, asked))
    assert below == (min(asked) > max(held.get(table, {-1})))
    overlay.arrange(table_prefix(table), threading.Lock())


@pytest.mark.parametrize("kind", KINDS)
@given(
    puts=st.lists(st.tuples(st.integers(0, 1), NUMBERS, st.sampled_from([ABSENT, 5, 7 | FLAG])), max_size=12),
    arranged=st.integers(0, 12),
    settled=st.integers(0, 12),
    newer=st.integers(0, 12),
)
def test_an_overlay_holds_what_was_put_in_order_whenever_it_was_arranged(
    kind: pa.DataType, puts: list[tuple[int, list[int], int]], arranged: int, settled: int, newer: int
) -> None:
    """Also two that a failed checkpoint made one of, and one that follows an arranged one."""
    lock, overlay, older = threading.Lock(), Overlay(), Overlay()
    held: dict[tuple[int, int], int] = {}
    for at, (number, numbers, value) in enumerate(puts):
        if at == newer:
            older, overlay = overlay, overlay.following()
        if at in (arranged, settled):
            overlay.arrange(table_prefix(number), lock)
        values = value + np.arange(len(numbers)) if value > 0 else np.full(len(numbers), value)
        asked = keys_of(kind, number, numbers)
        overlay.make_room(asked.prefix, len(asked), lock)
        overlay.put(asked, values)
        held.update(zip(((number, n) for n in numbers), values.tolist(), strict=True))
    for number in (0, 1):
        found = overlay.between(table_prefix(number), table_prefix(number + 1), 5)
        mine = sorted(
            {n for table, numbers, _ in puts[newer if newer < len(puts) else 0 :] if table == number for n in numbers}
        )
        if found is not None:
            assert list(found[0].listed()) == list(keys_of(kind, number, mine[:5]).listed()), "new keys wait, unsorted"
    both = combined(older, overlay)
    assert len(both) == len(held)
    for number in (0, 1):
        mine = [n for table, n in sorted(held) if table == number]
        if mine:
            assert both.get(keys_of(kind, number, mine)).tolist() == [held[number, n] for n in mine]
        both.arrange(table_prefix(number), lock)
        found = both.between(table_prefix(number), table_prefix(number + 1), 5)
        assert found is not None
        assert list(found[0].listed()) == list(keys_of(kind, number, mine[:5]).listed())
        assert found[1].tolist() == [held[number, n] for n in mine[:5]]


@given(
    numbers=st.lists(st.integers(-(2**15), 2**15 - 1), max_size=8, unique=True),
    low=st.binary(max_size=3),
    high=st.binary(max_size=3),
    prefix=st.sampled_from([b"\0\0\0\7", b"\0\0\0\xff"]),
)
def test_a_range_of_numbers_is_the_range_of_their_bytes(
    numbers: list[int], low: bytes, high: bytes, prefix: bytes
) -> None:
    columns = [pa.array(numbers, pa.int16())]
    listed, known = sorted(keys.encode(columns, prefix)), encoded(columns, prefix)
    for ends in ((prefix + low, prefix + high), (prefix, keys.beyond(prefix)), (low, high), (prefix, prefix)):
        wanted = [key for key in listed if ends[0] <= key < ends[1]]
        assert list(known.within(*ends).ascending().listed()) == wanted
        ordered = known.ascending()
        assert [ordered.at(end) for end in ends] == [sum(key < end for key in listed) for end in ends]


def test_keys_that_are_being_put_in_order_are_not_taken_for_all_there_are() -> None:
    prefix, lock = table_prefix(1), threading.Lock()
    overlay = Overlay()
    overlay.put(ByteKeys([prefix + b"a", prefix + b"b"]), np.array([1, 2]))
    seen: list[object] = []

    class Watched(KeyOrder):
        def fill(self, keys: IndexKeys) -> None:
            with lock:
                seen.append(overlay.between(prefix, prefix + b"z", 9))
            super().fill(keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakestore_server.index.overlay.KeyOrder", Watched)
        overlay.arrange(prefix, lock)
    assert seen == [None]
    found = overlay.between(prefix, prefix + b"z", 9)
    assert found is not None
    assert found[0].listed() == [prefix + b"a", prefix + b"b"]


def test_what_follows_a_large_overlay_grows_in_few_steps_and_only_when_it_is_written() -> None:
    lock, overlay, ids = threading.Lock(), Overlay(), list(range(20_000))
    overlay.put(keys_of(pa.int64(), 1, ids), np.arange(20_000))
    following = overlay.following()
    assert not following._numbers, "a table that nobody writes any more takes no memory"
    tables: list[HashTable] = []
    for at in range(0, 20_000, 500):
        part = keys_of(pa.int64(), 1, ids[at : at + 500])
        following.make_room(part.prefix, 500, lock)
        following.put(part, np.arange(500))
        tables += following._numbers[part.prefix].tables
    assert len({id(table) for table in tables}) <= 3
    assert len(following) == 20_000
    assert following.get(keys_of(pa.int64(), 1, ids)).tolist() == [n % 500 for n in ids]
    assert tables[-1]._mask < 1 << 18, "and no more than that"


@given(
    batches=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=60), max_size=12),
    asked=st.lists(st.integers(0, 120), min_size=1, max_size=40),
)
def test_tables_that_are_not_moved_hold_what_was_put(batches: list[list[int]], asked: list[int]) -> None:
    lock, overlay, right = threading.Lock(), Overlay(), dict[int, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakestore_server.index.overlay.MOVED_MAX", 0)
        patch.setattr("lakestore_server.arrays.hash_table._CAPACITY_MIN", 4)
        for turn, batch in enumerate(batches):
            put = keys_of(pa.int64(), 1, batch)
            overlay.make_room(put.prefix, len(batch), lock)
            overlay.put(put, np.full(len(batch), turn))
            right |= dict.fromkeys(batch, turn)
            assert overlay.get(keys_of(pa.int64(), 1, asked)).tolist() == [right.get(n, MISS) for n in asked]
    for keys_, values in overlay.parts():
        assert isinstance(keys_, NumberKeys)
        numbers = [number - (1 << 63) for number in keys_.numbers.tolist()]
        assert len(set(numbers)) == len(numbers)
        assert dict(zip(numbers, values.tolist(), strict=True)) == right


def test_a_large_table_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.index.overlay.MOVED_MAX", 400)
    monkeypatch.setattr(HashTable, "grown", refused)
    overlay, lock = Overlay(expected={table_prefix(1): 0}), threading.Lock()
    table = HashTable(2_000)
    overlay.put(keys_of(pa.int64(), 1, [0]), np.array([0]))
    overlay._numbers[table_prefix(1)].tables = (table,)
    for first in range(0, 9_000, 500):
        part = keys_of(pa.int64(), 1, list(range(first, first + 500)))
        overlay.make_room(part.prefix, 500, lock)
        overlay.put(part, np.arange(500))
    assert len(overlay) == 9_000
    assert len(overlay._numbers[table_prefix(1)].tables) <= 5, "each has half the room of all before it"


def test_a_large_table_of_the_next_overlay_is_there_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.index.overlay.MOVED_MAX", 1_000)
    overlay, lock = Overlay(), threading.Lock()
    large, small = (keys_of(pa.int64(), table, list(range(count))) for table, count in ((1, 5_000), (2, 500)))
    for put in (large, small):
        overlay.put(put, np.arange(len(put)))
    following = overlay.following(overlay.made_ahead())
    assert [len(keys_) for keys_, _ in following.parts()] == [0]
    (table,) = following._numbers[large.prefix].tables
    for first in range(0, 5_500, 500):
        part = keys_of(pa.int64(), 1, list(range(first, first + 500)))
        following.make_room(part.prefix, 500, lock)
        following.put(part, np.arange(500))
    assert following._numbers[large.prefix].tables == (table,)
    unused = overlay.following(overlay.made_ahead())
    assert not unused.following(unused.made_ahead())._numbers, "a table that nobody writes any more takes no memory"


def refused(table: HashTable, more: int) -> HashTable:
    raise AssertionError(f"{len(table)} entries were moved for {more} others")


def test_an_order_that_could_not_be_filled_is_filled_by_the_next_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    overlay, lock = Overlay(), threading.Lock()
    overlay.put(keys_of(pa.int64(), 1, [3, 1, 2]), np.array([30, 10, 20]))
    with monkeypatch.context() as patched:
        patched.setattr(KeyOrder, "fill", _out_of_memory)
        with pytest.raises(MemoryError):
            overlay.arrange(table_prefix(1), lock)
    overlay.arrange(table_prefix(1), lock)
    found = overlay.between(table_prefix(1), table_prefix(2), 9)
    assert found is not None
    assert found[1].tolist() == [10, 20, 30]


def _out_of_memory(*_: object) -> None:
    raise MemoryError
