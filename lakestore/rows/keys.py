"""Primary keys as bytes, and the bucket a row goes to.

- The encoding keeps order. Fixed-width parts are big-endian, with a flipped sign bit if they are signed. A
  variable-width part before the last is escaped and ends with two zero bytes.
- The bucket is Iceberg's murmur3 of the encoded bucket key, without its sign bit, modulo the number of buckets.
- Neither ever changes: golden tests hold the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.limits import WIDEST
from lakestore.model.types import has_offsets

INDEX_KEY_BYTES_MAX = 511
NUMBER_BYTES_MAX = 8
HASH_BITS = 128
"""Bits of the hash of a key that is too long for the index. Tests use fewer."""
SLOTS_MAX = 1 << 16
_HASH_BYTES = 16
WHOLE_BYTES_MAX = INDEX_KEY_BYTES_MAX - _HASH_BYTES
_SLOT_BYTES = 2
KEPT_BYTES = WHOLE_BYTES_MAX - _SLOT_BYTES - 1
"""Index keys keep at least this many bytes of the row's key. Keys that are equal so far have no order."""
_END, _NOTHING = pa.scalar(b"\x00\x00", pa.binary()), pa.scalar(b"", pa.binary())
Matrix = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Number:
    """The integer form of a type's values."""

    arrow: pa.DataType
    unsigned: np.dtype[Any]
    width: int
    bias: np.uint64
    """The bits that flip the sign, so that unsigned order is the order of values."""

    @staticmethod
    def of(arrow: pa.DataType) -> _Number:
        signed, width = pa.types.is_signed_integer(arrow), arrow.bit_width // 8
        return _Number(arrow, np.dtype(f"u{width}"), width, np.uint64(signed and 1 << (8 * width - 1)))


_INTEGERS = [kind() for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)]
_NUMBERS: dict[int, _Number] = {kind.id: _Number.of(kind) for kind in _INTEGERS} | {
    pa.date32().id: _Number.of(pa.int32()),
    pa.timestamp("us").id: _Number.of(pa.int64()),
    pa.time64("us").id: _Number.of(pa.int64()),
}
"""By the id of a type."""
FEW_ROWS_MAX = 32
"""Up to this many rows, keys are made row by row: buckets of ten numbers take 4 µs instead of 26."""
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FEW_INTEGERS = {kind.id: (kind.bit_width // 8, 1 << (kind.bit_width - 1)) for kind in _SIGNED} | {
    kind.id: (kind.bit_width // 8, 0) for kind in _UNSIGNED
}
"""Type to (bytes, bias). The bias makes the order of bytes the order of values."""
_TEXTS = (pa.string().id, pa.binary().id)


def encode(columns: Sequence[pa.Array], prefix: bytes, bytes_max: int = WIDEST.key_bytes) -> list[bytes]:
    """The index key of each row: the prefix, then the encoded parts."""
    few = _few(columns)
    if few is not None and all(len(key) <= min(WHOLE_BYTES_MAX - len(prefix), bytes_max) for key in few):
        return [prefix + key for key in few]
    full = fixed(columns, prefix)
    if full is not None:
        return _rows_of(full)
    return _bytes_of(joined(columns, prefix, bytes_max))


def joined(columns: Sequence[pa.Array], prefix: bytes, bytes_max: int = WIDEST.key_bytes) -> pa.Array:
    """The keys of `encode` as a binary column."""
    found = _joined(columns, prefix=prefix)
    lengths = pc.binary_length(found).to_numpy()
    longest = int(lengths.max(initial=0))
    if longest - len(prefix) > bytes_max:
        row = int(lengths.argmax())
        raise Invalid(f"row {row}: a key of {longest - len(prefix)} bytes is longer than {bytes_max}")
    if longest <= WHOLE_BYTES_MAX:
        return found
    long = lengths > WHOLE_BYTES_MAX
    hashed = _hashed(_bytes_of(found.filter(pa.array(long))), prefix)
    return pc.replace_with_mask(found, pa.array(long), pa.array(hashed, pa.binary()))


def fixed(columns: Sequence[pa.Array], prefix: bytes) -> Matrix | None:
    """The keys as a matrix of bytes. None if their length varies, or if they are too long for the index."""
    matrix = _matrix(columns)
    if matrix is None or len(prefix) + matrix.shape[1] > WHOLE_BYTES_MAX:
        return None
    full = np.empty((len(matrix), len(prefix) + matrix.shape[1]), dtype=np.uint8)
    full[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    full[:, len(prefix) :] = matrix
    return full


def number_width(kinds: Sequence[pa.DataType]) -> int | None:
    """The length of the keys of these columns, if it is fixed and at most eight bytes. Otherwise None."""
    width = 0
    for kind in kinds:
        if (number := _NUMBERS.get(kind.id)) is not None:
            width += number.width
        elif pa.types.is_boolean(kind):
            width += 1
        elif pa.types.is_fixed_size_binary(kind):
            width += kind.byte_width
        else:
            return None
    return width if 0 < width <= NUMBER_BYTES_MAX else None


def numbers(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """The keys as big-endian numbers, with the order of their bytes. The columns must have a `number_width`."""
    whole, *more = [_numbers_of(column) for column in columns]
    found, _ = whole
    for part, width in more:
        found = (found << np.uint64(8 * width)) | part
    return found


def _numbers_of(column: pa.Array) -> tuple[npt.NDArray[np.uint64], int]:
    """(values as ordered unsigned numbers, bytes of each)."""
    number = _NUMBERS.get(column.type.id)
    if number is None:
        matrix = _fixed(column)
        if matrix is None:
            raise Invalid(f"a key of type {column.type} is no number")
        padded = np.zeros((len(matrix), NUMBER_BYTES_MAX), dtype=np.uint8)
        padded[:, NUMBER_BYTES_MAX - matrix.shape[1] :] = matrix
        return padded.view(">u8").ravel().astype(np.uint64), matrix.shape[1]
    values: npt.NDArray[Any] = (column if number.arrow.id == column.type.id else column.view(number.arrow)).to_numpy()
    return values.view(number.unsigned).astype(np.uint64, copy=False) ^ number.bias, number.width


def leading(columns: Sequence[pa.Array], prefix: bytes) -> list[bytes]:
    """The beginning of all keys with these leading columns. It is not shortened to the index length."""
    return [prefix + key for key in _bytes_of(_joined(columns, closed=True))]


def beyond(prefix: bytes) -> bytes:
    """The least bytes that are greater than all bytes with this prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def buckets(columns: Sequence[pa.Array], count: int) -> npt.NDArray[np.int32]:
    """The bucket of each row, from the columns of its bucket key."""
    if count == 1:
        return np.zeros(len(columns[0]), dtype=np.int32)
    few = _few(columns)
    matrix = _matrix(columns) if few is None else None
    if matrix is not None:
        hashes = murmur3(matrix)
    else:
        keys = few if few is not None else _bytes_of(_joined(columns))
        hashes = np.fromiter(map(mmh3.mmh3_32_uintdigest, keys), dtype=np.uint32, count=len(keys))
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32)


def _rows_of(matrix: Matrix) -> list[bytes]:
    if not len(matrix):
        return []
    keys: list[bytes] = np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}").ravel().tolist()
    return keys


def whole(columns: Sequence[pa.Array]) -> list[bytes]:
    """The complete key of each row, of any length and in key order. It distinguishes keys of equal hash."""
    matrix = _matrix(columns)
    return _bytes_of(_joined(columns)) if matrix is None else _rows_of(matrix)


def _few(columns: Sequence[pa.Array]) -> list[bytes] | None:
    """The complete key of each row, made row by row. None for more than `FEW_ROWS_MAX` rows and for rare types."""
    if len(columns[0]) > FEW_ROWS_MAX:
        return None
    keys = [b""] * len(columns[0])
    for number, column in enumerate(columns, 1):
        kind = column.type.id
        integer = _FEW_INTEGERS.get(kind)
        if column.null_count or (integer is None and kind not in _TEXTS):
            return None
        for row, value in enumerate(column.to_pylist()):
            if integer is not None:
                keys[row] += (value + integer[1]).to_bytes(integer[0], "big")
                continue
            raw = value.encode() if isinstance(value, str) else value
            keys[row] += raw if number == len(columns) else raw.replace(b"\0", b"\0\xff") + b"\0\0"
    return keys


def is_hashed(key: bytes) -> bool:
    """True if an index key has a hash in place of its end."""
    return len(key) > WHOLE_BYTES_MAX


def slot(key: bytes, number: int) -> bytes:
    """The index key in slot `number` of its hash. It is one byte shorter, so it equals no other key's first slot."""
    return _numbered(key[:KEPT_BYTES] + key[WHOLE_BYTES_MAX:], number) if number else key


def _numbered(head: bytes, number: int) -> bytes:
    if number >= SLOTS_MAX:
        raise Invalid(f"more than {SLOTS_MAX - 1} long keys have one hash: shorten the keys")
    return head + number.to_bytes(_SLOT_BYTES, "big")


def following(key: bytes) -> bytes:
    """The next slot after this index key."""
    number = slot_number(key)
    return slot(key, 1) if not number else _numbered(key[:-_SLOT_BYTES], number + 1)


def slot_number(key: bytes) -> int:
    """The slot number of an index key within its hash."""
    in_slot = len(key) == INDEX_KEY_BYTES_MAX - 1
    return int.from_bytes(key[-_SLOT_BYTES:], "big") if in_slot else 0


def _hashed(keys: Iterable[bytes], prefix: bytes) -> list[bytes]:
    """Index keys of long keys: the prefix, the beginning of the key, and a hash of the key without the prefix."""
    from xxhash import xxh3_128_intdigest  # only in the extra `server`: a client hashes no keys

    start, mask = len(prefix), (1 << HASH_BITS) - 1
    return [
        key[:WHOLE_BYTES_MAX] + (xxh3_128_intdigest(key[start:]) & mask).to_bytes(_HASH_BYTES, "big") for key in keys
    ]


def _matrix(columns: Sequence[pa.Array]) -> Matrix | None:
    parts = [_fixed(column) for column in columns]
    if any(part is None for part in parts):
        return None
    return np.concatenate([part for part in parts if part is not None], axis=1)


def _fixed(column: pa.Array) -> Matrix | None:
    """A fixed-width column as big-endian bytes whose order is the order of values."""
    kind = column.type
    matrix: Matrix
    if pa.types.is_boolean(kind):
        matrix = column.cast(pa.uint8()).to_numpy().reshape(-1, 1).copy()
        return matrix
    if pa.types.is_fixed_size_binary(kind):
        return _raw(column, kind.byte_width).copy()
    if pa.types.is_decimal(kind):
        matrix = _raw(column, 16)[:, ::-1].copy()
    else:
        number = _NUMBERS.get(kind.id)
        if number is None:
            return None
        values: npt.NDArray[Any] = column.cast(number.arrow).to_numpy()
        width = values.dtype.itemsize
        matrix = values.astype(values.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, width)
    if not pa.types.is_unsigned_integer(kind):
        matrix[:, 0] ^= 0x80
    return matrix


def _raw(column: pa.Array, width: int) -> Matrix:
    """The bytes of a fixed-width column as a matrix."""
    raw = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)
    return raw[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _joined(columns: Sequence[pa.Array], *, closed: bool = False, prefix: bytes = b"") -> pa.Array:
    """The keys as binary values after a prefix. `closed` ends the last part by two zero bytes."""
    parts: list[Any] = [pa.scalar(prefix, pa.binary())] if prefix else []
    for i, column in enumerate(columns):
        raw = _binary(column)
        if (closed or i < len(columns) - 1) and has_offsets(column.type):
            parts += [_escaped(raw), _END]
        else:
            parts.append(raw)
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _NOTHING)


def _bytes_of(joined: pa.Array) -> list[bytes]:
    keys: list[bytes] = joined.to_numpy(zero_copy_only=False).tolist()
    return keys


def _binary(column: pa.Array) -> pa.Array:
    fixed = _fixed(column)
    if fixed is None:
        return column.cast(pa.binary())
    data = pa.py_buffer(np.ascontiguousarray(fixed))
    kind = pa.binary(fixed.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(column), [None, data]).cast(pa.binary())


def _escaped(raw: pa.Array) -> pa.Array:
    """Escape zero bytes, so that two zero bytes end the value."""
    offsets = np.frombuffer(raw.buffers()[1], dtype=np.int32)[raw.offset : raw.offset + len(raw) + 1]
    data = np.frombuffer(raw.buffers()[2] or b"", dtype=np.uint8)
    if len(raw) == 0 or data[offsets[0] : offsets[-1]].all():
        return raw
    return pc.replace_substring(raw, pattern=b"\x00", replacement=b"\x00\xff")


def murmur3(matrix: Matrix) -> npt.NDArray[np.uint32]:
    """murmur3_x86_32 with seed 0 of each row."""
    rows, width = matrix.shape
    whole = width - width % 4
    h = np.zeros(rows, dtype=np.uint32)
    words = np.ascontiguousarray(matrix[:, :whole]).view("<u4").reshape(rows, whole // 4)
    for i in range(whole // 4):
        h ^= _scrambled(words[:, i].astype(np.uint32))
        h = _rotated(h, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    if width % 4:
        tail = np.zeros(rows, dtype=np.uint32)
        for i in range(width % 4):
            tail |= matrix[:, whole + i].astype(np.uint32) << np.uint32(8 * i)
        h ^= _scrambled(tail)
    h ^= np.uint32(width)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _rotated(x: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _scrambled(k: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return _rotated(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
