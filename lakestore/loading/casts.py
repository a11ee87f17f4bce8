"""Values as they are read, in the types of a table's columns: vectorised, exact, or refused by row and reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode import casts
from lakestore.kafka.bridge.decode.casts import Mask, Misfit, Rule
from lakestore.model.types import map_parts, optional, type_name
from lakestore.rows.casting import Cast

Convert = Callable[[pa.Array, pa.Field], pa.Array]
"""A function of values as they were read, and a column: the values in its type, or one of `casts.FAILURES`."""
SHOWN_CHARS = 60
_FINE = r"\.[0-9]{6}[0-9]*[1-9]"
"""Texts of times with more than microseconds, which no column holds."""
_COUNT = r"^\s*[-+]?[0-9.]+\s*$"
_PLAIN_TIME_CHARS = 26
_TRUE, _FALSE = pa.array(["true", "t", "yes", "1"]), pa.array(["false", "f", "no", "0"])


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes, which texts have in hex."""
    t = pa.types
    return bool(t.is_binary(kind) or (t.is_fixed_size_binary(kind) and not t.is_decimal(kind)))


def written(kind: pa.DataType) -> pa.DataType:
    """The type in which texts have values of a type: bytes are texts in hex, and nothing inside is required."""
    if is_bytes(kind):
        return pa.string()
    return map_parts(optional(kind), written) if pa.types.is_nested(kind) else kind


def cast(array: pa.Array, field: pa.Field, convert: Convert, *, most: int) -> tuple[pa.Array, Mask | None]:
    """A column in its type, and the rows that do not fit, which are null; None where all do.

    After `most` rows that do not fit and one more, all later rows are marked: the load ends there.
    """
    try:
        return convert(array, field), None
    except casts.FAILURES:
        return casts.parted(array, lambda some: convert(some, field), field.type, most=most)


def why(array: pa.Array, row: int, field: pa.Field, convert: Convert) -> str:
    """The reason why a row's value does not fit its column."""
    one = array.slice(row, 1)
    text = str(one[0].as_py())
    shown = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
    said = f"column {field.name!r}: {shown!r} is no {type_name(field.type, field.name)}"
    if not pa.types.is_nested(field.type):
        return said
    try:
        convert(one, field)
    except casts.FAILURES as error:
        return f"{said}: {' '.join(str(error).removeprefix('table : ').split())}"
    return said


def from_arrow(array: pa.Array, field: pa.Field) -> pa.Array:
    """A column of Parquet or Arrow by the rules of all rows."""
    if array.type == field.type and not pa.types.is_nested(field.type):
        return array
    return Cast("").column(array, field)


def from_json(array: pa.Array, field: pa.Field) -> pa.Array:
    """A column as JSON has it: times as texts, bytes as texts in hex."""
    made = _made(array, field.type)
    return Cast("").column(made, field) if pa.types.is_nested(field.type) else made


def from_csv(array: pa.Array, field: pa.Field) -> pa.Array:
    """Texts of a column; ones of other types than text may have blanks around."""
    kind, t = field.type, pa.types
    if t.is_string(kind):
        return array
    array = pc.utf8_trim_whitespace(array)
    if t.is_boolean(kind):
        lower = pc.utf8_lower(array)
        yes, no = pc.is_in(lower, value_set=_TRUE), pc.is_in(lower, value_set=_FALSE)
        if pc.any(pc.and_(array.is_valid(), pc.invert(pc.or_(yes, no)))).as_py():
            raise Misfit("it is neither true nor false")
        return pc.if_else(array.is_valid(), yes, None)
    if t.is_integer(kind) or t.is_floating(kind):
        return array.cast(kind)
    return _made(array, kind)


def _made(array: pa.Array, kind: pa.DataType) -> pa.Array:
    t = pa.types
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    if is_bytes(kind):
        return _bytes(array, kind)
    if not t.is_nested(kind):
        return _scalars(array, kind)
    mask = array.is_null() if array.null_count else None
    if t.is_struct(kind) and t.is_struct(array.type):
        kinds = {part.name: part.type for part in kind}
        names = [part.name for part in array.type]
        made = [_made(child, kinds[name]) for name, child in zip(names, array.flatten(), strict=True)]
        return pa.StructArray.from_arrays(made, names=names, mask=mask)
    if t.is_list(kind) and t.is_list(array.type):
        return pa.ListArray.from_arrays(_offsets(array), _made(array.flatten(), kind.value_type), mask=mask)
    if t.is_map(kind) and t.is_map(array.type):
        entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        keys, values = entries.flatten().flatten()
        keys, values = _made(keys, kind.key_type), _made(values, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(entries), keys, values, mask=mask)
    raise Misfit(f"{array.type} is no {kind}")


def _scalars(array: pa.Array, kind: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_temporal(kind) and not t.is_string(array.type):
        raise Misfit("it is a number, which has no unit: a time is a text")
    if t.is_temporal(kind):
        if pc.any(pc.match_substring_regex(array, _COUNT)).as_py():
            raise Misfit("it is a number, which has no unit: a time is a text")
        longest = pc.max(pc.binary_length(array)).as_py() or 0
        most = _PLAIN_TIME_CHARS if t.is_timestamp(kind) else 0
        if longest > most and pc.any(pc.match_substring_regex(array, _FINE)).as_py():
            raise Misfit("it has more than microseconds")
    return casts.exact(array, Rule(kind))


def _offsets(array: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _bytes(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_string(array.type):
        raise Misfit(f"{array.type} is not hex text")
    made = [None if text is None else bytes.fromhex(text) for text in array.to_pylist()]
    if pa.types.is_fixed_size_binary(kind) and any(each is not None and len(each) != kind.byte_width for each in made):
        raise Misfit(f"it has not {kind.byte_width} bytes")
    return pa.array(made, kind)


def missing(batch: pa.RecordBatch, fields: pa.Schema) -> dict[int, str]:
    """Row to the first column that is required, and null there."""
    found: dict[int, str] = {}
    for field in fields:
        if field.nullable or field.name not in batch.schema.names:
            continue
        column = batch.column(field.name)
        if column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                found.setdefault(row, field.name)
    return found
