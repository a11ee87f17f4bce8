"""Sets of offsets of one bucket: what the dead of a range are kept, sent and asked as."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

Offsets = npt.NDArray[np.int64]
_LOW = np.int64(0xFFFFFFFF)
_FLAGS_SPAN_MIN, _FLAGS_SPAN_MAX = 1 << 16, 1 << 28
_EMPTY: Offsets = np.empty(0, dtype=np.int64)


class OffsetsFrom:
    """All offsets from one on, asked like an `OffsetSet`."""

    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start

    def contains(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """For each offset, whether it is `start` or later."""
        return np.asarray(offsets >= self.start)

    def below(self, end: int) -> range:
        """The members smaller than `end`."""
        return range(self.start, end)


class OffsetSet:
    """An immutable set of offsets with fast bulk membership."""

    __slots__ = ("_flags", "values")

    def __init__(self, values: Offsets) -> None:
        self.values = values
        """Sorted and distinct."""
        self._flags: npt.NDArray[np.bool_] | None = None

    @staticmethod
    def of(parts: Iterable[Offsets]) -> OffsetSet:
        """The union of arrays in any order."""
        arrays = [part for part in parts if len(part)]
        if not arrays:
            return OffsetSet(_EMPTY)
        return OffsetSet(np.unique(np.concatenate(arrays)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes in memory once the set was asked."""
        return int(self.values.nbytes) + (self._span + 2 if self._is_flagged else 0)

    @property
    def _span(self) -> int:
        return int(self.values[-1] - self.values[0]) if len(self.values) else 0

    @property
    def _is_flagged(self) -> bool:
        """Whether a flag for each offset between its ends is worth its memory."""
        return self._span < min(_FLAGS_SPAN_MAX, _FLAGS_SPAN_MIN + 64 * len(self.values))

    def contains(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """For each offset, whether it is in the set."""
        if not len(self.values):
            return np.zeros(len(offsets), dtype=np.bool_)
        first, last = int(self.values[0]), int(self.values[-1])
        if not self._is_flagged:
            at = np.minimum(np.searchsorted(self.values, offsets), len(self.values) - 1)
            return np.asarray(self.values[at] == offsets)
        if self._flags is None:
            flags = np.zeros(last - first + 2, dtype=np.bool_)
            flags[self.values - first] = True
            self._flags = flags
        inside = (offsets >= first) & (offsets <= last)
        return np.asarray(self._flags[np.where(inside, offsets - first, last - first + 1)])

    def below(self, end: int) -> Offsets:
        """The members smaller than `end`, sorted."""
        return self.values[: int(np.searchsorted(self.values, end))]

    def encode(self) -> list[tuple[int, bytes]]:
        """(high 32 bits, roaring bitmap of the low 32 bits) pairs."""
        highs = self.values >> 32
        return [
            (int(high), BitMap((self.values[highs == high] & _LOW).astype(np.uint32)).serialize())
            for high in np.unique(highs)
        ]

    @staticmethod
    def decode(runs: Iterable[tuple[int, bytes]]) -> OffsetSet:
        """The set that `encode` wrote."""
        parts = [
            np.frombuffer(BitMap.deserialize(data).to_array(), dtype=np.uint32).astype(np.int64) | (high << 32)
            for high, data in runs
        ]
        return OffsetSet(np.concatenate(parts) if parts else _EMPTY)
