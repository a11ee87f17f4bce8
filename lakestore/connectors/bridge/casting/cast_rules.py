"""Rules by which values become a column's type, and the error of a value that does not."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

INTEGER = r"^-?[0-9]{1,40}$"
"""Texts that are whole numbers; 40 digits are more than any type has."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?$"
"""Texts that are numbers."""


class Misfit(ValueError):
    """A value that does not fit."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A column's type, and how times are read."""

    kind: pa.DataType
    unit: str = ""
    """The unit of times that come as numbers: s, ms, us or ns; empty: ms."""
    zone: str = ""

    @property
    def code(self) -> str:
        """The code of a reject of a value that does not fit."""
        t = pa.types
        if t.is_integer(self.kind) or t.is_floating(self.kind) or t.is_decimal(self.kind):
            return "not-a-number"
        if t.is_temporal(self.kind):
            return "not-a-time"
        return "not-a-boolean" if t.is_boolean(self.kind) else "bad-type"
