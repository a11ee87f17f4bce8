"""Arrow columns as Postgres's `send` functions write their values: the binary format.

Values of one width without nulls are a block: a matrix of bytes with one row for each value. Other columns are large
binary arrays, null where the value is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore_server.queries.postgres import texts, types

Block = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
BYTES = pa.large_binary()
DAYS_TO_2000 = 10_957
_SECONDS_TO_2000 = DAYS_TO_2000 * 86_400
_MULTIPLES = {"s": 1_000_000, "ms": 1_000, "us": 1}
_GROUP = np.array([1000, 100, 10, 1], dtype=np.int16)
_NEGATIVE = 0x4000
_PLAIN = {
    types.BOOL: ">i1",
    types.INT2: ">i2",
    types.INT4: ">i4",
    types.INT8: ">i8",
    types.FLOAT4: ">f4",
    types.FLOAT8: ">f8",
}


def binary(column: pa.Array) -> Block | pa.Array:
    """The binary form of each value."""
    kind = column.type
    if isinstance(kind, pa.Bool8Type):
        return binary(column.storage.cast(pa.bool_()))
    if pa.types.is_dictionary(kind):
        return as_array(binary(column.dictionary)).take(column.indices)
    oid = types.postgres_type(pa.field("", kind)).oid
    if oid in types.ELEMENTS:
        return _array(column, types.ELEMENTS[oid])
    if oid in _PLAIN:
        return _plain(column, _PLAIN[oid])
    if oid in _WRITERS:
        return _WRITERS[oid](column)
    if oid in (types.DATE, types.TIME, types.TIMESTAMP, types.TIMESTAMPTZ, types.INTERVAL, types.TIMETZ):
        return _with_nulls(_temporal(column, oid), column)
    return texts.text(column).cast(BYTES)


def as_large_binary(column: pa.Array) -> pa.Array:
    """Byte strings of any kind with 64-bit offsets."""
    if pa.types.is_fixed_size_binary(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary())
    return column.cast(BYTES)


def joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    """The pieces of each row one after the other; null where a piece is null."""
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", BYTES))


def as_array(values: Block | pa.Array) -> pa.Array:
    """A block as byte strings."""
    if not isinstance(values, np.ndarray):
        return values
    count, width = values.shape
    ends = np.arange(count + 1, dtype=np.int64) * width
    return pa.Array.from_buffers(BYTES, count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values))])


def fields(count: int, *values: tuple[str, Any]) -> Block:
    """A block of fields one after the other: (numpy's type in network byte order, values or one value for all)."""
    rows = np.empty(count, dtype=[(f"f{place}", dtype) for place, (dtype, _) in enumerate(values)])
    for place, (_, value) in enumerate(values):
        rows[f"f{place}"] = value
    return rows.view(np.uint8).reshape(count, rows.itemsize)


def _with_nulls(block: Block, column: pa.Array) -> Block | pa.Array:
    empty = texts.nulls(column)
    if empty is None:
        return block
    width = block.shape[1]
    return texts.strings(block[~empty].ravel(), np.where(empty, 0, width).astype(np.int64), column, BYTES)


def _plain(column: pa.Array, dtype: str) -> Block | pa.Array:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    values = texts.numbers(column, np.dtype(column.type.to_pandas_dtype()).str)
    return _with_nulls(fields(len(column), (dtype, values)), column)


def _json(column: pa.Array) -> pa.Array:
    return joined(pa.scalar(b"\x01", BYTES), texts.text(column).cast(BYTES))


def _uuid(column: pa.Array) -> Block | pa.Array:
    return _with_nulls(texts.numbers(column.storage, "V16").view(np.uint8).reshape(-1, 16), column)


def _oid(column: pa.Array) -> Block | pa.Array:
    return _plain(column.storage, ">u4")


def _letter(column: pa.Array) -> pa.Array:
    """A "char" is one byte: 0 for the empty one."""
    values = column.storage
    return pc.if_else(pc.equal(values, ""), pa.scalar(b"\0", BYTES), values.cast(BYTES))


def _temporal(column: pa.Array, oid: int) -> Block:
    count, kind = len(column), column.type
    if oid == types.DATE:
        column = column.cast(pa.date32()) if pa.types.is_date64(kind) else column
        days, high, low = texts.finite(column, "i4")
        return fields(count, (">i4", _endless(days - DAYS_TO_2000, high, low, "i4")))
    if oid == types.TIME:
        clock = texts.numbers(column, f"i{kind.bit_width // 8}").astype(np.int64)
        return fields(count, (">i8", clock * _MULTIPLES[kind.unit]))
    if oid == types.TIMETZ:
        clock, east = texts.zoned_times(column.storage)
        return fields(count, (">i8", clock), (">i4", -east))
    if oid == types.INTERVAL:
        months, days, clock = texts.interval_parts(column)
        return fields(count, (">i8", clock), (">i4", days), (">i4", months))
    values, high, low = texts.finite(column, "i8")
    multiple, limits = _MULTIPLES[kind.unit], np.iinfo(np.int64)
    least = -(-(limits.min + _SECONDS_TO_2000 * 1_000_000) // multiple)
    if len(values) and (values.max() > limits.max // multiple or values.min() < least):
        raise Invalid("a timestamp is outside the years that Postgres has (4713 BC to 294276)")
    since = values * multiple - _SECONDS_TO_2000 * 1_000_000
    return fields(count, (">i8", _endless(since, high, low, "i8")))


def _endless(values: Ints, high: texts.Flags, low: texts.Flags, dtype: str) -> Ints:
    """`values` with Postgres's numbers for infinity and -infinity."""
    limits = np.iinfo(dtype)
    return np.where(high, limits.max, np.where(low, limits.min, values))


def _numeric(column: pa.Array) -> pa.Array:
    """Header of four 16-bit numbers (digits, weight, sign, scale), then digits of base 10,000 without outer zeros."""
    integers, scale = _integers(column)
    integers = integers.fill_null("0")
    groups_behind = -(-scale // 4)
    is_negative = np.asarray(pc.starts_with(integers, "-").to_numpy(zero_copy_only=False))
    digits = texts.joined(pc.ascii_ltrim(integers, "-"), "0" * (4 * groups_behind - scale))
    longest = pc.max(pc.binary_length(digits)).as_py() or 0
    groups = max(-(-longest // 4), groups_behind, 1)
    data, _ = texts.bytes_of(pc.ascii_lpad(digits, 4 * groups, "0").cast(BYTES))
    values = (data.reshape(-1, groups, 4) - ord("0")).astype(np.int16) @ _GROUP
    is_set = values != 0
    first = np.argmax(is_set, axis=1)
    last = groups - 1 - np.argmax(is_set[:, ::-1], axis=1)
    is_zero = ~is_set.any(axis=1)
    count = np.where(is_zero, 0, last - first + 1)
    whole = np.empty((len(column), 4 + groups), dtype=">i2")
    whole[:, 0] = count
    whole[:, 1] = np.where(is_zero, 0, groups - groups_behind - 1 - first)
    whole[:, 2] = np.where(is_negative, _NEGATIVE, 0)
    whole[:, 3] = scale
    whole[:, 4:] = values
    places = np.arange(groups)
    kept = np.ones(whole.shape, dtype=np.bool_)
    kept[:, 4:] = (places >= first[:, None]) & (places <= last[:, None]) & ~is_zero[:, None]
    lengths = 8 + 2 * count
    empty = texts.nulls(column)
    if empty is not None:
        kept[empty], lengths = False, np.where(empty, 0, lengths)
    return texts.strings(whole[kept].view(np.uint8), lengths, column, BYTES)


def _integers(column: pa.Array) -> tuple[pa.Array, int]:
    """(integers as texts, digits behind the point)."""
    kind = column.type
    if pa.types.is_decimal(kind):
        integers = texts.unscaled(column)
        return (integers, kind.scale) if kind.scale >= 0 else (texts.scaled(integers, kind.scale), 0)
    return texts.text(column), 0


def _array(column: pa.Array, element: int) -> pa.Array:
    """One dimension that begins at 1: header, then each element behind its length."""
    elements, lengths = texts.parts_of_lists(column)
    values = as_array(binary(elements))
    empty = texts.nulls(values)
    sizes = pc.binary_length(values).fill_null(-1).to_numpy()
    cells = pc.binary_join_element_wise(
        as_array(fields(len(values), (">i4", sizes))), values, pa.scalar(b"", BYTES), null_handling="replace"
    )
    before = np.concatenate([[0], np.cumsum(empty)]) if empty is not None else np.zeros(len(values) + 1, dtype=np.int64)
    ends = np.cumsum(lengths)
    has_null = before[ends] > before[ends - lengths]
    header = fields(
        len(column),
        (">i4", lengths > 0),
        (">i4", has_null),
        (">i4", element),
        (">i4", lengths),
        (">i4", 1),
    )
    kept = np.ones(header.shape, dtype=np.bool_)
    kept[lengths == 0, 12:] = False
    empty_rows = texts.nulls(column)
    sizes_of_header = np.where(lengths == 0, 12, 20)
    if empty_rows is not None:
        kept[empty_rows], sizes_of_header = False, np.where(empty_rows, 0, sizes_of_header)
    headers = texts.strings(header[kept], sizes_of_header, column, BYTES)
    return joined(headers, texts.gathered(cells, lengths, pa.scalar(b"", BYTES)))


_WRITERS: dict[int, Callable[[pa.Array], Block | pa.Array]] = {
    types.BYTEA: as_large_binary,
    types.CHAR: _letter,
    types.JSONB: _json,
    types.NUMERIC: _numeric,
    types.OID: _oid,
    types.UUID: _uuid,
}
