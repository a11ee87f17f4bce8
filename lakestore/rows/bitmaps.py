"""Roaring bitmaps of 64-bit numbers as values of `binary` columns.

The bytes have roaring's portable 64-bit format, which its libraries in other languages read and write.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakestore.errors import Invalid

_NO_RUNS = 12346
_COUNT_BYTES = 8
"""Bytes at the start of every bitmap. The library reads them even if the input is shorter."""
_ONE = np.dtype(
    [
        ("bitmaps", "<u8"),
        ("high", "<u4"),
        ("cookie", "<u4"),
        ("containers", "<u4"),
        ("middle", "<u2"),
        ("last", "<u2"),
        ("place", "<u4"),
        ("low", "<u2"),
    ]
)
"""A bitmap with one member."""


def bitmap(values: Iterable[int]) -> bytes:
    """A value for a `bitmap` column: the set of these numbers, which are not negative."""
    if isinstance(values, bytes):
        raise Invalid("ls.bitmap takes numbers; the bytes of a bitmap are read by BitMap64.deserialize of pyroaring")
    return bytes(BitMap64(values).serialize())


def opened(data: bytes) -> BitMap64:
    """The set in the bytes. Raises `ValueError` for other bytes."""
    if len(data) < _COUNT_BYTES:
        raise ValueError("a bitmap begins with the number of its parts")
    return BitMap64.deserialize(data)


def singles(numbers: pa.Array, path: str) -> pa.Array:
    """Bitmaps with one member each. Null stays null."""
    low = pc.min(numbers).as_py()
    if low is not None and low < 0:
        row = pc.index(pc.less(numbers, 0), True).as_py()
        raise Invalid(f"{path}, row {row}: {numbers[row].as_py()} is negative, which no member of a bitmap is")
    values = pc.fill_null(numbers, 0).cast(pa.uint64()).to_numpy()
    made = np.zeros(len(values), dtype=_ONE)
    made["bitmaps"], made["cookie"], made["containers"], made["place"] = 1, _NO_RUNS, 1, 16
    made["high"] = values >> np.uint64(32)
    made["middle"] = (values >> np.uint64(16)) & np.uint64(0xFFFF)
    made["low"] = values & np.uint64(0xFFFF)
    whole = pa.Array.from_buffers(pa.binary(_ONE.itemsize), len(made), [None, pa.py_buffer(made.tobytes())])
    return pc.if_else(pc.is_valid(numbers), whole.cast(pa.binary()), pa.scalar(None, pa.binary()))


def normalised(column: pa.Array, path: str) -> pa.Array:
    """Check bitmaps from outside and write them in this library's form."""
    made: list[bytes | None] = []
    for row, data in enumerate(column.to_pylist()):
        try:
            made.append(None if data is None else bytes(opened(data).serialize()))
        except (ValueError, OverflowError, MemoryError) as error:
            raise Invalid(f"{path}, row {row}: the bytes are no portable 64-bit roaring bitmap") from error
    return pa.array(made, pa.binary())
