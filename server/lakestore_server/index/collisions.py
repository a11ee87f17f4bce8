"""Keys that the index keeps as prefix and hash: which slot of a hash is whose.

A row found under a hashed key is compared by its whole key; a key that finds another key's row there goes on to the
next slot. A chain of slots has no gaps: where a further slot is in use, a delete leaves a flagged entry, a link.
Values of hashed keys carry their bucket, for keys of one hash may lie in different buckets. Other keys cost nothing.
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
    """Keys for the index, and the key columns they were made of, of the table's current version."""

    keys: IndexKeys
    columns: Callable[[], Sequence[pa.Array]]


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """Keys with their slots, which no two keys share, and their values in the index."""

    keys: IndexKeys
    values: Ints
    """Live offset, flagged offset or ABSENT."""
    links: frozenset[bytes] = frozenset()
    """Keys whose entries stay when they are deleted: a further slot is in use."""

    def part(self, rows: slice) -> FoundKeys:
        """The keys of consecutive rows."""
        return FoundKeys(self.keys.part(rows), self.values[rows], self.links)

    def taken(self, rows: Ints) -> FoundKeys:
        """The keys of some rows."""
        return FoundKeys(self.keys.take(rows), self.values[rows], self.links)


def hashed(index_keys: IndexKeys) -> list[int]:
    """The rows whose keys are prefix and hash."""
    if isinstance(index_keys, NumberKeys):
        return []
    rows: list[int] = index_keys.longer_than(keys.WHOLE_BYTES_MAX).tolist()
    return rows


@dataclass(frozen=True, slots=True)
class Entries:
    """The index entries that stored rows make."""

    keys: IndexKeys
    values: Ints
    """ABSENT for a delete that leaves nothing; the values of hashed keys carry their bucket."""

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
        """Entries of rows whose keys have their slots; a table that `remembers` keeps its deletes, flagged."""
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
        """The slots of a range of rows that the journal must name for an exact replay."""
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
    """The entries that a commit made, from its rows and the slots that its frame names."""
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
    """The found keys of an index that nobody else changes meanwhile; as `Probe.resolved`, of chains of any length."""
    probe = Probe(asked)
    while (found := probe.resolved(state, ask(probe.keys), deletes)) is None:
        probe = probe.deeper()
    return found


class Probe:
    """One look-up of the index for keys of one table, with as many slots of each hash as are asked for."""

    def __init__(self, asked: KeyQuery, depth: int = 1) -> None:
        self._asked, self._depth = asked, depth
        self._rows = hashed(asked.keys)
        listed = asked.keys.listed() if self._rows else ()
        self._bases = list(dict.fromkeys(listed[row] for row in self._rows))
        further = dict.fromkeys(keys.slot(base, n) for base in self._bases for n in range(1, depth + 1))
        self.keys: IndexKeys = ByteKeys([*listed, *further]) if further else asked.keys
        """The keys to look up, at one moment."""

    def deeper(self) -> Probe:
        """The same with more slots."""
        return Probe(self._asked, self._depth * _DEEPER)

    def resolved(
        self, state: TableState, values: Ints, deletes: npt.NDArray[np.bool_] | None = None
    ) -> FoundKeys | None:
        """The found keys; None when a chain is longer than was asked for.

        With `deletes`, which rows are such, keys that are not there get free slots, for a commit that stores a row of
        each of them; a key that is only deleted takes none.
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
        """(keys in full, buckets) of the rows with hashed keys."""
        table, rows = state.table, pa.array(self._rows)
        columns = dict(zip(table.primary_key, (c.take(rows) for c in self._asked.columns()), strict=True))
        buckets = keys.buckets([columns[name] for name in table.bucket_key], table.buckets)
        return keys.whole(list(columns.values())), buckets

    def _chains(self, found: Mapping[bytes, int], buckets: Buckets) -> dict[tuple[bytes, int], int]:
        """(slot's key, bucket) to the slot's value, for slots that may hold a row of a key of the query."""
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
    """The bucket in a hashed key's value; None in a value of a release that kept none."""
    bucket = (value & ~FLAG) >> OFFSET_BITS
    return bucket - 1 if bucket else None


class _Places:
    """The slot that each key has, or gets."""

    def __init__(self, state: TableState, found: dict[bytes, int], chains: Mapping[tuple[bytes, int], int]) -> None:
        self._found = found
        self._remembers = state.table.merge.engine == "versioned"
        wanted = {place: value for place, value in chains.items() if value < FLAG or self._remembers}
        self._holders = _holders(state, wanted)
        self._mine: dict[bytes, tuple[bytes, int]] = {}
        self._given: set[bytes] = set()

    def of(self, base: bytes, whole: bytes, bucket: int, *, takes: bool) -> tuple[bytes, int]:
        """(slot's key, offset, flagged or not) of a key; a free slot for a key without one that takes one."""
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
        """The given keys behind which a further slot is in use."""
        used = self._found.keys() | self._given
        return frozenset(key for key in slotted if keys.following(key) in used)


def _holders(state: TableState, wanted: Mapping[tuple[bytes, int], int]) -> dict[tuple[bytes, int], bytes]:
    """(slot's key, bucket) to the whole key of the row that its value names."""
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
