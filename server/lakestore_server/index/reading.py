"""Look-ups in the key index that have begun: what was true at one moment, to be finished after the lock is let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakestore_server.index.entry import Ints
from lakestore_server.index.keys import IndexKeys
from lakestore_server.index.levels import Levels
from lakestore_server.index.overlay import Entries, Overlay


@dataclass(frozen=True, slots=True)
class Reading:
    """Look-ups begun under the overlay lock, to be finished outside it; answers of another generation do not count."""

    keys: IndexKeys
    values: Ints
    older: tuple[Overlay, ...]
    lsn_max: int
    """LMDB may have moved on to here and still answer as of the moment of the reading."""
    generation: int
    levels: Levels


@dataclass(frozen=True, slots=True)
class RangeReading:
    """A `Reading` of ranges of keys."""

    bounds: Sequence[tuple[bytes, bytes]]
    most: int
    """Keys of each range."""
    newest: Entries
    older: tuple[Overlay, ...]
    lsn_max: int
    generation: int
    levels: Levels


def listed(keys: IndexKeys, values: Ints) -> tuple[Sequence[bytes], list[int]]:
    """Keys and values as lists, as `Entries` have them."""
    return keys.listed(), values.tolist()
