"""Checksums of blocks: CRC32C of each 64 KB of some bytes, or of each 4 KB where few are read at a time.

Bytes are gone through once for those of blocks and that of all.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakestore.rows.ipc import crc32c
from lakestore_server.host.folded_crc import Crcs, behind_a_block
from lakestore_server.host.stages import stage

BLOCK = 64 << 10
"""Bytes that one checksum covers."""
FINE_BLOCK = 4 << 10
"""Bytes of one where rows are looked up one by one."""
STAGE_BLOCKS = 64
"""Blocks that are gone through at a stretch."""


def blocks_of(size: int, block: int = BLOCK) -> int:
    """The number of blocks in so many bytes."""
    return -(-size // block)


def block_crcs(*parts: pa.Buffer, block: int = BLOCK) -> Crcs:
    """The checksum of each block of parts that lie behind one another."""
    found: list[int] = []
    crc = filled = 0
    for part in parts:
        at = 0
        while at < part.size:
            taken = min(block - filled, part.size - at)
            crc = crc32c(part.slice(at, taken), crc)
            at, filled = at + taken, filled + taken
            if filled == block:
                found.append(crc)
                crc = filled = 0
                if not len(found) % STAGE_BLOCKS:
                    stage()
    if filled:
        found.append(crc)
    return np.array(found, dtype=np.uint32)


def extended(data: pa.Buffer, crc: int) -> tuple[int, Crcs]:
    """(the checksum of what was before and all of this, those of the blocks of this)."""
    found = [crc32c(data.slice(at, min(BLOCK, data.size - at))) for at in range(0, data.size, BLOCK)]
    crcs = np.array(found, dtype=np.uint32)
    return joined(crc, data, crcs), crcs


def joined(crc: int, data: pa.Buffer, crcs: Crcs) -> int:
    """The checksum of what was before and of bytes whose blocks have these: only a block cut short is gone through."""
    first, second, third, fourth = behind_a_block(BLOCK)
    for own in crcs[: data.size // BLOCK].tolist():
        crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ own
    rest = data.size % BLOCK
    return crc32c(data.slice(data.size - rest), crc) if rest else crc
