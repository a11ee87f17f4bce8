"""Exact decimal numbers of any size.

- Python's default context has 28 digits, `decimal(38, s)` has more: `scaleb`, `quantize`, `normalize`, `+`, `*` and
  even `-number` round silently. So all `Decimal` arithmetic is here, and `tests/test_tidy.py` refuses it elsewhere.
  `Decimal(text)`, comparisons, `copy_negate` and `as_tuple` are exact.
- Arrow scales decimals by a table of 38 powers of ten without checking the exponent: `1e-999999999` ends the process. A
  decimal from outside passes `fit_type` before Arrow sees it.
- A function returns the exact number or raises. Only `round_exact` rounds.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Inexact])
_WIDE = Context(prec=200, traps=[InvalidOperation])
_PLAIN = re.compile(r"-?[0-9]{1,80}(\.[0-9]{1,80})?")
"""Texts whose number is told in an error."""


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
    """The rule of its type that a number or its text violates, as the end of a sentence; empty for other values."""
    if isinstance(value, float) and pa.types.is_decimal(kind):
        return ": a float is not exact, so give a Decimal or a text"
    number = _number(value)
    if number is None:
        return ""
    if pa.types.is_integer(kind):
        least, most = _range(kind)
        return "" if least <= number <= most or places(number) else f": it is outside {least} to {most}"
    if not pa.types.is_decimal(kind) or fits(number, kind):
        return ""
    if places(number) > kind.scale:
        return f": it has {places(number)} places after the point, and the type has {kind.scale}"
    return f": it has more than {kind.precision - kind.scale} digits before the point"


def _range(kind: pa.DataType) -> tuple[int, int]:
    """(smallest, largest) number of an integer type."""
    bits = kind.bit_width - pa.types.is_signed_integer(kind)
    return (-(1 << bits) if pa.types.is_signed_integer(kind) else 0), (1 << bits) - 1


def _number(value: Any) -> Decimal | None:
    """A finite number, or one that a text says plainly; None for other values."""
    if isinstance(value, str):
        value = Decimal(value) if _PLAIN.fullmatch(value) else None
    value = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return value if isinstance(value, Decimal) and value.is_finite() else None
