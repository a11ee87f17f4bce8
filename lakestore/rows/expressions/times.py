"""Date and time functions of conditions, in UTC: parts, truncation, intervals."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.rows.expressions import kinds
from lakestore.rows.expressions.kinds import DAY_US, DURATION, INTERVAL, Datum, Value, build_value, constant

_UNITS = {
    "year": 12,
    "quarter": 3,
    "month": 1,
    "decade": 120,
    "century": 1200,
    "millennium": 12000,
}
"""Months in a unit."""
_MICROS = {
    "week": 7 * DAY_US,
    "day": DAY_US,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SHORT = {
    "y": "year", "yr": "year", "mon": "month", "d": "day", "h": "hour", "hr": "hour", "m": "minute", "min": "minute",
    "s": "second", "sec": "second", "ms": "millisecond", "msec": "millisecond", "us": "microsecond",
    "usec": "microsecond", "centuries": "century", "millennia": "millennium", "weekofyear": "week",
    "dayofmonth": "day", "dayofweek": "dow", "weekday": "dow", "dayofyear": "doy",
}  # fmt: skip
INTERVAL_CHARS_MAX = 1_000
_PART = re.compile(r"\s*([+-]?\d+)\s*([a-zA-Z]+)")
_PARTS: dict[str, Callable[[Datum], Datum]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "week": pc.iso_week,
    "isoyear": pc.iso_year,
    "doy": pc.day_of_year,
    "dow": lambda data: pc.day_of_week(data, count_from_zero=True, week_start=7),
    "isodow": lambda data: pc.day_of_week(data, count_from_zero=False, week_start=1),
}
_CLOCK: dict[str, Callable[[Datum], Datum]] = {
    "hour": lambda us: pc.divide(us, 3_600_000_000),
    "minute": lambda us: _modulo(pc.divide(us, 60_000_000), 60),
    "second": lambda us: pc.divide(_modulo(us, 60_000_000), 1_000_000),
    "millisecond": lambda us: pc.divide(_modulo(us, 60_000_000), 1_000),
    "microsecond": lambda us: _modulo(us, 60_000_000),
}
_DAYS_MAX = 106_751_991
"""The most days before or after 1970 that fit into 64 bits of microseconds."""


def unit(name: str, text: str) -> str:
    """The normal name of a unit, such as `day` for `DAYS`."""
    said = name.lower()
    for each in (said, _SHORT.get(said, ""), said.removesuffix("s"), _SHORT.get(said.removesuffix("s"), "")):
        if each in _UNITS or each in _MICROS or each in _PARTS or each == "epoch":
            return each
    raise Invalid(f"{text}: {name!r} is no unit of time such as year, month, day, hour, minute or second")


def interval(count: str, name: str, text: str) -> Value:
    """INTERVAL: a number with a unit, or a text such as '1 day 2 hours'."""
    said = (f"{count} {name}" if name else count).rstrip()
    if len(said) > INTERVAL_CHARS_MAX:
        raise Invalid(f"{text} is too long an interval")
    months = micros = at = 0
    while at < len(said):
        found = _PART.match(said, at)
        if found is None or len(found[1]) > 12:
            raise Invalid(f"{text} is no interval such as INTERVAL 1 DAY or INTERVAL '1 day 2 hours'")
        number, of = int(found[1]), unit(found[2], text)
        months += number * _UNITS.get(of, 0)
        micros += number * _MICROS.get(of, 0)
        at = found.end()
    days, rest = divmod(abs(micros), DAY_US)
    days, rest = (days, rest) if micros >= 0 else (-days, -rest)
    try:
        return constant(pa.scalar((months, days, rest * 1000), INTERVAL))
    except (OverflowError, pa.ArrowException) as error:
        raise Invalid(f"{text} is too long an interval") from error


def moved(part: Value, by: Value, sign: int, text: str) -> Value:
    """Add or subtract an interval. A date and an interval give a timestamp, a date and an integer give a date."""
    if pa.types.is_integer(by.type) and pa.types.is_date(part.type):
        days = kinds.in_type(by, pa.int64(), text)
        return build_value(pa.date32(), [part, days], lambda a, b: _days_later(a, b, sign), fails=True, text=text)
    if by.type != INTERVAL or by.constant is None:
        raise Invalid(f"{text} moves a {part.type} by a {by.type}: write INTERVAL 1 DAY")
    months, days, nanos = by.constant.as_py()
    kind = pa.timestamp("us") if pa.types.is_date(part.type) else part.type
    whole = kinds.in_type(part, kind, text)

    def step(data: Datum) -> Datum:
        return _later(data, sign * months, sign * (days * DAY_US + nanos // 1000), kind)

    return build_value(kind, [whole], step, fails=True, text=text)


def _days_later(data: Datum, days: Datum, sign: int) -> Datum:
    number = data.cast(pa.int32()).cast(pa.int64())
    later = (pc.add_checked if sign > 0 else pc.subtract_checked)(number, days)
    return later.cast(pa.int32()).cast(pa.date32())


def _later(data: Datum, months: int, micros: int, kind: pa.DataType) -> Datum:
    given = data.cast(pa.int64())
    if not months:
        return pc.add_checked(given, micros).cast(kind)
    array = pa.array([given.as_py()], pa.int64()) if isinstance(given, pa.Scalar) else given
    us = array.fill_null(0).to_numpy(zero_copy_only=False)
    day, rest = np.divmod(us, DAY_US)
    dates = day.astype("datetime64[D]")
    month = dates.astype("datetime64[M]")
    within = (dates - month.astype("datetime64[D]")).astype(np.int64)
    target = month + months
    last = ((target + 1).astype("datetime64[D]") - target.astype("datetime64[D]")).astype(np.int64) - 1
    days = target.astype("datetime64[D]").astype(np.int64) + np.minimum(within, last)
    valid = np.asarray(array.is_valid())
    if (np.abs(days[valid]) >= _DAYS_MAX).any():
        raise pa.ArrowInvalid("overflow of a timestamp")
    found = pa.array(np.where(valid, days, 0) * DAY_US + rest, pa.int64(), mask=~valid)
    return pc.add_checked(found, micros).cast(kind)


def between(a: Value, b: Value, text: str) -> Value:
    """`a - b`: a number of days for two dates, otherwise a duration."""
    if pa.types.is_date(a.type) and pa.types.is_date(b.type):
        return build_value(pa.int64(), [a, b], lambda x, y: pc.subtract(_days(x), _days(y)))
    _, (first, second) = kinds.aligned([a, b], text)
    return build_value(
        DURATION,
        [first, second],
        lambda x, y: pc.subtract_checked(x.cast(pa.int64()), y.cast(pa.int64())).cast(DURATION),
        fails=True,
        text=text,
    )


def _days(data: Datum) -> Datum:
    return data.cast(pa.int32()).cast(pa.int64())


def truncated(part: Value, name: str, text: str) -> Value:
    """date_trunc(): the beginning of the unit. The result for a date is a timestamp."""
    of = unit(name, text)
    if of not in (*_UNITS, *_MICROS) or of in ("decade", "century", "millennium"):
        raise Invalid(f"{text}: date_trunc takes year, quarter, month, week, day, hour, minute, second or less")
    kind = pa.timestamp("us") if pa.types.is_date(part.type) else part.type
    if not pa.types.is_timestamp(kind):
        raise Invalid(f"{text} takes a date or a timestamp, not a {part.type}")
    whole = kinds.in_type(part, kind, text)
    return build_value(kind, [whole], lambda data: pc.floor_temporal(data.cast(pa.timestamp("us")), unit=of).cast(kind))


def extracted(part: Value, name: str, text: str) -> Value:
    """extract(): a part of a date or time as a number."""
    of, kind = unit(name, text), part.type
    temporal = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if not temporal and not (pa.types.is_time(kind) and of in _CLOCK):
        raise Invalid(f"{text}: a {kind} has no {of}")
    if of == "epoch":
        whole = kinds.in_type(part, pa.timestamp("us") if pa.types.is_date(kind) else kind, text)
        return build_value(pa.float64(), [whole], lambda data: pc.divide(_micros(data).cast(pa.float64()), 1e6))
    if of in _CLOCK:
        if pa.types.is_date(kind):
            part = kinds.in_type(part, pa.timestamp("us"), text)
        return build_value(pa.int64(), [part], lambda data: _CLOCK[of](_modulo(_micros(data), DAY_US)))
    if of not in _PARTS:
        raise Invalid(f"{text}: {name!r} is no part of a time that is known here")
    return build_value(pa.int64(), [part], lambda data: _PARTS[of](_unzoned(data)).cast(pa.int64()))


def _unzoned(data: Datum) -> Datum:
    return data.cast(pa.timestamp("us")) if pa.types.is_timestamp(data.type) else data


def _micros(data: Datum) -> Datum:
    return data.cast(pa.int64())


def _modulo(data: Datum, by: int) -> Datum:
    """The remainder of a division that rounds down."""
    quotient = pc.divide(data, by)
    rest = pc.subtract(data, pc.multiply(quotient, by))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, by), rest)
