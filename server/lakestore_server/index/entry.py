"""One entry of the key index: a key, which begins with its table's prefix, and a value of 64 bits.

A value is the offset of the key's live row, a flagged offset, or ABSENT.
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
    """The files of the index cannot be trusted, so it must be rebuilt."""


class KeyHash:
    """The hash function of one index."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self._secrets = HashSecrets(hashlib.shake_256(seed).digest(SECRET_BYTES))

    def many(self, keys: PaddedBytes) -> Words:
        """The hash of each key."""
        return keys.hashes(self._secrets)

    def one(self, key: bytes) -> int:
        """The hash of one key, equal to that of `many`."""
        return hash_of(key, self._secrets)


@lru_cache(maxsize=16)
def key_hash(seed: bytes) -> KeyHash:
    """The hash function of a seed."""
    return KeyHash(seed)


def new_seed() -> bytes:
    """A secret seed for a new index."""
    return secrets.token_bytes(SEED_BYTES)


Ints = npt.NDArray[np.int64]
PREFIX_BYTES = 4
ABSENT, DAMAGED = -1, -2
"""Special values: no entry; an entry that does not match its check."""
FLAG = 1 << 62
"""Set in a value without a live row: its offset is that of a tombstone that is kept for the key."""
OFFSET_BITS = 45
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""The offset in a value. The value of a hashed key has its bucket plus one in the bits above."""


def table_prefix(number: int) -> bytes:
    """The bytes with which every key of a table begins."""
    return number.to_bytes(PREFIX_BYTES, "big")


@dataclass(frozen=True, slots=True)
class ServedTables:
    """The tables whose entries are needed: the tables of a view, and all later tables."""

    prefixes: frozenset[bytes]
    later: bytes
    """Tables from this prefix on are later ones."""

    def serves(self, prefix: bytes) -> bool:
        """Whether entries of a table are needed."""
        return prefix in self.prefixes or prefix >= self.later


ALL_TABLES = ServedTables(frozenset(), b"")


def is_live(values: Ints) -> npt.NDArray[np.bool_]:
    """Whether each value names a live row."""
    return (values >= 0) & (values < FLAG)


def live(values: Ints) -> Ints:
    """Values for readers: flagged ones become ABSENT."""
    return np.where(values >= FLAG, ABSENT, values)
