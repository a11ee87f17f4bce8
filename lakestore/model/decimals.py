"""Exact decimal numbers of any size.

- Python's default context has 28 digits, `decimal(38, s)` has more: `scaleb`, `quantize`, `normalize`, `+`, `*` and
  even `-number` round silently. So all `Decimal` arithmetic is here, and `tests/test_tidy.py` refuses it elsewhere.
  `Decimal(text)`, comparisons, `copy_negate` and `as_tuple` are exact.
- Arrow scales decimals by a table of 38 powers of ten without checking the exponent: `1e-999999999` ends the process. A
  decimal from outside passes `fit_type` before Arrow sees it.
- A function returns the exact number or raises. Only `round_exact` rounds.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Inexact])
_WIDE = Context(prec=200, traps=[InvalidOperation])


def from_unscaled_value(number: int, scale: int) -> Decimal:
    """The decimal `number / 10**scale`."""
    return Decimal(number).scaleb(-scale, _EXACT)


def product(a: Decimal, b: Decimal) -> Decimal:
    """The exact product."""
    return _EXACT.multiply(a, b)


def round_exact(number: Decimal, scale: int, rounding: str) -> Decimal:
    """The number with `scale` decimal places. Raises `InvalidOperation` above 200 digits."""
    return number.quantize(from_unscaled_value(1, scale), rounding, _WIDE)


def places(number: Decimal) -> int:
    """Decimal places of a finite number."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    text = "".join(map(str, digits)).lstrip("0")
    return max(0, -(exponent + len(text) - len(text.rstrip("0")))) if text else 0


def extremes(kind: pa.DataType) -> tuple[Decimal, Decimal]:
    """The smallest and largest number of a decimal type."""
    most = from_unscaled_value(10**kind.precision - 1, kind.scale)
    return most.copy_negate(), most


def fit_type(number: Decimal, kind: pa.DataType) -> Decimal:
    """The number within its type's digits. Raises `ValueError` if the type cannot hold it."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number} is no {kind}")
    kept = "".join(map(str, digits)).lstrip("0")
    trailing = len(kept) - len(kept.rstrip("0"))
    if not kept:
        return Decimal(0)
    behind = -(exponent + trailing)
    if behind > kind.scale or len(kept) + exponent > kind.precision - kind.scale:
        raise ValueError(f"{kind} does not hold it exactly")
    unscaled = int(kept[: len(kept) - trailing])
    return from_unscaled_value(-unscaled if sign else unscaled, behind)


def fits(number: Decimal, kind: pa.DataType) -> bool:
    """True if the type holds the decimal. Call it before Arrow sees the value."""
    try:
        fit_type(number, kind)
    except ValueError:
        return False
    return True


def misfit(value: Any, kind: pa.DataType) -> str:
    """The rule of its type that a decimal or an integer violates, as the end of a sentence; empty for other values."""
    value = Decimal(value) if isinstance(value, int) else value
    if not (isinstance(value, Decimal) and value.is_finite() and pa.types.is_decimal(kind)):
        return ""
    if places(value) > kind.scale:
        return f": it has {places(value)} places after the point, and the type has {kind.scale}"
    return f": it has more than {kind.precision - kind.scale} digits before the point"
