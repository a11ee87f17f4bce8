"""Keys of one table for the index: as numbers where all its keys have a fixed width that fits into one, else as bytes.

The number is the encoded key read big-endian, so that numbers are ordered as the bytes are. Which form keys have
follows from the types of the primary key alone, which never change: one table has keys of one form.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.limits import WIDEST
from lakestore.rows import keys
from lakestore_server.arrays.grouping import before, linked
from lakestore_server.index.entry import PREFIX_BYTES
from lakestore_server.index.packed import PackedKeys

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
_FEW = 8
"""Of so few keys Python's own numbers are faster than arrays."""
KEY_OBJECT_BYTES = 96
"""About what an encoded key takes as an object of Python, beside its column."""
NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class NumberKeys:
    """Keys that are a number behind the table's prefix."""

    prefix: bytes
    width: int
    """Bytes of the number."""
    numbers: Numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return NUMBER_BYTES * len(self.numbers)

    @property
    def least(self) -> bytes:
        """The first key in order."""
        return self.prefix + int(self.numbers.min()).to_bytes(self.width, "big")

    def part(self, rows: slice) -> NumberKeys:
        """Those of some rows."""
        return NumberKeys(self.prefix, self.width, self.numbers[rows])

    def take(self, rows: Ints) -> NumberKeys:
        """Those of some rows."""
        return NumberKeys(self.prefix, self.width, self.numbers[rows])

    def packed(self) -> PackedKeys:
        """As the index's processes take them."""
        width = PREFIX_BYTES + self.width
        if len(self.numbers) <= _FEW:
            return PackedKeys(b"".join(self.listed()), len(self.numbers), width)
        matrix = np.empty((len(self.numbers), width), dtype=np.uint8)
        matrix[:, :PREFIX_BYTES] = np.frombuffer(self.prefix, dtype=np.uint8)
        matrix[:, PREFIX_BYTES:] = self.numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - self.width :]
        return PackedKeys(matrix.tobytes(), len(matrix), width)

    def listed(self) -> list[bytes]:
        """The keys one by one."""
        return [self.prefix + number.to_bytes(self.width, "big") for number in self.numbers.tolist()]

    def previous(self) -> Ints | None:
        """For each row, the row before it with the same key, or -1; None when no key comes twice."""
        if len(self.numbers) < 2:
            return None
        order, same = _ordered(self.numbers)
        return linked(order, same) if same.any() else None

    def places(self) -> Ints:
        """Of each key the row where it comes first."""
        rows = np.arange(len(self.numbers), dtype=np.int64)
        if len(rows) < 2:
            return rows
        order, same = _ordered(self.numbers)
        if not same.any():
            return rows
        starts = np.flatnonzero(np.append(True, ~same))
        rows[order] = np.repeat(order[starts], np.diff(starts, append=len(order)))
        return rows

    def ascending(self) -> NumberKeys:
        """Each key once, in order."""
        return NumberKeys(self.prefix, self.width, np.unique(self.numbers))

    def at(self, bound: bytes) -> int:
        """How many of these, which ascend, lie below a bound."""
        number = self._bound(bound)
        if number >> 8 * NUMBER_BYTES:
            return len(self.numbers)
        return int(np.searchsorted(self.numbers, np.uint64(number)))

    def within(self, low: bytes, high: bytes) -> NumberKeys:
        """Those of [low, high)."""
        first, end = self._bound(low), self._bound(high)
        if not end or first >> 8 * NUMBER_BYTES:
            return self.part(slice(0))
        chosen = (self.numbers >= np.uint64(first)) & (self.numbers <= np.uint64(end - 1))
        return NumberKeys(self.prefix, self.width, self.numbers[chosen])

    def _bound(self, bound: bytes) -> int:
        """The first number whose key is not below a bound."""
        if not bound.startswith(self.prefix):
            return 1 << 8 * NUMBER_BYTES if bound > self.prefix else 0
        tail = bound[PREFIX_BYTES:]
        number = int.from_bytes(tail[: self.width].ljust(self.width, b"\0"), "big")
        return number + (len(tail) > self.width)


@dataclass(frozen=True, slots=True, eq=False)
class ByteKeys:
    """Keys of any kind, in full."""

    rows: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def prefix(self) -> bytes:
        """That of their table; nothing where there are no keys."""
        return self.rows[0][:PREFIX_BYTES] if self.rows else b""

    @property
    def nbytes(self) -> int:
        """About the memory that they take."""
        return KEY_OBJECT_BYTES * len(self.rows)

    @property
    def least(self) -> bytes:
        """The first key in order."""
        return min(self.rows)

    def part(self, rows: slice) -> ByteKeys:
        """Those of some rows."""
        return ByteKeys(self.rows[rows])

    def take(self, rows: Ints) -> ByteKeys:
        """Those of some rows."""
        held = self.rows
        return ByteKeys([held[row] for row in rows.tolist()])

    def packed(self) -> PackedKeys:
        """As the index's processes take them."""
        return PackedKeys.of(self.rows)

    def listed(self) -> Sequence[bytes]:
        """The keys one by one."""
        return self.rows

    def previous(self) -> Ints | None:
        """For each row, the row before it with the same key, or -1; None when no key comes twice."""
        return None if self._is_distinct() else before(self._firsts())

    def places(self) -> Ints:
        """Of each key the row where it comes first."""
        return np.arange(len(self.rows), dtype=np.int64) if self._is_distinct() else self._firsts()

    def _is_distinct(self) -> bool:
        return len(set(self.rows)) == len(self.rows)

    def _firsts(self) -> Ints:
        first: dict[bytes, int] = {}
        return np.fromiter(map(first.setdefault, self.rows, count()), dtype=np.int64, count=len(self.rows))

    def ascending(self) -> ByteKeys:
        """Each key once, in order."""
        return ByteKeys(list(dict.fromkeys(sorted(self.rows))))

    def at(self, bound: bytes) -> int:
        """How many of these, which ascend, lie below a bound."""
        return bisect_left(self.rows, bound)

    def within(self, low: bytes, high: bytes) -> ByteKeys:
        """Those of [low, high)."""
        return ByteKeys([key for key in self.rows if low <= key < high])


IndexKeys = NumberKeys | ByteKeys
NO_KEYS = ByteKeys(())


def encoded(columns: Sequence[pa.Array], prefix: bytes, bytes_max: int = WIDEST.key_bytes) -> IndexKeys:
    """Each row's key: prefix, then what `keys.encode` makes of the columns."""
    width = keys.number_width([column.type for column in columns])
    if width is not None:
        return NumberKeys(prefix, width, keys.numbers(columns))
    return ByteKeys(keys.encode(columns, prefix, bytes_max))


def bytes_each(kinds: Sequence[pa.DataType]) -> int:
    """About the memory that a key of such columns takes, beside them."""
    return KEY_OBJECT_BYTES if keys.number_width(kinds) is None else NUMBER_BYTES


def joined(parts: Sequence[IndexKeys]) -> IndexKeys:
    """Keys of one table, one part behind the other."""
    parts = [part for part in parts if len(part)] if len(parts) > 1 else parts
    if len(parts) < 2:
        return parts[0] if parts else NO_KEYS
    first = parts[0]
    if isinstance(first, NumberKeys):
        numbers = [part.numbers for part in parts if isinstance(part, NumberKeys)]
        return NumberKeys(first.prefix, first.width, np.concatenate(numbers))
    return ByteKeys([key for part in parts for key in part.listed()])


def _ordered(numbers: Numbers) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(rows in the order of their numbers, equal ones as they came; whether each but the first equals its neighbour).

    Where number and row fit into one word, that is what is sorted: far faster than sorting places.
    """
    bits = len(numbers).bit_length()
    low = numbers.min()
    if int(numbers.max() - low) >> (8 * NUMBER_BYTES - bits):
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        return order, ordered[1:] == ordered[:-1]
    words = ((numbers - low) << np.uint64(bits)) | np.arange(len(numbers), dtype=np.uint64)
    words.sort()
    ordered = words >> np.uint64(bits)
    return (words & np.uint64((1 << bits) - 1)).view(np.int64), ordered[1:] == ordered[:-1]
