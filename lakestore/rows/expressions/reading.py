"""Reads values from the tree of a condition: columns, fields, constants, operators and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakestore.errors import Invalid
from lakestore.model.names import suggestion
from lakestore.rows.expressions import arithmetic, kinds, logic, texts, times
from lakestore.rows.expressions.kinds import Value, constant
from lakestore.rows.expressions.nodes import READERS
from lakestore.rows.expressions.reader import Reader, node_text
from lakestore.rows.literals import SIGNS, refused
from lakestore.rows.literals import constant as literal_of

Call = Callable[[Reader, list[exp.Expr], str], Value]


def _of(least: int, most: int, step: Callable[[list[Value], str], Value]) -> Call:
    """A function with `least` to `most` values as arguments."""

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
            return logic.holds(part, reader.value(arguments[1]), text)
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
"""Names of the functions, for suggestions in errors."""


_DEPTH_MAX = 64

_CLOCK = {"now", "currentdate", "currenttimestamp", "localtimestamp", "get_current_timestamp", "today"}
"""Clock words that are still in a condition. `literals.fixed` replaces them for each call."""

_PLAIN = exp.Literal | exp.Boolean | exp.HexString | exp.Null

_CALCULATED: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
}


class Columns(Protocol):
    """The columns that a condition may name, and the limit of its size."""

    def column(self, node: exp.Expr) -> Value:
        """The value of a column or of a field inside it. Raises `Invalid` for an unknown name."""

    def count(self, nodes: int, values: int = 0) -> None:
        """Add to the size of the condition. Raises `Invalid` if the condition is too large."""


class ValueReader:
    """Reads the values of one condition."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._depth = 0

    def value(self, node: exp.Expr) -> Value:
        """The value of a node. Raises `Invalid` that names the piece that is not understood."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise RecursionError
        try:
            return self._read(node)
        finally:
            self._depth -= 1

    def condition(self, node: exp.Expr) -> Value:
        """The value of a node that must be a boolean."""
        found = self.value(node)
        if not pa.types.is_boolean(found.type) and not pa.types.is_null(found.type):
            raise Invalid(f"{node_text(node)} is a {found.type} and no condition: compare it with something")
        return found

    def _read(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.Paren):
            return self.value(node.this)
        if not isinstance(node, _PLAIN) and not isinstance(node.this, exp.Literal):
            self._columns.count(1)
        if isinstance(node, exp.Column | exp.Dot | exp.Bracket | exp.StructExtract):
            return self._reached(node)
        if isinstance(node, exp.Literal | exp.Boolean | exp.HexString):
            return constant(literal_of(node), literal=isinstance(node, exp.Literal) and node.is_string)
        if isinstance(node, exp.Null):
            return constant(pa.scalar(None))
        for kind, read in READERS.items():
            if isinstance(node, kind):
                return read(self, node)
        if type(node) in SIGNS:
            return logic.compared(
                self.value(node.this), SIGNS[type(node)], self.value(node.expression), node_text(node)
            )
        if type(node) in _CALCULATED:
            return self._calculated(node)
        return self._called(node)

    def _reached(self, node: exp.Expr) -> Value:
        """A column, a field of a struct, an element of a list or the value of a key."""
        if isinstance(node, exp.Bracket):
            if len(node.expressions) != 1:
                raise refused(node)
            inner = self.constant_of(node.expressions[0])
            if isinstance(inner, int) and not isinstance(inner, bool):
                inner += 1  # sqlglot counts from 0.
            return logic.part(self.value(node.this), inner, node_text(node))
        if isinstance(node, exp.StructExtract):
            return logic.part(self.value(node.this), self.constant_of(node.expression), node_text(node))
        if isinstance(node, exp.Dot) and node.find(exp.Bracket, exp.StructExtract):
            return logic.part(self.value(node.this), node.expression.name, node_text(node))
        return self._columns.column(node)

    def constant_of(self, node: exp.Expr) -> object:
        """The value of a constant argument."""
        found = self.value(node)
        if found.constant is None:
            raise Invalid(f"{node_text(node)} stands where only a constant may")
        return found.constant.as_py()

    def _calculated(self, node: exp.Expr) -> Value:
        sign, text = _CALCULATED[type(node)], node_text(node)
        a, b = self.value(node.this), self.value(node.expression)
        if sign in "+-" and (_is_time(a) or _is_time(b)):
            return _shifted(a, sign, b, text)
        a, b = (_numeral(each, other, text) for each, other in ((a, b), (b, a)))
        return arithmetic.combined(a, sign, b, text)

    def count(self, nodes: int, values: int = 0) -> None:
        """Add to the size of the condition. Raises `Invalid` if the condition is too large."""
        self._columns.count(nodes, values)

    def number(self, node: exp.Expr) -> int:
        """The value of a constant integer argument."""
        found = self.constant_of(node)
        if not isinstance(found, int) or isinstance(found, bool) or abs(found) > 1 << 31:
            raise Invalid(f"{node_text(node)} stands where only a whole number may")
        return found

    def _called(self, node: exp.Expr) -> Value:
        """A function call with plain arguments."""
        name = str(node.this if isinstance(node, exp.Anonymous) else node.key).lower()
        if name in _CLOCK:
            raise Invalid(f"{node_text(node)} is another time for each reader of this condition: name a time")
        call = FUNCTIONS.get(name)
        if not isinstance(node, exp.Func) or call is None:
            raise _unknown(node, name if isinstance(node, exp.Func) else "")
        return call(self, _arguments(node), node_text(node))


def _is_time(value: Value) -> bool:
    t = pa.types
    return bool(t.is_date(value.type) or t.is_timestamp(value.type) or value.type in (kinds.INTERVAL, kinds.DURATION))


def _shifted(a: Value, sign: str, b: Value, text: str) -> Value:
    """A sum or difference of a time and an interval, or the difference of two times."""
    if sign == "-" and a.type not in (kinds.INTERVAL, kinds.DURATION) and (_is_time(b) and b.type != kinds.INTERVAL):
        return times.between(a, b, text)
    if sign == "+" and (a.type == kinds.INTERVAL or pa.types.is_integer(a.type)):
        a, b = b, a
    if not _is_time(a) or a.type in (kinds.INTERVAL, kinds.DURATION):
        raise Invalid(f"{text} does not shift a date or a timestamp: write created_at + INTERVAL 1 DAY")
    return times.moved(a, b, 1 if sign == "+" else -1, text)


def _numeral(value: Value, other: Value, text: str) -> Value:
    """A text literal next to a number becomes a number."""
    return kinds.in_type(value, other.type, text) if value.literal and kinds.is_number(other.type) else value


def _unknown(node: exp.Expr, name: str = "") -> Invalid:
    if name:
        close = suggestion(name, NAMES)
        return Invalid(f"{node_text(node)!r} names no function of conditions{close or '; lake.sql has all of DuckDB'}")
    return refused(node)


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    names = [name for name in ("this", "expression", "replacement") if isinstance(node.args.get(name), exp.Expr)]
    return [*(node.args[name] for name in names), *(node.args.get("expressions") or [])]
