"""Arrow columns as Postgres writes their values in text: one large string for each row, null where the value is null.

- The text is exactly that of a Postgres server with `extra_float_digits = 1`, `DateStyle = ISO`,
  `IntervalStyle = postgres` and `bytea_output = hex`. A json value keeps the text that the lake has.
- Kernels of Arrow and numpy do the work; a loop goes over columns, fields or distinct exponents, never over rows.
- A column is any array of one type: sliced, dictionary, nested, without rows or with nulls only.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC as UTC_ZONE
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore_server.queries.postgres import types

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
TEXT = pa.large_string()
UTC = "UTC"
EPOCH_DAYS = 719162
"""Days from 0001-01-01 to 1970-01-01."""
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
"""The Gregorian calendar repeats after this many days."""
_LAST_DAY = 2_932_896
"""9999-12-31, the last day that Arrow writes with a year of four digits."""
_LATE_SECONDS = 2_114_380_800
"""2037-01-01: the zones' files list their changes up to this year."""
_WEEK_SECONDS, _LISTED_SECONDS, _CYCLE_SECONDS = 7 * 86_400, 36_525 * 86_400, 146_097 * 86_400
_FLOAT = r"^(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<part>\d+))?(?:e(?P<power>[+-]?\d+))?$"
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)
"""Byte -> its two hexadecimal digits."""
_ARRAY_QUOTED = r'^$|[\s\v"\\{},]|^(?i:null)$'
_INT64_END, _MIDDLE_MAX = 9e18, 1e40
"""Exact integers from here on are Python's; from 1e40 on no middle between floats has 17 digits."""
_DASHES = np.array([8, 13, 18, 23])


def text(column: pa.Array, zone: str = UTC) -> pa.Array:
    """The text of each value. `zone` is the session's TimeZone, for timestamps with a zone."""
    kind = column.type
    if types.is_json(kind):
        return column.storage.cast(TEXT)
    if types.is_list(kind):
        return _json(column, zone) if types.is_nested(kind.value_type) else _array(column, zone)
    if pa.types.is_nested(kind):
        return _json(column, zone)
    if isinstance(kind, pa.UuidType):
        return _uuids(column.storage)
    if isinstance(kind, pa.Bool8Type):
        return text(column.storage.cast(pa.bool_()))
    named = types.opaque_name(kind)
    if named is not None:
        return _opaque(column.storage, named)
    if pa.types.is_dictionary(kind):
        return text(column.dictionary, zone).take(column.indices)
    return _scalar(column, zone)


def _scalar(column: pa.Array, zone: str) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        return pc.if_else(column, pa.scalar("t", TEXT), pa.scalar("f", TEXT))
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.null():
        return column.cast(TEXT)
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_decimal(kind):
        return _decimals(column)
    if pa.types.is_timestamp(kind):
        return _timestamps(column, zone)
    if pa.types.is_date(kind):
        return _dates(column)
    if pa.types.is_time(kind):
        return _times(column)
    if pa.types.is_duration(kind) or kind == pa.month_day_nano_interval():
        return _intervals(column)
    if pa.types.is_string_view(kind):
        return column.cast(pa.string()).cast(TEXT)
    return joined("\\x", hexadecimal(column))


def joined(*pieces: pa.Array | str, between: str = "") -> pa.Array:
    """The pieces of each row one after the other; null where a piece is null."""
    pieces_ = [pa.scalar(piece, TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*pieces_, pa.scalar(between, TEXT))


def numbers(column: pa.Array, dtype: str) -> npt.NDArray[np.generic]:
    """The fixed-width values of a column as they lie in its buffer; anything where the value is null."""
    buffer, width = column.buffers()[1], np.dtype(dtype).itemsize
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=len(column), offset=column.offset * width)


def nulls(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """A flag for each value that is true for a null; None for a column without nulls."""
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else None


def like(values: npt.NDArray[np.generic], kind: pa.DataType, column: pa.Array) -> pa.Array:
    """`values` as a column of another type with the nulls of `column`."""
    empty = nulls(column)
    bitmap = None if empty is None else pa.py_buffer(np.packbits(~empty, bitorder="little"))
    return pa.Array.from_buffers(kind, len(column), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def strings(data: npt.NDArray[np.uint8], lengths: Ints, column: pa.Array, kind: pa.DataType = TEXT) -> pa.Array:
    """Texts that lie one after the other in `data`, with the nulls of `column`."""
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    empty = nulls(column)
    bitmap = None if empty is None else pa.py_buffer(np.packbits(~empty, bitorder="little"))
    return pa.Array.from_buffers(kind, len(lengths), [bitmap, pa.py_buffer(ends), pa.py_buffer(data)])


def replaced(whole: pa.Array, rows: Ints, part: pa.Array) -> pa.Array:
    """`whole` with the texts `part` at `rows`, which ascend."""
    if not len(rows):
        return whole
    mask = np.zeros(len(whole), dtype=np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(whole, pa.array(mask), part)


def hexadecimal(column: pa.Array) -> pa.Array:
    """Byte strings as hexadecimal digits."""
    if pa.types.is_fixed_size_binary(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary())
    if not pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_binary())
    data, lengths = bytes_of(column)
    return strings(_HEX[data].view(np.uint8), 2 * lengths, column)


def bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """(the bytes of all rows one after the other, the length of each row) of a column with 64-bit offsets."""
    if not len(column):
        return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    ends = np.frombuffer(column.buffers()[1], dtype=np.int64, count=len(column) + 1, offset=column.offset * 8)
    return np.frombuffer(column.buffers()[2] or b"", dtype=np.uint8)[ends[0] : ends[-1]], np.diff(ends)


def _uuids(column: pa.Array) -> pa.Array:
    raw = numbers(column, "V16").view(np.uint8)
    digits = _HEX[raw].view(np.uint8).reshape(-1, 32)
    whole = np.full((len(column), 36), ord("-"), dtype=np.uint8)
    whole[:, np.setdiff1d(np.arange(36), _DASHES)] = digits
    return strings(whole.ravel(), np.full(len(column), 36), column)


def _floats(column: pa.Array) -> pa.Array:
    """Shortest text that reads back equal; Postgres writes an exponent below 1e-4 and from 1e15 (float4: 1e6) on."""
    is_single = not pa.types.is_float64(column.type)
    values = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    written = values.cast(TEXT)
    size = np.abs(values.fill_null(0).to_numpy(zero_copy_only=False))
    others = ~((size < (1e6 if is_single else 1e10)) & (size >= 1e-4)) & (size != 0)
    rows = np.flatnonzero(others)
    if not len(rows):
        return written
    some = values.take(pa.array(rows))
    strict = _strict(some.to_numpy(zero_copy_only=False), written.take(pa.array(rows)))
    return replaced(written, rows, _rewritten(some, strict, 6 if is_single else 15))


def _strict(values: npt.NDArray[Any], written: pa.Array) -> pa.Array:
    """The texts, where a text that is the middle between two floats gets another digit, as in Postgres.

    33554448 is a float4, and so are 33554446 and 33554450's neighbours: Arrow writes 3.355445e+07, which is the middle
    of 33554448 and 33554452, Postgres 3.3554448e+07. Only integers have a middle with so few digits.
    """
    sizes = np.abs(values.astype(np.float64))
    half = np.spacing(np.abs(values)).astype(np.float64) / 2
    is_odd = (half >= 1) & (sizes < _MIDDLE_MAX)
    for rows, dtype in (
        (np.flatnonzero(is_odd & (sizes < _INT64_END)), np.int64),
        (np.flatnonzero(is_odd & (sizes >= _INT64_END)), object),
    ):
        if len(rows):
            integers = _shortest_inside(_exact(sizes[rows], dtype), _exact(half[rows], dtype))
            sign = np.where(values[rows] < 0, "-", "")
            texts_ = pa.array(integers.astype(str), TEXT)
            written = replaced(written, rows, joined(pa.array(sign, TEXT), texts_))
    return written


def _exact(values: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    return np.frompyfunc(int, 1, 1)(values) if dtype is object else values.astype(dtype)


def _shortest_inside(integers: npt.NDArray[Any], half: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """For each integer, the one with the fewest digits that is nearer than `half`; the even one of two."""
    found, is_open = integers.copy(), np.ones(len(integers), dtype=np.bool_)
    for dropped in range(len(str(int(integers.max()))) - 1, 0, -1):
        step = 10**dropped
        quotient, rest = integers // step, integers % step
        upwards = (rest > step // 2) | ((rest == step // 2) & (quotient % 2 == 1))
        distance = np.where(upwards, step - rest, rest)
        takes = is_open & (distance < half)
        found[takes] = (integers + np.where(upwards, distance, -distance))[takes]
        is_open &= ~takes
    return found


def _rewritten(values: pa.Array, written: pa.Array, exponent_from: int) -> pa.Array:
    """Texts of floats with Postgres's rule for the exponent."""
    match = pc.extract_regex(written, _FLOAT)
    sign, whole, part, power = (match.field(place).fill_null("") for place in range(4))
    whole_digits = joined(whole, part)
    digits = pc.utf8_ltrim(whole_digits, "0")
    leading = pc.binary_length(whole_digits).to_numpy() - pc.binary_length(digits).to_numpy()
    power = pc.if_else(pc.equal(power, ""), pa.scalar("0", TEXT), pc.utf8_ltrim(power, "+")).cast(pa.int64()).to_numpy()
    exponents = power + pc.binary_length(whole).to_numpy() - 1 - leading
    digits = pc.utf8_rtrim(digits, "0")
    first, rest = pc.utf8_slice_codeunits(digits, 0, 1), pc.utf8_slice_codeunits(digits, 1)
    point = pc.if_else(pc.equal(rest, ""), pa.scalar("", TEXT), pa.scalar(".", TEXT))
    shown = pa.array(np.abs(exponents)).cast(TEXT)
    direction = pc.if_else(pa.array(exponents < 0), pa.scalar("e-", TEXT), pa.scalar("e+", TEXT))
    found = joined(sign, first, point, rest, direction, pc.utf8_lpad(shown, 2, "0"))
    for exponent in np.unique(exponents[(exponents >= -4) & (exponents < exponent_from)]).tolist():
        rows = np.flatnonzero(exponents == exponent)
        places = pa.array(rows)
        plain = joined(sign.take(places), _fixed(digits.take(places), exponent))
        found = replaced(found, rows, plain)
    numbers_ = values.to_numpy(zero_copy_only=False)
    for mask, word in (
        (np.isnan(numbers_), "NaN"),
        (numbers_ == np.inf, "Infinity"),
        (numbers_ == -np.inf, "-Infinity"),
    ):
        if mask.any():
            found = pc.if_else(pa.array(mask), pa.scalar(word, TEXT), found)
    return found


def _fixed(digits: pa.Array, exponent: int) -> pa.Array:
    """Digits with a point behind the one of 10^0."""
    if exponent < 0:
        return joined("0." + "0" * (-exponent - 1), digits)
    padded = pc.utf8_rpad(digits, exponent + 1, "0")
    whole, part = pc.utf8_slice_codeunits(padded, 0, exponent + 1), pc.utf8_slice_codeunits(padded, exponent + 1)
    return joined(whole, pc.if_else(pc.equal(part, ""), pa.scalar("", TEXT), pa.scalar(".", TEXT)), part)


def _decimals(column: pa.Array) -> pa.Array:
    return scaled(unscaled(column), column.type.scale)


def unscaled(column: pa.Array) -> pa.Array:
    """The integers of decimals, as texts."""
    kind = column.type
    if pa.types.is_decimal256(kind):
        plain = pa.decimal256(76, 0)
    else:
        plain = pa.decimal128(38, 0)
        if not pa.types.is_decimal128(kind):
            column = column.cast(pa.decimal128(kind.precision, kind.scale))
    return pa.Array.from_buffers(plain, len(column), column.buffers(), offset=column.offset).cast(TEXT)


def scaled(integers: pa.Array, scale: int) -> pa.Array:
    """Texts of integers with a point before the last `scale` digits, or with `-scale` zeros behind."""
    if not scale:
        return integers
    if scale < 0:
        return pc.if_else(pc.equal(integers, "0"), integers, joined(integers, "0" * -scale))
    is_negative = pc.starts_with(integers, "-")
    sign = pc.if_else(is_negative, pa.scalar("-", TEXT), pa.scalar("", TEXT))
    digits = pc.ascii_lpad(pc.ascii_ltrim(integers, "-"), scale + 1, "0")
    return joined(sign, pc.utf8_slice_codeunits(digits, 0, -scale), ".", pc.utf8_slice_codeunits(digits, -scale))


def huge_integers(column: pa.Array, *, is_signed: bool) -> pa.Array:
    """Integers of 128 bits, as texts."""
    if is_signed:
        return pa.Array.from_buffers(pa.decimal128(38, 0), len(column), column.buffers(), offset=column.offset).cast(
            TEXT
        )
    words = np.zeros((len(column), 2), dtype="V16")
    words[:, 0] = numbers(column, "V16")
    return like(words, pa.decimal256(76, 0), column).cast(TEXT)


def _opaque(column: pa.Array, named: str) -> pa.Array:
    if named == "bit":
        return _bits(column)
    if named == "time_tz":
        return _zoned_times(column)
    if named in ("oid", "char"):
        return column.cast(TEXT)
    return huge_integers(column, is_signed=named == "hugeint")


def _bits(column: pa.Array) -> pa.Array:
    """DuckDB's bits: the first byte is the number of unused bits at the start of the second."""
    data, lengths = bytes_of(column.cast(pa.large_binary()))
    starts = np.cumsum(lengths) - lengths
    unused = np.where(lengths > 0, data[np.minimum(starts, max(len(data) - 1, 0))] if len(data) else 0, 0)
    digits = np.unpackbits(data) + ord("0")
    spoilt = np.repeat(8 + unused.astype(np.int64), lengths * 8)
    place = np.arange(len(digits)) - np.repeat(starts * 8, lengths * 8)
    return strings(digits[place >= spoilt], np.maximum(lengths * 8 - 8 - unused, 0), column)


def zoned_times(column: pa.Array) -> tuple[Ints, Ints]:
    """(microseconds, seconds east of UTC) of DuckDB's times with a zone."""
    bits = numbers(column, "u8").astype(np.int64)
    return bits >> 24, 57_599 - (bits & 0xFFFFFF)


def _zoned_times(column: pa.Array) -> pa.Array:
    clock, offsets = zoned_times(column)
    return joined(_times(like(clock, pa.int64(), column)), _offset_texts(offsets))


def finite(column: pa.Array, dtype: str) -> tuple[Ints, Flags, Flags]:
    """(values with 0 for null and the infinities, which are infinity, which are -infinity) of dates and timestamps."""
    values, forever = numbers(column, dtype).astype(np.int64), np.iinfo(dtype).max
    empty = nulls(column)
    if empty is not None:
        values = np.where(empty, 0, values)
    high, low = values == forever, values <= -forever
    if high.any() or low.any():
        values = np.where(high | low, 0, values)
    return values, high, low


def _dates(column: pa.Array) -> pa.Array:
    if pa.types.is_date64(column.type):
        column = column.cast(pa.date32())
    values, high, low = finite(column, "i4")
    plain = like(values.astype(np.int32), pa.date32(), column)
    return _infinite(_calendar(plain, values, 1), high, low)


def _timestamps(column: pa.Array, zone: str) -> pa.Array:
    unit = column.type.unit
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    values, high, low = finite(column, "i8")
    offsets = None
    if column.type.tz is not None:
        local = pc.local_timestamp(like(values, pa.timestamp(unit, zone), column))
        moved = numbers(local, "i8").astype(np.int64)
        is_late = values >= _LATE_SECONDS * per_second
        if is_late.any() and zone != UTC:
            seconds = _late_offsets(zone, values[is_late] // per_second)
            moved[is_late] = values[is_late] + seconds * per_second
        offsets = _offset_texts((moved - values) // per_second)
        values = moved
    plain = like(values, pa.timestamp(unit), column)
    return _infinite(_calendar(plain, values, 86_400 * per_second, offsets), high, low)


def _late_offsets(zone: str, seconds: Ints) -> Ints:
    """Seconds east of UTC at moments since 2037. Arrow knows no rule that goes on after the last listed change."""
    starts, offsets = _rule(zone)
    since = seconds - _LATE_SECONDS
    repeated = (since - _LISTED_SECONDS) % _CYCLE_SECONDS + _LISTED_SECONDS
    place = np.searchsorted(starts, np.where(since < _LISTED_SECONDS, since, repeated), side="right") - 1
    return offsets[place]


@lru_cache(maxsize=64)
def _rule(zone: str) -> tuple[Ints, Ints]:
    """(seconds since 2037 of each change of the offset, the offset from then on): 500 years.

    A zone may list changes until 2137, such as Morocco's until 2087. The 400 years after 2137 repeat.
    """
    region, first = ZoneInfo(zone), datetime(2037, 1, 1, tzinfo=UTC_ZONE)

    def offset(second: int) -> int:
        there = (first + timedelta(seconds=second)).astimezone(region).utcoffset()
        return int((there or timedelta()).total_seconds())

    changes, before = [(0, offset(0))], 0
    for week in range(_WEEK_SECONDS, _LISTED_SECONDS + _CYCLE_SECONDS + _WEEK_SECONDS, _WEEK_SECONDS):
        if offset(week) != changes[-1][1]:
            at = bisect_left(range(before, week), 1, key=lambda second: int(offset(second) != changes[-1][1])) + before
            changes.append((at, offset(at)))
        before = week
    starts, offsets = np.array(changes, dtype=np.int64).T
    return starts, offsets


def _infinite(written: pa.Array, high: Flags, low: Flags) -> pa.Array:
    for mask, word in ((high, "infinity"), (low, "-infinity")):
        if mask.any():
            written = pc.if_else(pa.array(mask), pa.scalar(word, TEXT), written)
    return written


def _calendar(column: pa.Array, values: Ints, per_day: int, offsets: pa.Array | None = None) -> pa.Array:
    """Dates or timestamps of any year. `offsets` are the texts of the zone."""
    days = values // per_day
    if not len(days) or (days.min() >= -EPOCH_DAYS and days.max() <= _LAST_DAY):
        written = _trimmed(column.cast(TEXT))
        return written if offsets is None else joined(written, offsets)
    cycles = (days + EPOCH_DAYS) // _CYCLE_DAYS
    dtype = np.int32 if pa.types.is_date(column.type) else np.int64
    same = (values - cycles * (_CYCLE_DAYS * per_day)).astype(dtype)
    written = _trimmed(like(same, column.type, column).cast(TEXT))
    short = pc.utf8_slice_codeunits(written, 0, 4).fill_null("0001").cast(pa.int64()).to_numpy()
    years = short + _CYCLE_YEARS * cycles
    year = pc.utf8_lpad(pa.array(np.where(years > 0, years, 1 - years)).cast(TEXT), 4, "0")
    era = pc.if_else(pa.array(years > 0), pa.scalar("", TEXT), pa.scalar(" BC", TEXT))
    return joined(year, pc.utf8_slice_codeunits(written, 4), "" if offsets is None else offsets, era)


def _trimmed(written: pa.Array) -> pa.Array:
    """Texts without zeros at the end of a fraction."""
    if not len(written) or not pc.any(pc.match_substring(written, ".")).as_py():
        return written
    return pc.ascii_rtrim(pc.ascii_rtrim(written, "0"), ".")


def _offset_texts(seconds: Ints) -> pa.Array:
    distinct, places = np.unique(seconds, return_inverse=True)
    return pa.array(list(map(_offset_text, distinct.tolist())), TEXT).take(pa.array(places))


def _offset_text(seconds: int) -> str:
    minutes, second = divmod(abs(seconds), 60)
    hour, minute = divmod(minutes, 60)
    parts = [hour, minute, second] if second else [hour, minute] if minute else [hour]
    return ("-" if seconds < 0 else "+") + ":".join(f"{part:02d}" for part in parts)


def _times(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind == pa.int64():
        kind = pa.time64("us")
    values = numbers(column, f"i{kind.bit_width // 8}").astype(np.int64)
    empty = nulls(column)
    if empty is not None:
        values = np.where(empty, 0, values)
    day = 86_400 * {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
    is_end = values == day
    plain = like(np.where(is_end, 0, values).astype(f"i{kind.bit_width // 8}"), kind, column)
    written = _trimmed(plain.cast(TEXT))
    return pc.if_else(pa.array(is_end), pa.scalar("24:00:00", TEXT), written) if is_end.any() else written


def interval_parts(column: pa.Array) -> tuple[Ints, Ints, Ints]:
    """(months, days, microseconds) of intervals and durations."""
    if pa.types.is_duration(column.type):
        none = np.zeros(len(column), dtype=np.int64)
        clock = column.cast(pa.duration("us"), safe=False)
        return none, none, numbers(clock, "i8").astype(np.int64)
    parts = numbers(column, "V16").view(np.int32).reshape(-1, 4)
    nanoseconds = np.ascontiguousarray(parts[:, 2:]).view(np.int64).ravel()
    return parts[:, 0].astype(np.int64), parts[:, 1].astype(np.int64), nanoseconds // 1_000


def _intervals(column: pa.Array) -> pa.Array:
    """The text of `IntervalStyle = postgres`: `1 year 2 mons -3 days +04:05:06.7`."""
    months, days, clock = interval_parts(column)
    empty = nulls(column)
    if empty is not None:
        months, days, clock = (np.where(empty, 0, part) for part in (months, days, clock))
    years = np.sign(months) * (np.abs(months) // 12)
    is_before = np.zeros(len(months), dtype=np.bool_)
    pieces = []
    for values, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        shown = joined(
            pc.if_else(pa.array(is_before & (values > 0)), pa.scalar("+", TEXT), pa.scalar("", TEXT)),
            pa.array(values).cast(TEXT),
            pc.if_else(pa.array(values != 1), pa.scalar(f" {unit}s", TEXT), pa.scalar(f" {unit}", TEXT)),
        )
        pieces.append(pc.if_else(pa.array(values != 0), shown, pa.scalar(None, TEXT)))
        is_before = np.where(values != 0, values < 0, is_before)
    is_clock = (clock != 0) | ((months == 0) & (days == 0))
    sign = np.where(clock < 0, "-", np.where(is_before, "+", ""))
    written = joined(pa.array(sign.tolist(), TEXT), _clock(np.abs(clock).view(np.uint64)))
    pieces.append(pc.if_else(pa.array(is_clock), written, pa.scalar(None, TEXT)))
    found = pc.binary_join_element_wise(*pieces, pa.scalar(" ", TEXT), null_handling="skip")
    return found if empty is None else pc.if_else(pa.array(empty), pa.scalar(None, TEXT), found)


def _clock(microseconds: npt.NDArray[np.uint64]) -> pa.Array:
    """Hours without a limit, minutes, seconds with a fraction."""
    seconds, part = np.divmod(microseconds, 1_000_000)
    minutes, second = np.divmod(seconds, 60)
    hour, minute = np.divmod(minutes, 60)
    two = [pc.utf8_lpad(pa.array(values).cast(TEXT), 2, "0") for values in (hour, minute, second)]
    fraction = joined(".", pc.utf8_lpad(pa.array(part).cast(TEXT), 6, "0"))
    return joined(two[0], ":", two[1], ":", _trimmed(joined(two[2], fraction)))


def parts_of_lists(column: pa.Array) -> tuple[pa.Array, Ints]:
    """(elements of all lists, number of elements of each list) of lists or maps.

    A null list may have elements; the caller writes null in its place. `flatten` would drop them, but Arrow cannot
    flatten lists of extension types.
    """
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        return column.values.slice(column.offset * size, len(column) * size), np.full(len(column), size)
    ends = column.offsets.to_numpy().astype(np.int64)
    first, count = (int(ends[0]), int(ends[-1] - ends[0])) if len(ends) else (0, 0)
    if pa.types.is_map(kind):
        pairs = [column.keys.slice(first, count), column.items.slice(first, count)]
        return pa.StructArray.from_arrays(pairs, ["key", "value"]), np.diff(ends)
    return column.values.slice(first, count), np.diff(ends)


def gathered(elements: pa.Array, lengths: Ints, between: pa.Scalar) -> pa.Array:
    """One text of each list: its elements with `between` between them."""
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    return pc.binary_join(pa.LargeListArray.from_arrays(pa.array(ends), elements), between)


def without_null_rows(written: pa.Array, column: pa.Array) -> pa.Array:
    """`written`, null where `column` is null."""
    if not column.null_count:
        return written
    return pc.if_else(column.is_valid(), written, pa.scalar(None, written.type))


def _array(column: pa.Array, zone: str) -> pa.Array:
    elements, lengths = parts_of_lists(column)
    written = text(elements, zone)
    quote = pc.match_substring_regex(written, _ARRAY_QUOTED)
    if pc.any(quote).as_py():
        escaped = pc.replace_substring(pc.replace_substring(written, "\\", "\\\\"), '"', '\\"')
        written = pc.if_else(quote, joined('"', escaped, '"'), written)
    lists = gathered(written.fill_null("NULL"), lengths, pa.scalar(",", TEXT))
    return without_null_rows(joined("{", lists, "}"), column)


def _json(column: pa.Array, zone: str) -> pa.Array:
    """The JSON of each value, as `to_jsonb` writes it; null where the value is null."""
    kind = column.type
    if types.is_list(kind):
        elements, lengths = parts_of_lists(column)
        lists = gathered(_json(elements, zone).fill_null("null"), lengths, pa.scalar(", ", TEXT))
        return without_null_rows(joined("[", lists, "]"), column)
    if pa.types.is_map(kind):
        return _json_of_maps(column, zone)
    if pa.types.is_struct(kind):
        return _json_of_structs(column, zone)
    if pa.types.is_union(kind):
        return _json_of_unions(column, zone)
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary, zone).take(column.indices)
    return _json_scalars(column, text(column, zone))


def _json_scalars(column: pa.Array, written: pa.Array) -> pa.Array:
    kind, oid = column.type, types.postgres_type(pa.field("", column.type)).oid
    if oid == types.BOOL:
        return pc.if_else(pc.equal(written, "t"), pa.scalar("true", TEXT), pa.scalar("false", TEXT))
    if oid in (types.JSONB, types.INT2, types.INT4, types.INT8, types.NUMERIC):
        return written
    if oid in (types.FLOAT4, types.FLOAT8):
        is_word = pc.match_substring_regex(written, "[Ny]")
        return pc.if_else(is_word, joined('"', written, '"'), written)
    if oid in (types.TIMESTAMP, types.TIMESTAMPTZ):
        return joined('"', _iso(written, has_zone=kind.tz is not None), '"')
    return json_string(written)


def _iso(written: pa.Array, *, has_zone: bool) -> pa.Array:
    """Timestamps with T between date and time, and minutes of the zone."""
    found = pc.replace_substring_regex(written, r"(\d) (\d)", r"\1T\2")
    return pc.replace_substring_regex(found, r"([+-]\d\d)( BC)?$", r"\1:00\2") if has_zone else found


def json_string(written: pa.Array) -> pa.Array:
    """Texts as JSON strings."""
    found = pc.replace_substring(pc.replace_substring(written, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(found, r"[\x00-\x1f]")).as_py():
        short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
        for code in range(32):
            found = pc.replace_substring(found, chr(code), short.get(code, f"\\u{code:04x}"))
    return joined('"', found, '"')


def _json_of_structs(column: pa.Array, zone: str) -> pa.Array:
    pieces: list[pa.Array | str] = []
    for number in range(column.type.num_fields):
        name = json_string(pa.array([column.type.field(number).name], TEXT))[0].as_py()
        pieces += [f"{', ' if number else '{'}{name}: ", _json(column.field(number), zone).fill_null("null")]
    empty = pa.repeat(pa.scalar("" if pieces else "{", TEXT), len(column))
    return without_null_rows(joined(empty, *pieces, "}"), column)


def _json_of_maps(column: pa.Array, zone: str) -> pa.Array:
    entries, lengths = parts_of_lists(column)
    keys, items = entries.field(0), entries.field(1)
    members = joined(json_string(text(keys, zone)), ": ", _json(items, zone).fill_null("null"))
    return without_null_rows(joined("{", gathered(members, lengths, pa.scalar(", ", TEXT)), "}"), column)


def _json_of_unions(column: pa.Array, zone: str) -> pa.Array:
    """The value of the alternative that each row has."""
    found = pa.nulls(len(column), TEXT)
    codes = column.type_codes
    for number, code in enumerate(column.type.type_codes):
        found = pc.if_else(pc.equal(codes, pa.scalar(code, pa.int8())), _json(column.field(number), zone), found)
    return found
