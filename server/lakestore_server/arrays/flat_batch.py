"""A record batch with all buffers in one piece of memory, and the bytes that some of its rows occupy.

A column is *flat* if arithmetic finds a row's bytes: numbers, times, decimals, booleans, texts and bytes. For lists,
structs and maps the whole column counts as touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def of_rows(batch: pa.RecordBatch, rows: Ints) -> Ints:
    """The bytes of each of these rows over all columns."""
    widths = [_width(kind) for kind in batch.schema.types]
    total = np.full(len(rows), sum(widths), dtype=np.int64)
    for i, width in enumerate(widths):
        if not width:
            total += _between(batch.column(i), rows, rows + 1)
    return total


def _width(kind: pa.DataType) -> int:
    """Bytes of a value of a primitive type; 0 for other types."""
    return max(kind.bit_width // 8, 1) if pa.types.is_primitive(kind) else 0


def _between(column: pa.Array, starts: Ints, ends: Ints) -> Ints:
    kind = column.type
    if pa.types.is_struct(kind):
        total = np.zeros(len(starts), dtype=np.int64)
        for i in range(kind.num_fields):
            total += _between(column.field(i), starts, ends)
        return total
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        offsets = _offsets(column)
        values = pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"]) if pa.types.is_map(kind) else None
        inner = column.values if values is None else values
        return 4 * (ends - starts) + _between(inner, offsets[starts], offsets[ends])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = _offsets(column)
        return np.asarray(4 * (ends - starts) + offsets[ends] - offsets[starts])
    if pa.types.is_null(kind):
        return np.zeros(len(starts), dtype=np.int64)
    return np.asarray((ends - starts) * max(kind.bit_width // 8, 1))


def _offsets(column: pa.Array) -> npt.NDArray[Any]:
    raw = column.buffers()[1]
    if raw is None or not raw.size:
        return np.zeros(len(column) + 1, dtype=np.int64)
    every = np.frombuffer(raw, dtype=np.int32)
    return every[column.offset : column.offset + len(column) + 1]


Ints = npt.NDArray[np.int64]
VALIDITY, VALUES, DATA = 0, 1, 2
"""The buffers of a flat column: validity bitmap, values or offsets, bytes of texts."""


class Watch(Protocol):
    """A listener that is told of bytes before they are read."""

    @property
    def is_needless(self) -> bool:
        """Whether it needs no calls of `touch`."""

    def touch(self, first: Ints, last: Ints) -> None:
        """First and last byte of the ranges that are read next; raises if they must not be read."""


def value_bytes(kind: pa.DataType) -> int:
    """Bytes of each value; 0 if they differ or are not whole bytes."""
    is_even = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return kind.bit_width // 8 if is_even and not pa.types.is_boolean(kind) else 0


def word_bytes(kind: pa.DataType) -> tuple[int, int]:
    """(bytes of a word, words of a value) of a flat type of fixed width; (0, 0) for other types and booleans."""
    width = value_bytes(kind)
    if not width:
        return 0, 0
    if pa.types.is_fixed_size_binary(kind) and width not in (1, 2, 4, 8, 16):
        return (1, width) if width <= 64 else (0, 0)
    return min(width, 8), max(width // 8, 1)


def is_text(kind: pa.DataType) -> bool:
    """Whether values have 32-bit offsets into bytes."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def is_flat(kind: pa.DataType) -> bool:
    """Whether arithmetic finds the bytes of a row."""
    return is_text(kind) or pa.types.is_boolean(kind) or word_bytes(kind) != (0, 0)


class FlatBatch:
    """Immutable. `watch` is told of the bytes that its methods, and readers of its memory, are about to read."""

    def __init__(self, batch: pa.RecordBatch, memory: pa.Buffer, watch: Watch) -> None:
        """`memory` holds all buffers of the batch at multiples of 8 bytes; `watch` counts bytes from its begin."""
        self.batch, self.watch = batch, watch
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        """The whole memory; `words` has its words of 2, 4 and 8 bytes."""
        self.words = {width: _words(memory, width) for width in (1, 2, 4, 8)}
        places = [_places(column, memory.address) for column in batch.columns]
        self.places: Ints = np.array([places_of for places_of, _ in places], dtype=np.int64).reshape(-1, 3)
        """The begins of each column's buffers; -1 for an absent buffer."""
        self._extents = [extent for _, extent in places]
        self._kinds = batch.schema.types
        self._rows_touched: dict[tuple[int, ...], tuple[Ints, Ints, list[int], list[int]]] = {}

    def touch_rows(self, rows: Ints, columns: Sequence[int]) -> None:
        """Tell `watch` of all bytes of some columns in these rows."""
        if self.watch.is_needless:
            return
        key = tuple(columns)
        if key not in self._rows_touched:
            self._rows_touched[key] = self._layout(key)
        starts, bits, texts, others = self._rows_touched[key]
        if len(starts):
            first = (starts[:, None] + rows[None, :] * bits[:, None] // 8).ravel()
            self.watch.touch(first, first + np.repeat(np.maximum(bits // 8, 1) - 1, len(rows)))
        for column in texts:
            values, data = (int(at) for at in self.places[column, VALUES:])
            if values >= 0:
                first = values + 4 * rows
                self.watch.touch(first, first + 7)
                offsets = self.words[4][values // 4 :]
                begins, ends = offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)
                held = np.flatnonzero(ends > begins)
                self.watch.touch(data + begins[held], data + ends[held] - 1)
        for column in others:
            begin, end = self._extents[column]
            if end > begin:
                self.watch.touch(np.array([begin]), np.array([end - 1]))

    def _layout(self, columns: Sequence[int]) -> tuple[Ints, Ints, list[int], list[int]]:
        """(begins of bitmaps and fixed-width values, bits of a value in each, text columns, columns that are not
        flat)"""
        starts, bits = [], []
        texts, others = [], []
        for column in columns:
            kind = self._kinds[column]
            if not is_flat(kind):
                others.append(column)
                continue
            validity, values, _ = (int(at) for at in self.places[column])
            if validity >= 0:
                starts.append(validity)
                bits.append(1)
            if is_text(kind):
                texts.append(column)
            elif values >= 0:
                starts.append(values)
                bits.append(int(kind.bit_width))
        return np.array(starts, dtype=np.int64), np.array(bits, dtype=np.int64), texts, others


def _words(memory: pa.Buffer, width: int) -> npt.NDArray[np.unsignedinteger]:
    return np.frombuffer(memory, dtype=f"u{width}", count=memory.size // width)


def _places(column: pa.Array, address: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """(begin of each buffer of a flat column, first byte and byte after the last of all buffers)."""
    buffers = column.buffers()
    there = [buffer for buffer in buffers if buffer is not None and buffer.size]
    begin = min((buffer.address for buffer in there), default=address) - address
    end = max((buffer.address + buffer.size for buffer in there), default=address) - address
    begins = [-1 if buffer is None or not buffer.size else buffer.address - address for buffer in buffers[:3]]
    validity, values, data = (*begins, -1, -1, -1)[:3]
    return (validity, values, data), (begin, end)
