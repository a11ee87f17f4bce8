"""Data files of a snapshot as places in its manifests: what a read counts and splits before it opens one.

A `PlannedFile` with its deletes is made when it is asked for, and nobody keeps it. So a plan of a hundred thousand
files is a few arrays, and a read holds as many files as it has open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np

from lakestore.lake.manifest_entries import Entries, Longs
from lakestore.lake.manifests import Entry
from lakestore.lake.row_search import BoundsTable, RowSearch, packed
from lakestore.rows.offsets import OffsetSet, OffsetsFrom
from lakestore.union.lake_ranges import Hidden, RowNumbers
from lakestore.union.lake_snapshot import PlannedFile, Snapshot
from lakestore.union.lake_tests import Mask


@dataclass(frozen=True, slots=True)
class FileList(Sequence[PlannedFile]):
    """Data files of one snapshot, in the order of its manifests."""

    snapshot: Snapshot | None
    """None where there are no files."""
    places: tuple[tuple[Entries, Longs], ...]
    """Manifests, each with the places of its files."""

    def __len__(self) -> int:
        return sum(len(places) for _, places in self.places)

    def __iter__(self) -> Iterator[PlannedFile]:
        for entries, places in self.places:
            assert self.snapshot is not None
            yield from self.snapshot.planned(entries, places.tolist())

    @overload
    def __getitem__(self, number: int) -> PlannedFile: ...

    @overload
    def __getitem__(self, number: slice) -> list[PlannedFile]: ...

    def __getitem__(self, number: int | slice) -> PlannedFile | list[PlannedFile]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        left = range(len(self))[number]
        for entries, places in self.places:
            if left < len(places):
                assert self.snapshot is not None
                return next(self.snapshot.planned(entries, [int(places[left])]))
            left -= len(places)
        raise IndexError(number)

    @property
    def rows(self) -> int:
        """Rows of all files, deleted ones among them."""
        return sum(int(entries.rows[places].sum()) for entries, places in self.places)

    def sizes(self) -> list[tuple[str, int]]:
        """Path and bytes of each file."""
        found: list[tuple[str, int]] = []
        for entries, places in self.places:
            found += zip(entries.paths(places), entries.sizes[places].tolist(), strict=True)
        return found

    def shared_deletes(self) -> Iterator[Entry]:
        """The deletes of whole partitions, each as often as one of these files will ask for it."""
        for entries, places in self.places:
            assert self.snapshot is not None
            for _, delete in self.snapshot.deletes.shared(entries, places):
                yield delete

    def split(self, meant: Callable[[Entries, Longs], Mask]) -> tuple[FileList, FileList]:
        """(the files that are meant, the others); `meant` judges places of one manifest."""
        masks = [meant(entries, places) for entries, places in self.places]
        return self._only(masks), self._only([~mask for mask in masks])

    def _only(self, masks: Sequence[Mask]) -> FileList:
        both = ((entries, places[mask]) for (entries, places), mask in zip(self.places, masks, strict=True))
        return FileList(self.snapshot, tuple((entries, places) for entries, places in both if len(places)))

    def split_whole(self, meant: Callable[[Entries, Longs], Mask], hidden: Hidden) -> tuple[FileList, FileList]:
        """The parts of `split`; of files of the first every row is there, none deleted or among the hidden."""
        return self.split(partial(self._is_whole, meant, _Near(hidden)))

    def _is_whole(self, meant: Callable[[Entries, Longs], Mask], near: _Near, entries: Entries, places: Longs) -> Mask:
        assert self.snapshot is not None
        whole = meant(entries, places)
        whole[whole] = ~self.snapshot.deletes.may_name(entries, places[whole])
        whole[whole] = ~near.of(entries, places[whole])
        return whole


class _Near:
    """Which files may hold a hidden row: `RowNumbers.near` of many at once."""

    def __init__(self, hidden: Hidden) -> None:
        self._hidden = hidden
        gone = {bucket: each for bucket, each in hidden.items() if isinstance(each, OffsetSet)}
        self._search = RowSearch(packed(gone))
        starts = {bucket: each.start for bucket, each in hidden.items() if isinstance(each, OffsetsFrom)}
        self._buckets = np.array(sorted(starts), np.int64)
        self._starts = np.array([starts[bucket] for bucket in sorted(starts)], np.int64)

    def of(self, entries: Entries, places: Longs) -> Mask:
        """Which of the files at these places may hold one."""
        found = np.zeros(len(places), np.bool_)
        if not self._hidden:
            return found
        all_ends, all_known = entries.ends
        ends, known = all_ends[places], all_known[places]
        sure = np.flatnonzero(known)
        found[sure[self._search.files(BoundsTable(ends[sure], known[sure]))]] = True
        found[sure] |= self._behind(ends[sure])
        for number in np.flatnonzero(~known).tolist():
            file = entries.read(int(places[number])).file
            found[number] = bool(RowNumbers.of(file).near(self._hidden))
        return found

    def _behind(self, ends: Longs) -> Mask:
        """Which files may hold an offset at or behind the end of its bucket."""
        found, (least, most, _, last) = np.zeros(len(ends), np.bool_), ends.T
        first, end = np.searchsorted(self._buckets, least), np.searchsorted(self._buckets, most, side="right")
        one = np.flatnonzero(end - first == 1)
        found[one] = last[one] >= self._starts[first[one]]
        for number in np.flatnonzero(end - first > 1).tolist():
            found[number] = bool(last[number] >= self._starts[first[number] : end[number]].min())
        return found
