"""Look-ups by a leading part of the key: which rows lie in a range of keys, page by page, in key order.

The index cuts long keys and puts a hash behind them. So keys that begin alike up to the cut are one group: a page
sorts a group by the whole keys and says how many rows of it were sent.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.rows import keys
from lakestore_server.index.entry import OFFSET_BITS, OFFSET_MASK, table_prefix
from lakestore_server.index.overlay import Range
from lakestore_server.read import lookup_at
from lakestore_server.state.view import TableState

Ints = npt.NDArray[np.int64]
PAGE_KEYS = 65_536
"""About how many keys an answer looks at."""
PREFIX_KEYS_MIN = 256
"""Of each of many prefixes."""
PREFIXES_MAX = 1_024
"""Of one answer."""
GROUP_KEYS_MAX = 1_000_000
"""Keys that are alike as far as the index knows them whole."""
_SKIP = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of an answer, by number."""

    buckets: npt.NDArray[np.int32]
    offsets: Ints
    answered: int
    """How many keys, or prefixes, are answered in full."""
    next: bytes
    """Where the rows of the one behind them go on; empty: from its first."""


@dataclass(frozen=True, slots=True)
class _Row:
    key: bytes
    """As the index has it."""
    whole: bytes
    """What rows are sorted by."""
    offset: int


@dataclass(frozen=True, slots=True)
class Leading:
    """Prefixes that are looked up."""

    table: bytes
    prefixes: list[bytes]
    """As all their keys begin, however long."""
    columns: list[pa.Array]
    buckets: npt.NDArray[np.int32]
    skip: int
    """Rows of the first group that were sent before."""
    bounds: list[tuple[bytes, bytes]]

    @staticmethod
    def of(
        state: TableState, columns: list[pa.Array], buckets: npt.NDArray[np.int32], after: bytes, most: int
    ) -> Leading:
        """The first prefixes by their columns; `after` is where the first one goes on."""
        table = table_prefix(state.table.number)
        columns = [column.slice(0, most) for column in columns]
        prefixes = keys.leading(columns, table)
        lows = [prefix[: keys.KEPT_BYTES] for prefix in prefixes]
        bounds = [(low, keys.beyond(low)) for low in lows]
        skip = 0
        if after and bounds:
            first, high = bounds[0]
            low = after[_SKIP.size :]
            if not first <= low < high or len(low) > keys.INDEX_KEY_BYTES_MAX:
                raise Invalid("`after` is not what an answer said is next: look up from the start")
            skip, bounds[0] = _SKIP.unpack_from(after)[0], (low, high)
        return Leading(table, prefixes, columns, buckets[:most], skip, bounds)

    def page(
        self, state: TableState, ranges: Sequence[Range], cut: int | None, fitting: Callable[[Page], int]
    ) -> Page | None:
        """The rows of as many prefixes as there is room for; None where more keys of the first must be read."""
        superseded = self._superseded(state, cut) if cut is not None else {}
        found: list[_Row] = []
        owners: list[int] = []
        answered, following = len(ranges), b""
        for at, live in enumerate(ranges):
            if live.end is not None and self._is_one_group(at, live.end):
                if not at:
                    return None
                answered = at
                break
            rows, following = self._rows(state, at, live, cut, superseded.get(int(self.buckets[at]), []))
            found += rows
            owners += [at] * len(rows)
            if following:
                answered = at
                break
        offsets = np.fromiter((row.offset for row in found), dtype=np.int64, count=len(found))
        page = Page(self.buckets[np.array(owners, dtype=np.int64)], offsets, answered, following)
        count = fitting(page)
        if count == len(found):
            return page
        place = self._place(found, owners, count)
        return Page(page.buckets[:count], offsets[:count], owners[count], place)

    def _rows(
        self, state: TableState, at: int, live: Range, cut: int | None, superseded: list[tuple[bytes, int]]
    ) -> tuple[list[_Row], bytes]:
        """(rows of a prefix in order, where it goes on or nothing)."""
        low, high = self.bounds[at]
        bucket = int(self.buckets[at])
        end, following = live.end, b""
        if end is not None:
            limit = end + b"\0" if len(end) < keys.KEPT_BYTES else end[: keys.KEPT_BYTES]
            following = _SKIP.pack(0) + limit
            high = min(high, limit)
        entries = _of_bucket(state, bucket, live)
        if cut is not None:
            head = state.logs[bucket].at_lsn(cut).end
            past = superseded[bisect_left(superseded, (low,)) : bisect_left(superseded, (high,))]
            entries = sorted([entry for entry in entries if entry[1] < head] + past)
        entries = entries[: bisect_left(entries, (high,))]
        rows = self._in_order(state, at, entries)
        if at == 0 and self.skip:
            rows = rows[self.skip :]
        return rows, following

    def _is_one_group(self, at: int, end: bytes) -> bool:
        """Whether what was read, up to `end`, is a part of one group."""
        return len(end) >= keys.KEPT_BYTES and self.bounds[at][0] >= end[: keys.KEPT_BYTES]

    def _in_order(self, state: TableState, at: int, entries: list[tuple[bytes, int]]) -> list[_Row]:
        """The rows by their whole keys; only those that begin with the whole prefix."""
        if all(len(key) < keys.KEPT_BYTES for key, _ in entries):
            return [_Row(key, key, offset) for key, offset in entries]
        log, prefix = state.logs[int(self.buckets[at])], self.prefixes[at]
        offsets = np.array([offset for _, offset in entries], dtype=np.int64)
        found: list[_Row] = []
        for places, piece, rows in log.located(offsets):
            batch = piece.load()
            names = state.versions.numbered(piece.schema_id).primary_key
            columns = [batch.column(name).take(pa.array(rows)) for name in names]
            made = zip(places.tolist(), keys.whole(columns), keys.encode(columns, self.table), strict=True)
            for place, whole, base in made:
                key, offset = entries[place]
                if keys.slot(base, keys.slot_number(key)) == key and (self.table + whole).startswith(prefix):
                    found.append(_Row(key, whole, offset))
        return sorted(found, key=lambda row: row.whole)

    def _place(self, found: list[_Row], owners: list[int], count: int) -> bytes:
        """Where the rows behind the first `count` go on, in the prefix that they belong to."""
        row, owner = found[count], owners[count]
        group = row.key[: keys.KEPT_BYTES]
        if len(row.key) < keys.KEPT_BYTES:
            return _SKIP.pack(0) + row.key
        alike = itertools.takewhile(
            lambda i: owners[i] == owner and found[i].key[: keys.KEPT_BYTES] == group, range(count - 1, -1, -1)
        )
        sent = sum(1 for _ in alike)
        first = owner == 0 and sent == count and self.bounds[0][0] == group
        return _SKIP.pack(sent + (self.skip if first else 0)) + group

    def _superseded(self, state: TableState, cut: int) -> dict[int, list[tuple[bytes, int]]]:
        """Of each bucket the keys that were live at the cut and are superseded since, with their offsets, in order."""
        found: dict[int, list[tuple[bytes, int]]] = {}
        wanted = self.columns

        def matching(columns: Sequence[pa.Array]) -> pa.Array:
            mask = pc.is_in(columns[0], value_set=wanted[0])
            for column, values in zip(columns[1:], wanted[1:], strict=False):
                mask = pc.and_(mask, pc.is_in(column, value_set=values))
            return mask

        for bucket in np.unique(self.buckets).tolist():
            log = state.logs[bucket]
            end = log.at_lsn(cut).end
            entries: list[tuple[bytes, int]] = []
            for columns, prevs in lookup_at.superseded_behind(state, bucket, end, matching):
                live = lookup_at.without_deletes(log, prevs) >= 0
                encoded = keys.encode(columns, self.table)
                entries += [(k, p) for k, p, there in zip(encoded, prevs.tolist(), live, strict=True) if there]
            found[bucket] = sorted(entries)
        return found


def _of_bucket(state: TableState, bucket: int, live: Range) -> list[tuple[bytes, int]]:
    """(key, offset) of the entries of one bucket; those of hashed keys may be of others, or not say whose they are."""
    if not any(map(keys.is_hashed, live.keys)):
        return list(zip(live.keys, live.values, strict=True))
    log = state.logs[bucket]
    found = []
    for key, value in zip(live.keys, live.values, strict=True):
        said, offset = value >> OFFSET_BITS, value & OFFSET_MASK
        if said == bucket + 1 or not keys.is_hashed(key):
            found.append((key, offset))
        elif not said and offset < log.head and log.holds(np.array([offset])).all():
            found.append((key, offset))  # its row is compared with the key
    return found
