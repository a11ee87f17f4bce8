"""The distinct values of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sorted and distinct values of numbers. `numpy.unique` has a hash table: with millions of different values it
    takes a hundred times as long. For few different values, such as buckets, it is as good.
    """
    return without_repeats(np.sort(values))


def without_repeats(ordered: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct values of a sorted array."""
    is_first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
