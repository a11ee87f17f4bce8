"""Fields of structs, elements of lists, values of maps: NULL where there is none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.names import meant
from lakestore.rows.computed import kinds, logic
from lakestore.rows.computed.value import Value, constant, made


def part(value: Value, inner: object, text: str) -> Value:
    """The part of a nested value that a constant names: `a['field']`, `a[1]`, `a['key']`."""
    if pa.types.is_struct(value.type) and isinstance(inner, str):
        return _field(value, inner, text)
    if pa.types.is_list(value.type) and isinstance(inner, int) and not isinstance(inner, bool):
        return made(value.type.value_type, [value], lambda data: _element(data, inner))
    if pa.types.is_map(value.type) and inner is not None:
        return _of_key(value, inner, text)
    raise Invalid(f"{text}: a {value.type} has no part {inner!r}")


def _field(value: Value, name: str, text: str) -> Value:
    fields = list(value.type)
    found = [f for f in fields if f.name == name] or [f for f in fields if f.name.lower() == name.lower()]
    if len(found) != 1:
        raise Invalid(f"{text}: there is no field {name!r}{meant(name, [field.name for field in fields])}")
    field = found[0]
    return made(field.type, [value], lambda data: pc.struct_field(data, field.name))


def _element(data: pa.Array, place: int) -> pa.Array:
    """The element at a place, from 1 on; from the end if it is negative."""
    starts, sizes = data.offsets.to_numpy()[:-1], np.diff(data.offsets.to_numpy())
    valid = np.asarray(data.is_valid())
    at = place - 1 if place > 0 else sizes + place
    there = valid & (at >= 0) & (at < sizes) if place else np.zeros(len(data), np.bool_)
    places = pa.array(np.where(there, starts + at, 0), pa.int64(), mask=~there)
    return data.values.take(places)


def _of_key(value: Value, key: object, text: str) -> Value:
    wanted = kinds.in_type(constant(pa.scalar(key)), value.type.key_type, text).constant
    assert wanted is not None
    return made(value.type.item_type, [value], lambda data: pc.map_lookup(data, wanted, "first"))


def holds(value: Value, wanted: Value, text: str) -> Value:
    """list_contains(): whether a constant is an element; NULL of no list."""
    kind = value.type.value_type
    found = kinds.in_type(wanted, kind, text).constant
    if found is None or pa.types.is_nested(kind):
        raise Invalid(f"{text}: a list is searched for a constant, not for a column")

    def step(data: pa.Array) -> pa.Array:
        flat = pc.list_flatten(data)
        same = logic.signed(flat, "=", found).fill_null(False)
        parents = pc.list_parent_indices(data).filter(same).to_numpy()
        held = np.zeros(len(data), np.bool_)
        held[parents] = True
        return pa.array(held, mask=~np.asarray(data.is_valid()))

    return made(pa.bool_(), [value], step)
