"""Conditions held against ranges of values: the least and the greatest value of a column in a run of rows.

Files, row groups and pieces of the log know such ranges. A run that cannot meet the condition is not read; in a run of
which every row meets it, rows are counted without being read. Bounds may lie beyond the values, as cut texts do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakestore.rows.condition import AllOf, AnyOf, Comparison, Skip


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one column in a run of rows; None for what nobody knows."""

    low: Any = None
    """No value is less."""
    high: Any = None
    """No value is greater."""
    nulls: int | None = None
    """The number of rows without a value."""
    rows: int | None = None
    """The number of rows."""

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value."""
        return self.nulls is not None and self.nulls == self.rows

    @property
    def is_full(self) -> bool:
        """Whether every row has a value."""
        return self.nulls == 0


Ranges = Callable[[str], Range]
"""The range of a column by its name."""


def may_meet(skip: Skip, ranges: Ranges, also: Callable[[Comparison], bool] | None = None) -> bool:
    """Whether a row of the run can meet the condition; `also` says what else is known of a comparison."""
    if isinstance(skip, AllOf):
        return all(may_meet(part, ranges, also) for part in skip.parts)
    if isinstance(skip, AnyOf):
        return any(may_meet(part, ranges, also) for part in skip.parts)
    if not isinstance(skip, Comparison):
        return True
    return _may(skip, ranges(skip.column)) and (also is None or also(skip))


def all_meet(skip: Skip, ranges: Ranges) -> bool:
    """Whether it is certain that every row of the run meets the condition."""
    if isinstance(skip, AllOf):
        return all(all_meet(part, ranges) for part in skip.parts)
    if isinstance(skip, AnyOf):
        return any(all_meet(part, ranges) for part in skip.parts)
    return isinstance(skip, Comparison) and _must(skip, ranges(skip.column))


def _may(test: Comparison, range_: Range) -> bool:
    if test.sign == "is null":
        return not range_.is_full
    if range_.is_empty:
        return False
    low, high = range_.low, range_.high
    if test.sign == "is not null" or low is None or high is None:
        return True
    return _MAY[test.sign](low, high, test.values)


def _must(test: Comparison, range_: Range) -> bool:
    if test.sign == "is null":
        return range_.is_empty
    if not range_.is_full:
        return False
    if test.sign == "is not null":
        return True
    low, high = range_.low, range_.high
    return low is not None and high is not None and _MUST[test.sign](low, high, test.values)


_Test = Callable[[Any, Any, tuple[Any, ...]], bool]
_MAY: dict[str, _Test] = {
    "=": lambda low, high, values: bool(low <= values[0] <= high),
    "!=": lambda low, high, values: not low == values[0] == high,
    "<": lambda low, high, values: bool(low < values[0]),
    "<=": lambda low, high, values: bool(low <= values[0]),
    ">": lambda low, high, values: bool(high > values[0]),
    ">=": lambda low, high, values: bool(high >= values[0]),
    "in": lambda low, high, values: any(low <= value <= high for value in values),
    "starts with": lambda low, high, values: bool(high >= values[0]) and low[: len(values[0])] <= values[0],
}
_MUST: dict[str, _Test] = {
    "=": lambda low, high, values: bool(low == values[0] == high),
    "!=": lambda low, high, values: bool(values[0] < low or values[0] > high),
    "<": lambda low, high, values: bool(high < values[0]),
    "<=": lambda low, high, values: bool(high <= values[0]),
    ">": lambda low, high, values: bool(low > values[0]),
    ">=": lambda low, high, values: bool(low >= values[0]),
    "in": lambda low, high, values: low == high and low in values,
    "starts with": lambda low, high, values: low.startswith(values[0]) and high.startswith(values[0]),
}
