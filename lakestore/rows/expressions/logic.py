"""Comparisons, AND, OR, NOT, IN, IS and CASE. Logic is three-valued, and NaN is the greatest number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.names import suggestion
from lakestore.rows.expressions import kinds
from lakestore.rows.expressions.kinds import Datum, Mask, Value, build_value, constant, folded, is_true


def part(value: Value, inner: object, text: str) -> Value:
    """A part of a nested value: `a['field']`, `a[1]` or `a['key']`. The name is a constant."""
    if pa.types.is_struct(value.type) and isinstance(inner, str):
        return _field(value, inner, text)
    if pa.types.is_list(value.type) and isinstance(inner, int) and not isinstance(inner, bool):
        return build_value(value.type.value_type, [value], lambda data: _element(data, inner))
    if pa.types.is_map(value.type) and inner is not None:
        return _of_key(value, inner, text)
    raise Invalid(f"{text}: a {value.type} has no part {inner!r}")


def _field(value: Value, name: str, text: str) -> Value:
    fields = list(value.type)
    found = [f for f in fields if f.name == name] or [f for f in fields if f.name.lower() == name.lower()]
    if len(found) != 1:
        raise Invalid(f"{text}: there is no field {name!r}{suggestion(name, [field.name for field in fields])}")
    field = found[0]
    return build_value(field.type, [value], lambda data: pc.struct_field(data, field.name))


def _element(data: pa.Array, place: int) -> pa.Array:
    """The element at a place. Places count from 1, or from the end if negative."""
    starts, sizes = data.offsets.to_numpy()[:-1], np.diff(data.offsets.to_numpy())
    valid = np.asarray(data.is_valid())
    at = place - 1 if place > 0 else sizes + place
    there = valid & (at >= 0) & (at < sizes) if place else np.zeros(len(data), np.bool_)
    places = pa.array(np.where(there, starts + at, 0), pa.int64(), mask=~there)
    return data.values.take(places)


def _of_key(value: Value, key: object, text: str) -> Value:
    wanted = kinds.in_type(constant(pa.scalar(key)), value.type.key_type, text).constant
    assert wanted is not None
    return build_value(value.type.item_type, [value], lambda data: pc.map_lookup(data, wanted, "first"))


def holds(value: Value, wanted: Value, text: str) -> Value:
    """list_contains(): true if a constant is an element. The result for a null list is NULL."""
    kind = value.type.value_type
    found = kinds.in_type(wanted, kind, text).constant
    if found is None or pa.types.is_nested(kind):
        raise Invalid(f"{text}: a list is searched for a constant, not for a column")

    def step(data: pa.Array) -> pa.Array:
        flat = pc.list_flatten(data)
        same = signed(flat, "=", found).fill_null(False)
        parents = pc.list_parent_indices(data).filter(same).to_numpy()
        held = np.zeros(len(data), np.bool_)
        held[parents] = True
        return pa.array(held, mask=~np.asarray(data.is_valid()))

    return build_value(pa.bool_(), [value], step)


BOOL = pa.bool_()
_SIGNS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compared(a: Value, sign: str, b: Value, text: str) -> Value:
    """Compare two values in their common type."""
    kind, (first, second) = kinds.aligned([a, b], text)
    if pa.types.is_nested(kind):
        raise Invalid(f"{text} compares nested values: name a field or an element of them, or use lake.sql")
    return build_value(BOOL, [first, second], lambda x, y: signed(x, sign, y), text=text)


def signed(a: Datum, sign: str, b: Datum) -> Datum:
    """Compare data of one type."""
    kind = a.type
    if pa.types.is_null(kind):
        return pa.nulls(len(a) if isinstance(a, pa.Array) else 1, BOOL)
    if pa.types.is_boolean(kind):
        a, b = a.cast(pa.int8()), b.cast(pa.int8())
    if pa.types.is_fixed_size_binary(kind):
        a, b = a.cast(pa.binary()), b.cast(pa.binary())
    if not pa.types.is_floating(kind):
        return _SIGNS[sign](a, b)
    if sign in ("!=", "<", "<="):
        other = {"!=": "=", "<": ">=", "<=": ">"}[sign]
        return pc.invert(signed(a, other, b))
    nan_a, nan_b = pc.is_nan(a), pc.is_nan(b)
    more = pc.or_kleene(pc.greater(a, b), pc.and_kleene(nan_a, pc.invert(nan_b)))
    if sign == ">":
        return more
    same = pc.or_kleene(pc.equal(a, b), pc.and_kleene(nan_a, nan_b))
    return same if sign == "=" else pc.or_kleene(more, same)


def distinct(a: Value, b: Value, text: str, *, negated: bool) -> Value:
    """IS [NOT] DISTINCT FROM: NULL is a value like any other."""
    kind, (first, second) = kinds.aligned([a, b], text)

    def step(x: Datum, y: Datum) -> Datum:
        null_x, null_y = pc.is_null(x), pc.is_null(y)
        if pa.types.is_null(kind):
            same = pc.and_(null_x, null_y)
        else:
            either = pc.coalesce(signed(x, "=", y), pa.scalar(False))
            same = pc.or_(either, pc.and_(null_x, null_y))
        return same if negated else pc.invert(same)

    return build_value(BOOL, [first, second], step, text=text)


def connected(parts: Sequence[Value], *, every: bool, text: str) -> Value:
    """AND (`every`) or OR. A part that may fail is computed only for rows that earlier parts leave undecided."""
    for part in parts:
        if not pa.types.is_boolean(part.type) and not pa.types.is_null(part.type):
            raise Invalid(f"{text}: AND and OR take conditions, not a {part.type}")
    join = pc.and_kleene if every else pc.or_kleene
    ordered = sorted(parts, key=lambda part: part.fails)

    def rows(batch: pa.RecordBatch) -> pa.Array:
        found = ordered[0].array(batch).cast(BOOL)
        for part in ordered[1:]:
            open_ = np.ones(batch.num_rows, np.bool_)
            if part.fails:
                open_ = ~is_true(pc.invert(found) if every else found)
            found = join(found, part.chosen(batch, open_).cast(BOOL))
        return found

    return folded(Value(BOOL, rows, fails=any(part.fails for part in parts)), parts, text)


def inverted(part: Value) -> Value:
    """NOT."""
    return build_value(BOOL, [part], lambda data: pc.invert(data.cast(BOOL)))


def null(part: Value, *, negated: bool) -> Value:
    """IS [NOT] NULL. NaN is not null."""
    return build_value(BOOL, [part], lambda data: (pc.is_valid if negated else pc.is_null)(data))


def truth(part: Value, wanted: bool) -> Value:
    """IS TRUE or IS FALSE. The result is never null."""
    held = pa.scalar(wanted)
    return build_value(BOOL, [part], lambda data: pc.coalesce(pc.equal(data, held), pa.scalar(False)))


def among(part: Value, values: Sequence[Value], text: str) -> Value:
    """IN a list. The result is null if no value is equal and one is null. Constants are compared in one step."""
    kind, (first, *others) = kinds.aligned([part, *values], text)
    constants = [value.constant for value in others if value.constant is not None]
    single = [value for value in others if value.constant is None]
    if pa.types.is_floating(kind) or pa.types.is_null(kind) or pa.types.is_nested(kind):
        constants, single = [], others
    tests = [compared(first, "=", value, text) for value in single]
    held = [scalar for scalar in constants if scalar.is_valid]
    if held or not single:
        wanted = pa.array(held, kind)
        plain = pa.types.is_fixed_size_binary(kind)

        def step(data: Datum) -> Datum:
            data, wished = (data.cast(pa.binary()), wanted.cast(pa.binary())) if plain else (data, wanted)
            return pc.if_else(pc.is_null(data), pa.scalar(None, BOOL), pc.is_in(data, value_set=wished))

        tests.append(build_value(BOOL, [first], step, text=text))
    if len(held) < len(constants):
        tests.append(constant(pa.scalar(None, BOOL)))
    return tests[0] if len(tests) == 1 else connected(tests, every=False, text=text)


def case(conditions: Sequence[Value], values: Sequence[Value], text: str) -> Value:
    """CASE WHEN: the value of the first true condition, or the last value. A branch is computed for its rows only."""
    kind, branches = kinds.aligned(list(values), text)
    if pa.types.is_null(kind):
        return constant(pa.scalar(None))

    def rows(batch: pa.RecordBatch) -> pa.Array:
        left = np.ones(batch.num_rows, np.bool_)
        found = pa.nulls(batch.num_rows, kind)
        for condition, value in zip(conditions, branches, strict=False):
            chosen = left & is_true(condition.chosen(batch, left).cast(BOOL))
            found = _put(found, value, batch, chosen)
            left &= ~chosen
        return _put(found, branches[-1], batch, left)

    fails = any(part.fails for part in (*conditions, *branches))
    return folded(Value(kind, rows, fails=fails), [*conditions, *branches], text)


def coalesced(values: Sequence[Value], text: str) -> Value:
    """coalesce(): the first value that is not null. Later values are computed only for rows that need them."""
    kind, branches = kinds.aligned(list(values), text)

    def rows(batch: pa.RecordBatch) -> pa.Array:
        found = branches[0].array(batch)
        for value in branches[1:]:
            missing = np.asarray(pc.is_null(found).to_numpy(zero_copy_only=False))
            if not missing.any():
                break
            found = _put(found, value, batch, missing)
        return found

    return folded(Value(kind, rows, fails=any(value.fails for value in branches)), branches, text)


def _put(found: pa.Array, value: Value, batch: pa.RecordBatch, mask: Mask) -> pa.Array:
    if not mask.any():
        return found
    return pc.if_else(pa.array(mask), value.chosen(batch, mask).cast(found.type), found)


def extreme(values: Sequence[Value], text: str, *, greatest: bool) -> Value:
    """greatest() or least(): null is skipped, and NaN is the greatest value."""
    kind, parts = kinds.aligned(list(values), text)
    sign = ">" if greatest else "<"

    def step(*data: Datum) -> Datum:
        best = data[0]
        for other in data[1:]:
            better = pc.or_(pc.is_null(best), pc.coalesce(signed(other, sign, best), pa.scalar(False)))
            best = pc.if_else(pc.and_(better, pc.is_valid(other)), other, best)
        return best

    return build_value(kind, parts, step, text=text)
