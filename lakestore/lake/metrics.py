"""The words of a manifest on the columns of a data file: numbers of values, nulls and NaNs, and bounds.

A bound only has to be certain: the lower one is no more than any value, the upper one no less. Where that takes effort,
in nested columns say, there is none. Texts are cut. A column with NaN has no upper bound: Spark and DuckDB order NaN
above every number, and would skip the file by any other bound.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.lake.field_ids import id_of
from lakestore.lake.values import high_zero, low_zero, unscaled_bytes

CUT_CHARS = 16
"""Characters of a text, or bytes of a binary value, that a bound keeps."""
_CODE_POINT_MAX, _SURROGATE, _BEHIND_SURROGATES = 0x10FFFF, 0xD800, 0xE000
_BOOL, _INT, _LONG, _FLOAT, _DOUBLE = (struct.Struct(code).pack for code in ("<?", "<i", "<q", "<f", "<d"))
Pack = Callable[[Any], bytes | None]


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a file's columns, by field id; a column that is not there is not known."""

    lower: Mapping[int, bytes] = field(default_factory=dict)
    """Bounds as Iceberg's single-value bytes."""
    upper: Mapping[int, bytes] = field(default_factory=dict)
    nulls: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)
    """All values, nulls and NaNs among them."""
    nans: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Bytes in the file."""


def metrics(rows: pa.Table) -> Metrics:
    """The figures of rows whose fields carry their ids, in the types of the lake; nested columns have none."""
    made: dict[str, dict[int, Any]] = {name: {} for name in ("lower", "upper", "nulls", "values", "nans")}
    for place, one in enumerate(rows.schema):
        number = id_of(one)
        if number is None or pa.types.is_nested(one.type):
            continue
        column = rows.column(place)
        made["values"][number], made["nulls"][number] = len(column), column.null_count
        if pa.types.is_floating(one.type):
            column, made["nans"][number] = _without_nan(column)
        for side, bound in zip(("lower", "upper"), _bounds(column), strict=True):
            if bound is not None and not (side == "upper" and made["nans"].get(number)):
                made[side][number] = bound
    return Metrics(**made)


def _without_nan(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    unknown = pc.fill_null(pc.is_nan(column), False)
    count = int(pc.sum(unknown).as_py() or 0)
    return (column.filter(pc.invert(unknown)) if count else column), count


def _bounds(column: pa.ChunkedArray) -> tuple[bytes | None, bytes | None]:
    """The least and the greatest value as single-value bytes; None where nothing is certain."""
    t, kind = pa.types, column.type
    plain = _plain(kind)
    if plain is not None:
        return _ends(column if plain == kind else column.cast(plain), *_PACKED[plain.id])
    if t.is_decimal(kind):
        return _ends(column, _unscaled, _unscaled)
    if t.is_string(kind) or t.is_large_string(kind):
        return _ends(column, lambda value: value[:CUT_CHARS].encode(), _raised_text)
    if t.is_binary(kind) or t.is_large_binary(kind):
        return _ends(column, lambda value: value[:CUT_CHARS], _raised_bytes)
    if t.is_fixed_size_binary(kind) and kind.byte_width <= CUT_CHARS:
        return _ends(column, bytes, bytes)
    return None, None


def _ends(column: pa.ChunkedArray, low: Pack, high: Pack) -> tuple[bytes | None, bytes | None]:
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return (None, None) if least is None else (low(least), high(most))


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """The type whose numbers are the single values of a type."""
    t = pa.types
    if t.is_boolean(kind) or kind in (pa.float32(), pa.float64(), pa.int32(), pa.int64()):
        return kind
    if t.is_date32(kind) or kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()):
        return pa.int32()
    return pa.int64() if t.is_timestamp(kind) or t.is_time64(kind) or kind == pa.uint32() else None


_PACKED: Mapping[int, tuple[Pack, Pack]] = {
    pa.bool_().id: (_BOOL, _BOOL),
    pa.int32().id: (_INT, _INT),
    pa.int64().id: (_LONG, _LONG),
    pa.float32().id: (lambda value: _FLOAT(low_zero(value)), lambda value: _FLOAT(high_zero(value))),
    pa.float64().id: (lambda value: _DOUBLE(low_zero(value)), lambda value: _DOUBLE(high_zero(value))),
}


def _unscaled(value: Decimal) -> bytes:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return unscaled_bytes(-number if sign else number)


def _raised_text(value: str) -> bytes | None:
    """A text of at most `CUT_CHARS` characters that is no less; None when there is none."""
    if len(value) <= CUT_CHARS:
        return value.encode()
    kept = value[:CUT_CHARS].rstrip(chr(_CODE_POINT_MAX))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return (kept[:-1] + chr(_BEHIND_SURROGATES if following == _SURROGATE else following)).encode()


def _raised_bytes(value: bytes) -> bytes | None:
    """At most `CUT_CHARS` bytes that are no less; None when there are none."""
    if len(value) <= CUT_CHARS:
        return value
    kept = value[:CUT_CHARS].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
