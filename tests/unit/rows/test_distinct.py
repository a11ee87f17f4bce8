"""`distinct`, against a set of Python."""

from __future__ import annotations

import numpy as np
import pytest

from lakestore.rows.distinct import distinct
from lakestore.rows.ranges import OffsetSet


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32])
@pytest.mark.parametrize("values", [[], [5], [3, 3, 3], [9, 1, 1, 4, 9, 0]])
def test_distinct_values_are_sorted(values: list[int], kind: type[np.generic]) -> None:
    given = np.array(values, dtype=kind)
    assert distinct(given).tolist() == sorted(set(values))
    assert distinct(given).dtype == given.dtype
    assert given.tolist() == values, "the given array stays as it was"


def test_offsets_of_several_parts_cross_the_wire() -> None:
    parts = [np.array([7, 1 << 33, 5]), np.array([], dtype=np.int64), np.array([(1 << 33) + 1, 5])]
    found = OffsetSet.of(parts)
    assert found.values.tolist() == [5, 7, 1 << 33, (1 << 33) + 1]
    assert OffsetSet.decode(found.encode()).values.tolist() == found.values.tolist()
