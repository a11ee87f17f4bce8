"""Times from texts, numbers and other times, vectorised.

- a number counts units since 1970-01-01 in UTC, of a day for `time`; a text of digits is such a number;
- a text is ISO 8601; parts below a microsecond are cut off, which no column holds;
- `timestamptz` takes a text with a zone, or any text where the column says its zone; `timestamp` takes one without,
  or any where the column says the zone that it is told in. An hour that a zone has twice, or not at all, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.casting.cast_rules import INTEGER, Misfit, Rule
from lakestore.model.decimals import product

_COUNT = r"^-?[0-9]+(\.[0-9]*)?$"
_ZONED = r"[0-9 ](Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_MICROS = 86_400_000_000
_TIMESTAMP, _UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def timestamps(array: pa.Array, rule: Rule) -> pa.Array:
    """Moments from texts, numbers, dates and other timestamps."""
    t, source = pa.types, array.type
    if t.is_string(source):
        return _read_times(array, rule)
    if t.is_timestamp(source):
        return _moved(_whole_micros(array), rule)
    if t.is_date(source):
        return _moved(array.cast(_TIMESTAMP), rule)
    return _zoned(_micros(array, rule.unit), rule)


def _whole_micros(array: pa.Array) -> pa.Array:
    """Timestamps of any unit in microseconds; what is finer is cut off."""
    if array.type.unit != "ns":
        return array.cast(pa.timestamp("us", tz=array.type.tz))
    micros = _floored(array.cast(pa.int64()), 1000)
    return micros.cast(pa.timestamp("us", tz=array.type.tz))


def _moved(array: pa.Array, rule: Rule) -> pa.Array:
    """Timestamps with or without a zone, as the rule's kind has them."""
    if array.type.tz is not None and rule.kind.tz is not None:
        return array.cast(rule.kind)
    if array.type.tz is None and rule.kind.tz is None:
        return array
    if not rule.zone:
        has, hint = ("no", "zone:") if rule.kind.tz else ("a", "zone:, or take timestamptz")
        raise Misfit(f"it has {has} zone; say the column's {hint}")
    if rule.kind.tz is not None:
        return pc.assume_timezone(array, rule.zone).cast(rule.kind)
    return pc.local_timestamp(array.cast(pa.timestamp("us", tz=rule.zone)))


def _zoned(micros: pa.Array, rule: Rule) -> pa.Array:
    """Microseconds since 1970 in UTC, as the rule's kind has them."""
    moments = micros.cast(_TIMESTAMP)
    if rule.kind.tz is None and rule.zone:
        return _moved(moments.cast(_UTC), rule)
    return moments.cast(_UTC) if rule.kind.tz is not None else moments


def _micros(array: pa.Array, unit: str) -> pa.Array:
    """Counts of a unit as microseconds."""
    t, source = pa.types, array.type
    if t.is_integer(source):
        numbers = array.cast(pa.int64())
        if unit == "ns":
            return _floored(numbers, 1000)
        return pc.multiply_checked(numbers, _MICROS[unit or "ms"])
    if t.is_floating(source):
        array = array.cast(pa.string())
    if not (t.is_string(array.type) or t.is_decimal(source)):
        raise Misfit(f"{source} is no time")
    factor = Decimal("0.001") if unit == "ns" else Decimal(_MICROS[unit or "ms"])
    exact = [None if value is None else product(Decimal(value), factor) for value in array.to_pylist()]
    return pa.array([None if value is None else math.floor(value) for value in exact], pa.int64())


def _floored(numbers: pa.Array, by: int) -> pa.Array:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) // by
    return pa.array(values, mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _read_times(array: pa.Array, rule: Rule) -> pa.Array:
    """Times as texts: in one step where all are in the one form that needs nothing else."""
    if not rule.zone:
        try:
            return array.cast(rule.kind)
        except (pa.ArrowException, OverflowError):
            pass  # another form, or no time: read apart below
    text = pc.utf8_upper(pc.utf8_trim_whitespace(array))
    counts = pc.match_substring_regex(text, _COUNT).fill_null(False)
    zoned = pc.match_substring_regex(text, _ZONED).fill_null(False)
    zoned = pc.and_(zoned, pc.greater(pc.utf8_length(text), 10)).fill_null(False)
    plain = pc.and_(text.is_valid(), pc.invert(pc.or_(counts, zoned)))
    made = pa.nulls(len(array), rule.kind)
    readings: tuple[tuple[pa.Array, Callable[[pa.Array], pa.Array]], ...] = (
        (counts, lambda some: _zoned(_counted(some, rule.unit), rule)),
        (zoned, lambda some: _moved(_cut(some).cast(_UTC), rule)),
        (plain, lambda some: _moved(_cut(some).cast(_TIMESTAMP), rule)),
    )
    for mask, read in readings:
        if mask.true_count:
            made = pc.replace_with_mask(made, mask, read(text.filter(mask)))
    return made


def _counted(text: pa.Array, unit: str) -> pa.Array:
    whole = pc.all(pc.match_substring_regex(text, INTEGER)).as_py()
    return _micros(text.cast(pa.int64()) if whole else text, unit)


def _cut(text: pa.Array) -> pa.Array:
    """ISO texts without digits that no column holds, and without a blank before the zone."""
    return pc.replace_substring_regex(text, r"([.,][0-9]{6})[0-9]+|\s+([Z+-])", r"\1\2")


def dates(array: pa.Array, rule: Rule) -> pa.Array:
    """Days from texts, numbers and timestamps that are a midnight."""
    t, source = pa.types, array.type
    if t.is_string(source):
        counts = pc.match_substring_regex(array, _COUNT).fill_null(False)
        if not counts.true_count:
            return array.cast(rule.kind)
        if counts.false_count - array.null_count:
            raise Misfit("numbers and texts are mixed")
        array = array.cast(pa.int64())
    if t.is_date(source):
        return array.cast(rule.kind)
    micros = array.cast(pa.int64()) if t.is_timestamp(source) else _micros(array, rule.unit)
    if t.is_timestamp(source):
        micros = _whole_micros(array).cast(pa.int64())
    if pc.any(pc.not_equal(_modulo(micros, _DAY_MICROS), 0)).as_py():
        raise Misfit("it is no midnight, so the date would lose its time")
    return _floored(micros, _DAY_MICROS).cast(pa.int32()).cast(rule.kind)


def _modulo(numbers: pa.Array, by: int) -> pa.Array:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) % by
    return pa.array(values, mask=numbers.is_null().to_numpy(zero_copy_only=False))


def times_of_day(array: pa.Array, rule: Rule) -> pa.Array:
    """Times of a day from texts and numbers."""
    t, source = pa.types, array.type
    if t.is_time(source):
        return array.cast(pa.time64("ns")).cast(rule.kind)
    if t.is_string(source):
        counts = pc.match_substring_regex(array, _COUNT).fill_null(False)
        if not counts.true_count:
            return pc.binary_join_element_wise("1970-01-01T", _cut(array), "").cast(_TIMESTAMP).cast(rule.kind)
        if counts.false_count - array.null_count:
            raise Misfit("numbers and texts are mixed")
    micros = _counted(array, rule.unit) if t.is_string(source) else _micros(array, rule.unit)
    if pc.any(pc.or_(pc.less(micros, 0), pc.greater_equal(micros, _DAY_MICROS))).as_py():
        raise Misfit("it is no time of a day")
    return micros.cast(rule.kind)
