"""One key as bytes is what arrays make of it: the same bytes, the same bucket, the same values back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.model.table import define
from lakestore.rows import keys
from lakestore.rows.one_key import KeyCode

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.string(), st.text("a\0\xff\u20ac", max_size=6)),
    (pa.binary(), st.binary(max_size=6) | st.sampled_from([b"\0", b"\0\0", b"\0\xff", b"\xff\0\0"])),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
]


def code_of(kinds: list[pa.DataType], bucket_key: list[int], buckets: int = 7) -> KeyCode:
    names = [f"c{i}" for i in range(len(kinds))]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    table = define("s.t", schema, primary_key=names, bucket_key=[names[i] for i in bucket_key], buckets=buckets)
    code = KeyCode.of(table)
    assert code is not None
    return code


@given(st.data())
def test_a_key_is_as_arrays_make_it(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    values = [data.draw(strategy) for _, strategy in kinds]
    places = data.draw(st.permutations(range(len(kinds))))[: data.draw(st.integers(1, len(kinds)))]
    code = code_of([kind for kind, _ in kinds], list(places))
    columns = [pa.array([value], kind) for value, (kind, _) in zip(values, kinds, strict=True)]
    key = code.key(values)
    assert [key] == keys.whole(columns)
    assert key is not None
    raw = code.split(key)
    assert [column.to_pylist()[0] for column in code.batch(raw).columns] == values
    assert code.bucket(key, raw) == keys.buckets([columns[i] for i in places], 7)[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 2**31),
        (pa.int32(), True),
        (pa.int64(), 1.0),
        (pa.int64(), None),
        (pa.string(), b"a"),
        (pa.string(), "\ud800"),
        (pa.binary(), "a"),
        (pa.binary(3), b"ab"),
    ],
)
def test_a_value_of_another_kind_is_left_to_the_casts(kind: pa.DataType, value: Any) -> None:
    assert code_of([kind], [0]).key([value]) is None


@given(st.binary(max_size=12))
def test_any_bytes_are_a_key_or_refused(given_bytes: bytes) -> None:
    code = code_of([pa.string(), pa.int32(), pa.string()], [0, 1])
    try:
        raw = code.split(given_bytes)
        values = [column.to_pylist()[0] for column in code.batch(raw).columns]
    except Invalid:
        return
    again = code.key(values)
    assert again is not None
    assert code.split(again) == raw


def test_keys_that_need_arrays_have_no_code() -> None:
    table = define("s.t", pa.schema([("d", pa.date32())]), primary_key=["d"])
    assert KeyCode.of(table) is None
    assert KeyCode.of(define("s.log", pa.schema([("d", pa.int64())]))) is None
