"""Arithmetic by DuckDB's rules. 64-bit integers and decimals fail on overflow; floats follow IEEE.

`/` returns a float. `//` and `%` of integers return NULL for a divisor of zero. A decimal has at most 38 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.rows.expressions import kinds
from lakestore.rows.expressions.kinds import Datum, Value, build_value

_DIGITS_MAX, _WIDEST = 38, 76
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_FLOATING = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


def combined(a: Value, sign: str, b: Value, text: str) -> Value:
    """`a sign b` for numbers. `sign` is one of + - * / // %."""
    for part in (a, b):
        if not kinds.is_number(part.type) and not pa.types.is_null(part.type):
            raise Invalid(f"{text} calculates with a {part.type}: cast it to a number")
    kind = kinds.common([a.type, b.type])
    assert kind is not None
    if pa.types.is_null(kind):
        return build_value(pa.int64(), [a, b], lambda x, y: pa.nulls(1, pa.int64()))
    if sign == "/":
        divided = pa.float32() if kind == pa.float32() else pa.float64()
        x, y = kinds.in_type(a, divided, text), kinds.in_type(b, divided, text)
        return build_value(divided, [x, y], pc.divide)
    if sign in ("//", "%"):
        return _whole(a, sign, b, kind, text)
    if pa.types.is_decimal(kind):
        return _decimal(a, sign, b, text)
    steps = _FLOATING if pa.types.is_floating(kind) else _CHECKED
    target = kind if pa.types.is_floating(kind) else pa.int64()
    x, y = kinds.in_type(a, target, text), kinds.in_type(b, target, text)
    return build_value(target, [x, y], steps[sign], fails=pa.types.is_integer(target), text=text)


def _whole(a: Value, sign: str, b: Value, kind: pa.DataType, text: str) -> Value:
    """`//` and `%` of integers, and `%` of floats."""
    if pa.types.is_floating(kind) and sign == "%":
        x, y = kinds.in_type(a, kind, text), kinds.in_type(b, kind, text)
        return build_value(kind, [x, y], lambda p, q: _remainder(p, q, kind))
    if not pa.types.is_integer(kind):
        raise Invalid(f"{text}: {sign} takes integers here: cast both sides to BIGINT, or use lake.sql")

    def step(p: Datum, q: Datum) -> Datum:
        divisor = pc.if_else(pc.equal(q, 0), pa.scalar(None, pa.int64()), q)
        quotient = pc.divide_checked(p, divisor)
        return quotient if sign == "//" else pc.subtract(p, pc.multiply(quotient, divisor))

    x, y = kinds.in_type(a, pa.int64(), text), kinds.in_type(b, pa.int64(), text)
    return build_value(pa.int64(), [x, y], step, fails=True, text=text)


def _remainder(p: Datum, q: Datum, kind: pa.DataType) -> pa.Array:
    missing = pc.or_(pc.is_null(p), pc.is_null(q))
    dtype = kind.to_pandas_dtype()
    with np.errstate(all="ignore"):
        found = np.fmod(kinds.floats(p).astype(dtype), kinds.floats(q).astype(dtype))
    return pc.if_else(missing, pa.scalar(None, kind), pa.array(found, kind))


def _decimal(a: Value, sign: str, b: Value, text: str) -> Value:
    (whole_a, scale_a), (whole_b, scale_b) = kinds.digits(a.type), kinds.digits(b.type)
    scale = scale_a + scale_b if sign == "*" else max(scale_a, scale_b)
    whole = whole_a + whole_b if sign == "*" else max(whole_a, whole_b) + 1
    if scale > _DIGITS_MAX:
        raise Invalid(f"{text} has {scale} digits behind the point, more than {_DIGITS_MAX}: cast one side")
    target = pa.decimal128(min(whole + scale, _DIGITS_MAX), scale)

    if sign == "*" and whole + scale >= _WIDEST:
        raise Invalid(f"{text} multiplies decimals of {_DIGITS_MAX} digits: cast one of them to fewer")

    def wide(value: Value, digits: tuple[int, int]) -> Value:
        return kinds.in_type(value, pa.decimal256(min(sum(digits), _DIGITS_MAX), digits[1]), text)

    x, y = wide(a, (whole_a, scale_a)), wide(b, (whole_b, scale_b))

    def step(p: Datum, q: Datum) -> Datum:
        return _CHECKED[sign](p, q).cast(target)

    return build_value(target, [x, y], step, fails=whole + scale > _DIGITS_MAX, text=text)


def negative(part: Value, text: str) -> Value:
    """The negated number."""
    if not kinds.is_number(part.type):
        raise Invalid(f"{text} calculates with a {part.type}: cast it to a number")
    if pa.types.is_integer(part.type):
        return build_value(
            pa.int64(), [kinds.in_type(part, pa.int64(), text)], pc.negate_checked, fails=True, text=text
        )
    return build_value(part.type, [part], pc.negate)


def absolute(part: Value, text: str) -> Value:
    """abs()."""
    if pa.types.is_integer(part.type):
        return build_value(pa.int64(), [kinds.in_type(part, pa.int64(), text)], pc.abs_checked, fails=True, text=text)
    return build_value(_number(part, text), [part], pc.abs)


def sign(part: Value, text: str) -> Value:
    """sign(): -1, 0 or 1, and 0 for NaN."""
    kind = _number(part, text)
    zeroed = pa.scalar(Decimal(0) if pa.types.is_decimal(kind) else 0, kind)

    def step(data: Datum) -> Datum:
        above, below = pc.greater(data, zeroed), pc.less(data, zeroed)
        return pc.subtract(above.cast(pa.int64()), below.cast(pa.int64()))

    return build_value(pa.int64(), [part], step)


def stepped(part: Value, text: str, *, up: bool) -> Value:
    """floor() and ceil(). An integer becomes a float, as in DuckDB."""
    kind = _number(part, text)
    if pa.types.is_integer(kind):
        return kinds.in_type(part, pa.float64(), text)
    step = pc.ceil if up else pc.floor
    if not pa.types.is_decimal(kind):
        return build_value(kind, [part], step)
    wide, target = pa.decimal256(_WIDEST, kind.scale), kinds.decimal(kind.precision - kind.scale + 1, 0)
    return build_value(target, [part], lambda data: step(data.cast(wide)).cast(target))


def rounded(part: Value, places: int, text: str) -> Value:
    """round(): rounds half away from zero, as DuckDB does."""
    kind = _number(part, text)
    if pa.types.is_floating(kind):
        return build_value(kind, [part], lambda data: _rounded_float(data, places, kind))
    if pa.types.is_integer(kind):
        whole = kinds.in_type(part, pa.int64(), text)
        return whole if places >= 0 else build_value(pa.int64(), [whole], _tens(-places), fails=True, text=text)
    if places >= kind.scale:
        return part
    wide, target = pa.decimal256(_WIDEST, kind.scale), kinds.decimal(kind.precision - kind.scale + 1, max(places, 0))

    def step(data: Datum) -> Datum:
        rounded = pc.round(data.cast(wide), ndigits=max(places, -_DIGITS_MAX), round_mode="half_towards_infinity")
        return rounded.cast(target)

    return build_value(target, [part], step)


def _tens(places: int) -> Callable[[Datum], Datum]:
    """Round integers to a power of ten."""
    ten = 10**places

    def step(data: Datum) -> Datum:
        if places > 18:
            return pc.multiply(data, 0)
        quotient = pc.divide(data, ten)
        rest = pc.subtract(data, pc.multiply(quotient, ten))
        up = pc.greater_equal(pc.abs(rest), (ten + 1) // 2).cast(pa.int64())
        return pc.multiply_checked(pc.add(quotient, pc.multiply(up, pc.sign(rest).cast(pa.int64()))), ten)

    return step


def _rounded_float(data: Datum, places: int, kind: pa.DataType) -> pa.Array:
    given = kinds.floats(data)
    with np.errstate(all="ignore"):
        factor = np.float64(10.0) ** abs(places)
        moved = given * factor if places >= 0 else given / factor
        whole = np.trunc(moved)
        whole += np.copysign(np.abs(moved - whole) >= 0.5, moved)
        found = whole / factor if places >= 0 else whole * factor
    usable = np.isfinite(found)
    found = np.where(usable, found, given if places >= 0 else 0.0)
    return pc.if_else(pc.is_null(data), pa.scalar(None, kind), pa.array(found).cast(kind, safe=False))


def _number(part: Value, text: str) -> pa.DataType:
    if not kinds.is_number(part.type):
        raise Invalid(f"{text} takes a number, not a {part.type}")
    return part.type
