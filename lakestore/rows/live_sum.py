"""The live sum: a sum modulo 2^64 of a mixed hash of every live offset of a bucket.

A commit adds the offset of every insert and update, and subtracts every superseded offset. Two copies with the same
live rows have the same sum, so a lost or doubled row shows at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1


def mixed(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """splitmix64 of each offset."""
    x = offsets.astype(np.uint64)
    x += np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _mixed_one(offset: int) -> int:
    x = (offset + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def live_sum(offsets: npt.NDArray[np.int64]) -> int:
    """The live sum of exactly these offsets."""
    if len(offsets) == 1:  # for a single write arrays cost more than they save
        return _mixed_one(int(offsets[0]))
    return int(mixed(offsets).sum(dtype=np.uint64)) if len(offsets) else 0


def moved(total: int, born: npt.NDArray[np.int64], died: npt.NDArray[np.int64]) -> int:
    """The sum after `born` came to life and `died` were superseded."""
    return (total + live_sum(born) - live_sum(died)) & _MASK
