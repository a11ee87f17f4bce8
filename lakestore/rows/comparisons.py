"""Comparisons in conditions: a column with literals or with another column, exact, or refused when they are read.

A literal is brought to the column's own type. Where that has no such value, the comparison is made with the greatest
value below it: `small < 2.5` is `small <= 2`. Nothing is rounded but literals of floats, which are the nearest
float as everywhere in SQL. What a row could fail in, such as CAST(name AS INT), is refused: no row ends a read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model import decimals
from lakestore.rows.condition import NEVER, UNKNOWN, Comparison, Skip
from lakestore.rows.literals import Literal, bytes_of, cast_scalar, readable, short

Read = tuple[pc.Expression, Skip]
_ARROW: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_BESIDE = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}
"""The sign against the greatest value below a literal that the column's type does not have."""
_EPOCH_DAY, _DAY = date(1970, 1, 1), timedelta(days=1)
_FLOAT_MAX = {bits: float(np.finfo(f"f{bits // 8}").max) for bits in (32, 64)}
_EXACT_FLOAT_BITS = 32
"""Integers of so many bits are floats of 64 bits exactly."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A column in a comparison, perhaps cast."""

    column: str
    expression: pc.Expression
    type: pa.DataType
    plain: bool = False
    """A bare column, which statistics know about."""

    @property
    def counts(self) -> bool:
        """Whether statistics may decide: they leave NaN out, so not of floats."""
        return self.plain and not pa.types.is_floating(self.type)

    def skip(self, sign: str, *values: Any) -> Skip:
        """The comparison for statistics, where they may decide."""
        return Comparison(self.column, sign, values) if self.counts else UNKNOWN

    @property
    def present(self) -> Read:
        """The condition that it is not null, which statistics know of floats as well."""
        return self.expression.is_valid(), Comparison(self.column, "is not null") if self.plain else UNKNOWN


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A literal in a column's type."""

    value: Any
    """A Python value of exactly the type; None if all its values are greater."""
    exact: bool


def with_literal(operand: Operand, sign: str, literal: Literal) -> Read:
    """A comparison with a literal; `Invalid` if the types do not fit."""
    kind, literal = operand.type, _as_bytes(operand, literal)
    if pa.types.is_fixed_size_binary(kind) and pa.types.is_binary(literal.value.type):
        return _with_bytes(operand, sign, literal)
    fitted = _fitted(operand, literal)
    if fitted.exact:
        return _beside(operand, sign, fitted.value), operand.skip(sign, fitted.value)
    if sign == "=" or (fitted.value is None and sign in ("<", "<=")):
        return pc.scalar(False), NEVER
    if sign == "!=" or fitted.value is None:
        return operand.present
    beside = _BESIDE[sign]
    return _beside(operand, beside, fitted.value), operand.skip(beside, fitted.value)


def _beside(operand: Operand, sign: str, value: Any) -> pc.Expression:
    """A comparison with a value of the operand's type. Arrow calls each one with NaN false but `!=`."""
    column = operand.expression
    if isinstance(value, float) and math.isnan(value):
        nan = pc.is_nan(column)
        return {"=": nan, ">=": nan, "!=": ~nan, "<": ~nan, ">": pc.scalar(False), "<=": column.is_valid()}[sign]
    compared = _ARROW[sign](column, pc.scalar(pa.scalar(value, operand.type)))
    return compared | pc.is_nan(column) if sign in (">", ">=") and pa.types.is_floating(operand.type) else compared


def among(operand: Operand, literals: Sequence[Literal], *, negated: bool) -> Read:
    """IN, or NOT IN, as one vector of values."""
    if pa.types.is_fixed_size_binary(operand.type):
        literals = [_as_bytes(operand, literal) for literal in literals]
        values = [literal.value.as_py() for literal in literals if _is_bytes(operand, literal)]
        operand, held = replace(_binary(operand), plain=False), values
    else:
        fitted = [_fitted(operand, literal) for literal in literals]
        held = [each.value for each in fitted if each.exact]
    if pa.types.is_floating(operand.type) and 0 in held:
        held += [0.0, -0.0]  # one value, which Arrow hashes as two
    inside = operand.expression.isin(pa.array(held, operand.type)) if held else pc.scalar(False)
    if negated:
        return (~inside & operand.expression.is_valid(), UNKNOWN) if held else operand.present
    return inside, operand.skip("in", *held) if held else NEVER


def with_column(a: Operand, sign: str, b: Operand) -> pc.Expression:
    """A comparison of two columns in a type that holds the values of both; `Invalid` if there is none."""
    kind = _common(a.type, b.type)
    if kind is None:
        raise Invalid(
            f"column {a.column!r} is {a.type} and column {b.column!r} is {b.type}, which cannot be compared without"
            " rounding or failing on some row: cast one of them, or use lake.sql"
        )
    first, second = (each.expression if each.type == kind else each.expression.cast(kind) for each in (a, b))
    compared = _ARROW[sign](first, second)
    return _with_nan(compared, sign, first, second) if pa.types.is_floating(kind) else compared


def _with_nan(compared: pc.Expression, sign: str, a: pc.Expression, b: pc.Expression) -> pc.Expression:
    """The comparison of two columns of floats, where NaN is one value and the greatest."""
    if sign in ("<", "<="):
        return _with_nan(compared, {"<": ">", "<=": ">="}[sign], b, a)
    nan_a, nan_b = pc.is_nan(a), pc.is_nan(b)
    if sign == "=":
        return compared | (nan_a & nan_b)
    if sign == "!=":
        return compared & ~(nan_a & nan_b)
    return compared | (nan_a & (~nan_b if sign == ">" else b.is_valid()))


def widened(operand: Operand, target: pa.DataType, text: str) -> Operand:
    """A column cast to another type; `Invalid` if the cast can fail on a row, or rounds a decimal."""
    if operand.type == target:
        return operand
    if not _casts(operand.type, target):
        raise Invalid(
            f"{short(text)} may fail on a row of column {operand.column!r}, which is {operand.type}: a condition casts"
            " a column only to a type that holds all its values; use lake.sql for other casts"
        )
    safe = not pa.types.is_floating(target) and not pa.types.is_date(target)
    return Operand(operand.column, operand.expression.cast(target, safe=safe), target)


def _casts(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value has its place in the target, an integer perhaps as the nearest float, a time as its day."""
    t = pa.types
    if t.is_integer(kind):
        if t.is_decimal(target):
            digits = len(str(2 ** (kind.bit_width - t.is_signed_integer(kind)) - 1))
            return bool(target.precision - target.scale >= digits)
        return _is_wider(kind, target) if t.is_integer(target) else t.is_float64(target) or t.is_string(target)
    if t.is_floating(kind):
        return bool(t.is_float64(target))
    if t.is_decimal(kind):
        whole = kind.precision - kind.scale
        return bool(t.is_decimal(target) and target.scale >= kind.scale and target.precision - target.scale >= whole)
    if t.is_timestamp(kind):
        return bool(t.is_date(target) or t.is_timestamp(target))
    return bool(t.is_fixed_size_binary(kind) and t.is_binary(target))


def _is_wider(kind: pa.DataType, target: pa.DataType) -> bool:
    signed, wide = pa.types.is_signed_integer(kind), pa.types.is_signed_integer(target)
    if signed == wide:
        return bool(target.bit_width >= kind.bit_width)
    return bool(wide and target.bit_width > kind.bit_width)


def _common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """A type that holds all values of both, so that nothing is rounded and no row fails."""
    t = pa.types
    if a == b:
        return a
    if t.is_integer(a) and t.is_integer(b):
        return pa.int64()
    if (t.is_integer(a) or t.is_floating(a)) and (t.is_integer(b) or t.is_floating(b)):
        exact = all(t.is_floating(kind) or kind.bit_width <= _EXACT_FLOAT_BITS for kind in (a, b))
        return pa.float64() if exact else None
    if all(t.is_decimal(kind) or t.is_integer(kind) for kind in (a, b)):
        (whole_a, scale_a), (whole_b, scale_b) = _digits(a), _digits(b)
        scale = max(scale_a, scale_b)
        precision = max(whole_a, whole_b) + scale
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    if all(t.is_binary(kind) or t.is_fixed_size_binary(kind) for kind in (a, b)):
        return pa.binary()
    return None


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """The digits before and behind the point that a decimal or an integer has at most."""
    return (kind.precision - kind.scale, kind.scale) if pa.types.is_decimal(kind) else (19, 0)


def _binary(operand: Operand) -> Operand:
    return Operand(operand.column, operand.expression.cast(pa.binary()), pa.binary())


def _as_bytes(operand: Operand, literal: Literal) -> Literal:
    """A text beside bytes of a fixed length as the bytes that it stands for."""
    if not pa.types.is_fixed_size_binary(operand.type):
        return literal
    if pa.types.is_fixed_size_binary(literal.value.type):
        return Literal(literal.value.cast(pa.binary()), literal.node)
    if not pa.types.is_string(literal.value.type):
        return literal
    return Literal(pa.scalar(bytes_of(literal.value.as_py(), operand.type.byte_width)), literal.node)


def _is_bytes(operand: Operand, literal: Literal) -> bool:
    if not pa.types.is_binary(literal.value.type):
        raise _unfit(operand, literal)
    return True


def _with_bytes(operand: Operand, sign: str, literal: Literal) -> Read:
    """Bytes of any length against those of a fixed length."""
    same = len(literal.value.as_py()) == operand.type.byte_width
    whole = operand if same else _binary(operand)
    skip = operand.skip(sign, literal.value.as_py()) if same else UNKNOWN
    return _ARROW[sign](whole.expression, pc.scalar(literal.value.cast(whole.type))), skip


def _fitted(operand: Operand, literal: Literal) -> _Fitted:
    """The literal in the column's type, or the greatest value below; `Invalid` for types that are not compared."""
    try:
        return _in_type(operand, literal)
    except (ArithmeticError, ValueError) as error:
        raise Invalid(f"{literal.text} is out of the range of literals: compare with another one") from error


def _in_type(operand: Operand, literal: Literal) -> _Fitted:
    kind, given = operand.type, literal.value.type
    t = pa.types
    if given == kind:
        return _Fitted(literal.value.as_py(), exact=True)
    if readable(literal.value, kind):
        return _Fitted(_read(operand, literal), exact=True)
    is_number = t.is_integer(given) or t.is_decimal(given) or t.is_floating(given)
    if is_number and t.is_floating(kind):
        return _float(literal.value.as_py(), kind)
    if is_number and (t.is_integer(kind) or t.is_decimal(kind)):
        return _number(operand, literal)
    if t.is_timestamp(given) and not given.tz and t.is_date(kind):
        day = literal.value.as_py()
        return _Fitted(day.date(), exact=day == datetime(day.year, day.month, day.day))
    if t.is_date(given) and t.is_timestamp(kind):
        day = literal.value.as_py()
        return _Fitted(datetime(day.year, day.month, day.day, tzinfo=UTC if kind.tz else None), exact=True)
    raise _unfit(operand, literal)


def _float(value: float | Decimal, kind: pa.DataType) -> _Fitted:
    """The nearest float; a number beyond the largest one is none, not infinity."""
    nearest = pa.scalar(float(value), kind).as_py()
    if math.isinf(nearest) and nearest != value:
        return _Fitted(_FLOAT_MAX[kind.bit_width] if nearest > 0 else -math.inf, exact=False)
    return _Fitted(nearest, exact=True)


def _read(operand: Operand, literal: Literal) -> Any:
    """A value of the column's type from a text."""
    try:
        return cast_scalar(literal.value, operand.type).as_py()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise Invalid(f"{literal.text} is not a {operand.type}, which column {operand.column!r} is") from error


def _number(operand: Operand, literal: Literal) -> _Fitted:
    """A number in an integer's or a decimal's type."""
    value, kind = literal.value.as_py(), operand.type
    if isinstance(value, float) and not math.isfinite(value):
        return _Fitted(None if value < 0 else _range(kind)[1], exact=False)
    exact = Decimal(value)
    if isinstance(value, float) and pa.types.is_decimal(kind) and decimals.places(exact) > kind.scale:
        raise Invalid(
            f"{literal.text} is a float, which column {operand.column!r}, a {kind}, does not hold exactly: write"
            " it without an exponent"
        )
    least, most = _range(kind)
    if exact < least:
        return _Fitted(None, exact=False)
    if exact > most:
        return _Fitted(most, exact=False)
    below = decimals.rounded(exact, kind.scale if pa.types.is_decimal(kind) else 0, ROUND_FLOOR)
    found = below if pa.types.is_decimal(kind) else int(below)
    return _Fitted(found, exact=below == exact)


def _range(kind: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value of an integer's or a decimal's type."""
    if pa.types.is_decimal(kind):
        return decimals.extremes(kind)
    if pa.types.is_signed_integer(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return 0, 2**kind.bit_width - 1


def _unfit(operand: Operand, literal: Literal) -> Invalid:
    kind, given = operand.type, literal.value.type
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(given):
        wanted = "TIMESTAMPTZ '2026-01-01 00:00:00+00'" if kind.tz else "TIMESTAMP '2026-01-01 00:00:00'"
        has = "has a time zone" if kind.tz else "has no time zone"
        return Invalid(f"{literal.text} is a {given} and column {operand.column!r} {has}: write {wanted}")
    return Invalid(f"{literal.text} is {given} and column {operand.column!r} is {kind}: cast one of them")
