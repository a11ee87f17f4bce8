"""Offsets and prevs, against a model that goes row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore_server.commit.draft import ABSENT, assign
from lakestore_server.index.keys import encoded
from lakestore_server.state.chunk import DELETE, INSERT, UPDATE

BUCKETS = 3


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=40),
    st.dictionaries(st.integers(0, 8), st.integers(0, 99)),
)
def test_rows_are_numbered_as_one_by_one(kind: pa.DataType, rows: list[tuple[int, bool]], live: dict[int, int]) -> None:
    keys = encoded([pa.array([key for key, _ in rows], pa.int64()).cast(kind)], b"\0\0\0\1")
    deletes = np.array([delete for _, delete in rows], dtype=np.bool_)
    buckets = np.array([key % BUCKETS for key, _ in rows], dtype=np.int32)
    before = np.array([live.get(key, ABSENT) for key, _ in rows], dtype=np.int64)
    heads = [100, 200, 300]
    found = assign(keys, deletes, buckets, before, heads)
    now, next_offset = dict(live), list(heads)
    for i, (key, delete) in enumerate(rows):
        prev = now.get(key, ABSENT)
        if delete and prev == ABSENT:
            assert not found.kept[i]
            continue
        offset = next_offset[key % BUCKETS]
        next_offset[key % BUCKETS] += 1
        assert found.kept[i]
        assert (found.offset[i], found.prev[i]) == (offset, prev)
        assert found.change[i] == (DELETE if delete else INSERT if prev == ABSENT else UPDATE)
        if delete:
            del now[key]
        else:
            now[key] = offset
