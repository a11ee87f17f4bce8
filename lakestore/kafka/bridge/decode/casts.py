"""Casts values to a column's type. Returns a mask of the rows whose value does not fit.

Text becomes numbers and times (by the rules of `times`), numbers become text and times. Other kinds are never
converted. Floats are rounded to the nearest value; all other values are exact or refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.decimals import fit_type, product
from lakestore.rows import json_texts
from lakestore.rows.casting import Cast

INTEGER = r"^-?[0-9]{1,40}$"
"""Integers as text; 40 digits are more than any type holds."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?$"
"""Numbers as text."""


class Misfit(ValueError):
    """A value that does not fit its type."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A column's type and the interpretation of its times."""

    kind: pa.DataType
    unit: str = ""
    """The unit of numeric times: s, ms, us or ns; empty: ms."""
    zone: str = ""

    @property
    def code(self) -> str:
        """Code of a reject."""
        t = pa.types
        if t.is_integer(self.kind) or t.is_floating(self.kind) or t.is_decimal(self.kind):
            return "not-a-number"
        if t.is_temporal(self.kind):
            return "not-a-time"
        return "not-a-boolean" if t.is_boolean(self.kind) else "bad-type"


_COUNT = r"^-?[0-9]+(\.[0-9]*)?$"
_ZONED = r"[0-9 ](Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_MICROS = 86_400_000_000
_TIMESTAMP, _UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def timestamps(array: pa.Array, rule: Rule) -> pa.Array:
    """Timestamps from texts, numbers, dates and other timestamps."""
    t, source = pa.types, array.type
    if t.is_string(source):
        return _read_times(array, rule)
    if t.is_timestamp(source):
        return _moved(_whole_micros(array), rule)
    if t.is_date(source):
        return _moved(array.cast(_TIMESTAMP), rule)
    return _zoned(_micros(array, rule.unit), rule)


def _whole_micros(array: pa.Array) -> pa.Array:
    if array.type.unit != "ns":
        return array.cast(pa.timestamp("us", tz=array.type.tz))
    micros = _floored(array.cast(pa.int64()), 1000)
    return micros.cast(pa.timestamp("us", tz=array.type.tz))


def _moved(array: pa.Array, rule: Rule) -> pa.Array:
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
    moments = micros.cast(_TIMESTAMP)
    if rule.kind.tz is None and rule.zone:
        return _moved(moments.cast(_UTC), rule)
    return moments.cast(_UTC) if rule.kind.tz is not None else moments


def _micros(array: pa.Array, unit: str) -> pa.Array:
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
    if not rule.zone:
        try:
            return array.cast(rule.kind)
        except (pa.ArrowException, OverflowError):
            pass  # another form, or no time: parsed below
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
    return pc.replace_substring_regex(text, r"([.,][0-9]{6})[0-9]+|\s+([Z+-])", r"\1\2")


def dates(array: pa.Array, rule: Rule) -> pa.Array:
    """Dates from texts, numbers and timestamps at midnight."""
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
        raise Misfit("it is not midnight, so the date would lose its time")
    return _floored(micros, _DAY_MICROS).cast(pa.int32()).cast(rule.kind)


def _modulo(numbers: pa.Array, by: int) -> pa.Array:
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) % by
    return pa.array(values, mask=numbers.is_null().to_numpy(zero_copy_only=False))


def times_of_day(array: pa.Array, rule: Rule) -> pa.Array:
    """Times of day from texts and numbers."""
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
        raise Misfit("it is not a time of day")
    return micros.cast(rule.kind)


Mask = npt.NDArray[np.bool_]
_NEAR_DECIMAL = r"^[+-]?[0-9]{0,38}(\.[0-9]{0,38})?$"
"""Texts that are safe for Arrow's decimal cast. With a far exponent the cast reads past its table of powers."""
_FLOAT = rf"{NUMBER}|^(NaN|-?Infinity)$"
FAILURES = (pa.ArrowException, Invalid, ValueError, ArithmeticError)
"""Errors that mean that a value does not fit."""


def cast(array: pa.Array, rule: Rule) -> tuple[pa.Array, Mask | None]:
    """Cast to the rule's type. Returns the values, with null for a misfit, and a mask of the misfits."""
    if array.type == rule.kind and not pa.types.is_nested(rule.kind):
        return array, None
    try:
        return exact(array, rule), None
    except FAILURES:
        made, bad = parted(array, lambda some: exact(some, rule), rule.kind)
        return made, bad


def why(value: pa.Array, rule: Rule) -> str:
    """Say why one value does not fit."""
    try:
        exact(value, rule)
    except FAILURES as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return "it does not fit"


def parted(
    array: pa.Array, convert: Callable[[pa.Array], pa.Array], kind: pa.DataType, *, most: int | None = None
) -> tuple[pa.Array, Mask]:
    """Convert by halving; a failing value becomes null and marked. After `most` failures all are marked."""
    bad = np.zeros(len(array), dtype=np.bool_)
    made: list[pa.Array] = []
    todo = [(0, len(array))]
    failures = 0
    while todo:
        start, end = todo.pop()
        try:
            made.append(convert(array.slice(start, end - start)))
        except FAILURES:
            if end - start > 1:
                middle = (start + end) // 2
                todo += [(middle, end), (start, middle)]
                continue
            failures += 1
            if most is not None and failures > most:
                bad[start:] = True
                made.append(pa.nulls(len(array) - start, kind))
                break
            bad[start] = True
            made.append(pa.nulls(1, kind))
    return pa.concat_arrays(made) if made else pa.nulls(0, kind), bad


def exact(array: pa.Array, rule: Rule) -> pa.Array:
    """Cast to the rule's type. Raises one of `FAILURES` if any value does not fit."""
    kind, source, t = rule.kind, array.type, pa.types
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    if t.is_dictionary(source):
        return exact(array.dictionary_decode(), rule)
    if t.is_large_string(source) or t.is_string_view(source):
        array, source = array.cast(pa.string()), pa.string()
    if t.is_nested(kind):
        return _nested(array, rule)
    if source == kind:
        return array
    if t.is_binary(source) and not (t.is_binary(kind) or t.is_fixed_size_binary(kind)):
        return exact(array.cast(pa.string()), rule)
    for is_one, convert in _CASTS:
        if is_one(kind):
            return convert(array, rule)
    raise Misfit(f"{source} is no {kind}")


def _integers(array: pa.Array, rule: Rule) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_string(source):
        _all(array, INTEGER, rule.kind)
    elif not (t.is_integer(source) or t.is_floating(source) or t.is_decimal(source)):
        raise Misfit(f"{source} is no {rule.kind}")
    return array.cast(rule.kind)


def _floats(array: pa.Array, rule: Rule) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_string(source):
        _all(array, _FLOAT, rule.kind)
        made = array.cast(pa.float64())
        finite = pc.match_substring_regex(array, NUMBER)
    elif t.is_floating(source):
        made, finite = array, pc.is_finite(array)
    elif t.is_integer(source) or t.is_decimal(source):
        made, finite = array.cast(pa.float64()), pa.scalar(True)
    else:
        raise Misfit(f"{source} is no {rule.kind}")
    made = made.cast(rule.kind)
    if pc.any(pc.and_(finite, pc.invert(pc.is_finite(made)))).as_py():
        raise Misfit(f"it is beyond {rule.kind}")
    return made


def _decimals(array: pa.Array, rule: Rule) -> pa.Array:
    t, source = pa.types, array.type
    if t.is_floating(source) or t.is_integer(source):
        array = array.cast(pa.string())
        source = array.type
    if t.is_string(source):
        _all(array, NUMBER, rule.kind)
        if pc.all(pc.match_substring_regex(array, _NEAR_DECIMAL)).as_py() is False:
            return pa.array(
                [None if value is None else fit_type(Decimal(value), rule.kind) for value in array.to_pylist()],
                rule.kind,
            )
    elif not t.is_decimal(source):
        raise Misfit(f"{source} is no {rule.kind}")
    made = array.cast(rule.kind)
    if not whole_decimals(made):
        raise Misfit(f"it is beyond {rule.kind}")
    return made


def whole_decimals(array: pa.Array) -> bool:
    """Whether no decimal has more digits than its type. Arrow's casts and readers do not check this."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _booleans(array: pa.Array, rule: Rule) -> pa.Array:
    if not pa.types.is_string(array.type):
        raise Misfit(f"{array.type} is no {rule.kind}")
    _all(array, "^(true|false)$", rule.kind)
    return pc.equal(array, "true")


def _strings(array: pa.Array, rule: Rule) -> pa.Array:
    if pa.types.is_nested(array.type) or pa.types.is_decimal(array.type) or pa.types.is_floating(array.type):
        text = json_texts.values(array, json_texts.PLAIN)
        text = pc.replace_substring(text, '"', "") if not pa.types.is_nested(array.type) else text
        return pc.if_else(array.is_valid(), text, None)
    return array.cast(rule.kind)


def _bytes(array: pa.Array, rule: Rule) -> pa.Array:
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type) or _is_fixed(array.type)):
        raise Misfit(f"{array.type} is no {rule.kind}")
    array = array.cast(pa.binary())
    if _is_fixed(rule.kind):
        wrong = pc.not_equal(pc.binary_length(array), rule.kind.byte_width)
        if pc.any(wrong).as_py():
            raise Misfit(f"it has not {rule.kind.byte_width} bytes")
    return array.cast(rule.kind)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind)) and not pa.types.is_decimal(kind)


def _nested(array: pa.Array, rule: Rule) -> pa.Array:
    return Cast("").column(_inside(array, rule), pa.field("value", rule.kind))


def _inside(array: pa.Array, rule: Rule) -> pa.Array:
    kind, t = rule.kind, pa.types
    if array.type == kind or not t.is_nested(kind):
        return array if array.type == kind else exact(array, rule)
    mask = array.is_null() if array.null_count else None
    if t.is_struct(kind) and t.is_struct(array.type):
        children = array.flatten()
        names = [part.name for part in array.type]
        made = [_part(children[names.index(part.name)], part, rule) for part in kind if part.name in names]
        fields = [part.with_nullable(True) for part in kind if part.name in names]
        return pa.StructArray.from_arrays(made, fields=fields, mask=mask) if made else pa.nulls(len(array), kind)
    if t.is_list(kind) and t.is_list(array.type):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        made_values = _part(array.flatten(), kind.value_field, rule)
        return pa.ListArray.from_arrays(pa.array(offsets), made_values, mask=mask)
    return array


def _part(array: pa.Array, part: pa.Field, rule: Rule) -> pa.Array:
    return _inside(array, Rule(part.type, rule.unit, rule.zone))


def _all(array: pa.Array, pattern: str, kind: pa.DataType) -> None:
    if pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
        raise Misfit(f"it is no {kind}")


_Convert = Callable[[pa.Array, Rule], pa.Array]
_CASTS: tuple[tuple[Callable[[Any], bool], _Convert], ...] = (
    (pa.types.is_integer, _integers),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_string, _strings),
    (pa.types.is_timestamp, timestamps),
    (pa.types.is_date, dates),
    (pa.types.is_time, times_of_day),
    (pa.types.is_binary, _bytes),
    (_is_fixed, _bytes),
)
