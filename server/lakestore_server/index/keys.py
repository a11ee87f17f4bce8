"""Keys of one table for the index: as numbers if all keys have a fixed width of at most 8 bytes, else as bytes.

The number is the encoded key as a big-endian integer, so numbers are ordered like the bytes. The form follows from the
types of the primary key, which never change: all keys of a table have the same form.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.limits import WIDEST
from lakestore.rows import keys
from lakestore.rows.distinct import distinct
from lakestore_server.arrays.grouping import Flags, first_places, linked, ordered
from lakestore_server.arrays.padded_bytes import WORD_BYTES, PaddedBytes
from lakestore_server.arrays.padded_bytes import joined as padded_joined
from lakestore_server.index.entry import PREFIX_BYTES

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
_FEW = 8
"""For up to this many keys, Python objects are faster than arrays."""
_FEW_BYTES, _LISTED_MAX = 20, 64
"""Byte keys are handled one by one up to the first number; requests hold them as Python objects up to the second,
because a group joins them.
"""
KEY_OBJECT_BYTES = 96
"""Approximate memory of an encoded key as a Python object, or as padded words with hash, start and length."""
NUMBER_BYTES = 8
_ZEROS = pa.array([bytes(size) for size in range(WORD_BYTES + 1)], pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True, eq=False)
class NumberKeys:
    """Keys that are a number after the table's prefix."""

    prefix: bytes
    width: int
    """Bytes of the number."""
    numbers: Numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Memory of the keys."""
        return NUMBER_BYTES * len(self.numbers)

    def part(self, rows: slice) -> NumberKeys:
        return NumberKeys(self.prefix, self.width, self.numbers[rows])

    def take(self, rows: Ints) -> NumberKeys:
        return NumberKeys(self.prefix, self.width, self.numbers[rows])

    def listed(self) -> list[bytes]:
        """The keys as bytes objects."""
        return [self.prefix + number.to_bytes(self.width, "big") for number in self.numbers.tolist()]

    def previous(self) -> Ints | None:
        """For each row, the previous row with the same key, or -1; None if all keys are distinct."""
        if len(self.numbers) < 2:
            return None
        order, same = ordered(self.numbers)
        return linked(order, same) if same.any() else None

    def places(self) -> Ints:
        """For each row, the first row with its key."""
        rows = len(self.numbers)
        return first_places(*ordered(self.numbers)) if rows > 1 else np.arange(rows, dtype=np.int64)

    def ascending(self) -> NumberKeys:
        """Each key once, in order."""
        return NumberKeys(self.prefix, self.width, distinct(self.numbers))

    def at(self, bound: bytes) -> int:
        """The number of keys below a bound. The keys must be ascending."""
        number = self.bound(bound)
        if number >> 8 * NUMBER_BYTES:
            return len(self.numbers)
        return int(np.searchsorted(self.numbers, np.uint64(number)))

    def within(self, low: bytes, high: bytes) -> NumberKeys:
        """The keys in [low, high)."""
        first, end = self.bound(low), self.bound(high)
        if not end or first >> 8 * NUMBER_BYTES:
            return self.part(slice(0))
        chosen = (self.numbers >= np.uint64(first)) & (self.numbers <= np.uint64(end - 1))
        return NumberKeys(self.prefix, self.width, self.numbers[chosen])

    def bound(self, bound: bytes) -> int:
        """The smallest number whose key is not below a bound."""
        if not bound.startswith(self.prefix):
            return 1 << 8 * NUMBER_BYTES if bound > self.prefix else 0
        tail = bound[PREFIX_BYTES:]
        number = int.from_bytes(tail[: self.width].ljust(self.width, b"\0"), "big")
        return number + (len(tail) > self.width)


class ByteKeys:
    """Keys of any kind, in full: as Python objects or as arrays. The other form is made when needed."""

    __slots__ = ("_hashes", "_padded", "_rows")

    def __init__(
        self, rows: Sequence[bytes] | None = None, padded: PaddedBytes | None = None, hashes: Numbers | None = None
    ) -> None:
        """`rows`, `padded` or both are given. `hashes` belong to `padded`."""
        self._rows, self._padded, self._hashes = rows, padded, hashes

    def __len__(self) -> int:
        return len(self._rows if self._rows is not None else self.padded)

    @property
    def padded(self) -> PaddedBytes:
        """The keys as arrays."""
        if self._padded is None:
            self._padded = PaddedBytes.of(self.listed())
        return self._padded

    @property
    def hashes(self) -> Numbers:
        if self._hashes is None:
            self._hashes = self.padded.hashes()
        return self._hashes

    def listed(self) -> Sequence[bytes]:
        """The keys as bytes objects."""
        if self._rows is None:
            self._rows = self.padded.listed()
        return self._rows

    @property
    def prefix(self) -> bytes:
        """The prefix of the keys' table; empty if there are no keys."""
        if not len(self):
            return b""
        first = self._rows[0] if self._rows is not None else self.padded.one(0)
        return first[:PREFIX_BYTES]

    @property
    def nbytes(self) -> int:
        """Approximate memory of the keys."""
        one_by_one = KEY_OBJECT_BYTES * len(self) if self._rows is not None else 0
        arrays = self._padded.nbytes if self._padded is not None else 0
        return one_by_one + arrays + (self._hashes.nbytes if self._hashes is not None else 0)

    @property
    def least(self) -> bytes:
        """The smallest key."""
        return min(self.listed()) if self.is_few() else self.padded.least()

    def above(self, bound: bytes) -> bool:
        """Whether all keys are above a bound."""
        if not len(self):
            return True
        first = self._rows[0] if self._rows is not None else self.padded.one(0)
        return first > bound and self.least > bound

    def longer_than(self, size: int) -> Ints:
        """The rows whose keys are longer than `size`."""
        if self._rows is not None and self.is_few():
            return np.array([row for row, key in enumerate(self._rows) if len(key) > size], dtype=np.int64)
        return np.flatnonzero(self.padded.lengths > size)

    def part(self, rows: slice) -> ByteKeys:
        return ByteKeys(
            self._rows[rows] if self._rows is not None else None,
            self._padded.part(rows) if self._padded is not None else None,
            self._hashes[rows] if self._hashes is not None else None,
        )

    def take(self, rows: Ints) -> ByteKeys:
        held = self._rows
        if held is not None and len(rows) <= _LISTED_MAX:
            return ByteKeys([held[row] for row in rows.tolist()])
        hashes = self._hashes[rows] if self._hashes is not None else None
        return ByteKeys(None, self.padded.take(rows), hashes)

    def previous(self) -> Ints | None:
        """For each row, the previous row with the same key, or -1; None if all keys are distinct."""
        if len(self) < 2 or (self.is_few() and len(set(self.listed())) == len(self)):
            return None
        order, same = self._ordered()
        return linked(order, same) if same.any() else None

    def places(self) -> Ints:
        """For each row, the first row with its key."""
        return first_places(*self._ordered()) if len(self) > 1 else np.arange(len(self), dtype=np.int64)

    def _ordered(self) -> tuple[Ints, Flags]:
        """The sort order of the hashes, as `ordered` returns it for numbers. Keys of the same hash are told apart by
        their bytes.
        """
        bits = np.uint64(len(self).bit_length())
        order, same = ordered(self.hashes >> bits)
        pairs = np.flatnonzero(same)
        if self.padded.equal(order[pairs], self.padded, order[pairs + 1]).all():
            return order, same
        first: dict[bytes, int] = {}
        rows = np.fromiter(map(first.setdefault, self.listed(), count()), dtype=np.int64, count=len(self))
        order = np.argsort(rows, kind="stable")
        return order, rows[order][1:] == rows[order][:-1]

    def ascending(self) -> ByteKeys:
        """Each key once, in order."""
        if self.is_few():
            return ByteKeys(sorted(set(self.listed())))
        padded = self.padded.take(self.padded.order())
        rows = np.arange(1, len(padded))
        chosen = np.append(0, rows[~padded.equal(rows, padded, rows - 1)])
        return ByteKeys(None, padded if len(chosen) == len(padded) else padded.take(chosen))

    def is_few(self) -> bool:
        """Whether the keys are so few that they are handled one by one."""
        return len(self) <= _FEW_BYTES

    def is_listed(self) -> bool:
        """Whether the keys exist as Python objects."""
        return self._rows is not None

    def at(self, bound: bytes) -> int:
        """The number of keys below a bound. The keys must be ascending."""
        if self._rows is not None:
            return bisect_left(self._rows, bound)
        return bisect_left(range(len(self)), bound, key=self.padded.one)

    def within(self, low: bytes, high: bytes) -> ByteKeys:
        """The keys in [low, high)."""
        return self.take(np.flatnonzero(self.padded.below(high) & ~self.padded.below(low)))


IndexKeys = NumberKeys | ByteKeys
NO_KEYS = ByteKeys(())


def encoded(columns: Sequence[pa.Array], prefix: bytes, bytes_max: int = WIDEST.key_bytes) -> IndexKeys:
    """Each row's key: the prefix, then the encoded columns."""
    width = keys.number_width([column.type for column in columns])
    if width is not None:
        return NumberKeys(prefix, width, keys.numbers(columns))
    if len(columns[0]) <= _LISTED_MAX:
        return ByteKeys(keys.encode(columns, prefix, bytes_max))
    matrix = keys.fixed(columns, prefix)
    padded = _padded(keys.joined(columns, prefix, bytes_max)) if matrix is None else PaddedBytes.of_matrix(matrix)
    return ByteKeys(None, padded, padded.hashes())


def _padded(joined: pa.Array) -> PaddedBytes:
    lengths = pc.binary_length(joined).to_numpy()
    missing = np.where(lengths, -lengths % WORD_BYTES, WORD_BYTES)
    filled = pc.binary_join_element_wise(joined, _ZEROS.take(pa.array(missing)), _NOTHING)
    return PaddedBytes.of_buffer(filled.buffers()[2], lengths.astype(np.uint32))


def key_bytes(kinds: Sequence[pa.DataType]) -> int:
    """Approximate memory of a key with such columns, in addition to the columns."""
    return KEY_OBJECT_BYTES if keys.number_width(kinds) is None else NUMBER_BYTES


def joined(parts: Sequence[IndexKeys]) -> IndexKeys:
    """Keys of one table, concatenated."""
    parts = [part for part in parts if len(part)] if len(parts) > 1 else parts
    if len(parts) < 2:
        return parts[0] if parts else NO_KEYS
    first = parts[0]
    if isinstance(first, NumberKeys):
        numbers = [part.numbers for part in parts if isinstance(part, NumberKeys)]
        return NumberKeys(first.prefix, first.width, np.concatenate(numbers))
    many: list[ByteKeys] = []
    for one_by_one, run in groupby((part for part in parts if isinstance(part, ByteKeys)), ByteKeys.is_listed):
        some = list(run)
        many += [ByteKeys([key for part in some for key in part.listed()])] if one_by_one else some
    if len(many) == 1:
        return many[0]
    return ByteKeys(None, padded_joined([part.padded for part in many]), np.concatenate([part.hashes for part in many]))
