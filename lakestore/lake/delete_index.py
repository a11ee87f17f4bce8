"""The delete index of a snapshot: data file to the position deletes and vectors that may name rows of it.

A delete file is of one data file, by its reference or by equal bounds of the path, or else of a partition. Only data
files of its sequence number or an earlier one are meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakestore.lake.manifests import Entry, File
from lakestore.lake.position_deletes import PATH_ID
from lakestore.lake.values import unscaled

Partition = tuple[object, ...]


@dataclass(slots=True)
class DeleteIndex:
    """Delete files by data file, or else by partition."""

    _named: dict[bytes, list[Entry]] = field(default_factory=dict)
    _others: dict[Partition, list[Entry]] = field(default_factory=dict)

    def add(self, delete: Entry) -> None:
        """Take in one more file of position deletes, or a vector."""
        only = only_path(delete.file)
        if only is not None:
            self._named.setdefault(only, []).append(delete)
        else:
            self._others.setdefault(_partition(delete.file), []).append(delete)

    def of(self, data: Entry) -> tuple[Entry, ...]:
        """The deletes that may name rows of a data file, those that name no other one first."""
        if not self._named and not self._others:
            return ()
        path, sequence = data.file.path.encode(), data.sequence or 0
        near = self._others.get(_partition(data.file), ()) if self._others else ()
        found = (*self._named.get(path, ()), *(each for each in near if _may_name(each.file, path)))
        return tuple(each for each in found if (each.sequence or 0) >= sequence)


def only_path(delete: File) -> bytes | None:
    """The path of the one data file that a delete file is about, in UTF-8; None if several may be."""
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file.encode()
    low, high = delete.metrics.lower.get(PATH_ID), delete.metrics.upper.get(PATH_ID)
    # Bounds may be cut short, and an upper one that was cut is raised: equal ones are the path itself.
    return low if low is not None and low == high else None


def _may_name(delete: File, path: bytes) -> bool:
    """Whether the bounds of a delete file leave room for a data file."""
    low, high = delete.metrics.lower.get(PATH_ID), delete.metrics.upper.get(PATH_ID)
    return (low is None or low <= path) and (high is None or path <= high)


def _partition(file: File) -> Partition:
    """A file's partition, equal where Iceberg's is: NaN is, and decimals of more and fewer bytes."""
    held = file.partition.items()
    values = ((name, unscaled(one) if isinstance(one, bytes) else None if one != one else one) for name, one in held)
    return file.spec_id, *values
