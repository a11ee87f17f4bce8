"""Iceberg's partition transforms of whole columns. The results have the form of values in manifests.

Transforms work on plain values: numbers for dates and times, big-endian bytes for decimals. Null stays null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.iceberg.field_ids import id_of
from lakestore.iceberg.values import Json, Value, decimal_bytes, decimal_of, fixed_of, source_of, types_of
from lakestore.rows.keys import murmur3

RowNumbers = npt.NDArray[np.int64]
_FEW = 1 << 16
"""Up to this number of partitions their codes have 16 bits, which numpy sorts in linear time."""


Group = tuple[dict[str, Value], RowNumbers | None]


def groups(rows: pa.Table, spec: Json, schema: Json) -> list[Group]:
    """The partitions of rows: partition values by field in a manifest's form, and row numbers; None for all rows.

    The fields of `rows` carry field ids. A table without partitions has one partition, also without rows.
    """
    if not spec["fields"]:
        return [({}, None)]
    if not rows.num_rows:
        return []
    types = types_of(schema)
    fields = [_Field.of(rows, field, types.get(source_of(field))) for field in spec["fields"]]
    codes = _joined(fields)
    count = int(codes.max()) + 1
    if count == 1:
        return [(_values(fields, 0), None)]
    narrow = codes.astype(np.uint16) if count <= _FEW else codes
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    return [(_values(fields, int(own[0])), own) for own in np.split(order, ends[:-1])]


@dataclass(frozen=True, slots=True)
class _Field:
    """The values of a partition field: a code for each row, and the value of each code."""

    name: str
    codes: npt.NDArray[np.int64]
    values: list[Any]

    @staticmethod
    def of(rows: pa.Table, field: Json, kind: Any) -> _Field:
        """Compute the values of a partition field for these rows."""
        transform, name = field["transform"], field["name"]
        if transform == "void":
            return _Field(name, np.zeros(rows.num_rows, np.int64), [None])
        if not isinstance(kind, str):
            raise Invalid(f"partition field {name!r} is of field id {source_of(field)}, which the schema does not have")
        made = transformed(_source(rows, source_of(field)), transform, kind)
        if not pa.types.is_floating(made.type):
            return _Field(name, *_distinct(made))
        # Arrow treats -0.0 and 0.0 as one value, Iceberg as two. So bits are compared; all NaNs get the same.
        bits = pa.int32() if pa.types.is_float32(made.type) else pa.int64()
        nan = pc.if_else(pc.is_nan(made), pa.scalar(float("nan"), made.type), made)
        codes, values = _distinct(nan.view(bits))
        return _Field(name, codes, pa.array(values, bits).view(made.type).to_pylist())


def _distinct(column: pa.Array) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """A code for each row, and the value of each code."""
    found = column.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()


def _source(rows: pa.Table, number: int) -> pa.Array:
    """The column with a field id. It may be inside structs."""
    for place, field in enumerate(rows.schema):
        found = _inside(rows.column(place), field, number)
        if found is not None:
            return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
    raise Invalid(f"the rows have no column with the field id {number}, by which they are partitioned")


def _inside(column: pa.ChunkedArray, field: pa.Field, number: int) -> pa.ChunkedArray | None:
    if id_of(field) == number:
        return column
    for place, part in enumerate(field.type if pa.types.is_struct(field.type) else ()):
        found = _inside(pc.struct_field(column, [place]), part, number)
        if found is not None:
            return found
    return None


def _joined(fields: Sequence[_Field]) -> npt.NDArray[np.int64]:
    """A code of the partition of each row, from 0 without gaps."""
    codes = fields[0].codes
    for field in fields[1:]:
        codes, _ = _distinct(pa.array(codes * len(field.values) + field.codes))
    return codes


def _values(fields: Sequence[_Field], row: int) -> dict[str, Value]:
    return {field.name: field.values[field.codes[row]] for field in fields}


_WIDE = 16
"""Bytes of a decimal in memory."""
_ARGUMENT = re.compile(r"(bucket|truncate)\[(\d{1,10})\]")
_DAY_US, _HOUR_US, _US_NS = 86_400_000_000, 3_600_000_000, 1_000
_NUMBERS: Mapping[str, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "date": pa.int32(),
    "time": pa.int64(),
    "timestamp": pa.int64(),
    "timestamptz": pa.int64(),
    "timestamp_ns": pa.int64(),
    "timestamptz_ns": pa.int64(),
}
_TIMES = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
_PARTS = ("year", "month", "day", "hour")
_SAME: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}


def transformed(column: pa.Array, transform: str, kind: str) -> pa.Array:
    """Apply a partition transform to a column of an Iceberg type. `Invalid` if Iceberg has no such transform."""
    if transform == "void":
        return pa.nulls(len(column), pa.int32())
    plain = _plain(column, kind)
    if transform == "identity":
        return plain
    if transform in _PARTS:
        return _with_nulls(_time_part(plain, transform, kind), plain)
    match = _ARGUMENT.fullmatch(transform)
    if match is None or not int(match[2]):
        raise Invalid(f"partition transform {transform!r} is not known here")
    if match[1] == "truncate":
        return _truncated(plain, int(match[2]), kind)
    hashes = _hashes(plain, kind) & np.uint32(0x7FFFFFFF)
    return _with_nulls((hashes % np.uint32(int(match[2]))).astype(np.int32), plain)


def _plain(column: pa.Array, kind: str) -> pa.Array:
    if kind in _NUMBERS:
        if kind.endswith("_ns"):
            column = column.cast(pa.timestamp("ns", column.type.tz))
        elif kind in _TIMES:
            column = column.cast(pa.timestamp("us", column.type.tz))
        return column.cast(_NUMBERS[kind])
    if kind in _SAME:
        return column.cast(_SAME[kind])
    if decimal := decimal_of(kind):
        return _with_nulls(
            _big_endian(column.cast(pa.decimal128(*decimal)))[:, _WIDE - decimal_bytes(decimal[0]) :], column
        )
    width = 16 if kind == "uuid" else fixed_of(kind)
    if width is None:
        raise Invalid(f"values of type {kind!r} partition no table")
    return column.cast(pa.binary(width))


def _with_nulls(values: npt.NDArray[Any], like: pa.Array) -> pa.Array:
    """Numbers or rows of bytes as an Arrow array, null wherever `like` is null."""
    mask = like.is_null().to_numpy(zero_copy_only=False) if like.null_count else None
    if values.ndim == 1:
        return pa.array(values, mask=mask)
    made = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )
    return made if mask is None else pc.if_else(pa.array(mask), pa.scalar(None, made.type), made)


def _numbers(plain: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an array; 0 for null."""
    held: npt.NDArray[Any] = (plain.fill_null(0) if plain.null_count else plain).to_numpy()
    return held


def _big_endian(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Decimals as rows of 16 big-endian bytes; zero for null."""
    filled = column.fill_null(0) if column.null_count else column
    raw = np.frombuffer(filled.buffers()[1] or b"", np.uint8)
    rows = raw[filled.offset * _WIDE : (filled.offset + len(filled)) * _WIDE].reshape(-1, _WIDE)
    return rows[:, ::-1]


def _time_part(plain: pa.Array, part: str, kind: str) -> npt.NDArray[np.int32]:
    """Years, months, days or hours since 1970, rounded down."""
    if kind not in ("date", *_TIMES) or (kind == "date" and part == "hour"):
        raise Invalid(f"partition transform {part!r} has no values of type {kind!r}")
    numbers = _numbers(plain).astype(np.int64)
    if kind.endswith("_ns"):
        numbers = numbers // _US_NS
    if part == "hour":
        return (numbers // _HOUR_US).astype(np.int32)
    days = numbers if kind == "date" else numbers // _DAY_US
    if part == "day":
        return days.astype(np.int32)
    return days.astype("datetime64[D]").astype(f"datetime64[{part[0].upper()}]").astype(np.int64).astype(np.int32)


def _hashes(plain: pa.Array, kind: str) -> npt.NDArray[np.uint32]:
    """Iceberg's hash of each value. The hash of a null has no meaning."""
    if kind in _NUMBERS:
        numbers = _numbers(plain).astype("<i8")
        if kind.endswith("_ns"):
            numbers = numbers // _US_NS
        return murmur3(numbers.astype("<i8").view(np.uint8).reshape(-1, 8))
    if decimal_of(kind):
        return _decimal_hashes(plain)
    if kind in ("boolean", "float", "double"):
        raise Invalid(f"partition transform 'bucket' has no values of type {kind!r}")
    held = plain.cast(pa.binary())
    values = (held.fill_null(b"") if held.null_count else held).to_numpy(zero_copy_only=False).tolist()
    return np.fromiter(map(mmh3.mmh3_32_uintdigest, values), dtype=np.uint32, count=len(values))


def _decimal_hashes(plain: pa.Array) -> npt.NDArray[np.uint32]:
    """Hashes of decimals. Each is hashed in its fewest bytes, without leading bytes that only repeat the sign."""
    rows = _fixed_rows(plain)
    width = rows.shape[1]
    sign = np.where(rows[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    same = (rows[:, :-1] == sign) & ((rows[:, 1:] ^ sign) < 0x80)
    dropped = np.minimum.accumulate(same, axis=1).sum(axis=1)
    hashes = np.zeros(len(rows), dtype=np.uint32)
    for count in range(width):
        own = np.flatnonzero(dropped == count)
        if len(own):
            hashes[own] = murmur3(rows[own, count:])
    return hashes


def _fixed_rows(plain: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of an array of fixed width, one row for each value."""
    width = plain.type.byte_width
    raw = np.frombuffer(plain.buffers()[1] or b"", np.uint8)
    return raw[plain.offset * width : (plain.offset + len(plain)) * width].reshape(-1, width)


def _truncated(plain: pa.Array, width: int, kind: str) -> pa.Array:
    if kind in ("int", "long"):
        numbers = _numbers(plain)
        return _with_nulls(numbers - (numbers.astype(np.int64) % width).astype(numbers.dtype), plain)
    if kind == "string":
        return pc.utf8_slice_codeunits(plain, 0, width)
    if kind == "binary":
        return pc.binary_slice(plain, 0, width)
    if decimal_of(kind):
        return _with_nulls(_truncated_rows(_fixed_rows(plain), width), plain)
    raise Invalid(f"partition transform 'truncate' has no values of type {kind!r}")


def _truncated_rows(rows: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.uint8]:
    """Decimals as rows of bytes, minus the remainder of each. numpy has no 128-bit integers, so halves are used."""
    wide = np.where(rows[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0)).repeat(_WIDE, axis=1)
    wide[:, _WIDE - rows.shape[1] :] = rows
    high = wide[:, :8].copy().view(">i8").ravel().astype(np.int64)
    low = wide[:, 8:].copy().view(">u8").ravel().astype(np.uint64)
    carried = (high % width) * ((1 << 64) % width) + (low % np.uint64(width)).astype(np.int64)
    rest = (carried % width).astype(np.uint64)
    wide[:, :8] = (high - (low < rest)).astype(">i8").view(np.uint8).reshape(-1, 8)
    wide[:, 8:] = (low - rest).astype(">u8").view(np.uint8).reshape(-1, 8)
    return wide[:, _WIDE - rows.shape[1] :]
