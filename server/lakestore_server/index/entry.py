"""One entry of the key index: a key, which begins with its table's prefix, and a value of 64 bits.

A value is the offset of a key's live row, a flagged offset, or ABSENT.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lakestore.errors import Unavailable
from lakestore_server.arrays.padded_bytes import SECRET_BYTES, HashSecrets, PaddedBytes, Words, hash_of

SEED_BYTES = 32


class DamagedIndex(Unavailable):
    """The files of the index cannot be trusted: the index must be rebuilt."""


class KeyHash:
    """The hash of one index."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self._secrets = HashSecrets(hashlib.shake_256(seed).digest(SECRET_BYTES))

    def many(self, keys: PaddedBytes) -> Words:
        """The hash of each key."""
        return keys.hashes(self._secrets)

    def one(self, key: bytes) -> int:
        """The hash that `many` gives one key."""
        return hash_of(key, self._secrets)


@lru_cache(maxsize=16)
def key_hash(seed: bytes) -> KeyHash:
    """The hash of a seed."""
    return KeyHash(seed)


def new_seed() -> bytes:
    """A secret for an index that has none."""
    return secrets.token_bytes(SEED_BYTES)


Ints = npt.NDArray[np.int64]
PREFIX_BYTES = 4
ABSENT, DAMAGED = -1, -2
"""In place of a value: no entry; an entry that does not match its check."""
FLAG = 1 << 62
"""Set in a value that names no live row: the offset, without it, is of a record that is remembered for its key."""
OFFSET_BITS = 45
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""The offset in a value; that of a hashed key has its bucket, plus one, above it."""


def table_prefix(number: int) -> bytes:
    """The bytes that every key of a table begins with."""
    return number.to_bytes(PREFIX_BYTES, "big")


@dataclass(frozen=True, slots=True)
class ServedTables:
    """The tables whose entries are needed: the tables of a view, and all later tables."""

    prefixes: frozenset[bytes]
    later: bytes
    """Tables from this prefix on came later."""

    def serves(self, prefix: bytes) -> bool:
        """Whether entries of a table are needed."""
        return prefix in self.prefixes or prefix >= self.later


ALL_TABLES = ServedTables(frozenset(), b"")


def is_live(values: Ints) -> npt.NDArray[np.bool_]:
    """Which values name a live row."""
    return (values >= 0) & (values < FLAG)


def live(values: Ints) -> Ints:
    """Values as readers take them: a flagged one is ABSENT."""
    return np.where(values >= FLAG, ABSENT, values)
