"""The entries of the next merge: parts as they were staged, and sorted runs of them for LMDB."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lakestore_server.arrays.padded_bytes import PaddedBytes, joined
from lakestore_server.index.entry import ABSENT, STORED, Ints, check_of
from lakestore_server.index.packed import Matrix, PackedKeys, order_of, rows_of


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Keys and the values to put; ABSENT removes the key."""

    keys: PackedKeys
    values: Ints


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Distinct keys in order, in arrays: one by one keys take five times the memory."""

    rows: PaddedBytes | Matrix
    """A matrix where all keys are of one width."""
    values: Ints

    def slice(self, first: int, last: int) -> SortedRun:
        """The entries of a range of places."""
        rows = self.rows.part(slice(first, last)) if isinstance(self.rows, PaddedBytes) else self.rows[first:last]
        return SortedRun(rows, self.values[first:last])

    def stored(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """(keys, their values as they are stored, keys to be removed)."""
        keys = self.rows.listed() if isinstance(self.rows, PaddedBytes) else rows_of(self.rows)
        kept = self.values != ABSENT
        gone = [] if kept.all() else list(itertools.compress(keys, (~kept).tolist()))
        keys = list(itertools.compress(keys, kept.tolist())) if gone else keys
        values = np.empty(len(keys), dtype=STORED)
        values["offset"] = self.values[kept]
        values["check"] = check_of(keys, self.values[kept])
        return keys, values.view(f"V{STORED.itemsize}").tolist(), gone


def sorted_runs(parts: Sequence[StagedPart]) -> Iterator[SortedRun]:
    """Staged parts in order, keys of each width by themselves; of a key's values the last one staged."""
    fixed: dict[int, list[StagedPart]] = {}
    for part in parts:
        fixed.setdefault(part.keys.width, []).append(part)
    if varying := fixed.pop(0, []):
        padded = joined([part.keys.padded() for part in varying])
        order = padded.order()
        padded, values = padded.take(order), np.concatenate([part.values for part in varying])[order]
        rows = np.arange(len(padded) - 1)
        last = np.append(~padded.equal(rows, padded, rows + 1), True)
        yield SortedRun(padded, values) if last.all() else SortedRun(padded.take(np.flatnonzero(last)), values[last])
    for width, same in sorted(fixed.items()):
        blob = b"".join([part.keys.blob for part in same])
        matrix = np.frombuffer(blob, dtype=np.uint8).reshape(-1, width)
        order = order_of(matrix)
        matrix, values = matrix[order], np.concatenate([part.values for part in same])[order]
        last = np.append((matrix[1:] != matrix[:-1]).any(axis=1), True)
        yield SortedRun(matrix, values) if last.all() else SortedRun(matrix[last], values[last])
