"""Spans: the places of binary values and texts in the bytes that hold them all, without a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int32]


def spans(values: pa.BinaryArray | pa.StringArray) -> tuple[Places, Bytes]:
    """The place where each value begins, and behind them that where the last one ends; and the bytes.

    Under a null there may be bytes that are nobody's.
    """
    if not len(values):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    places = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return places, np.frombuffer(values.buffers()[2] or b"", np.uint8)
