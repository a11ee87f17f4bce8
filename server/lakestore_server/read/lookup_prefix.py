"""Look-ups by a leading part of the key: the rows in a range of keys, page by page, in key order.

The index cuts long keys and appends a hash. Keys that are equal up to the cut are one group: a page sorts a group by
whole keys and says how many of its rows were sent.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections.abc import Sequence
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
"""About the keys that an answer reads."""
PREFIX_KEYS_MIN = 256
"""The fewest keys that an answer reads of each of many prefixes."""
PREFIXES_MAX = 1_024
"""The most prefixes of one answer."""
GROUP_KEYS_MAX = 1_000_000
"""Keys of one group, which are equal up to the length that the index keeps."""
_SKIP = struct.Struct("<I")
KeyAndOffset = tuple[bytes, int]
"""A key in the index's form, and the offset of its row."""


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of an answer, by number."""

    buckets: npt.NDArray[np.int32]
    offsets: Ints
    answered: int
    """Number of keys, or prefixes, that are answered in full."""
    next: bytes
    """The place at which the rows of the next prefix continue; empty for its first row."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of an answer."""

    key: bytes
    """The key in the index's form, cut if it is long."""
    whole: bytes
    """The whole key, by which rows are sorted."""
    offset: int


@dataclass(frozen=True, slots=True)
class _PrefixRows:
    """The rows of one prefix, as far as the index was read."""

    rows: list[_Row]
    following: bytes
    """The place at which the prefix continues; empty if these are all its rows."""


@dataclass(frozen=True, slots=True)
class Leading:
    """Prefixes to be looked up."""

    table: bytes
    prefixes: list[bytes]
    """The bytes with which all keys of a prefix begin; prefixes longer than the index's keys are not cut."""
    columns: list[pa.Array]
    buckets: npt.NDArray[np.int32]
    skip: int
    """Number of rows of the first group that were sent before."""
    bounds: list[tuple[bytes, bytes]]

    @staticmethod
    def from_columns(
        state: TableState, columns: list[pa.Array], buckets: npt.NDArray[np.int32], after: bytes, most: int
    ) -> Leading:
        """The first prefixes by their columns; `after` is the place at which the first one continues."""
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

    def candidates(self, state: TableState, ranges: Sequence[Range], cut: int | None) -> Candidates | None:
        """The rows of the prefixes, as far as the index was read; None if more keys of the first must be read."""
        superseded = self._superseded(state, cut) if cut is not None else {}
        found: list[_Row] = []
        owners: list[int] = []
        answered, following = len(ranges), b""
        for at, live in enumerate(ranges):
            if live.end is not None and self._is_one_group(at, live.end):
                # A group is sorted whole, so a partly read group gives no rows yet.
                if not at:
                    return None
                answered = at
                break
            part = self._rows(state, at, live, cut, superseded.get(int(self.buckets[at]), []))
            found += part.rows
            owners += [at] * len(part.rows)
            if part.following:
                answered, following = at, part.following
                break
        offsets = np.fromiter((row.offset for row in found), dtype=np.int64, count=len(found))
        page = Page(self.buckets[np.array(owners, dtype=np.int64)], offsets, answered, following)
        return Candidates(self, found, owners, page)

    def _rows(
        self, state: TableState, at: int, live: Range, cut: int | None, superseded: list[KeyAndOffset]
    ) -> _PrefixRows:
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
            entries = sorted([(key, offset) for key, offset in entries if offset < head] + past)
        entries = entries[: bisect_left(entries, (high,))]
        rows = self._in_order(state, at, entries)
        return _PrefixRows(rows[self.skip :] if at == 0 else rows, following)

    def _is_one_group(self, at: int, end: bytes) -> bool:
        """Whether all read keys, up to `end`, belong to one group."""
        return len(end) >= keys.KEPT_BYTES and self.bounds[at][0] >= end[: keys.KEPT_BYTES]

    def _in_order(self, state: TableState, at: int, entries: list[KeyAndOffset]) -> list[_Row]:
        """The rows sorted by their whole keys, without keys that do not begin with the whole prefix."""
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

    def place(self, found: list[_Row], owners: list[int], count: int) -> bytes:
        """The place at which the rows after the first `count` continue, in the prefix of the next row."""
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

    def _superseded(self, state: TableState, cut: int) -> dict[int, list[KeyAndOffset]]:
        """Bucket to the keys that were live at the cut and are superseded since, in order."""
        found: dict[int, list[KeyAndOffset]] = {}
        wanted = self.columns

        def matching(columns: Sequence[pa.Array]) -> pa.Array:
            mask = pc.is_in(columns[0], value_set=wanted[0])
            for column, values in zip(columns[1:], wanted[1:], strict=False):
                mask = pc.and_(mask, pc.is_in(column, value_set=values))
            return mask

        for bucket in np.unique(self.buckets).tolist():
            log = state.logs[bucket]
            end = log.at_lsn(cut).end
            entries: list[KeyAndOffset] = []
            for columns, prevs in lookup_at.superseded_behind(state, bucket, end, matching):
                live = lookup_at.without_deletes(log, prevs) >= 0
                encoded = keys.encode(columns, self.table)
                entries += [(k, p) for k, p, there in zip(encoded, prevs.tolist(), live, strict=True) if there]
            found[bucket] = sorted(entries)
        return found


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of prefixes in order, before it is known how many fit into the answer."""

    leading: Leading
    rows: list[_Row]
    owners: list[int]
    """The prefix of each row, by number."""
    page: Page
    """The answer with all these rows."""

    def first(self, count: int) -> Page:
        if count == len(self.rows):
            return self.page
        place = self.leading.place(self.rows, self.owners, count)
        return Page(self.page.buckets[:count], self.page.offsets[:count], self.owners[count], place)


def _of_bucket(state: TableState, bucket: int, live: Range) -> list[KeyAndOffset]:
    """The entries of one bucket. A hashed key may belong to another bucket's row. Its entry says the bucket, or
    nothing: then the row at the offset decides, which is compared with the key."""
    if not any(map(keys.is_hashed, live.keys)):
        return list(zip(live.keys, live.values, strict=True))
    log = state.logs[bucket]
    found = []
    for key, value in zip(live.keys, live.values, strict=True):
        said, offset = value >> OFFSET_BITS, value & OFFSET_MASK
        if said == bucket + 1 or not keys.is_hashed(key):
            found.append((key, offset))
        elif not said and offset < log.head and log.holds(np.array([offset])).all():
            found.append((key, offset))
    return found
