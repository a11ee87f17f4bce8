"""The files of a lake snapshot under presented cuts: its manifests, where its rows are, and what is deleted of them.

Manifests never change, so entries are kept by manifest while memory lasts: a new snapshot costs its new manifests.
Manifests of data files are read only where rows have died in the base.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lakestore.errors import Corrupt
from lakestore.lake import places, position_deletes, puffin
from lakestore.lake.delete_index import DeleteIndex, only_path
from lakestore.lake.manifest_lists import Manifest, read_list
from lakestore.lake.manifests import DATA, EQUALITY_DELETES, Entry, File, read_manifest
from lakestore.lake.offset_index import read_columns
from lakestore.lake.row_search import BUCKET_SHIFT, OFFSET_MASK, BoundsTable, RowSearch
from lakestore_server.present.indexes import Indexes
from lakestore_server.present.steps import Heads, Ints

ENTRIES_MAX = 200_000
"""Entries of manifests that are kept for the next snapshot's sake."""
BASES_MAX = 8
PUFFIN = "PUFFIN"
NO_POSITIONS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Dead:
    """Dead rows of one data file."""

    entry: Entry
    positions: Ints
    """Sorted positions in the file."""


class Manifests:
    """The living entries of manifests, the least recently used let go first."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max, self._count = entries_max, 0
        self._kept: OrderedDict[str, list[Entry]] = OrderedDict()

    def of(self, manifest: Manifest) -> list[Entry]:
        """The entries of a manifest."""
        kept = self._kept.get(manifest.path)
        if kept is not None:
            self._kept.move_to_end(manifest.path)
            return kept
        made = read_manifest(places.read(manifest.path), manifest)
        self._kept[manifest.path] = made
        self._count += len(made)
        while self._count > self._entries_max and len(self._kept) > 1:
            self._count -= len(self._kept.popitem(last=False)[1])
        return made


class BaseFiles:
    """One lake snapshot, or none under a table that was never tiered."""

    def __init__(self, manifest_list: str, folder: str, manifests: Manifests, indexes: Indexes) -> None:
        """`folder` is the table's, for indexes that are kept; an empty `manifest_list` is of no snapshot."""
        self._manifests, self._indexes, self.folder = manifests, indexes, folder
        self.manifests: list[Manifest] = read_list(places.read(manifest_list), manifest_list) if manifest_list else []

    @property
    def is_read(self) -> bool:
        """Whether the data files were listed, as rows had died."""
        return "data" in self.__dict__

    @cached_property
    def data(self) -> list[Entry]:
        """Every data file."""
        return [entry for each in self.manifests if each.content == DATA for entry in self._manifests.of(each)]

    @cached_property
    def _bounds(self) -> BoundsTable:
        return BoundsTable(entry.file for entry in self.data)

    @cached_property
    def deletes(self) -> list[tuple[Manifest, Entry]]:
        """Every delete file and vector, with its manifest."""
        held = [each for each in self.manifests if each.content != DATA]
        return [(each, entry) for each in held for entry in self._manifests.of(each)]

    @cached_property
    def _deletes_of(self) -> DeleteIndex:
        found = DeleteIndex()
        for _, entry in self.deletes:
            if entry.file.content != EQUALITY_DELETES:
                found.add(entry)
        return found

    @cached_property
    def live_rows(self) -> int | None:
        """The number of rows that readers find; None where it cannot be told for certain."""
        if any(each.content != DATA for each in self.manifests):
            known = {entry.file.path.encode() for entry in self.data}
            for _, entry in self.deletes:
                if entry.file.content == EQUALITY_DELETES or only_path(entry.file) not in known:
                    return None
            return sum(each.file.rows for each in self.data) - sum(each.file.rows for _, each in self.deletes)
        counts = [(each.added_rows, each.existing_rows) for each in self.manifests]
        known_counts = [added + existing for added, existing in counts if added is not None and existing is not None]
        return sum(known_counts) if len(known_counts) == len(counts) else None

    def find(self, victims: Ints) -> list[Dead]:
        """The data files that hold rows of these sorted packed keys, with their positions."""
        if not len(victims):
            return []
        search, found = RowSearch(victims), []
        entries = [self.data[number] for number in search.files(self._bounds)]
        for entry, index in self._indexes.each(entries, self.folder):
            within = search.places(index.keys)
            if len(within):
                found.append(Dead(entry, index.positions(within)))
        return found

    def beyond(self, heads: Heads) -> list[Dead]:
        """The rows at or beyond these heads: those that came after the cut of a log table."""
        found = []
        limits = np.asarray(heads, np.int64)
        for entry in self.data:
            bounds = entry.file.bounds
            if bounds is not None and bounds.offset[1] < int(limits[bounds.bucket[0] : bounds.bucket[1] + 1].min()):
                continue
            index = self._indexes.of(entry.file, self.folder)
            places_ = np.flatnonzero((index.keys & OFFSET_MASK) >= limits[index.keys >> BUCKET_SHIFT])
            if len(places_):
                found.append(Dead(entry, index.positions(places_)))
        return found

    def deleted(self, data: Entry) -> tuple[Ints, list[Entry]]:
        """The positions of a data file that the base's own deletes hide, and its vectors among these."""
        found = self._deletes_of.of(data)
        vectors = [entry for entry in found if entry.file.format.upper() == PUFFIN]
        if vectors:  # it holds all earlier position deletes
            return union([vector_of(entry.file) for entry in vectors]), vectors
        return union([_positions(entry.file, data.file.path) for entry in found]), []


class Bases:
    """The snapshots that were used last."""

    def __init__(self, manifests: Manifests, indexes: Indexes) -> None:
        self._manifests, self._indexes = manifests, indexes
        self._kept: OrderedDict[tuple[str, str], BaseFiles] = OrderedDict()

    def of(self, manifest_list: str, folder: str) -> BaseFiles:
        """One snapshot of the table that has this folder."""
        key = manifest_list, folder
        found = self._kept.pop(key, None) or BaseFiles(manifest_list, folder, self._manifests, self._indexes)
        self._kept[key] = found
        if len(self._kept) > BASES_MAX:
            self._kept.popitem(last=False)
        return found


def vector_of(file: File) -> Ints:
    """The positions in a vector."""
    if file.content_offset is None or file.content_size is None:
        raise Corrupt(f"the manifest does not say where in {file.path} the vector lies")
    return puffin.positions(places.read_part(file.path, file.content_offset, file.content_size), file.path)


def _positions(file: File, path: str) -> Ints:
    columns = read_columns(file.path, file.format.upper(), position_deletes.COLUMNS)
    return np.unique(position_deletes.decode(columns, file.path).get(path, NO_POSITIONS))  # others may not sort


def union(parts: Sequence[Ints]) -> Ints:
    """Sorted positions of sorted parts, each once."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_POSITIONS
    both = np.concatenate(parts)
    both.sort(kind="stable")  # which merges what is sorted already
    twice = both[1:] == both[:-1]
    return both[np.concatenate(([True], ~twice))] if twice.any() else both
