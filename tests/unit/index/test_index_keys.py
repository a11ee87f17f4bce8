"""Keys as numbers are the keys as bytes: in order, and in what comes twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.model.types import arrow_type
from lakestore.rows import keys
from lakestore_server.index.keys import ByteKeys, NumberKeys, encoded, joined
from tests.unit.model.test_key_types import ORDERED

PREFIX = b"\0\0\0\7"
FITTING = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "date", "time", "timestamp"}
FITTING |= {"timestamptz", "fixed(3)"}
WIDE = [0, 1, 1 << 63, (1 << 64) - 1]
NUMBERS = st.lists(st.one_of(st.integers(0, 12), st.sampled_from(WIDE)), max_size=40)


@pytest.mark.parametrize("name", ORDERED)
def test_keys_of_every_type_are_the_same_as_numbers_and_as_bytes(name: str) -> None:
    column = pa.array(ORDERED[name] * 5, arrow_type(name))
    for part in (column, column[1:], column[:1], column[:0]):
        known = encoded([part], PREFIX)
        assert isinstance(known, NumberKeys) == (name in FITTING)
        assert list(known.listed()) == keys.encode([part], PREFIX)


@pytest.mark.parametrize("names", [("int32", "int32"), ("int16", "date"), ("bool", "fixed(3)", "uint32")])
def test_keys_of_several_columns_are_one_number_where_they_fit(names: tuple[str, ...]) -> None:
    columns = [pa.array((ORDERED[name] * 11)[:11], arrow_type(name)) for name in names]
    known = encoded(columns, PREFIX)
    assert isinstance(known, NumberKeys)
    assert known.listed() == keys.encode(columns, PREFIX)
    assert isinstance(encoded([*columns, pa.array(range(11), pa.int32())], PREFIX), ByteKeys)


@given(numbers=NUMBERS, cut=st.integers(0, 40), rows=st.lists(st.integers(0, 39), max_size=10))
def test_both_forms_answer_alike(numbers: list[int], cut: int, rows: list[int]) -> None:
    whole = NumberKeys(PREFIX, 8, np.array(numbers, dtype=np.uint64))
    known = joined([whole.part(slice(cut)), whole.part(slice(cut, None))]) if numbers else whole
    plain = ByteKeys(whole.listed())
    first = {number: numbers.index(number) for number in numbers}
    assert known.places().tolist() == plain.places().tolist() == [first[number] for number in numbers]
    before, same = known.previous(), plain.previous()
    last: dict[int, int] = {}
    wanted = []
    for row, number in enumerate(numbers):
        wanted.append(last.get(number, -1))
        last[number] = row
    for found in (before, same):
        assert (found is None) == (len(set(numbers)) == len(numbers))
        assert found is None or found.tolist() == wanted
    assert list(known.ascending().listed()) == list(plain.ascending().listed())
    some = np.array([row for row in rows if row < len(numbers)], dtype=np.int64)
    assert list(known.take(some).listed()) == list(plain.take(some).listed())


@given(st.lists(st.lists(st.integers(0, 30), max_size=30), max_size=6))
def test_parts_of_any_size_make_one(parts: list[list[int]]) -> None:
    """Few keys are objects of Python, many are arrays."""
    columns = [pa.array([f"key {number}" for number in part], pa.string()) for part in parts]
    listed = [key for column in columns for key in keys.encode([column], PREFIX)]
    whole = joined([encoded([column], PREFIX) for column in columns])
    assert list(whole.listed()) == listed
    assert whole.places().tolist() == [listed.index(key) for key in listed]
    assert list(whole.part(slice(3, 14)).listed()) == listed[3:14]
