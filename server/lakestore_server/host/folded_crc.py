"""The CRC32C of many blocks from those of each: nothing is gone through again.

The checksum of A and a whole block B is made of both of theirs: CRC32C is linear, so behind a block of anything the one
of A is the sum of what each of its four bytes becomes behind a block of zeros.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from lakestore.rows.ipc import crc32c

Crcs = npt.NDArray[np.uint32]


def folded(crcs: Crcs, count: int, block: int) -> Crcs:
    """The checksum of each `count` blocks of so many bytes, all whole; what is left at the end has none."""
    first, second, third, fourth = _arrays(block)
    crc = np.zeros(len(crcs) // count, dtype=np.uint32)
    for own in crcs[: len(crc) * count].reshape(-1, count).T:
        crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ own
    return crc


@cache
def behind_a_block(block: int) -> tuple[list[int], ...]:
    """For each byte of a checksum, the lowest first, and each of its values: what that becomes behind a block."""
    zeros = bytes(block)
    nothing = crc32c(zeros)
    return tuple([crc32c(zeros, value << shift) ^ nothing for value in range(256)] for shift in (0, 8, 16, 24))


@cache
def _arrays(block: int) -> tuple[Crcs, ...]:
    return tuple(np.array(table, dtype=np.uint32) for table in behind_a_block(block))
