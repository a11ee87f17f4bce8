"""Casts values that are not nested. Each source has one function; `casting` calls it for the leaves of a column.

- A function returns the values in the wanted type. A value that does not fit becomes null, and `Misfits` keeps its row
  and the reason. No function raises for a value.
- Arrow's own cast is tried first, so a column without misfits costs no search. If the cast fails, one pass over the
  column finds all misfits by patterns, bounds and lengths.
- Floats are rounded to the nearest value. All other values are exact, or misfits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.model.decimals import fit_type, fits, from_unscaled_value, misfit, product
from lakestore.model.outside_values import excerpt, first_line
from lakestore.model.types import integer_bounds, is_bytes, type_name
from lakestore.rows import json_texts

Mask = npt.NDArray[np.bool_]
Reason = str | Callable[[int], str]
"""The reason of a misfit, or a function from the row to it."""
Convert = Callable[[pa.Array], pa.Array]
Search = Callable[[pa.Array], pa.Array | Mask]
INTEGER = r"^-?[0-9]{1,40}$"
"""Integers as text; 40 digits are more than any type holds."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?$"
"""Numbers as text."""
_FAILURES = (pa.ArrowException, ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Times:
    """The unit and the zone of times in a source."""

    unit: str = ""
    """The unit of numeric times: s, ms, us or ns; empty: ms."""
    zone: str = ""
    """The zone of times without one. Empty: such a time is a misfit if the type has a zone."""


class Misfits:
    """The rows of one array that do not fit the wanted type, with their reasons."""

    __slots__ = ("_faults", "rows", "times")

    def __init__(self, times: Times) -> None:
        self.times = times
        self.rows: Mask | None = None
        """True for a misfit. None: all rows fit."""
        self._faults: list[tuple[Mask, Reason]] = []

    def drop(self, array: pa.Array, wrong: pa.Array | Mask, reason: Reason) -> pa.Array:
        """Record the rows where `wrong` is true as misfits. Returns the array with null in these rows."""
        if isinstance(wrong, pa.Array):
            if not pc.any(wrong).as_py():
                return array
            wrong = wrong.fill_null(False).to_numpy(zero_copy_only=False)
        elif not wrong.any():
            return array
        self.note(wrong, reason)
        return pc.if_else(pa.array(wrong), pa.scalar(None, array.type), array)

    def drop_all(self, array: pa.Array, kind: pa.DataType, reason: Reason) -> pa.Array:
        """Record all values as misfits: the source type does not go into `kind`. Returns nulls."""
        self.note(array.is_valid().to_numpy(zero_copy_only=False), reason)
        return pa.nulls(len(array), kind)

    def note(self, wrong: Mask, reason: Reason) -> None:
        self._faults.append((wrong, reason))
        self.rows = wrong if self.rows is None else self.rows | wrong

    def reason(self, index: int) -> str:
        """The first reason that was recorded for a misfit."""
        reason = next(reason for wrong, reason in self._faults if wrong[index])
        return reason if isinstance(reason, str) else reason(index)


Leaf = Callable[[pa.Array, pa.DataType, Misfits], pa.Array]
"""Casts an array to a type that is not nested."""


def _attempt(array: pa.Array, kind: pa.DataType, convert: Convert, search: Search, misfits: Misfits) -> pa.Array:
    """Convert the array. If `convert` raises, `search` marks the misfits, and `convert` gets the rest.

    If that raises too, `search` overlooked a misfit, and each value is tried alone: no value may stop a bridge.
    """
    for find in (None, search, partial(_one_by_one, convert)):
        if find is not None:
            array = misfits.drop(array, find(array), partial(_words, convert, array))
        if array.null_count == len(array):
            return pa.nulls(len(array), kind)
        try:
            return convert(array)
        except pa.ArrowNotImplementedError as error:
            return misfits.drop_all(array, kind, first_line(error))
        except _FAILURES:
            continue
    raise AssertionError("each value fits by itself, and all together do not")


def _one_by_one(convert: Convert, array: pa.Array) -> Mask:
    wrong = np.zeros(len(array), dtype=np.bool_)
    for row in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        try:
            convert(array.slice(row, 1))
        except _FAILURES:
            wrong[row] = True
    return wrong


def _words(convert: Convert, array: pa.Array, row: int) -> str:
    try:
        convert(array.slice(row, 1))
    except _FAILURES as error:
        return first_line(error)
    return "it does not fit"


def _looped(array: pa.Array, kind: pa.DataType, one: Callable[[Any], Any], misfits: Misfits) -> pa.Array:
    """Convert value by value in Python. `one` raises `ValueError` or `ArithmeticError` for a misfit."""
    made, wrong, reasons = [], np.zeros(len(array), dtype=np.bool_), {}
    for row, value in enumerate(array.to_pylist()):
        try:
            made.append(None if value is None else one(value))
        except (ValueError, ArithmeticError) as error:
            made.append(None)
            wrong[row], reasons[row] = True, first_line(error)
    return misfits.drop(pa.array(made, kind), wrong, lambda row: reasons[row])


def plain(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Cast by Arrow's own rules. No value changes, except that floats are rounded to the nearest value."""
    array = _text(array, kind, misfits)
    t, source = pa.types, array.type
    if t.is_decimal(kind) and t.is_floating(source):
        array = array.cast(pa.string())
    if t.is_decimal(kind) and t.is_string(array.type):
        return _decimals_of_text(array, kind, misfits)
    if t.is_floating(kind) and t.is_decimal(source):
        array = _as_text(array)  # Arrow's own cast rounds more than once
    if t.is_decimal(kind) and t.is_integer(source) and kind.precision - kind.scale < _INTEGERS.precision:
        array = array.cast(_INTEGERS)  # Arrow refuses integers by their type, although a value may fit
    source = array.type
    if t.is_decimal(source) and (t.is_decimal(kind) or t.is_integer(kind)):
        if source.scale < 0:  # if_else takes none of them
            return _looped(array, kind, partial(_exact, kind), misfits)
        if source.bit_width < 128:  # Arrow casts these to no integer
            array = array.cast(pa.decimal128(source.precision, source.scale))
        array = misfits.drop(array, _wide(array, kind), partial(_not_exact, array, kind))
    if t.is_boolean(kind) and (t.is_integer(source) or t.is_floating(source)):
        fine = pc.or_(pc.equal(array, pa.scalar(0, source)), pc.equal(array, pa.scalar(1, source)))
        array = misfits.drop(array, pc.invert(fine), "it is neither 0 nor 1")
    made = _attempt(array, kind, lambda some: some.cast(kind), partial(_refused_by_arrow, kind), misfits)
    return _changed(array, made, misfits)


def _changed(array: pa.Array, made: pa.Array, misfits: Misfits) -> pa.Array:
    """Drop the values that Arrow's cast changes: floats to infinity, and the bits of 0xFF to -1."""
    t, source, kind = pa.types, array.type, made.type
    if t.is_floating(kind) and (t.is_string(source) or (t.is_floating(source) and source.bit_width > kind.bit_width)):
        infinite = pc.is_inf(made)
        if pc.any(infinite).as_py():
            meant = pc.match_substring_regex(array, "[0-9]") if t.is_string(source) else pc.is_finite(array)
            return misfits.drop(made, pc.and_(infinite, meant), f"it is beyond {kind}")
    if t.is_string(source) and t.is_signed_integer(kind):
        wrong = pc.and_not(pc.less(made, pa.scalar(0, kind)), pc.starts_with(array, "-"))
        return misfits.drop(made, wrong, f"it is beyond {kind}")
    return made


def _wide(array: pa.Array, kind: pa.DataType) -> pa.Array | Mask:
    """Mark decimals with more digits before the point than the type has.

    Arrow multiplies them by a power of ten, and the product wraps at 2**128 to another number.
    """
    source = array.type
    digits = kind.precision - kind.scale if pa.types.is_decimal(kind) else _WHOLE.precision
    if digits >= source.precision - source.scale:
        return _none(array)
    most = pa.scalar(from_unscaled_value(10 ** (digits + source.scale), source.scale), source)
    return pc.or_(pc.greater_equal(array, most), pc.less_equal(array, pc.negate(most)))


def _exact(kind: pa.DataType, value: Decimal) -> Decimal | int:
    if pa.types.is_decimal(kind):
        return fit_type(value, kind)
    low, high = integer_bounds(kind)
    if not (fits(value, _WHOLE) and low <= value <= high):
        raise ValueError(f"it is no {kind}")
    return int(value)


def _not_exact(array: pa.Array, kind: pa.DataType, row: int) -> str:
    try:
        _exact(kind, array[row].as_py())
    except ValueError as error:
        return first_line(error)
    return "it does not fit"


def _text(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Unfold texts of any layout to `string`, and bytes too if the wanted type is not bytes."""
    t, source = pa.types, array.type
    if t.is_large_string(source) or t.is_string_view(source):
        return array.cast(pa.string())
    if (is_bytes(source) or t.is_large_binary(source)) and not (is_bytes(kind) or t.is_string(kind)):
        return plain(array, pa.string(), misfits)
    return array


_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_CLOCK = r"[ T]([01][0-9]|2[0-3])(:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?)?"
_OFFSET = "(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)"
_ANY_FLOAT = r"(?i)^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan(\([0-9a-z_]*\))?)$"
_TICKS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_INT64 = (1 << 63) - 1
_WHOLE = pa.decimal256(76, 0)
_INTEGERS = pa.decimal128(20, 0)
"""A decimal type that holds all integers of 64 bits."""


def _refused_by_arrow(kind: pa.DataType, array: pa.Array) -> pa.Array | Mask:
    """Mark the values that Arrow's cast refuses. Marks nothing for pairs of types without a rule here."""
    t, source = pa.types, array.type
    if t.is_string(source):
        return _texts_refused(array, kind)
    if is_bytes(source) or t.is_large_binary(source):
        if t.is_fixed_size_binary(kind):
            return pc.not_equal(pc.binary_length(array), kind.byte_width)
        return ~is_utf8(array) if t.is_string(kind) else _none(array)
    if t.is_integer(source):
        return _beyond(array, *_bounds(kind)) if t.is_integer(kind) or t.is_floating(kind) else _none(array)
    if t.is_floating(source) and t.is_integer(kind):
        values = array.to_numpy(zero_copy_only=False).astype(np.float64)
        low, high = _bounds(kind)
        fine = (values == np.trunc(values)) & (values >= low) & (values < float(high + 1))
        return np.asarray(~fine & array.is_valid().to_numpy(zero_copy_only=False))
    if t.is_decimal(source) and t.is_decimal(kind):
        return _each(array, lambda value: fits(value, kind))
    if t.is_decimal(source) and t.is_integer(kind):
        low, high = integer_bounds(kind)
        return _each(array, lambda value: fits(value, _WHOLE) and low <= value <= high)
    return _ticks_refused(array, kind) if t.is_temporal(source) and t.is_temporal(kind) else _none(array)


def _each(array: pa.Array, holds: Callable[[Any], bool]) -> Mask:
    return np.array([value is not None and not holds(value) for value in array.to_pylist()], dtype=np.bool_)


def _none(array: pa.Array) -> Mask:
    return np.zeros(len(array), dtype=np.bool_)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest integer of a type. For floats: the range in which each integer has its own float."""
    if pa.types.is_floating(kind):
        most = 1 << {16: 11, 32: 24, 64: 53}[kind.bit_width]
        return -most, most
    return integer_bounds(kind)


def _beyond(array: pa.Array, low: int, high: int) -> pa.Array:
    least, greatest = _bounds(array.type)
    return pc.or_(
        pc.less(array, pa.scalar(max(low, least), array.type)),
        pc.greater(array, pa.scalar(min(high, greatest), array.type)),
    )


def _texts_refused(array: pa.Array, kind: pa.DataType) -> pa.Array | Mask:
    t = pa.types
    if t.is_integer(kind):
        return _integers_refused(array, kind)
    if t.is_fixed_size_binary(kind):
        return pc.not_equal(pc.binary_length(array), kind.byte_width)
    if t.is_floating(kind):
        pattern = _ANY_FLOAT
    elif t.is_boolean(kind):
        pattern = "(?i)^(true|false|0|1)$"
    elif t.is_date32(kind):
        pattern = f"^{_DAY}$"
    elif t.is_timestamp(kind) and kind.unit == "us":
        pattern = f"^{_DAY}({_CLOCK})?$" if kind.tz is None else f"^{_DAY}{_CLOCK}{_OFFSET}$"
    else:
        return _none(array)
    return pc.invert(pc.match_substring_regex(array, pattern))


def _integers_refused(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # A text of digits is compared with the bound as text: first by length without leading zeros, then by characters.
    # Arrow also takes hexadecimal digits after 0x.
    low, high = _bounds(kind)
    negative = pc.starts_with(array, "-")
    body = pc.utf8_ltrim(pc.utf8_ltrim(array, "-"), "0")
    most = pc.if_else(negative, str(-low), str(high))
    length = pc.binary_length(body)
    wide = pc.binary_length(most)
    over = pc.or_(pc.greater(length, wide), pc.and_(pc.equal(length, wide), pc.greater(body, most)))
    digits = pc.match_substring_regex(array, "^-?[0-9]+$" if low else "^[0-9]+$")
    hexadecimal = pc.match_substring_regex(array, f"^0[xX][0-9a-fA-F]{{1,{kind.bit_width // 4}}}$")
    return pc.invert(pc.or_(pc.and_not(digits, over), hexadecimal))


def _ticks_refused(array: pa.Array, kind: pa.DataType) -> pa.Array | Mask:
    """Mark times that lose digits in a coarser unit, or exceed 64 bits in a finer one."""
    source, target = _nanos(array.type), _nanos(kind)
    bits = pa.int32() if array.type.bit_width == 32 else pa.int64()
    numbers = array.cast(bits).cast(pa.int64())
    if source < target:
        return pc.not_equal(_modulo(numbers, target // source), 0)
    limit = _INT64 // (source // target)
    return _beyond(numbers, -limit, limit)


def _nanos(kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return 86_400 * 10**9 if pa.types.is_date32(kind) else 10**6
    return _TICKS[kind.unit]


def is_utf8(values: pa.Array) -> Mask:
    """True for each value that is UTF-8, and for null."""
    fine = np.ones(len(values), dtype=np.bool_)
    for row, value in enumerate(values.to_pylist()):
        try:
            value is None or value.decode()
        except UnicodeDecodeError:
            fine[row] = False
    return fine


def of_rows(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Cast Arrow rows to another layout or width of the same kind of value. A reason is a whole predicate."""
    t = pa.types
    if t.is_fixed_size_binary(kind):
        array = plain(array, pa.binary(), misfits)
        lengths = pc.binary_length(array)
        wrong = pc.not_equal(lengths, kind.byte_width)
        array = misfits.drop(array, wrong, lambda row: f"{lengths[row].as_py()} bytes are not {kind.byte_width}")
    mine = Misfits(misfits.times)
    made = plain(array, kind, mine)
    if mine.rows is not None:
        misfits.note(mine.rows, partial(_no, array, kind))
    if t.is_floating(array.type) and array.type.bit_width > kind.bit_width:  # Arrow narrows floats without a word
        wrong = pc.and_(pc.not_equal(made.cast(array.type), array), pc.invert(pc.is_nan(array)))
        made = misfits.drop(made, wrong, lambda row: f"{array[row].as_py()} is no exact {kind}")
    return made


def _no(array: pa.Array, kind: pa.DataType, row: int) -> str:
    value = python_value(array, row)
    return f"{excerpt(value)} is no {type_name(kind, '')}{misfit(value, kind)}"


def python_value(array: pa.Array, row: int) -> Any:
    """A value for an error message. Arrow's text if Python has no value: nanoseconds, and the year 20000."""
    if pa.types.is_temporal(array.type) and getattr(array.type, "unit", "") == "ns":  # as_py() would need pandas
        return str(array[row].cast(pa.string()))
    try:
        return array[row].as_py()
    except (OverflowError, ValueError):
        return " ".join(str(array.slice(row, 1)).split())


def is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """True if a cast by `of_rows` keeps the meaning. The cast itself checks each value."""
    t = pa.types
    if t.is_timestamp(target):
        return bool(t.is_timestamp(source) and (source.tz is None) == (target.tz is None))
    for same in (t.is_integer, t.is_floating, t.is_decimal, t.is_date, t.is_time):
        if same(target):
            return bool(same(source) or (t.is_integer(source) and t.is_decimal(target)))
    if t.is_string(target):
        return bool(t.is_large_string(source) or t.is_string_view(source))
    bytes_of_any_length = t.is_large_binary(source) or t.is_binary_view(source)
    if t.is_binary(target):
        return bool(bytes_of_any_length or t.is_fixed_size_binary(source))
    if t.is_fixed_size_binary(target):
        return bool(bytes_of_any_length or t.is_binary(source))
    return False


def of_record(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Cast values of Kafka records. Texts become numbers and times, numbers become times and texts."""
    array = _text(array, kind, misfits)
    if array.type == kind:
        return array
    for is_one, convert in _OF_RECORDS:
        if is_one(kind):
            return convert(array, kind, misfits)
    return misfits.drop_all(array, kind, f"{array.type} is no {kind}")


_FLOAT = rf"{NUMBER}|^(NaN|-?Infinity)$"


def _near_decimal(kind: pa.DataType) -> str:
    """Pattern of texts that are safe for Arrow's decimal cast: with all their digits, the type holds them.

    For a far exponent the cast reads past its table of powers, and for more digits it wraps at 2**128.
    """
    zeros = 38 - kind.precision
    return rf"^[+-]?0{{0,38}}[0-9]{{0,{kind.precision - kind.scale}}}(\.[0-9]{{0,{kind.scale}}}0{{0,{zeros}}})?$"


def _matching(array: pa.Array, pattern: str, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    return misfits.drop(array, pc.invert(pc.match_substring_regex(array, pattern)), f"it is no {kind}")


def _integers(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_string(source):
        array = _matching(array, INTEGER, kind, misfits)
    elif not (t.is_integer(source) or t.is_floating(source) or t.is_decimal(source)):
        return misfits.drop_all(array, kind, f"{source} is no {kind}")
    return plain(array, kind, misfits)


def _floats(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_string(source):
        array = _matching(array, _FLOAT, kind, misfits)
    elif t.is_integer(source):
        return plain(array, pa.float64(), misfits).cast(kind)
    elif not (t.is_floating(source) or t.is_decimal(source)):
        return misfits.drop_all(array, kind, f"{source} is no {kind}")
    return plain(array, kind, misfits)


def _as_text(array: pa.Array) -> pa.Array:
    """Decimals as text."""
    if array.type.bit_width < 128:  # Arrow casts these to no text
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array.cast(pa.string())


def _decimals(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    t = pa.types
    if t.is_floating(array.type) or t.is_integer(array.type):
        array = array.cast(pa.string())
    if not (t.is_string(array.type) or t.is_decimal(array.type)):
        return misfits.drop_all(array, kind, f"{array.type} is no {kind}")
    return plain(array, kind, misfits)


def _decimals_of_text(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    array = _matching(array, NUMBER, kind, misfits)
    near = pc.match_substring_regex(array, _near_decimal(kind))
    readings: tuple[tuple[pa.Array, Convert], ...] = (
        (near, lambda some: some.cast(kind)),
        (pc.invert(near), lambda some: _looped(some, kind, lambda text: fit_type(Decimal(text), kind), misfits)),
    )
    return _joined(array, readings, kind)


def whole_decimals(array: pa.Array) -> bool:
    """True if no decimal has more digits than its type. Arrow's readers do not check this."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _booleans(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    if not pa.types.is_string(array.type):
        return misfits.drop_all(array, kind, f"{array.type} is no {kind}")
    return pc.equal(_matching(array, "^(true|false)$", kind, misfits), "true")


def _strings(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    if pa.types.is_nested(array.type) or pa.types.is_decimal(array.type) or pa.types.is_floating(array.type):
        text = json_texts.values(array, json_texts.PLAIN)
        text = pc.replace_substring(text, '"', "") if not pa.types.is_nested(array.type) else text
        return pc.if_else(array.is_valid(), text, None)
    return plain(array, kind, misfits)


def _bytes(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    if not (pa.types.is_string(array.type) or is_bytes(array.type)):
        return misfits.drop_all(array, kind, f"{array.type} is no {kind}")
    return _of_width(array.cast(pa.binary()), kind, misfits).cast(kind)


def _of_width(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    if not pa.types.is_fixed_size_binary(kind):
        return array
    wrong = pc.not_equal(pc.binary_length(array), kind.byte_width)
    return misfits.drop(array, wrong, f"it has not {kind.byte_width} bytes")


_COUNT = r"^-?[0-9]+(\.[0-9]*)?$"
_ZONED = r"[0-9 ](Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_MICROS = 86_400_000_000
_TIMESTAMP, _UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def _timestamps(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_string(source):
        return _times_of_text(array, kind, misfits)
    if t.is_timestamp(source):
        return _moved(_whole_micros(array, misfits), kind, misfits)
    if t.is_date(source):
        return _moved(plain(array, _TIMESTAMP, misfits), kind, misfits)
    return _zoned(_micros(array, kind, misfits), kind, misfits)


def _whole_micros(array: pa.Array, misfits: Misfits) -> pa.Array:
    kind = pa.timestamp("us", tz=array.type.tz)
    if array.type.unit != "ns":
        return plain(array, kind, misfits)
    return _floored(array.cast(pa.int64()), 1000).cast(kind)


def _moved(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    if array.type.tz is not None and kind.tz is not None:
        return array.cast(kind)
    if array.type.tz is None and kind.tz is None:
        return array
    if not misfits.times.zone:
        has, hint = ("no", "zone:") if kind.tz else ("a", "zone:, or take timestamptz")
        return misfits.drop_all(array, kind, f"it has {has} zone; say the column's {hint}")
    if kind.tz is None:
        return pc.local_timestamp(array.cast(pa.timestamp("us", tz=misfits.times.zone)))
    assume = partial(pc.assume_timezone, timezone=misfits.times.zone)
    return _attempt(array, kind, lambda some: assume(some).cast(kind), lambda some: _unclear(some, assume), misfits)


def _unclear(array: pa.Array, assume: Callable[..., pa.Array]) -> pa.Array:
    """Mark local times that a clock change skips or repeats."""
    first, last = (assume(array, ambiguous=end, nonexistent=end) for end in ("earliest", "latest"))
    return pc.not_equal(first, last)


def _zoned(micros: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    moments = micros.cast(_TIMESTAMP)
    if kind.tz is None and misfits.times.zone:
        return _moved(moments.cast(_UTC), kind, misfits)
    return moments.cast(kind)


def _micros(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Microseconds from numbers in the source's unit, or from texts of such numbers."""
    t, source, unit = pa.types, array.type, misfits.times.unit or "ms"
    if t.is_integer(source):
        numbers = plain(array, pa.int64(), misfits)
        if unit == "ns":
            return _floored(numbers, 1000)
        factor = _MICROS[unit]
        limit = _INT64 // factor
        return _attempt(
            numbers, pa.int64(), lambda some: pc.multiply_checked(some, factor),
            lambda some: _beyond(some, -limit, limit), misfits,
        )  # fmt: skip
    if t.is_floating(source):
        array = array.cast(pa.string())
    if not (t.is_string(array.type) or t.is_decimal(source)):
        return misfits.drop_all(array, pa.int64(), f"{source} is no time")
    ratio = Decimal("0.001") if unit == "ns" else Decimal(_MICROS[unit])
    return _looped(array, pa.int64(), partial(_micros_of, ratio), misfits)


_TIME_DIGITS = 25
"""Digits of the largest time in nanoseconds, and some more."""


def _micros_of(factor: Decimal, value: Decimal | str) -> int:
    number = Decimal(value)
    if number.adjusted() > _TIME_DIGITS:  # math.floor takes quadratic time in the digits
        raise ValueError("it is beyond the times of 64 bits")
    micros = math.floor(product(number, factor))
    if not -_INT64 <= micros <= _INT64:
        raise ValueError("it is beyond the times of 64 bits")
    return micros


def _floored(numbers: pa.Array, by: int) -> pa.Array:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) // by
    return pa.array(values, mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _modulo(numbers: pa.Array, by: int) -> pa.Array:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) % by
    return pa.array(values, mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _joined(text: pa.Array, readings: Sequence[tuple[pa.Array, Convert]], kind: pa.DataType) -> pa.Array:
    """Read texts of several forms. Each form has a mask of its rows and a function that reads them."""
    nothing = pa.scalar(None, pa.string())
    made = [
        read(text if pc.all(mask).as_py() else pc.if_else(mask, text, nothing))
        for mask, read in readings
        if pc.any(mask).as_py()
    ]
    return pc.coalesce(*made) if made else pa.nulls(len(text), kind)


def _times_of_text(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    if not misfits.times.zone:
        try:
            return array.cast(kind)
        except (pa.ArrowException, OverflowError):
            pass  # another form, or no time: parsed below
    text = pc.utf8_upper(pc.utf8_trim_whitespace(array))
    counts = pc.match_substring_regex(text, _COUNT)
    zoned = pc.and_(pc.match_substring_regex(text, _ZONED), pc.greater(pc.utf8_length(text), 10))
    readings: tuple[tuple[pa.Array, Convert], ...] = (
        (counts, lambda some: _zoned(_counted(some, misfits), kind, misfits)),
        (zoned, lambda some: _moved(plain(_cut(some), _UTC, misfits), kind, misfits)),
        (
            pc.invert(pc.or_(counts, zoned)),
            lambda some: _moved(plain(_cut(some), _TIMESTAMP, misfits), kind, misfits),
        ),
    )
    return _joined(text, readings, kind)


def _counted(text: pa.Array, misfits: Misfits) -> pa.Array:
    whole = pc.all(pc.match_substring_regex(text, INTEGER)).as_py()
    return _micros(plain(text, pa.int64(), misfits) if whole else text, pa.int64(), misfits)


def _cut(text: pa.Array) -> pa.Array:
    """Remove digits finer than microseconds, and a blank before the zone."""
    return pc.replace_substring_regex(text, r"([.,][0-9]{6})[0-9]+|\s+([Z+-])", r"\1\2")


def _dates(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_string(source):
        counts = pc.match_substring_regex(array, _COUNT)
        readings: tuple[tuple[pa.Array, Convert], ...] = (
            (counts, lambda some: _dates(plain(some, pa.int64(), misfits), kind, misfits)),
            (pc.invert(counts), lambda some: plain(some, kind, misfits)),
        )
        return _joined(array, readings, kind)
    if t.is_date(source):
        return plain(array, kind, misfits)
    if t.is_timestamp(source):
        micros = _whole_micros(array, misfits).cast(pa.int64())
    else:
        micros = _micros(array, kind, misfits)
    wrong = pc.not_equal(_modulo(micros, _DAY_MICROS), 0)
    micros = misfits.drop(micros, wrong, "it is not midnight, so the date would lose its time")
    return _floored(micros, _DAY_MICROS).cast(pa.int32()).cast(kind)


def _times_of_day(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_time(source):
        return plain(array.cast(pa.time64("ns")), kind, misfits)
    if not t.is_string(source):
        return _within_a_day(_micros(array, kind, misfits), kind, misfits)
    counts = pc.match_substring_regex(array, _COUNT)
    readings: tuple[tuple[pa.Array, Convert], ...] = (
        (counts, lambda some: _within_a_day(_counted(some, misfits), kind, misfits)),
        (pc.invert(counts), lambda some: _clock(_cut(some), misfits).cast(kind)),
    )
    return _joined(array, readings, kind)


def _clock(text: pa.Array, misfits: Misfits) -> pa.Array:
    # Arrow casts no text to a time of day, so a date is put before it.
    return plain(pc.binary_join_element_wise("1970-01-01T", text, ""), _TIMESTAMP, misfits)


def _within_a_day(micros: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    return misfits.drop(micros, _beyond(micros, 0, _DAY_MICROS - 1), "it is not a time of day").cast(kind)


_OF_RECORDS: tuple[tuple[Callable[[Any], bool], Leaf], ...] = (
    (pa.types.is_integer, _integers),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_string, _strings),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times_of_day),
    (is_bytes, _bytes),
)
_FINE = r"\.[0-9]{6}[0-9]*[1-9]"
"""Texts of times with digits finer than microseconds."""
_ONLY_DIGITS = r"^\s*[-+]?[0-9.]+\s*$"
_PLAIN_TIME_CHARS = 26
_NO_UNIT = "it is a number, which has no unit: a time is a text"
_TRUE, _FALSE = pa.array(["true", "t", "yes", "1"]), pa.array(["false", "f", "no", "0"])


def of_json(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Cast values of a JSON file. Times are texts, bytes are hex texts, other values follow `of_record`."""
    t = pa.types
    array = _text(array, kind, misfits)
    if is_bytes(kind):
        if not t.is_string(array.type):
            return misfits.drop_all(array, kind, f"{array.type} is not hex text")
        return _of_width(_looped(array, pa.binary(), bytes.fromhex, misfits), kind, misfits).cast(kind)
    if t.is_temporal(kind):
        if not t.is_string(array.type):
            return misfits.drop_all(array, kind, _NO_UNIT)
        array = misfits.drop(array, pc.match_substring_regex(array, _ONLY_DIGITS), _NO_UNIT)
        longest = pc.max(pc.binary_length(array)).as_py() or 0
        if longest > (_PLAIN_TIME_CHARS if t.is_timestamp(kind) else 0):
            array = misfits.drop(array, pc.match_substring_regex(array, _FINE), "it has more than microseconds")
    return of_record(array, kind, misfits)


def of_csv(array: pa.Array, kind: pa.DataType, misfits: Misfits) -> pa.Array:
    """Cast texts of a CSV file. Values of other types than text may have blanks around them."""
    t = pa.types
    if t.is_string(kind):
        return array
    array = pc.utf8_trim_whitespace(array)
    if t.is_boolean(kind):
        lower = pc.utf8_lower(array)
        yes, no = pc.is_in(lower, value_set=_TRUE), pc.is_in(lower, value_set=_FALSE)
        wrong = pc.and_(array.is_valid(), pc.invert(pc.or_(yes, no)))
        array = misfits.drop(array, wrong, "it is neither true nor false")
        return pc.if_else(array.is_valid(), yes, None)
    return plain(array, kind, misfits) if t.is_integer(kind) or t.is_floating(kind) else of_json(array, kind, misfits)
