"""Values read from the tree of a condition: columns, fields, constants, operators and functions."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from lakestore.errors import Invalid
from lakestore.model.names import meant
from lakestore.rows.computed import arithmetic, kinds, logic, nested, times
from lakestore.rows.computed.functions import FUNCTIONS, NAMES
from lakestore.rows.computed.nodes import READERS
from lakestore.rows.computed.reader import said
from lakestore.rows.computed.value import Value, constant
from lakestore.rows.literals import constant as literal_of
from lakestore.rows.literals import refused

_DEPTH_MAX = 64

_CLOCK = {"now", "currentdate", "currenttimestamp", "localtimestamp", "get_current_timestamp", "today"}
"""Words of the clock that nobody has fixed: `rows.clock_words` does it for each call."""

_PLAIN = exp.Literal | exp.Boolean | exp.HexString | exp.Null

_COMPARED: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}

_CALCULATED: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
}


class Columns(Protocol):
    """The columns that a condition may name, and the bounds of its size."""

    def column(self, node: exp.Expr) -> Value:
        """The value of a column, or of a field inside it; `Invalid` for a name that is none."""

    def count(self, nodes: int, values: int = 0) -> None:
        """Count parts of the condition, or refuse it."""


class ValueReader:
    """Reads the values of one condition."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._depth = 0

    def value(self, node: exp.Expr) -> Value:
        """The value of a node, or `Invalid` that names the piece that is not understood."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise RecursionError
        try:
            return self._read(node)
        finally:
            self._depth -= 1

    def condition(self, node: exp.Expr) -> Value:
        """The truth of a node."""
        found = self.value(node)
        if not pa.types.is_boolean(found.type) and not pa.types.is_null(found.type):
            raise Invalid(f"{said(node)} is a {found.type} and no condition: compare it with something")
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
        if type(node) in _COMPARED:
            return logic.compared(self.value(node.this), _COMPARED[type(node)], self.value(node.expression), said(node))
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
            return nested.part(self.value(node.this), inner, said(node))
        if isinstance(node, exp.StructExtract):
            return nested.part(self.value(node.this), self.constant_of(node.expression), said(node))
        if isinstance(node, exp.Dot) and node.find(exp.Bracket, exp.StructExtract):
            return nested.part(self.value(node.this), node.expression.name, said(node))
        return self._columns.column(node)

    def constant_of(self, node: exp.Expr) -> object:
        """The value of a constant argument."""
        found = self.value(node)
        if found.constant is None:
            raise Invalid(f"{said(node)} stands where only a constant may")
        return found.constant.as_py()

    def _calculated(self, node: exp.Expr) -> Value:
        sign, text = _CALCULATED[type(node)], said(node)
        a, b = self.value(node.this), self.value(node.expression)
        if sign in "+-" and (_is_time(a) or _is_time(b)):
            return _shifted(a, sign, b, text)
        a, b = (_numeral(each, other, text) for each, other in ((a, b), (b, a)))
        return arithmetic.combined(a, sign, b, text)

    def count(self, nodes: int, values: int = 0) -> None:
        """Count parts of the condition, or refuse it."""
        self._columns.count(nodes, values)

    def number(self, node: exp.Expr) -> int:
        """The value of a constant argument that is a whole number."""
        found = self.constant_of(node)
        if not isinstance(found, int) or isinstance(found, bool) or abs(found) > 1 << 31:
            raise Invalid(f"{said(node)} stands where only a whole number may")
        return found

    def _called(self, node: exp.Expr) -> Value:
        """A function of plain arguments, by its name."""
        name = str(node.this if isinstance(node, exp.Anonymous) else node.key).lower()
        if name in _CLOCK:
            raise Invalid(f"{said(node)} is another time for each reader of this condition: name a time")
        call = FUNCTIONS.get(name)
        if not isinstance(node, exp.Func) or call is None:
            raise _unknown(node, name if isinstance(node, exp.Func) else "")
        return call(self, _arguments(node), said(node))


def _is_time(value: Value) -> bool:
    t = pa.types
    return bool(t.is_date(value.type) or t.is_timestamp(value.type) or value.type in (kinds.INTERVAL, kinds.DURATION))


def _shifted(a: Value, sign: str, b: Value, text: str) -> Value:
    """A time and an interval, or two times."""
    if sign == "-" and a.type not in (kinds.INTERVAL, kinds.DURATION) and (_is_time(b) and b.type != kinds.INTERVAL):
        return times.between(a, b, text)
    if sign == "+" and (a.type == kinds.INTERVAL or pa.types.is_integer(a.type)):
        a, b = b, a
    if not _is_time(a) or a.type in (kinds.INTERVAL, kinds.DURATION):
        raise Invalid(f"{text} does not shift a date or a timestamp: write created_at + INTERVAL 1 DAY")
    return times.moved(a, b, 1 if sign == "+" else -1, text)


def _numeral(value: Value, other: Value, text: str) -> Value:
    """A text literal beside a number, as that number."""
    return kinds.in_type(value, other.type, text) if value.literal and kinds.is_number(other.type) else value


def _unknown(node: exp.Expr, name: str = "") -> Invalid:
    if name:
        close = meant(name, NAMES)
        return Invalid(f"{said(node)!r} names no function of conditions{close or '; lake.sql has all of DuckDB'}")
    return refused(node)


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    names = [name for name in ("this", "expression", "replacement") if isinstance(node.args.get(name), exp.Expr)]
    return [*(node.args[name] for name in names), *(node.args.get("expressions") or [])]
