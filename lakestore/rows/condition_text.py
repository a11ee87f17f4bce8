"""Conditions as SQL text, `amount > 10 AND customer = 'x'`, read into filters on a table's rows.

Negations are pushed into the comparisons while parsing, so nothing is ever inverted afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows.condition import AllOf, AnyOf, Comparison, RowFilter, Skip, row_filter
from lakestore.rows.literals import cast, cast_scalar, cast_type, constant, first_line, readable, refused, short

CHARS_MAX = 1 << 20


def parse(text: str, table: Table) -> RowFilter:
    """The filter that a condition in SQL means on a table; `Invalid` names the piece that is not understood."""
    if len(text) > CHARS_MAX:
        raise Invalid(f"the condition has {len(text)} characters; at most {CHARS_MAX} are read")
    try:
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"{short(text)!r} is not a whole condition in SQL, such as amount > 10") from error
    reader = _Reader(table)
    expression, skip = reader.condition(tree, negated=False)
    schema = table.read_schema([*table.selected(None), *SYSTEM_TYPES])
    made = row_filter(expression, sorted(reader.columns), schema)
    _bind(made, schema, text)
    return RowFilter(made.expression, made.columns, made.floats, skip)


def _bind(made: RowFilter, schema: pa.Schema, text: str) -> None:
    """Refuse types that cannot be compared before any row is read."""
    try:
        schema.empty_table().filter(made.expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        what = first_line(error)
        raise Invalid(f"condition {short(text)!r} compares values of types that do not fit: {what}") from error


_SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ARROW: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_ARGUMENTS = {"this", "expression", "expressions", "low", "high", "negate"}
"""Arguments that a comparison may have; any other changes its meaning in a way not known here."""
_Read = tuple[pc.Expression, Skip | None]


@dataclass(frozen=True, slots=True)
class _Operand:
    """One side of a comparison: a column (perhaps cast) or a literal."""

    column: str = ""
    expression: pc.Expression | None = None
    type: pa.DataType | None = None
    literal: pa.Scalar | None = None
    plain: bool = False
    """A bare column, which statistics know about."""


class _Reader:
    """Walks the tree of one condition."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns: set[str] = set()
        self._names = {name.lower(): name for name in (*table.selected(None), *SYSTEM_TYPES) if name != "__change"}

    def condition(self, node: exp.Expr, *, negated: bool) -> _Read:
        """A node that is true, false or unknown."""
        if isinstance(node, exp.Paren):
            return self.condition(node.this, negated=negated)
        if isinstance(node, exp.Not):
            return self.condition(node.this, negated=not negated)
        if isinstance(node, exp.And | exp.Or):
            return self._connected(node, negated=negated)
        return self._leaf(node, negated=negated)

    def _connected(self, node: exp.And | exp.Or, *, negated: bool) -> _Read:
        reads = [self.condition(part, negated=negated) for part in node.flatten()]
        every = isinstance(node, exp.And) != negated
        expression, skips = reads[0][0], [skip for _, skip in reads if skip is not None]
        for part, _ in reads[1:]:
            expression = expression & part if every else expression | part
        if every:
            return expression, AllOf(tuple(skips)) if skips else None
        return expression, AnyOf(tuple(skips)) if len(skips) == len(reads) else None

    def _leaf(self, node: exp.Expr, *, negated: bool) -> _Read:
        if any(value for name, value in node.args.items() if name not in _ARGUMENTS):
            raise refused(node)
        negated ^= bool(node.args.get("negate"))
        if type(node) in _SIGNS:
            sign = _SIGNS[type(node)]
            return self._compared(node.this, _NEGATED[sign] if negated else sign, node.expression)
        if isinstance(node, exp.Between):
            return self._between(node, negated=negated)
        if isinstance(node, exp.In):
            return self._among(node, negated=negated)
        if isinstance(node, exp.Is):
            return self._is(node, negated=negated)
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node, negated=negated)
        if isinstance(node, exp.Boolean):
            return pc.scalar(bool(node.this) != negated), None
        if isinstance(node, exp.Column):
            return self._compared(node, "=", exp.Boolean(this=not negated))
        raise refused(node)

    def _compared(self, left: exp.Expr, sign: str, right: exp.Expr) -> _Read:
        a, b = self._operand(left), self._operand(right)
        if a.literal is not None and b.literal is None:
            a, b, sign = b, a, _MIRRORED[sign]
        if a.expression is None:
            raise Invalid(f"condition {left.sql()} {sign} {right.sql()} names no column")
        if b.literal is None:
            return _ARROW[sign](a.expression, _expression(b)), None
        value, exact = _fitted(b.literal, a, right)
        test = Comparison(a.column, sign, (value.as_py(),)) if exact and _counts(a) else None
        return _ARROW[sign](a.expression, pc.scalar(value)), test

    def _between(self, node: exp.Between, *, negated: bool) -> _Read:
        low, high = node.args["low"], node.args["high"]
        first, first_skip = self._compared(node.this, "<" if negated else ">=", low)
        last, last_skip = self._compared(node.this, ">" if negated else "<=", high)
        skips = [skip for skip in (first_skip, last_skip) if skip is not None]
        if negated:
            return first | last, AnyOf(tuple(skips)) if len(skips) == 2 else None
        return first & last, AllOf(tuple(skips)) if skips else None

    def _among(self, node: exp.In, *, negated: bool) -> _Read:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise refused(node)
        operand = self._column(node.this)
        fitted = [_fitted(self._literal(part), operand, part) for part in node.expressions]
        same = all(exact for _, exact in fitted)
        if not same:
            reads = [self._compared(node.this, "!=" if negated else "=", part)[0] for part in node.expressions]
            expression = reads[0]
            for part in reads[1:]:
                expression = expression & part if negated else expression | part
            return expression, None
        values = [value.as_py() for value, _ in fitted]
        assert operand.expression is not None
        inside = operand.expression.isin(pa.array(values, type=operand.type))
        if negated:
            return ~inside & operand.expression.is_valid(), None
        return inside, Comparison(operand.column, "in", tuple(values)) if _counts(operand) else None

    def _is(self, node: exp.Is, *, negated: bool) -> _Read:
        if isinstance(node.expression, exp.Boolean):
            operand = self._column(node.this)
            assert operand.expression is not None
            held = operand.expression == pc.scalar(bool(node.expression.this))
            return (~held | operand.expression.is_null() if negated else held & operand.expression.is_valid()), None
        if not isinstance(node.expression, exp.Null):
            raise refused(node)
        operand = self._column(node.this)
        assert operand.expression is not None
        if negated:
            return operand.expression.is_valid(), Comparison(operand.column, "is not null") if operand.plain else None
        return operand.expression.is_null(), Comparison(operand.column, "is null") if operand.plain else None

    def _like(self, node: exp.Like | exp.ILike, *, negated: bool) -> _Read:
        operand, pattern = self._column(node.this), self._literal(node.expression).as_py()
        if not isinstance(pattern, str) or "\\" in pattern or not pa.types.is_string(operand.type):
            raise refused(node)
        assert operand.expression is not None
        prefix = pattern[:-1] if pattern.endswith("%") else ""
        exact = bool(prefix) and not set(prefix) & set("%_") and isinstance(node, exp.Like)
        if exact:
            matched = pc.starts_with(operand.expression, pattern=prefix)
        else:
            matched = pc.match_like(operand.expression, pattern=pattern, ignore_case=isinstance(node, exp.ILike))
        if negated:
            return ~matched, None
        return matched, Comparison(operand.column, "starts with", (prefix,)) if exact and operand.plain else None

    def _operand(self, node: exp.Expr) -> _Operand:
        if isinstance(node, exp.Paren):
            return self._operand(node.this)
        if isinstance(node, exp.Column) or (isinstance(node, exp.Cast) and node.find(exp.Column)):
            return self._column(node)
        return _Operand(literal=self._literal(node))

    def _column(self, node: exp.Expr) -> _Operand:
        if isinstance(node, exp.Paren):
            return self._column(node.this)
        if isinstance(node, exp.Cast):
            inner, target = self._column(node.this), cast_type(node)
            assert inner.expression is not None
            return _Operand(inner.column, inner.expression.cast(target), target)
        if not isinstance(node, exp.Column) or node.table or not isinstance(node.this, exp.Identifier):
            raise refused(node)
        name = self._names.get(node.name.lower())
        if name is None:
            raise Invalid(f"table {self.table.name} has no column {node.name!r}")
        self.columns.add(name)
        kind = self.table.read_schema([name]).field(0).type
        if pa.types.is_nested(kind):
            raise Invalid(f"column {name!r} is nested and cannot stand in a condition: use lake.sql for that")
        return _Operand(name, pc.field(name), kind, plain=name not in SYSTEM_TYPES)

    def _literal(self, node: exp.Expr) -> pa.Scalar:
        if isinstance(node, exp.Paren):
            return self._literal(node.this)
        if isinstance(node, exp.Cast):
            return cast(self._literal(node.this), cast_type(node), node)
        if isinstance(node, exp.Neg):
            value = self._literal(node.this)
            if pa.types.is_string(value.type):
                raise refused(node)
            return pc.negate(value)
        if isinstance(node, exp.Null):
            raise Invalid("NULL equals nothing: write IS NULL or IS NOT NULL")
        return constant(node)


def _expression(operand: _Operand) -> pc.Expression:
    assert operand.expression is not None
    return operand.expression


def _counts(operand: _Operand) -> bool:
    """Whether file statistics may decide: they leave NaN out, so not of floats."""
    return operand.plain and not pa.types.is_floating(operand.type)


def _fitted(value: pa.Scalar, operand: _Operand, node: exp.Expr) -> tuple[pa.Scalar, bool]:
    """The literal in the column's type and True, or else in a type that compares with it exactly and False."""
    target = operand.type
    if value.type == target:
        return value, True
    if pa.types.is_string(value.type) != pa.types.is_string(target) and not readable(value, target):
        raise Invalid(f"{node.sql()} is a {value.type} and column {operand.column!r} a {target}: cast one of them")
    try:
        fitted = cast_scalar(value, target)
        if pa.types.is_string(value.type) or pa.types.is_floating(target) or pc.equal(fitted, value).as_py():
            return fitted, True
    except pa.ArrowInvalid as error:
        if pa.types.is_string(value.type):
            raise Invalid(f"{node.sql()} is not a {target}, which column {operand.column!r} is") from error
    except pa.ArrowNotImplementedError as error:
        raise Invalid(f"{node.sql()} cannot be compared with column {operand.column!r}, a {target}") from error
    return value, False
