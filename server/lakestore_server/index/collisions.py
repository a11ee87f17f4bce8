"""Long keys are indexed as prefix and hash. This module finds which slot of a hash belongs to which key.

- A row found under a hashed key is compared by its whole key. If the slot belongs to another key, the next slot is
  tried.
- A chain of slots has no gaps: if a later slot is in use, a delete leaves a flagged entry, a link.
- Values of hashed keys include the bucket, because keys of the same hash may be in different buckets.
- Other keys cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.rows import keys
from lakestore_server.index.entry import ABSENT, FLAG, OFFSET_BITS, OFFSET_MASK
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys
from lakestore_server.state.commit_record import KeySlot
from lakestore_server.state.view import TableState

Ints = npt.NDArray[np.int64]
Buckets = npt.NDArray[np.int32]
_DEEPER = 8


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Keys to look up, with the key columns from which they were made, in the table's current version."""

    keys: IndexKeys
    columns: Callable[[], Sequence[pa.Array]]


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """Keys with their slots, which are unique, and their values in the index."""

    keys: IndexKeys
    values: Ints
    """Live offset, flagged offset or ABSENT."""
    links: frozenset[bytes] = frozenset()
    """Keys whose entries must stay after a delete, because a later slot is in use."""

    def part(self, rows: slice) -> FoundKeys:
        return FoundKeys(self.keys.part(rows), self.values[rows], self.links)

    def taken(self, rows: Ints) -> FoundKeys:
        return FoundKeys(self.keys.take(rows), self.values[rows], self.links)


def hashed(index_keys: IndexKeys) -> list[int]:
    """The rows whose keys are prefix and hash."""
    if isinstance(index_keys, NumberKeys):
        return []
    rows: list[int] = index_keys.longer_than(keys.WHOLE_BYTES_MAX).tolist()
    return rows


@dataclass(frozen=True, slots=True)
class Entries:
    """Index entries for stored rows."""

    keys: IndexKeys
    values: Ints
    """ABSENT for a delete that leaves nothing. Values of hashed keys include their bucket."""

    @staticmethod
    def of(
        slotted: IndexKeys,
        offsets: Ints,
        deletes: npt.NDArray[np.bool_],
        buckets: Buckets | int,
        links: Container[bytes] = (),
        *,
        remembers: bool = False,
    ) -> Entries:
        """Entries for rows whose keys have slots. A table that `remembers` keeps its deletes as flagged entries."""
        values = np.where(deletes, offsets | FLAG if remembers else ABSENT, offsets)
        rows = hashed(slotted)
        if rows:
            listed = slotted.listed()
            for row in rows:
                if deletes[row] and listed[row] in links:
                    values[row] = offsets[row] | FLAG
            at = np.array([row for row in rows if values[row] != ABSENT], dtype=np.int64)
            values[at] |= (np.broadcast_to(buckets, len(values))[at].astype(np.int64) + 1) << OFFSET_BITS
        return Entries(slotted, values)

    def named(self, first: int, last: int) -> list[KeySlot]:
        """The slots of a range of rows that the journal must store for an exact replay."""
        part = self.keys.part(slice(first, last))
        named = []
        for row in hashed(part):
            slot, is_link = keys.slot_number(part.listed()[row]), bool(self.values[first + row] >= FLAG)
            if slot or is_link:
                named.append(KeySlot(row, slot, is_link))
        return named


def replayed(
    index_keys: IndexKeys,
    offsets: Ints,
    deletes: npt.NDArray[np.bool_],
    bucket: int,
    slots: Sequence[KeySlot],
    *,
    remembers: bool = False,
) -> Entries:
    """The entries that a commit made, from its rows and the slots in its frame."""
    if not slots:
        return Entries.of(index_keys, offsets, deletes, bucket, remembers=remembers)
    slotted = list(index_keys.listed())
    for named in slots:
        slotted[named.row] = keys.slot(slotted[named.row], named.slot)
    links = {slotted[named.row] for named in slots if named.is_link}
    return Entries.of(ByteKeys(slotted), offsets, deletes, bucket, links, remembers=remembers)


def resolved(
    state: TableState,
    asked: KeyQuery,
    ask: Callable[[IndexKeys], Ints],
    deletes: npt.NDArray[np.bool_] | None = None,
) -> FoundKeys:
    """Like `Probe.resolved`, for chains of any length, on an index that nobody else changes meanwhile."""
    probe = Probe(asked)
    while (found := probe.resolved(state, ask(probe.keys), deletes)) is None:
        probe = probe.deeper()
    return found


class Probe:
    """One index look-up for keys of one table, with a given number of slots for each hash."""

    def __init__(self, asked: KeyQuery, depth: int = 1) -> None:
        self._asked, self._depth = asked, depth
        self._rows = hashed(asked.keys)
        listed = asked.keys.listed() if self._rows else ()
        self._bases = list(dict.fromkeys(listed[row] for row in self._rows))
        further = dict.fromkeys(keys.slot(base, n) for base in self._bases for n in range(1, depth + 1))
        self.keys: IndexKeys = ByteKeys([*listed, *further]) if further else asked.keys
        """The keys to look up, at one moment."""

    def deeper(self) -> Probe:
        """The same look-up with more slots."""
        return Probe(self._asked, self._depth * _DEEPER)

    def resolved(
        self, state: TableState, values: Ints, deletes: npt.NDArray[np.bool_] | None = None
    ) -> FoundKeys | None:
        """The keys with their slots; None if a chain is longer than the slots of this look-up.

        With `deletes`, which marks deleted rows, absent keys get free slots for a commit that stores their rows. A key
        that is only deleted gets none.
        """
        if not self._rows:
            return FoundKeys(self._asked.keys, values)
        found = {key: value for key, value in zip(self.keys.listed(), values.tolist(), strict=True) if value != ABSENT}
        if any(keys.slot(base, self._depth) in found for base in self._bases):
            return None
        whole, buckets = self._whole(state)
        places = _Places(state, found, self._chains(found, buckets))
        taken = {key for row, key in zip(self._rows, whole, strict=True) if deletes is not None and not deletes[row]}
        slotted, offsets = list(self._asked.keys.listed()), values[: len(self._asked.keys)].copy()
        for row, key, bucket in zip(self._rows, whole, buckets.tolist(), strict=True):
            slotted[row], offsets[row] = places.of(slotted[row], key, bucket, takes=key in taken)
        return FoundKeys(ByteKeys(slotted), offsets, places.links(slotted[row] for row in self._rows))

    def _whole(self, state: TableState) -> tuple[list[bytes], Buckets]:
        """(whole keys, buckets) of the rows with hashed keys."""
        table, rows = state.table, pa.array(self._rows)
        columns = dict(zip(table.primary_key, (c.take(rows) for c in self._asked.columns()), strict=True))
        buckets = keys.buckets([columns[name] for name in table.bucket_key], table.buckets)
        return keys.whole(list(columns.values())), buckets

    def _chains(self, found: Mapping[bytes, int], buckets: Buckets) -> dict[tuple[bytes, int], int]:
        """(slot's key, bucket) to the slot's value, for slots that may hold a row of a queried key."""
        chains: dict[tuple[bytes, int], int] = {}
        listed = self._asked.keys.listed()
        for row, bucket in zip(self._rows, buckets.tolist(), strict=True):
            for n in range(self._depth):
                key = keys.slot(listed[row], n)
                if key not in found:
                    break
                if _bucket_of(found[key]) in (bucket, None):
                    chains[key, bucket] = found[key]
        return chains


def _bucket_of(value: int) -> int | None:
    """The bucket in a hashed key's value; None in a value from a release that stored none."""
    bucket = (value & ~FLAG) >> OFFSET_BITS
    return bucket - 1 if bucket else None


class _Places:
    """Assigns slots to keys."""

    def __init__(self, state: TableState, found: dict[bytes, int], chains: Mapping[tuple[bytes, int], int]) -> None:
        self._found = found
        self._remembers = state.table.merge.engine == "versioned"
        wanted = {place: value for place, value in chains.items() if value < FLAG or self._remembers}
        self._holders = _holders(state, wanted)
        self._mine: dict[bytes, tuple[bytes, int]] = {}
        self._given: set[bytes] = set()

    def of(self, base: bytes, whole: bytes, bucket: int, *, takes: bool) -> tuple[bytes, int]:
        """(slot's key, offset with flag) of a key. With `takes`, a key without a slot gets a free one."""
        if whole not in self._mine:
            key, value = self._searched(base, whole, bucket)
            if value == ABSENT and not takes:
                return key, value
            self._mine[whole] = key, value
            self._given.add(key)
        return self._mine[whole]

    def _searched(self, base: bytes, whole: bytes, bucket: int) -> tuple[bytes, int]:
        free, n = b"", 0
        while True:
            key = keys.slot(base, n)
            if key not in self._given:
                if key not in self._found:
                    return free or key, ABSENT
                value = self._found[key]
                holder = self._holders.get((key, bucket))
                if holder == whole:
                    return key, value & (OFFSET_MASK | FLAG)
                if value >= FLAG and not (self._remembers and holder is not None):
                    free = free or key
            n += 1

    def links(self, slotted: Iterable[bytes]) -> frozenset[bytes]:
        """The keys after which a later slot is in use."""
        used = self._found.keys() | self._given
        return frozenset(key for key in slotted if keys.following(key) in used)


def _holders(state: TableState, wanted: Mapping[tuple[bytes, int], int]) -> dict[tuple[bytes, int], bytes]:
    """(slot's key, bucket) to the whole key of the row that the slot's value names."""
    holders: dict[tuple[bytes, int], bytes] = {}
    for bucket in {bucket for _, bucket in wanted}:
        log = state.logs[bucket]
        places = [
            (place, value & OFFSET_MASK)
            for place, value in wanted.items()
            if place[1] == bucket and value & OFFSET_MASK < log.head
        ]
        offsets = np.array([offset for _, offset in places], dtype=np.int64)
        there = np.flatnonzero(log.holds(offsets))
        for at, piece, rows in log.located(offsets[there]):
            batch, names = piece.load(), state.versions.numbered(piece.schema_id).primary_key
            whole = keys.whole([batch.column(name).take(pa.array(rows)) for name in names])
            holders.update(zip((places[i][0] for i in there[at].tolist()), whole, strict=True))
    return holders
