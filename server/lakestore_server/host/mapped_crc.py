"""CRC32C of mapped files: other threads compute meanwhile, and need not wait until the disk has given the pages.

The package that has the function keeps the interpreter's lock while it runs, so the C library behind it is called.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore.rows.ipc import crc32c


def _extend() -> Any:
    """The function of the C library; None where the package has none that can be called."""
    try:
        module = importlib.import_module("google_crc32c._crc32c")
        extend = ctypes.CDLL(module.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None
    extend.argtypes, extend.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return extend


_EXTEND = _extend()


def crc32c_of_mapped(data: pa.Buffer) -> int:
    """CRC32C of a piece of a mapped file."""
    if _EXTEND is None:
        return crc32c(np.frombuffer(data, np.uint8).copy())
    return int(_EXTEND(0, data.address, data.size))
