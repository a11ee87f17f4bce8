"""Index values that a request's own thread looks up in the runs before the commit loop needs them.

- The loop is one thread, and looking keys up in runs is half of an upsert's cost at 50 M keys (measured). Runs never
  change.
- Requests that need not wait get no hint: the loop looks up while the next request is decoded.
- A hint is combined with the runs and overlays that came after its look-up: each run has the number of the adoption
  that brought its newest entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lakestore_server.arrays.grouping import Flags
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.index.entry import DamagedIndex, Ints
from lakestore_server.index.keys import IndexKeys, joined
from lakestore_server.index.levels import Levels

HINTED_MIN = 256
"""A request with at least this many keys has them looked up ahead; fewer keys cost less in a group's look-up."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Values of a request's keys in the levels at one moment."""

    keys: IndexKeys
    """The keys. A hint applies to exactly these."""
    generation: int
    """The generation of the index's files."""
    levels: Levels
    values: Ints
    """`MISS` for keys that no run has."""

    @staticmethod
    def of(several: Sequence[IndexKeys], generation: int, levels: Levels) -> list[Hint | None]:
        """The values of each change's keys; None for a change with few keys. Changes of one table share a look-up."""
        hints: list[Hint | None] = [None] * len(several)
        by_table: dict[bytes, list[int]] = {}
        for at, keys in enumerate(several):
            if len(keys) >= HINTED_MIN:
                by_table.setdefault(keys.prefix, []).append(at)
        try:
            for places in by_table.values():
                mine = [several[at] for at in places]
                values = np.split(levels.find(joined(mine)), np.cumsum([len(keys) for keys in mine[:-1]]))
                for at, keys, found in zip(places, mine, values, strict=True):
                    hints[at] = Hint(keys, generation, levels, found)
        except DamagedIndex:  # the loop will find the damage too, if it needs the entry
            pass
        return hints


Hints = Sequence[tuple[int, Hint | None]]
"""The lengths of consecutive ranges of a look-up's keys, each with its hint if it has one."""


def find(levels: Levels, generation: int, keys: IndexKeys, rows: Ints, hints: Hints) -> Ints:
    """`levels.find` for some rows, ascending, of keys with hints."""
    values = np.full(len(rows), MISS, dtype=np.int64)
    known = np.zeros(len(rows), dtype=np.bool_)
    first = 0
    for count, hint in hints:
        begin, end = np.searchsorted(rows, (first, first + count))
        if hint is not None and hint.generation == generation and begin < end:
            values[begin:end], known[begin:end] = _of(hint, levels, keys, rows[begin:end], first)
        first += count
    asked = np.flatnonzero(~known)
    if len(asked):
        values[asked] = levels.find(keys.take(rows[asked]))
    return values


def _of(hint: Hint, levels: Levels, keys: IndexKeys, rows: Ints, first: int) -> tuple[Ints, Flags]:
    """(values, whether each is known) of a look-up's rows. The hint's keys begin at `first`."""
    values = hint.values[rows - first]
    newer = levels.behind(hint.levels)
    if newer is None:
        return values, np.zeros(len(rows), dtype=np.bool_)
    if newer.runs:
        found = newer.find(keys.take(rows))
        np.copyto(values, found, where=found != MISS)
    return values, np.ones(len(rows), dtype=np.bool_)
