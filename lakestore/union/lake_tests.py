"""Compares a condition with the statistics of many data files at once: may rows of a file meet it, or must all?

The results equal `may_meet` and `all_meet` on each file's ranges. Bounds of integers, dates and timestamps are compared
as arrays. Bounds of other types are decoded one by one, and only for files that are still undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.iceberg.manifest_entries import ABSENT, LOWER, NULLS, UPPER, VALUES, Entries
from lakestore.rows.condition import AllOf, AnyOf, Comparison, Skip
from lakestore.rows.ranges import Range, all_meet, may_meet
from lakestore.union.lake_ranges import Fields, bound

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
_MICROSECOND = timedelta(microseconds=1)
_EPOCH_DAY, _EPOCH = date(1970, 1, 1), datetime(1970, 1, 1)
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class FileTests:
    """Tests of a condition's columns."""

    fields: Fields
    also: Callable[[Comparison, Entries], Mask | None] = lambda *_: None
    """An additional test, such as by partition: marks files that may hold a row for the comparison, or None if it
    knows nothing.
    """

    def may(self, skip: Skip, entries: Entries, among: Mask) -> Mask:
        """Marks the files among `among` in which some row may meet the condition."""
        return _combined(skip, among, lambda test, left: self._may(test, entries, left), lambda left: left)

    def must(self, skip: Skip, entries: Entries, among: Mask) -> Mask:
        """Marks the files among `among` in which every row certainly meets the condition."""
        return _combined(skip, among, lambda test, left: self._must(test, entries, left), np.zeros_like)

    def _may(self, test: Comparison, entries: Entries, among: Mask) -> Mask:
        known = self.also(test, entries)
        among = among if known is None else among & known
        nulls, rows = self._counts(test, entries)
        if test.sign == "is null":
            return _both(among, nulls != 0)
        among = among & ((nulls == ABSENT) | (nulls != rows))
        if test.sign == "is not null" or pa.types.is_floating(self.fields.kinds[test.column]):
            return among
        ends = self._ends(test, entries)
        if ends is None or test.sign not in _MAY:
            return self._one_by_one(test, entries, among, among, may_meet)
        sure = among & ends.is_known & _MAY[test.sign](ends.low, ends.high, ends.values)
        return sure | (among & ends.is_absent) | self._one_by_one(test, entries, among, ends.is_odd, may_meet)

    def _must(self, test: Comparison, entries: Entries, among: Mask) -> Mask:
        nulls, rows = self._counts(test, entries)
        if test.sign == "is null":
            return _both(among, (nulls != ABSENT) & (nulls == rows))
        among = among & (nulls == 0)
        if test.sign == "is not null":
            return among
        ends = self._ends(test, entries)
        if ends is None or test.sign not in _MUST:
            return self._one_by_one(test, entries, among, among, all_meet)
        sure = among & ends.is_known & _MUST[test.sign](ends.low, ends.high, ends.values)
        return sure | self._one_by_one(test, entries, among, ends.is_odd, all_meet)

    def _counts(self, test: Comparison, entries: Entries) -> tuple[Longs, Longs]:
        """The numbers of nulls and of values of the column in each file."""
        number = self.fields.ids[test.column]
        return entries.counts(number, NULLS), entries.counts(number, VALUES)

    def _ends(self, test: Comparison, entries: Entries) -> _Ends | None:
        """The bounds as integers; None if the column's type has no integer bounds."""
        number, kind = self.fields.ids[test.column], self.fields.kinds[test.column]
        values = _whole(test.values, kind)
        if values is None:
            return None
        (lows, low_sizes), (highs, high_sizes) = (entries.bounds(number, side) for side in (LOWER, UPPER))
        low, is_low = _numbers(entries, lows, low_sizes, kind)
        high, is_high = _numbers(entries, highs, high_sizes, kind)
        is_absent = (low_sizes == ABSENT) | (high_sizes == ABSENT)
        return _Ends(low, high, np.array(values, np.int64), is_low & is_high, is_absent)

    def _one_by_one(
        self,
        test: Comparison,
        entries: Entries,
        among: Mask,
        which: Mask,
        meets: Callable[[Skip, Callable[[str], Range]], bool],
    ) -> Mask:
        """Marks the files among `which` whose decoded ranges meet the comparison."""
        found = np.zeros(len(entries), np.bool_)
        places = np.flatnonzero(among & which)
        if len(places):
            number, kind = self.fields.ids[test.column], self.fields.kinds[test.column]
            nulls, rows = (each[places].tolist() for each in self._counts(test, entries))
            lows, highs = (entries.bound_bytes(number, side, places) for side in (LOWER, UPPER))
            ranges = map(_range, lows, highs, nulls, rows, [kind] * len(places))
            found[places] = [meets(test, lambda _, range_=range_: range_) for range_ in ranges]  # type: ignore[misc]
        return found


@dataclass(frozen=True, slots=True)
class _Ends:
    """A column's bounds in the files of a manifest, and the values of the comparison."""

    low: Longs
    high: Longs
    values: Longs
    is_known: Mask
    is_absent: Mask
    """Marks files that lack a bound."""

    @property
    def is_odd(self) -> Mask:
        """Marks files whose bounds cannot be compared as integers."""
        odd: Mask = ~(self.is_known | self.is_absent)
        return odd


def _combined(
    skip: Skip, among: Mask, compared: Callable[[Comparison, Mask], Mask], unknown: Callable[[Mask], Mask]
) -> Mask:
    """Combines the masks of comparisons by the AND and OR of the condition."""
    if isinstance(skip, AllOf):
        for part in skip.parts:
            among = _combined(part, among, compared, unknown)
        return among
    if isinstance(skip, AnyOf):
        found = np.zeros_like(among)
        for part in skip.parts:
            found |= _combined(part, among, compared, unknown)
        return found
    return compared(skip, among) if isinstance(skip, Comparison) else unknown(among)


def _both(one: Mask, other: Mask) -> Mask:
    both: Mask = one & other
    return both


def _range(low: bytes | None, high: bytes | None, nulls: int, rows: int, kind: pa.DataType) -> Range:
    counted = None if nulls == ABSENT else nulls, None if rows == ABSENT else rows
    if low is None or high is None:
        return Range(None, None, *counted)
    return Range(bound(low, kind), bound(high, kind), *counted)


def _numbers(entries: Entries, begin: Longs, size: Longs, kind: pa.DataType) -> tuple[Longs, Mask]:
    """Bounds as integers, and a mask of the ones that are valid for the type."""
    value, known = entries.numbers(begin, size)
    t = pa.types
    if t.is_date32(kind):
        known &= (size == 4) & _between(value, _days(date.min), _days(date.max))
    elif t.is_timestamp(kind):
        known &= (size == 8) & _between(value, _micros(datetime.min), _micros(datetime.max))
    return value, known


def _between(value: Longs, least: int, most: int) -> Mask:
    inside: Mask = (least <= value) & (value <= most)
    return inside


def _days(value: date) -> int:
    return (value - _EPOCH_DAY).days


def _micros(value: datetime) -> int:
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH.replace(tzinfo=UTC))) // _MICROSECOND


def _whole(values: Sequence[Any], kind: pa.DataType) -> list[int] | None:
    """The compared values as the integers of their bounds, sorted; None for a column without integer bounds."""
    t = pa.types
    if t.is_integer(kind):
        found = [int(value) for value in values]
    elif t.is_date32(kind):
        found = [_days(value) for value in values]
    elif t.is_timestamp(kind) and kind.unit == "us":
        found = [_micros(value) for value in values]
    else:
        return None
    return sorted(found) if all(_INT64.min <= value <= _INT64.max for value in found) else None


_Test = Callable[[Longs, Longs, Longs], Mask]
_MAY: Mapping[str, _Test] = {
    "=": lambda low, high, values: (low <= values[0]) & (values[0] <= high),
    "!=": lambda low, high, values: (low != values[0]) | (high != values[0]),
    "<": lambda low, high, values: low < values[0],
    "<=": lambda low, high, values: low <= values[0],
    ">": lambda low, high, values: high > values[0],
    ">=": lambda low, high, values: high >= values[0],
    "in": lambda low, high, values: np.searchsorted(values, low) < np.searchsorted(values, high, side="right"),
}
_MUST: Mapping[str, _Test] = {
    "=": lambda low, high, values: (low == values[0]) & (high == values[0]),
    "!=": lambda low, high, values: (values[0] < low) | (values[0] > high),
    "<": lambda low, high, values: high < values[0],
    "<=": lambda low, high, values: high <= values[0],
    ">": lambda low, high, values: low > values[0],
    ">=": lambda low, high, values: low >= values[0],
    "in": lambda low, high, values: (low == high) & np.isin(low, values),
}
