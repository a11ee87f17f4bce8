"""Whether rows shrink if they are compressed, by a sample of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import pyarrow as pa

SAMPLES, SAMPLE_BYTES = 8, 2 << 10
"""Samples of a part that are compressed as a test, and the bytes of each."""
GOLDEN = 0.6180339887498949
"""The samples are at multiples of the golden ratio, so that they meet columns of equal width at different places."""


def compresses(part: Sequence[pa.Buffer], percent: int) -> bool:
    """Whether a sample of a part, spread over it, compresses to `percent`. A small part is its own sample."""
    size = sum(buffer.size for buffer in part)
    if size < 4 * SAMPLES * SAMPLE_BYTES:
        sample = b"".join(map(memoryview, part))
    else:
        ends = list(itertools.accumulate(buffer.size for buffer in part))
        places = (int(size * ((number + 0.5) * GOLDEN % 1)) for number in range(SAMPLES))
        sample = b"".join(_piece(part, ends, at) for at in places)
    return bool(100 * pa.Codec("lz4").compress(sample).size <= percent * len(sample))


def _piece(part: Sequence[pa.Buffer], ends: Sequence[int], at: int) -> bytes:
    number = bisect.bisect_right(ends, at)
    buffer, inside = part[number], at - (ends[number] - part[number].size)
    return bytes(buffer[inside : inside + SAMPLE_BYTES])
