"""CRC32C of mapped files without the interpreter's lock, so that other threads run while the disk delivers pages.

The Python package holds the lock during the computation, so its C library is called directly.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

Crcs = npt.NDArray[np.uint32]


def folded(crcs: Crcs, count: int, block: int) -> Crcs:
    """The checksum of each group of `count` blocks, computed from the blocks' checksums. A remainder of fewer blocks
    has none.
    """
    first, second, third, fourth = _arrays(block)
    crc = np.zeros(len(crcs) // count, dtype=np.uint32)
    for own in crcs[: len(crc) * count].reshape(-1, count).T:
        crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ own
    return crc


@cache
def behind_a_block(block: int) -> tuple[list[int], ...]:
    """For each byte of a checksum, lowest first, and each of its values: its contribution after one more block."""
    zeros = bytes(block)
    nothing = google_crc32c.value(zeros)
    return tuple(
        [google_crc32c.extend(value << shift, zeros) ^ nothing for value in range(256)] for shift in (0, 8, 16, 24)
    )


@cache
def _arrays(block: int) -> tuple[Crcs, ...]:
    return tuple(np.array(table, dtype=np.uint32) for table in behind_a_block(block))


def _extend() -> Any:
    """The function of the C library; None if the package does not export it."""
    try:
        module = importlib.import_module("google_crc32c._crc32c")
        extend = ctypes.CDLL(module.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None
    extend.argtypes, extend.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return extend


_EXTEND = _extend()


def crc32c_of_mapping(data: Any) -> int:
    """CRC32C of a piece of a mapped file: an Arrow buffer or a view."""
    piece = np.frombuffer(data, np.uint8)
    return int(google_crc32c.value(piece.copy())) if _EXTEND is None else int(_EXTEND(0, piece.ctypes.data, len(piece)))
