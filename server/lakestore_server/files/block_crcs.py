"""Checksums of blocks: CRC32C of each 64 KB of some bytes, and with them that of bytes before and all of these.

The checksum of A and a whole block B is made of both of theirs: CRC32C is linear, so behind 64 KB of anything the one
of A is the sum of what each of its four bytes becomes behind 64 KB of zeros. So bytes are gone through once for both.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.rows.ipc import crc32c

BLOCK = 64 << 10
"""Bytes that one checksum covers."""


def blocks_of(size: int) -> int:
    """The number of blocks in so many bytes."""
    return -(-size // BLOCK)


def block_crcs(*parts: pa.Buffer) -> npt.NDArray[np.uint32]:
    """The checksum of each block of parts that lie behind one another."""
    found: list[int] = []
    crc = filled = 0
    for part in parts:
        at = 0
        while at < part.size:
            taken = min(BLOCK - filled, part.size - at)
            crc = crc32c(part.slice(at, taken), crc)
            at, filled = at + taken, filled + taken
            if filled == BLOCK:
                found.append(crc)
                crc = filled = 0
    if filled:
        found.append(crc)
    return np.array(found, dtype=np.uint32)


def extended(data: pa.Buffer, crc: int) -> tuple[int, npt.NDArray[np.uint32]]:
    """(the checksum of what was before and all of this, those of the blocks of this)."""
    found = [crc32c(data.slice(at, min(BLOCK, data.size - at))) for at in range(0, data.size, BLOCK)]
    crcs = np.array(found, dtype=np.uint32)
    return joined(crc, data, crcs), crcs


def joined(crc: int, data: pa.Buffer, crcs: npt.NDArray[np.uint32]) -> int:
    """The checksum of what was before and of bytes whose blocks have these: only a block cut short is gone through."""
    first, second, third, fourth = _behind_a_block()
    for own in crcs[: data.size // BLOCK].tolist():
        crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ own
    rest = data.size % BLOCK
    return crc32c(data.slice(data.size - rest), crc) if rest else crc


@cache
def _behind_a_block() -> tuple[list[int], ...]:
    """For each byte of a checksum, the lowest first, and each of its values: what that becomes behind a block."""
    zeros = bytes(BLOCK)
    nothing = crc32c(zeros)
    return tuple([crc32c(zeros, value << shift) ^ nothing for value in range(256)] for shift in (0, 8, 16, 24))
