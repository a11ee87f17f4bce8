"""The files of a lake snapshot under presented cuts: its manifests, where its rows are, and what is deleted of them.

Manifests never change, so their entries are kept, laid out as arrays, in bounded memory: a new snapshot costs its new
manifests. Manifests of data files are read only where rows have died in the base, and only the files with dead rows
are decoded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lakestore.errors import Corrupt
from lakestore.iceberg import places, position_deletes, puffin
from lakestore.iceberg.cache import DerivedCache, RecentValues
from lakestore.iceberg.delete_index import DeleteIndex
from lakestore.iceberg.manifest_entries import Entries, forget, recent_name, value_name
from lakestore.iceberg.manifest_lists import Manifest, read_list
from lakestore.iceberg.manifests import DATA, EQUALITY_DELETES, Entry, File
from lakestore.iceberg.offset_cache import OffsetCache, read_columns, value_names
from lakestore.iceberg.row_search import BUCKET_SHIFT, OFFSET_MASK, BoundsTable, Flags, RowSearch
from lakestore.rows.distinct import distinct, without_repeats
from lakestore_server.host.yield_points import yield_point
from lakestore_server.snapshots.steps import Heads, Ints

BASES_MAX = 8
PUFFIN = "PUFFIN"
NO_POSITIONS = _NO_HASHES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Dead:
    """Dead rows of one data file."""

    entry: Entry
    positions: Ints
    """Sorted positions in the file."""


class Manifests:
    """A cache of the live entries of manifests; the least recently used are dropped first."""

    def __init__(self, bytes_max: int, cache: DerivedCache) -> None:
        self.bytes_max, self._cache = bytes_max, cache
        self._recent: RecentValues[Entries] = RecentValues(bytes_max)

    def of(self, manifest: Manifest, group: str) -> Entries:
        """The entries of a manifest of a table."""
        name = recent_name(manifest, group)
        entries = self._recent.get(name)
        if entries is None:
            yield_point()
            entries = Entries.opened(manifest, group, self._cache)
            self._recent.put(name, entries)
        return entries

    def forget(self, manifest: Manifest, group: str) -> None:
        """Remove a manifest that left the lake."""
        self._recent.drop(recent_name(manifest, group))
        forget(manifest.path, group, self._cache)

    def forget_others(self, group: str, manifests: Sequence[Manifest], data: Sequence[str]) -> None:
        """Remove all that the derived cache has of a table, except what belongs to these manifests and data files."""
        keep = value_names(group, data) | {value_name(each.path, group) for each in manifests}
        self._cache.remove_others(group, keep)


class BaseFiles:
    """One lake snapshot. It is empty for a table that was never tiered."""

    def __init__(self, manifest_list: str, group: str, manifests: Manifests, indexes: OffsetCache) -> None:
        """`group` is the table's uuid, of what is cached; an empty `manifest_list` is of no snapshot."""
        self._manifests, self._indexes, self.group = manifests, indexes, group
        self.manifests: list[Manifest] = read_list(places.read(manifest_list), manifest_list) if manifest_list else []

    @property
    def is_read(self) -> bool:
        """Whether the data files were listed: rows of the lake have died."""
        return "data" in self.__dict__

    @cached_property
    def data(self) -> list[Entries]:
        """All data files, by manifest."""
        return [self._manifests.of(each, self.group) for each in self.manifests if each.content == DATA]

    @property
    def held(self) -> list[Entries]:
        """The manifests that were read for this snapshot."""
        return [each for name in ("data", "deletes") for each in self.__dict__.get(name, ())]

    @cached_property
    def _bounds(self) -> BoundsTable:
        return BoundsTable.joined([each.ends for each in self.data])

    @cached_property
    def _begins(self) -> Ints:
        """The number of each manifest's first data file, counted over all manifests; at the end, the number of data
        files.
        """
        return np.concatenate([[0], np.cumsum([len(each) for each in self.data])]).astype(np.int64)

    def _entries(self, numbers: Sequence[int]) -> list[Entry]:
        """The data files with these numbers."""
        held = (np.searchsorted(self._begins, numbers, side="right") - 1).tolist() if len(numbers) else ()
        return [
            self.data[place][number - int(self._begins[place])] for place, number in zip(held, numbers, strict=True)
        ]

    @cached_property
    def deletes(self) -> list[Entries]:
        """All delete files and vectors, by manifest."""
        return [self._manifests.of(each, self.group) for each in self.manifests if each.content != DATA]

    @cached_property
    def _deletes_of(self) -> DeleteIndex:
        found = DeleteIndex()
        for each in self.deletes:
            found.add_all(each)
        return found

    @cached_property
    def live_rows(self) -> int | None:
        """The number of rows that readers see; None if manifests alone do not tell."""
        if self.deletes:
            known = np.sort(np.concatenate([_NO_HASHES, *(each.path_hashes for each in self.data)]))
            if not all(_names_each(deletes, known) for deletes in self.deletes):
                return None
            rows, gone = (sum(int(each.rows.sum()) for each in held) for held in (self.data, self.deletes))
            return rows - gone
        counts = [(each.added_rows, each.existing_rows) for each in self.manifests]
        known_counts = [added + existing for added, existing in counts if added is not None and existing is not None]
        return sum(known_counts) if len(known_counts) == len(counts) else None

    def find(self, superseded: Ints) -> list[Dead]:
        """The data files that contain rows with these packed keys (sorted), with the rows' positions."""
        if not len(superseded):
            return []
        search, found = RowSearch(superseded), []
        entries = {entry.file.path: entry for entry in self._entries(search.files(self._bounds))}
        for file, index in self._indexes.each((entry.file for entry in entries.values()), self.group):
            within = search.places(index.keys)
            if len(within):
                found.append(Dead(entries[file.path], index.positions(within)))
        return found

    def beyond(self, heads: Heads) -> list[Dead]:
        """The rows at or after these heads: in a log table, the rows after the cut."""
        found = []
        limits = np.asarray(heads, np.int64)
        for entry in self._entries(_reaching(self._bounds, limits)):
            index = self._indexes.of(entry.file, self.group)
            places_ = np.flatnonzero((index.keys & OFFSET_MASK) >= limits[index.keys >> BUCKET_SHIFT])
            if len(places_):
                found.append(Dead(entry, index.positions(places_)))
        return found

    def forget_left(self, before: BaseFiles) -> None:
        """Remove what is cached of the manifests and data files that an earlier snapshot had and this one has not."""
        mine, theirs = ({each.manifest.path: each for each in base.data} for base in (self, before))
        came = [each.path_hashes for path, each in mine.items() if path not in theirs]
        known = np.sort(np.concatenate([_NO_HASHES, *came]))
        for path, each in theirs.items():
            if path not in mine:
                gone = each.paths(np.flatnonzero(~_are_among(each.path_hashes, known)))
                self._indexes.forget(self.group, gone)
        own = {each.path for each in self.manifests}
        for manifest in before.manifests:
            if manifest.path not in own:
                self._manifests.forget(manifest, self.group)

    def forget_others(self) -> None:
        """Remove what is cached of all manifests and data files that this snapshot has not.

        For a snapshot whose predecessor is not known. It lists the table's folder of the cache.
        """
        paths = [path for each in self.data for path in each.paths(np.arange(len(each)))]
        self._manifests.forget_others(self.group, self.manifests, paths)

    def deleted(self, data: Entry) -> tuple[Ints, list[Entry]]:
        """The positions that the lake's own deletes hide in a data file, and the vectors among these deletes."""
        found = self._deletes_of.of(data)
        vectors = [entry for entry in found if entry.file.format.upper() == PUFFIN]
        if vectors:  # a vector includes all earlier position deletes
            return union([vector_of(entry.file) for entry in vectors]), vectors
        return union([_positions(entry.file, data.file.path) for entry in found]), []


def _reaching(table: BoundsTable, limits: Ints) -> list[int]:
    """The numbers of the files that may hold rows at or after the bucket's limit."""
    least, most, _, end = table.ends.T
    # A file of several buckets is compared with the lowest limit of all buckets: that reads a few files too many.
    limit = np.where(least == most, limits[np.clip(least, 0, len(limits) - 1)], limits.min())
    found: list[int] = np.flatnonzero(~table.bounded | (end >= limit)).tolist()
    return found


def _names_each(deletes: Entries, known: Ints) -> bool:
    """Whether each delete file of a manifest is for a single data file, which is among `known` (sorted)."""
    hashes, named = deletes.named
    return bool(
        len(named) == len(deletes)
        and np.all(deletes.contents != EQUALITY_DELETES)
        and np.all(_are_among(hashes[named], known))
    )


def _are_among(values: Ints, known: Ints) -> Flags:
    """Membership of `values` in the sorted array `known`, by binary search. Called once per manifest."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Flags = known[at] == values
    return found


class Bases:
    """A cache of the snapshots that were used last."""

    def __init__(self, manifests: Manifests, indexes: OffsetCache) -> None:
        self._manifests, self._indexes = manifests, indexes
        self._kept: OrderedDict[tuple[str, str], BaseFiles] = OrderedDict()

    def of(self, manifest_list: str, group: str) -> BaseFiles:
        """A snapshot. `group` names the table's offset indexes."""
        key = manifest_list, group
        found = self._kept.pop(key, None) or BaseFiles(manifest_list, group, self._manifests, self._indexes)
        self._kept[key] = found
        while len(self._kept) > BASES_MAX or (len(self._kept) > 1 and self._nbytes() > self._manifests.bytes_max):
            self._kept.popitem(last=False)
        return found

    def _nbytes(self) -> int:
        """Bytes of the manifests that cached snapshots refer to."""
        held = {id(each): each for base in self._kept.values() for each in base.held}
        return sum(each.nbytes for each in held.values())


def vector_of(file: File) -> Ints:
    """The positions in a deletion vector."""
    yield_point()
    if file.content_offset is None or file.content_size is None:
        raise Corrupt(f"the manifest does not say where in {file.path} the vector lies")
    return puffin.positions(places.read_part(file.path, file.content_offset, file.content_size), file.path)


def _positions(file: File, path: str) -> Ints:
    yield_point()
    columns = read_columns(file.path, file.format.upper(), position_deletes.COLUMNS)
    return distinct(position_deletes.decode(columns, file.path).get(path, NO_POSITIONS))  # other engines may not sort


def union(parts: Sequence[Ints]) -> Ints:
    """The sorted union of sorted arrays."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_POSITIONS
    both = np.concatenate(parts)
    both.sort(kind="stable")  # timsort merges sorted runs
    return without_repeats(both)
