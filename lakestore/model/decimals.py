"""Decimals as their type holds them: exactly, or not at all.

Arrow scales a decimal by a table of 38 powers of ten, whatever its exponent is: `1e-999999999` ends the process. So no
decimal of outside comes to Arrow before it was fitted here.
"""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa

_WIDE = Context(prec=100)


def fitted(number: Decimal, kind: pa.DataType) -> Decimal:
    """The number with no more digits than its type has; `ValueError` where the type does not hold it."""
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
    found = Decimal(int(kept[: len(kept) - trailing])).scaleb(-behind, _WIDE)
    return -found if sign else found
