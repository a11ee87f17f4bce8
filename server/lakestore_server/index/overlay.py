"""An overlay of the key index: keys to values in memory and, on demand, a table's keys in order for look-ups by
prefix.

Each table has a part of its own: a hash table of numbers or of byte strings. Only tables that need an order pay for it:
new keys wait in batches until an order is needed, then become a sorted list; lists are merged as they double.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestore_server.arrays.bytes_table import BytesTable
from lakestore_server.arrays.hash_table import MISS, HashTable
from lakestore_server.index.entry import FLAG, PREFIX_BYTES, ServedTables
from lakestore_server.index.keys import NO_KEYS, ByteKeys, IndexKeys, NumberKeys, joined

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
_STEP = 7
MOVED_MAX = 1 << 16
"""A full hash table of numbers with at most so many keys is moved to a larger one."""
_NO_VALUES: Ints = np.empty(0, dtype=np.int64)
_WORDS_EACH = 4
"""The assumed number of words of a key while there is none."""

Entries = list[tuple[Sequence[bytes], Sequence[int]]]
"""Keys and values of several ranges."""


@dataclass(frozen=True, slots=True)
class Range:
    """The first live keys of a range."""

    keys: list[bytes]
    values: list[int]
    end: bytes | None
    """The last key up to which the keys are complete; None if they are complete to the range's end."""


def merged(sources: Entries, most: int) -> Range:
    """The live keys of a range in several sources, newest first. Each source gave its first keys, at most `most`."""
    cut = [keys[-1] for keys, _ in sources if len(keys) >= most]
    end = min(cut) if cut else None
    values: dict[bytes, int] = {}
    for keys, offsets in reversed(sources):
        values.update(zip(keys, offsets, strict=True))
    kept = sorted(key for key, value in values.items() if 0 <= value < FLAG and (end is None or key <= end))
    return Range(kept, [values[key] for key in kept], end)


class KeyOrder:
    """The keys of one table in one overlay, in order. Adding and reading need the overlay's lock."""

    def __init__(self, *, is_whole: bool) -> None:
        self._merging = threading.Lock()
        self._runs: tuple[IndexKeys, ...] = ()
        self._waiting: list[IndexKeys] = []
        self.is_whole = is_whole
        """True if the order includes the keys that were there before it was requested."""
        self.is_used = False
        """Whether the order was ever used."""

    def add(self, keys: IndexKeys) -> None:
        """Add keys. Known keys may be among them."""
        self._waiting.append(keys)

    def fill(self, keys: IndexKeys) -> None:
        """Add the first keys while `settle` waits."""
        with self._merging:
            self._runs = (keys.ascending(),)
            self.is_whole = True

    def settle(self, lock: threading.Lock) -> None:
        """Sort the waiting keys and merge small lists. The overlay's lock is held only for the exchange."""
        self.is_used = True
        with self._merging:
            waiting = self._waiting[:]
            runs = [*self._runs, joined(waiting).ascending()] if waiting else list(self._runs)
            while len(runs) > 1 and 2 * len(runs[-1]) >= len(runs[-2]):
                last = runs.pop()
                runs[-1] = joined([runs[-1], last]).ascending()
            with lock:
                self._runs = tuple(runs)
                del self._waiting[: len(waiting)]

    def between(self, low: bytes, high: bytes, most: int) -> IndexKeys:
        """The first keys of [low, high), in order."""
        found: list[IndexKeys] = []
        for run in self._runs:
            first = run.at(low)
            found.append(run.part(slice(first, min(run.at(high), first + most))))
        found += [keys.within(low, high) for keys in self._waiting]
        several = len(self._runs) > 1 or self._waiting
        return joined(found).ascending().part(slice(most)) if several else joined(found)


class NumberTables:
    """The part of a table whose keys are numbers of one width: hash tables, newest first."""

    __slots__ = ("tables", "width")

    def __init__(self, width: int, room: int = 0) -> None:
        self.width = width
        self.tables: tuple[HashTable, ...] = (HashTable(room),)

    def __len__(self) -> int:
        return sum(map(len, self.tables))  # a key may be in several

    def get(self, numbers: Numbers) -> Ints:
        """The values; `MISS` for none."""
        first, *others = self.tables
        found = first.get(numbers)
        for table in others:
            missing = np.flatnonzero(found == MISS)
            found[missing] = table.get(numbers[missing])
        return found

    def entries(self) -> tuple[Numbers, Ints]:
        """Each number once, unordered, with its value."""
        parts = [table.entries() for table in self.tables]
        for at, newer in enumerate(self.tables[:-1]):
            for older in range(at + 1, len(parts)):
                numbers, values = parts[older]
                rows = newer.get(numbers) == MISS
                parts[older] = numbers[rows], values[rows]
        return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([values for _, values in parts])

    def with_room(self, step: int) -> tuple[HashTable, ...]:
        """Tables with room for `step` more entries. The present ones are unchanged.

        Moving an entry takes 0.1 µs and stops commits, so a further table is added in front of a large one.
        """
        first, *others = self.tables
        if len(first) <= MOVED_MAX:
            return first.grown(step), *others
        return HashTable(max(step, len(self) // 2)), first, *others


class Overlay:
    """Keys to values that are newer than those in runs."""

    def __init__(self, orders: Iterable[bytes] = (), expected: Mapping[bytes, int] | None = None) -> None:
        """`expected` is the number of keys that may come, for some tables."""
        self._creating = threading.Lock()
        self._orders = {prefix: KeyOrder(is_whole=True) for prefix in orders}
        self._bytes: dict[bytes, BytesTable] = {}
        self._numbers: dict[bytes, NumberTables] = {}
        self._expected = expected or {}

    def __len__(self) -> int:
        parts = tuple(self._bytes.values()), tuple(self._numbers.values())  # another thread may add one meanwhile
        return sum(map(len, parts[0])) + sum(map(len, parts[1]))

    def put(self, keys: IndexKeys, values: Ints) -> None:
        """Set new values of keys of one table."""
        if not len(keys):
            return
        prefix = keys.prefix
        if isinstance(keys, NumberKeys):
            numbers = self._numbers.get(prefix)
            if numbers is None:
                numbers = self._numbers[prefix] = NumberTables(keys.width)
            numbers.tables[0].put(keys.numbers, values)
        else:
            held = self._bytes.get(prefix)
            if held is None:
                held = self._bytes[prefix] = BytesTable()
            if keys.is_few():
                for key, value in zip(keys.listed(), values.tolist(), strict=True):
                    held.put_one(key, value)
            else:
                held.put(keys.padded, keys.hashes, values)
        if self._orders and (order := self._orders.get(prefix)) is not None:
            order.add(keys)

    def make_room(self, prefix: bytes, more: int, lock: threading.Lock) -> None:
        """Let a table's part grow before so many keys are put, if needed. `lock` is the overlay's own."""
        part, held = self._numbers.get(prefix), self._bytes.get(prefix)
        if part is not None and part.tables[0].needs_more(more):
            tables = part.with_room(self._step(prefix, len(part), more))
            with lock:
                part.tables = tables
        elif held is not None and held.needs_more(more, words := _words(held, more)):
            more = self._step(prefix, len(held), more)
            larger = held.grown(more, max(words, _words(held, more)))
            with lock:
                self._bytes[prefix] = larger

    def _step(self, prefix: bytes, held: int, more: int) -> int:
        """The room to make for more keys: more than needed, up to the size of the last overlay."""
        return max(more, min(self._expected.get(prefix, 0) - held, _STEP * (held + more)))

    def get(self, keys: IndexKeys) -> Ints:
        """The values of keys of one table; `MISS` for none."""
        numbers, held = self._numbers.get(keys.prefix), self._bytes.get(keys.prefix)
        count = len(keys)
        if count > 1 and self.is_below(keys):  # for one key the question costs as much as the answer
            return np.full(count, MISS, dtype=np.int64)
        if isinstance(keys, NumberKeys) and numbers is not None:
            return numbers.get(keys.numbers)
        if isinstance(keys, NumberKeys) or held is None:
            return np.full(count, MISS, dtype=np.int64)
        if keys.is_few():
            return np.array([held.one(key) for key in keys.listed()], dtype=np.int64)
        return held.get(keys.padded, keys.hashes)

    def is_below(self, keys: IndexKeys) -> bool:
        """Whether all these keys are above all keys of their table here, so that none of them is here."""
        if isinstance(keys, NumberKeys):
            numbers = self._numbers.get(keys.prefix)
            return (
                numbers is None
                or not len(keys.numbers)
                or all(table.is_below(keys.numbers) for table in numbers.tables)
            )
        held = self._bytes.get(keys.prefix)
        return held is None or keys.above(held.highest)

    def made_ahead(self) -> dict[bytes, NumberTables]:
        """Empty parts for the next overlay, for its large tables of numbers. Callable from any thread.

        Touching the memory of such a table for the first time takes 10 to 30 ms, which the loop then saves.
        """
        parts = list(self._numbers.items())
        return {prefix: NumberTables(part.width, 9 * len(part) // 8) for prefix, part in parts if len(part) > MOVED_MAX}

    def following(self, made: Mapping[bytes, NumberTables] | None = None) -> Overlay:
        """The next overlay, with parts that were made ahead.

        Tables whose order was used keep an order.
        """
        expected = {prefix: len(part) for prefix, part in self._numbers.items()}
        expected |= {prefix: len(held) for prefix, held in self._bytes.items()}
        other = Overlay([prefix for prefix, order in self._orders.items() if order.is_used], expected)
        other._numbers.update(made or {})
        return other

    def keep(self, tables: ServedTables) -> None:
        """Forget the entries of unserved tables. Nothing may be put into this overlay any more."""
        self._orders = {prefix: part for prefix, part in self._orders.items() if tables.serves(prefix)}
        self._numbers = {prefix: part for prefix, part in self._numbers.items() if tables.serves(prefix)}
        self._bytes = {prefix: part for prefix, part in self._bytes.items() if tables.serves(prefix)}

    def of_bytes(self) -> Overlay:
        """The entries with byte keys, as an overlay of their own. Nothing may be put into this one any more."""
        other = Overlay()
        other._bytes = self._bytes
        other._orders = {prefix: order for prefix, order in self._orders.items() if prefix in self._bytes}
        return other

    def parts(self) -> Iterator[tuple[IndexKeys, Ints]]:
        """All keys and values, table by table."""
        for prefix in [*self._numbers, *self._bytes]:
            yield self._part(prefix)

    def _part(self, prefix: bytes) -> tuple[IndexKeys, Ints]:
        if (part := self._numbers.get(prefix)) is not None:
            numbers, values = part.entries()
            return NumberKeys(prefix, part.width, numbers), values
        if (held := self._bytes.get(prefix)) is None:
            return NO_KEYS, _NO_VALUES
        padded, offsets = held.entries()
        return ByteKeys(None, padded), offsets

    def arrange(self, prefix: bytes, lock: threading.Lock) -> None:
        """Sort a table's keys for `between`. `lock` is the overlay's own."""
        with self._creating:
            order = self._orders.get(prefix)
            if order is None:
                order = KeyOrder(is_whole=False)
                with lock:  # from here on new keys are added to it
                    present, _ = self._part(prefix)
                    self._orders[prefix] = order
                try:
                    order.fill(present)
                except BaseException:  # out of memory: the next look-up fills a new one
                    with lock:
                        del self._orders[prefix]
                    raise
        order.settle(lock)

    def between(self, low: bytes, high: bytes, most: int) -> tuple[IndexKeys, Ints] | None:
        """The first keys of [low, high), in order; None if they are not sorted yet. Under the overlay's lock."""
        order = self._orders.get(low[:PREFIX_BYTES])
        if order is None or not order.is_whole:
            return None
        keys = order.between(low, high, most)
        return keys, self.get(keys)


def _words(held: BytesTable, more: int) -> int:
    """The approximate number of words of so many more keys."""
    return more * (-(-held.words // len(held)) if len(held) else _WORDS_EACH)


def combined(older: Overlay, newer: Overlay) -> Overlay:
    """Two overlays as one."""
    both = Overlay()
    for overlay in (older, newer):
        for keys, values in overlay.parts():
            both.put(keys, values)
    return both
