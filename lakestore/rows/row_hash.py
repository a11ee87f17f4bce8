"""A 64-bit hash of every row over all its columns, vectorised. Equal values of one type have equal hashes.

The hash ignores bytes under a null, the position in a slice and the offsets of lists. It ignores the order of a map's
entries too, because engines do not keep that order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.model.types import has_offsets

Hashes = npt.NDArray[np.uint64]
_NULL = np.uint64(0x5BD1E995_2545F491)
_PRIME = np.uint64(0x100000001B3)


def hashes(columns: Sequence[Hashes]) -> Hashes:
    """Combine the hashes of columns to one hash a row. The order of columns matters."""
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for own in columns:
        total = _mixed(total * _PRIME + own)
    return total


def column(array: pa.Array) -> Hashes:
    """The hash of each value."""
    mixed = _mixed(_values(array))
    if array.null_count:
        mixed[pc.is_null(array).to_numpy(zero_copy_only=False)] = _NULL
    return mixed


def _values(array: pa.Array) -> Hashes:
    kind = array.type
    if pa.types.is_struct(kind):
        return hashes([column(child) for child in array.flatten()])
    if pa.types.is_map(kind):
        pair = pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
        return _lists(array.cast(pa.list_(pair)), ordered=False)
    if pa.types.is_list(kind):
        return _lists(array, ordered=True)
    if pa.types.is_fixed_size_binary(kind):
        return _bytes(array.cast(pa.binary()))
    return _bytes(array) if has_offsets(kind) else _words(array)


def _lists(array: pa.Array, *, ordered: bool) -> Hashes:
    """Sum the hashes of the elements, mixed with their places if `ordered`, and add the lengths."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    own = column(array.flatten())
    if ordered:
        place = np.arange(len(own)) - np.repeat(ends - lengths, lengths)
        own = _mixed(own + place.astype(np.uint64) * _PRIME)
    total = np.zeros(len(array), dtype=np.uint64)
    filled = np.flatnonzero(lengths)
    if len(filled):
        total[filled] = np.add.reduceat(own, (ends - lengths)[filled])
    return np.asarray(total * _PRIME + lengths.astype(np.uint64))


def _mixed(x: Hashes) -> Hashes:
    """The finisher of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _words(array: pa.Array) -> Hashes:
    """Fixed-width values as 64-bit words."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    width = array.type.byte_width
    start, raw = array.offset * width, array.buffers()[1]
    data = np.frombuffer(raw, dtype=np.uint8, count=len(array) * width, offset=start) if raw else np.empty(0, np.uint8)
    if width == 16:
        low, high = data.view(np.uint64).reshape(-1, 2).T
        return np.asarray(_mixed(low) * _PRIME + high)
    return data.view(f"u{width}").astype(np.uint64)


def _bytes(array: pa.Array) -> Hashes:
    """Hash texts and bytes: a polynomial of the bytes, and the length."""
    _, ends, raw = array.buffers()
    if not len(array) or ends is None:
        return np.zeros(len(array), dtype=np.uint64)
    offsets = np.frombuffer(ends, dtype=np.int32, count=len(array) + 1, offset=array.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    total = np.zeros(len(array), dtype=np.uint64)
    filled = np.flatnonzero(lengths)
    if len(filled):
        data = np.frombuffer(raw, dtype=np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)
        place = np.arange(len(data)) - np.repeat(offsets[:-1] - offsets[0], lengths)
        powers = np.cumprod(np.full(int(lengths.max()), _PRIME, dtype=np.uint64))
        total[filled] = np.add.reduceat(data * powers[place], (offsets[:-1] - offsets[0])[filled])
    return total * _PRIME + lengths.astype(np.uint64)
