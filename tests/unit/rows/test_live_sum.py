"""The live sum of one offset, made without arrays, is that of arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakestore.rows.live_sum import live_sum, mixed


@given(st.integers(0, 2**63 - 1))
def test_the_sum_of_one_offset_is_that_of_many(offset: int) -> None:
    pair = np.array([offset, 5])
    assert live_sum(pair[:1]) == int(mixed(pair)[0])
    assert live_sum(pair) == (live_sum(pair[:1]) + live_sum(pair[1:])) % 2**64
