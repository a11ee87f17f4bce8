"""Functions of conditions by their names: how many arguments they take, and the value that they make."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakestore.errors import Invalid
from lakestore.rows.computed import arithmetic, logic, nested, texts, times
from lakestore.rows.computed.reader import Reader
from lakestore.rows.computed.value import Value, constant

Call = Callable[[Reader, list[exp.Expr], str], Value]


def _of(least: int, most: int, step: Callable[[list[Value], str], Value]) -> Call:
    """A function of so many values."""

    def call(reader: Reader, arguments: list[exp.Expr], text: str) -> Value:
        if not least <= len(arguments) <= most:
            raise Invalid(f"{text} takes {least if least == most else f'{least} or more'} arguments")
        return step([reader.value(each) for each in arguments], text)

    return call


def _with_text(step: Callable[[Value, str, str], Value]) -> Call:
    """A function of a value and a constant text."""

    def call(reader: Reader, arguments: list[exp.Expr], text: str) -> Value:
        if len(arguments) != 2:
            raise Invalid(f"{text} takes 2 arguments")
        found = reader.constant_of(arguments[1])
        if not isinstance(found, str):
            raise Invalid(f"{text} takes a constant text second")
        return step(reader.value(arguments[0]), found, text)

    return call


def _with_number(step: Callable[[Value, int, str], Value]) -> Call:
    def call(reader: Reader, arguments: list[exp.Expr], text: str) -> Value:
        if len(arguments) != 2:
            raise Invalid(f"{text} takes 2 arguments")
        return step(reader.value(arguments[0]), reader.number(arguments[1]), text)

    return call


def _part(name: str) -> Call:
    return _of(1, 1, lambda values, text: times.extracted(values[0], name, text))


def _extract(reader: Reader, arguments: list[exp.Expr], text: str) -> Value:
    name, of = arguments
    return times.extracted(reader.value(of), name.name, text)


def _replace(reader: Reader, arguments: list[exp.Expr], text: str) -> Value:
    if len(arguments) != 3:
        raise Invalid(f"{text} takes 3 arguments")
    old, new = (reader.constant_of(each) for each in arguments[1:])
    if not isinstance(old, str) or not isinstance(new, str):
        raise Invalid(f"{text} takes constant texts second and third")
    return texts.replaced(reader.value(arguments[0]), old, new, text)


def _nullif(values: list[Value], text: str) -> Value:
    a, b = values
    return logic.case([logic.compared(a, "=", b, text)], [constant(pa.scalar(None)), a], text)


def _contains(reader: Reader, arguments: list[exp.Expr], text: str) -> Value:
    if len(arguments) == 2:
        part = reader.value(arguments[0])
        if pa.types.is_list(part.type):
            return nested.holds(part, reader.value(arguments[1]), text)
    found = _with_text(lambda a, b, t: texts.tested(a, lambda data: pc.match_substring(data, pattern=b), t))
    return found(reader, arguments, text)


_STARTS = _with_text(lambda a, b, t: texts.tested(a, lambda data: pc.starts_with(data, pattern=b), t))

_ENDS = _with_text(lambda a, b, t: texts.tested(a, lambda data: pc.ends_with(data, pattern=b), t))

_LENGTH = _of(1, 1, lambda v, t: texts.length(v[0], t))

_MANY = 64

FUNCTIONS: dict[str, Call] = {
    "lower": _of(1, 1, lambda v, t: texts.changed(v[0], pc.utf8_lower, t)),
    "upper": _of(1, 1, lambda v, t: texts.changed(v[0], pc.utf8_upper, t)),
    "length": _LENGTH,
    "len": _LENGTH,
    "strlen": _of(1, 1, lambda v, t: texts.bytes_of(v[0], t)),
    "coalesce": _of(1, _MANY, logic.coalesced),
    "ifnull": _of(2, 2, logic.coalesced),
    "nullif": _of(2, 2, _nullif),
    "greatest": _of(1, _MANY, lambda v, t: logic.extreme(v, t, greatest=True)),
    "least": _of(1, _MANY, lambda v, t: logic.extreme(v, t, greatest=False)),
    "abs": _of(1, 1, lambda v, t: arithmetic.absolute(v[0], t)),
    "sign": _of(1, 1, lambda v, t: arithmetic.sign(v[0], t)),
    "floor": _of(1, 1, lambda v, t: arithmetic.stepped(v[0], t, up=False)),
    "ceil": _of(1, 1, lambda v, t: arithmetic.stepped(v[0], t, up=True)),
    "startswith": _STARTS,
    "starts_with": _STARTS,
    "prefix": _STARTS,
    "endswith": _ENDS,
    "ends_with": _ENDS,
    "suffix": _ENDS,
    "contains": _contains,
    "arraycontains": _contains,
    "list_contains": _contains,
    "left": _with_number(lambda a, n, t: texts.side(a, n, t, left=True)),
    "right": _with_number(lambda a, n, t: texts.side(a, n, t, left=False)),
    "replace": _replace,
    "concat": _of(1, _MANY, lambda v, t: texts.joined(v, t, nulls_empty=True)),
    "extract": _extract,
    "date_part": _extract,
    "datepart": _extract,
    "timetounix": _part("epoch"),
    "dayofweek": _part("dow"),
    "dayofweekiso": _part("isodow"),
    "dayofyear": _part("doy"),
    "weekofyear": _part("week"),
    **{each: _part(each) for each in ("year", "month", "day", "hour", "minute", "second", "quarter", "week")},
    **{each: _part(each) for each in ("isoyear", "isodow", "dow", "doy", "weekday", "millisecond", "microsecond")},
}

NAMES = sorted({*FUNCTIONS, "substring", "substr", "trim", "ltrim", "rtrim", "round", "date_trunc", "now", "today"})
"""The functions of a condition, for suggestions."""
