"""Finds JSON numbers that Arrow's decimal reader does not read right, so that Python reads their records alone.

- The reader scales a number by a power of ten. Above 128 bits the product wraps to another number without an error, so
  a type with `scale` takes at most 38 - `scale` digits before the point.
- With a far exponent the reader indexes past its table of powers and crashes the process.
- A pattern may match numbers that the reader reads right. It never overlooks another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]
_DIGITS = 38
_LONG = 29
"""A run of so many digits may be a number that has too many of them in all."""
_HIDDEN = r"\\u00(?:2[bBdDeE]|3[0-9]|[46]5)"
"""Characters of numbers that a JSON text escapes."""
_ESCAPED = r"\\[u/]"
"""Escapes that can be in a name although a JSON writer needs none there."""


class FarDecimals:
    """The patterns of one schema."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._names: dict[int, set[str]] = {}
        self._everywhere = False
        for field in fields:
            self._add(field, field.name)
        self._named = self._anywhere = ""
        if self._names:
            ends = r'["\s,\]}]'
            long, powered = _runs(max(self._names))
            self._anywhere = rf"[0-9.][eE][-+]?[0-9]{{2,}}{ends}|{powered}{ends}|{long}|{_HIDDEN}"
            self._named = self._anywhere if self._everywhere else "|".join(map(self._of_scale, sorted(self._names)))

    def rows(self, texts: pa.Array) -> Bools | None:
        """The texts of JSON that may hold a number that Arrow's reader does not read right; None if there are none.

        The texts are strings or bytes, none null.
        """
        if not self._names:
            return None
        found = pc.match_substring_regex(texts, self._named)
        escaped = pc.match_substring_regex(texts, _ESCAPED)
        if escaped.true_count:
            found = pc.or_(found, pc.and_(escaped, pc.match_substring_regex(texts, self._anywhere)))
        return found.to_numpy(zero_copy_only=False) if found.true_count else None

    def _add(self, field: pa.Field, name: str | None) -> None:
        """Collect the names of decimals by scale. A decimal in a list or a map has no name."""
        kind, t = field.type, pa.types
        if t.is_decimal(kind):
            self._names.setdefault(kind.scale, set()).add(name or "")
            self._everywhere |= name is None
        elif t.is_struct(kind):
            for part in kind:
                self._add(part, part.name)
        elif t.is_map(kind):
            self._add(kind.key_field, None)
            self._add(kind.item_field, None)
        elif t.is_list(kind):
            self._add(kind.value_field, None)

    def _of_scale(self, scale: int) -> str:
        names = "|".join(re.escape(orjson.dumps(name).decode()) for name in sorted(self._names[scale]))
        long, powered = _runs(scale)
        return rf'(?:{names})\s*:\s*"?[-+]?(?:[0-9.]*{long}|[0-9]*{powered}|[0-9.]+[eE][-+]?[0-9]{{2}})'


def _runs(scale: int) -> tuple[str, str]:
    """Patterns of too many digits, without an exponent and with one of a single digit."""
    most = _DIGITS - scale
    return rf"[0-9]{{{min(_LONG, most + 1)}}}", rf"[0-9]{{{max(1, most - 8)}}}(?:\.[0-9]*)?[eE]\+?[0-9]"
