"""The delete index of a snapshot: for each data file, the position deletes and vectors that may name rows of it.

1. A delete file covers one data file if it references the file, or if both bounds of the path are equal.
2. Otherwise it covers every data file of its partition that the bounds of the path allow.
3. It covers only data files with its own sequence number or a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from lakestore.iceberg.manifest_entries import Entries, Longs, path_hash
from lakestore.iceberg.manifests import POSITION_DELETES, Entry, File
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.iceberg.row_search import Flags
from lakestore.iceberg.values import partition_key

Partition = tuple[object, ...]


@dataclass(slots=True)
class DeleteIndex:
    """Delete files by data file or by partition."""

    _named: dict[bytes, list[Entry]] = field(default_factory=dict)
    _others: dict[Partition, list[Entry]] = field(default_factory=dict)
    _manifests: list[Entries] = field(default_factory=list)
    _sorted: tuple[Longs, Longs, Longs] | None = None
    """Delete files in manifests that cover one data file: hash of its path, sorted; number of the manifest; place."""
    _shared_places: dict[Partition, list[tuple[Entries, int]]] = field(default_factory=dict)
    """Manifest and place of each delete file of several data files, by partition."""
    _newest: tuple[Longs, Longs] | None = None
    """Sorted, distinct hashes of these data files' paths, and the greatest sequence number of the deletes of each."""

    def add_all(self, deletes: Entries) -> None:
        """Add the position deletes and vectors of a manifest. Deletes of one file are decoded on first use."""
        self._manifests.append(deletes)
        self._sorted = self._newest = None
        several = np.ones(len(deletes), np.bool_)
        several[deletes.named[1]] = False
        for place in np.flatnonzero(several & (deletes.contents == POSITION_DELETES)).tolist():
            self.add(deletes[place])
            self._shared_places.setdefault(_partition_of(deletes[place].file), []).append((deletes, place))

    def _named_in_manifests(self, path: bytes) -> list[Entry]:
        """The delete files in manifests that cover this data file alone, in the order of the manifests."""
        near = (held[place] for held, place in self._named_places(path))
        return [each for each in near if only_path(each.file) == path]

    def _named_places(self, path: bytes) -> list[tuple[Entries, int]]:
        hashes, manifests, places = self._joined()
        begin, end = np.searchsorted(hashes, path_hash(path)), np.searchsorted(hashes, path_hash(path), side="right")
        return [(self._manifests[manifests[at]], int(places[at])) for at in range(int(begin), int(end))]

    def places_of(self, data: Entry) -> list[tuple[Entries, int]]:
        """Manifest and place of the delete files that `of` may return, and of others, for deletes from `add_all`."""
        return [*self._named_places(data.file.path.encode()), *self._shared_places.get(_partition_of(data.file), ())]

    def _joined(self) -> tuple[Longs, Longs, Longs]:
        if self._sorted is None:
            self._sorted = _joined(self._manifests)
        return self._sorted

    def add(self, delete: Entry) -> None:
        """Add one file of position deletes, or one vector."""
        only = only_path(delete.file)
        self._newest = None
        if only is not None:
            self._named.setdefault(only, []).append(delete)
        else:
            self._others.setdefault(_partition_of(delete.file), []).append(delete)

    def of(self, data: Entry) -> tuple[Entry, ...]:
        """The deletes that may name rows of a data file. Deletes that cover this file alone come first."""
        if not self._named and not self._others and not self._manifests:
            return ()
        path, sequence = data.file.path.encode(), data.sequence or 0
        near = self._others.get(_partition_of(data.file), ()) if self._others else ()
        named = (*self._named.get(path, ()), *(self._named_in_manifests(path) if self._manifests else ()))
        found = (*named, *(each for each in near if _may_name(each.file, path)))
        return tuple(each for each in found if (each.sequence or 0) >= sequence)

    def may_name(self, data: Entries, places: Longs) -> Flags:
        """For each data file at these places, True if deletes may name rows of it. `of` is empty for the others."""
        hashes, newest = self._last()
        found = np.zeros(len(places), np.bool_)
        if len(hashes):
            own = data.path_hashes[places]
            at = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
            found = (hashes[at] == own) & (newest[at] >= data.sequences[places])
        for number, _ in self.shared(data, places):
            found[number] = True
        return found

    def shared(self, data: Entries, places: Longs) -> Iterator[tuple[int, Entry]]:
        """The deletes of whole partitions that may name rows of data files: (index into `places`, delete).

        No data file is decoded for this.
        """
        if not self._others:
            return
        asked = zip(data.paths(places), data.partitions(places), data.sequences[places].tolist(), strict=True)
        for number, (path, partition, sequence) in enumerate(asked):
            for each in self._others.get(_partition(data.manifest.spec_id, partition), ()):
                if (each.sequence or 0) >= sequence and _may_name(each.file, path.encode()):
                    yield number, each

    def _last(self) -> tuple[Longs, Longs]:
        if self._newest is None:
            hashes, manifests, places = self._joined()
            sequences = np.empty(len(hashes), np.int64)
            for number, each in enumerate(self._manifests):
                own = manifests == number
                sequences[own] = each.sequences[places[own]]
            alone = [(path_hash(path), each.sequence or 0) for path, held in self._named.items() for each in held]
            more = np.array(alone, np.int64).reshape(-1, 2)
            self._newest = _greatest(np.concatenate([hashes, more[:, 0]]), np.concatenate([sequences, more[:, 1]]))
        return self._newest


def _greatest(keys: Longs, values: Longs) -> tuple[Longs, Longs]:
    """The sorted, distinct keys, and the greatest value of each."""
    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    last = np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))
    return keys[last], values[last]


def _joined(manifests: list[Entries]) -> tuple[Longs, Longs, Longs]:
    """`DeleteIndex._sorted` of these manifests."""
    empty = np.empty(0, np.int64)
    parts = [(empty, empty, empty)]
    for number, each in enumerate(manifests):
        hashes, named = each.named
        places = named[each.contents[named] == POSITION_DELETES]
        parts.append((hashes[places], np.full(len(places), number), places))
    hashes, numbers, places = (np.concatenate([part[side] for part in parts]) for side in range(3))
    order = np.argsort(hashes, kind="stable")
    return hashes[order], numbers[order], places[order]


def only_path(delete: File) -> bytes | None:
    """The path in UTF-8 of the data file that a delete file covers; None if it may cover several."""
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file.encode()
    low, high = delete.metrics.lower.get(PATH_ID), delete.metrics.upper.get(PATH_ID)
    # A writer may cut bounds short. It then raises the upper bound, so equal bounds are the whole path.
    return low if low is not None and low == high else None


def _may_name(delete: File, path: bytes) -> bool:
    """True if the bounds of a delete file allow this data file."""
    low, high = delete.metrics.lower.get(PATH_ID), delete.metrics.upper.get(PATH_ID)
    return (low is None or low <= path) and (high is None or path <= high)


def _partition_of(file: File) -> Partition:
    return _partition(file.spec_id, file.partition.items())


def _partition(spec_id: int, held: Iterable[tuple[str, object]]) -> Partition:
    return spec_id, *((name, partition_key(value)) for name, value in held)
