"""Before-images of Debezium's change events: which of their values are real, and which rows a key change leaves
behind.

- PostgreSQL sends only the key of a deleted row unless the table has REPLICA IDENTITY FULL. Debezium fills the other
  columns with null, or with the column's default, 0, "" or 1970-01-01 if the column is not nullable.
- If all values outside the key are fillers, the decoder sets all of them to null.
- An update that changes the table's declared key is a single event if the source has another key or none. The decoder
  adds a delete of the row under its old key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium.connect_values import Faults, Kind, convert

_BLANK = (
    r"^(0*(\.0*)?|\{\}|P0Y0M0DT0H0M0(\.0+)?S"
    r"|(1970-01-01)?([T ])?(00:00(:00)?(\.0+)?)?(Z|[+]00:00)?)$"
)
"""Texts that Debezium uses as fillers: empty, zeros, and the first instant of 1970 as date, time or timestamp."""
CONNECTOR = "postgresql"
_Mask = npt.NDArray[np.bool_]


def without_fillers(
    before: pa.StructArray, row: Kind, keys: pa.StructArray | None, head: pa.StructArray
) -> pa.StructArray:
    """Replace fillers in the before-images of deletes by null. `keys` and `head` belong to the same rows."""
    if keys is None or not len(before):
        return before
    suspects = pc.and_(keys.is_valid(), before.is_valid()).to_numpy(zero_copy_only=False) & _of_postgres(head)
    names = {part.name for part in keys.type}
    others = [(name, kind) for name, kind in row.fields if name not in names]
    for name, kind in others:
        if not suspects.any():
            return before
        suspects &= _is_blank(pc.struct_field(before, name), kind)
    hidden = pa.array(suspects)
    columns = [
        column if part.name in names else pc.if_else(hidden, pa.scalar(None, part.type), column)
        for part, column in zip(before.type, before.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(before.type), mask=before.is_null())


def _of_postgres(head: pa.StructArray) -> _Mask:
    connectors = pc.struct_field(pc.struct_field(head, "source"), "connector")
    return np.asarray(pc.equal(connectors, CONNECTOR).fill_null(False).to_numpy(zero_copy_only=False))


def _is_blank(column: pa.Array, kind: Kind) -> _Mask:
    blank = pc.or_kleene(column.is_null(), _is_zero(column))
    if kind.default is not None:
        try:
            default = convert(pa.array([kind.default]), kind, "", Faults())
            blank = pc.or_kleene(blank, pc.equal(column, default[0]))
        except pa.ArrowException:
            return np.asarray(blank.fill_null(False).to_numpy(zero_copy_only=False))
    return np.asarray(blank.fill_null(False).to_numpy(zero_copy_only=False))


def _is_zero(column: pa.Array) -> pa.BooleanArray:
    t, kind = pa.types, column.type
    if t.is_struct(kind):
        parts = [pa.array(_is_blank(part, Kind(""))) for part in column.flatten()]
        found = pa.array(np.ones(len(column), bool))
        for part in parts:
            found = pc.and_(found, part)
        return found
    if t.is_map(kind):
        return pa.array(np.diff(column.offsets.to_numpy()) == 0)
    if t.is_list(kind):
        return pc.equal(pc.list_value_length(column), 0)
    if t.is_string(kind):
        return pc.match_substring_regex(column, _BLANK)
    if t.is_binary(kind):
        return pc.equal(pc.binary_length(column), 0)
    if t.is_boolean(kind):
        return pc.invert(column)
    if t.is_temporal(kind):
        column = column.cast(pa.int32() if t.is_date32(kind) or t.is_time32(kind) else pa.int64())
    elif not (t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind)):
        return pa.array(np.zeros(len(column), bool))  # Debezium has no known filler for this type
    return pc.equal(column, pa.scalar(Decimal(0) if t.is_decimal(kind) else 0, column.type))


def key_moves(
    before: pa.StructArray, after: pa.StructArray, names: Collection[str], kept: Mapping[str, pa.BooleanArray]
) -> _Mask:
    """True for the updates that change one of the fields in `names`. A field that was not sent did not change."""
    found = np.zeros(len(before), bool)
    for old, new, name in _pairs(before, after, names):
        same = _same(old, new)
        both_null = pc.and_(old.is_null(), new.is_null())
        changed = pc.invert(pc.or_kleene(both_null, same.fill_null(False)))
        if name in kept:
            changed = pc.and_(changed, pc.invert(kept[name]))
        found |= changed.to_numpy(zero_copy_only=False)
    return np.asarray(found & before.is_valid().to_numpy(zero_copy_only=False))


def _same(old: pa.Array, new: pa.Array) -> pa.BooleanArray:
    """True where two values are equal. Arrow cannot compare structs, and a key may have a struct field."""
    if pa.types.is_nested(old.type):
        return pa.array([one == other for one, other in zip(old.to_pylist(), new.to_pylist(), strict=True)])
    return pc.equal(old, new)


def _pairs(
    before: pa.StructArray, after: pa.StructArray, names: Collection[str]
) -> Iterator[tuple[pa.Array, pa.Array, str]]:
    for name in names:
        if before.type.get_field_index(name) >= 0 and after.type.get_field_index(name) >= 0:
            yield pc.struct_field(before, name), pc.struct_field(after, name), name
