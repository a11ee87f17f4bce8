"""An overlay of the key index: keys to values, and on demand the keys of a table in order, for look-ups by prefix.

Only tables that are asked for pay: new keys wait in the lists that they came in until somebody asks, then become a
sorted run; runs are merged as they double.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from lakestore.server.index_worker import FLAG

Entries = list[tuple[Sequence[bytes], Sequence[int]]]
"""Keys and values of several ranges."""


@dataclass(frozen=True, slots=True)
class Range:
    """The first live keys of a range."""

    keys: list[bytes]
    values: list[int]
    end: bytes | None
    """The last key up to which they are complete; None: to the range's end."""


def merged(sources: Entries, most: int) -> Range:
    """What several sources, newest first, have of a range; each gave its first keys, at most that many."""
    cut = [keys[-1] for keys, _ in sources if len(keys) >= most]
    end = min(cut) if cut else None
    values: dict[bytes, int] = {}
    for keys, offsets in reversed(sources):
        values.update(zip(keys, offsets, strict=True))
    kept = sorted(key for key, value in values.items() if 0 <= value < FLAG and (end is None or key <= end))
    return Range(kept, [values[key] for key in kept], end)


class KeyOrder:
    """The keys of one table in one overlay. Who adds or reads holds the overlay's lock."""

    def __init__(self, *, is_whole: bool) -> None:
        self._merging = threading.Lock()
        self._runs: tuple[list[bytes], ...] = ()
        self._waiting: list[Sequence[bytes]] = []
        self.is_whole = is_whole
        """Whether the keys that were there before it are here."""
        self.is_used = False
        """Whether somebody has asked."""

    def add(self, keys: Sequence[bytes]) -> None:
        """Keys, known or new."""
        self._waiting.append(keys)

    def fill(self, keys: Iterable[bytes], prefix: bytes) -> None:
        """The first keys, out of all tables'; who settles meanwhile waits for them."""
        with self._merging:
            self._runs = (sorted(key for key in keys if key.startswith(prefix)),)
            self.is_whole = True

    def settle(self, lock: threading.Lock) -> None:
        """Sort what waits and merge small runs; the overlay's lock is held for the exchange only."""
        self.is_used = True
        with self._merging:
            waiting = self._waiting[:]
            runs = [*self._runs, sorted(set(chain.from_iterable(waiting)))] if waiting else list(self._runs)
            while len(runs) > 1 and 2 * len(runs[-1]) >= len(runs[-2]):
                last = runs.pop()
                runs[-1] = list(dict.fromkeys(sorted(runs[-1] + last)))
            with lock:
                self._runs = tuple(runs)
                del self._waiting[: len(waiting)]

    def between(self, low: bytes, high: bytes, most: int) -> list[bytes]:
        """The first keys of [low, high), in order."""
        found: list[bytes] = []
        for run in self._runs:
            first = bisect_left(run, low)
            found += run[first : min(bisect_left(run, high, first), first + most)]
        for keys in self._waiting:
            found += [key for key in keys if low <= key < high]
        if len(self._runs) > 1 or self._waiting:
            found = sorted(set(found))
        return found[:most]


class Overlay(dict[bytes, int]):
    """Keys to values that are newer than LMDB's."""

    __slots__ = ("_creating", "_highest", "_orders")

    def __init__(self, entries: dict[bytes, int] | None = None, orders: Iterable[bytes] = ()) -> None:
        super().__init__(entries or {})
        self._creating = threading.Lock()
        self._orders = {prefix: KeyOrder(is_whole=not entries) for prefix in orders}
        # By table; unknown where it was not put here.
        self._highest: dict[bytes, bytes] | None = None if entries else {}

    def put(self, keys: Sequence[bytes], values: Iterable[int]) -> None:
        """New values of keys of one table."""
        if not keys:
            return
        if self._highest is not None:
            prefix = keys[0][:4]
            self._highest[prefix] = max(self._highest.get(prefix, b""), max(keys))
        self.update(zip(keys, values, strict=True))
        if self._orders and (order := self._orders.get(keys[0][:4])) is not None:
            order.add(keys)

    def is_below(self, keys: Sequence[bytes]) -> bool:
        """Whether these keys of one table lie above all that are here of it: then none of them is."""
        if self._highest is None:
            return False
        highest = self._highest.get(keys[0][:4], b"")
        return keys[0] > highest and min(keys) > highest

    def following(self) -> Overlay:
        """What comes after this one, which keeps in order what was asked for."""
        return Overlay(orders=[prefix for prefix, order in self._orders.items() if order.is_used])

    def arrange(self, prefix: bytes, lock: threading.Lock) -> None:
        """Have a table's keys in order for `between`; `lock` is the overlay's own."""
        with self._creating:
            order = self._orders.get(prefix)
            if order is None:
                order = KeyOrder(is_whole=False)
                with lock:  # from here on new keys are added to it
                    present = list(self)
                    self._orders[prefix] = order
                order.fill(present, prefix)
        order.settle(lock)

    def between(self, low: bytes, high: bytes, most: int) -> list[bytes] | None:
        """The first keys of [low, high), in order; None where they are not arranged yet. Under the overlay's lock."""
        order = self._orders.get(low[:4])
        return order.between(low, high, most) if order is not None and order.is_whole else None
