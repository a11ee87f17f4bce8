"""The hash by which runs find keys of bytes: keyed by a secret of the index, so that nobody forges keys of one hash.

The secret stands in each run. A rebuild keeps it.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache

from lakestore_server.arrays.padded_bytes import SECRET_BYTES, HashSecrets, PaddedBytes, Words, hash_of

SEED_BYTES = 32


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
