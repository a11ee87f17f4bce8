"""Copies of a file with one flipped bit each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.support import seeds


def flipped(path: Path, count: int, seed: int) -> Iterator[Path]:
    """So many, beside the file."""
    good = path.read_bytes()
    rng = np.random.default_rng(int(seeds.seed(seed)))
    for at in rng.integers(0, len(good), count):
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(0, 8))
        other = path.parent / f"{at}{path.suffix}"
        other.write_bytes(damaged)
        yield other
