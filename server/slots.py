"""Keys that the index keeps as prefix and hash: which slot of the hash is whose.

What is found under a hashed key is compared with the row's whole key; a key that finds another one's row there goes
on to the next slot. A chain of slots has no gaps: a delete leaves a flagged entry, a link, where a further slot is in
use. Values of hashed keys carry their bucket, for keys of one hash may lie in different ones. Other keys cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore import keys
from lakestore.server.index import ABSENT, FLAG, OFFSET_BITS, OFFSET_MASK, plain
from lakestore.server.state import TableState

Ints = npt.NDArray[np.int64]
Ask = Callable[[Sequence[bytes]], Ints]
_SLOTS_AT_FIRST = 2
"""A key's own slot, and whether the next one is in use."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Keys for the index, and the columns that they were made of, of the table's current version."""

    keys: Sequence[bytes]
    columns: Sequence[pa.Array]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Keys with their slots, which no two keys share, and what the index says of them."""

    keys: Sequence[bytes]
    values: Ints
    """Live offset, flagged offset or ABSENT."""
    links: frozenset[bytes] = frozenset()
    """Keys whose entries stay when they are deleted: a further slot is in use."""


def hashed(index_keys: Sequence[bytes]) -> list[int]:
    """The rows whose keys are prefix and hash."""
    return [i for i, key in enumerate(index_keys) if keys.is_hashed(key)]


def packed(index_keys: Sequence[bytes], values: Ints, buckets: npt.NDArray[np.int32]) -> Ints:
    """Values as the index takes them: those of hashed keys carry the bucket."""
    rows = np.array(hashed(index_keys), dtype=np.int64)
    if not len(rows):
        return values
    rows = rows[values[rows] != ABSENT]
    values = values.copy()
    values[rows] |= (buckets[rows].astype(np.int64) + 1) << OFFSET_BITS
    return values


def resolved(
    state: TableState, asked: Asked, ask: Ask, deletes: npt.NDArray[np.bool_] | None = None
) -> Resolved:
    """Keys by slots, for a commit of rows with these keys; a key that is only deleted takes no slot."""
    rows = hashed(asked.keys)
    if not rows:
        return Resolved(asked.keys, ask(asked.keys))
    whole = keys.whole([column.take(pa.array(rows)) for column in asked.columns])
    chains = _Chains(state, ask)
    chains.load({asked.keys[row] for row in rows})
    placed = _Places(chains, keeps_tombstones=state.table.merge.startswith("versioned"))
    plain_rows = [row for row, key in enumerate(asked.keys) if not keys.is_hashed(key)]
    values = np.empty(len(asked.keys), dtype=np.int64)
    values[plain_rows] = ask([asked.keys[row] for row in plain_rows]) if plain_rows else []
    buckets = _buckets(state, asked, rows)
    new_keys = list(asked.keys)
    taken = {key for row, key in zip(rows, whole, strict=True) if deletes is None or not deletes[row]}
    for row, key, bucket in zip(rows, whole, buckets.tolist(), strict=True):
        new_keys[row], values[row] = placed.of(asked.keys[row], key, bucket, takes=key in taken)
    return Resolved(new_keys, values, placed.links(new_keys[row] for row in rows))
