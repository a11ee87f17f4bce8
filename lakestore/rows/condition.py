"""`where="amount > 10 AND customer = 'x'"`: SQL text to a filter on Arrow rows, and to what may skip files.

Three-valued as in SQL: a row stays when the condition is true. NaN is greater than every number, as in DuckDB
and Spark. Negations are pushed into the comparisons while parsing, so nothing is ever inverted afterwards.
`Skip` values are weaker than the filter, or equal: what they refuse, the filter refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table

CHARS_MAX = 1 << 20
_ESCAPED = re.compile(rb"\\x([0-9A-Fa-f]{2})")
"""How DuckDB writes a byte in a text that is cast to BLOB."""


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison of a column with literals, as file statistics can answer it."""

    column: str
    sign: str
    """One of = != < <= > >= in, is null, is not null, starts with."""
    values: tuple[Any, ...] = ()
    """Python values of exactly the column's type."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds."""

    parts: tuple[Skip, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple[Skip, ...]


Skip = Test | AllOf | AnyOf


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on rows."""

    expression: pc.Expression
    columns: tuple[str, ...]
    """Columns that the expression reads."""
    floats: tuple[str, ...] = ()
    """Those of them that may hold NaN."""
    skip: Skip | None = None
    """What files must satisfy to matter; None when nothing is known."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch for which the condition is true."""
        if not batch.num_rows:
            return batch
        if not self.floats:
            return batch.filter(self.expression)
        return batch.take(self._places(batch))

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """For each row of the batch whether the condition is true."""
        held = np.zeros(batch.num_rows, dtype=np.bool_)
        if batch.num_rows:
            held[self._places(batch).to_numpy()] = True
        return held

    def _places(self, batch: pa.RecordBatch) -> pa.Array:
        """Of the rows for which the condition is true."""
        places = pa.array(np.arange(batch.num_rows))
        ordered = self._ordered(batch)
        marked = pa.Table.from_arrays([*ordered.columns, places], names=[*self.columns, ""])
        return marked.filter(self.expression).column("").combine_chunks()

    def _ordered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns read, with NaN replaced by infinity, which compares as NaN should."""
        columns = ((name, batch.column(name)) for name in self.columns)
        arrays = [_without_nan(column) if name in self.floats else column for name, column in columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))


def row_filter(expression: pc.Expression, columns: Sequence[str], schema: pa.Schema) -> RowFilter:
    """A filter from an Arrow expression that reads no more than these columns."""
    floats = tuple(name for name in columns if _has_floats(schema.field(name).type))
    return RowFilter(expression, tuple(columns), floats)


def _has_floats(kind: pa.DataType) -> bool:
    """Whether a column or a field of a struct is a float: those are what a condition can compare."""
    return any(_has_floats(part.type) for part in kind) if pa.types.is_struct(kind) else pa.types.is_floating(kind)


def _without_nan(array: pa.Array) -> pa.Array:
    if pa.types.is_struct(array.type):
        made = [_without_nan(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(made, fields=list(array.type), mask=pc.is_null(array))
    if not pa.types.is_floating(array.type):
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(np.inf, array.type), array)


def parse(text: str, table: Table) -> RowFilter:
    """The filter that a condition in SQL means on a table; `Invalid` names the piece that is not understood."""
    if len(text) > CHARS_MAX:
        raise Invalid(f"the condition has {len(text)} characters; at most {CHARS_MAX} are read")
    try:
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"{_short(text)!r} is not a whole condition in SQL, such as amount > 10") from error
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
        what = _first_line(error)
        raise Invalid(f"condition {_short(text)!r} compares values of types that do not fit: {what}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


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
_CASTS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
    "VARBINARY": pa.binary(),
}

_ARGUMENTS = {"this", "expression", "expressions", "low", "high", "negate"}
"""What a comparison may consist of; anything else changes its meaning in a way not known here."""

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
            raise _refused(node)
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
        raise _refused(node)

    def _compared(self, left: exp.Expr, sign: str, right: exp.Expr) -> _Read:
        a, b = self._operand(left), self._operand(right)
        if a.literal is not None and b.literal is None:
            a, b, sign = b, a, _MIRRORED[sign]
        if a.expression is None:
            raise Invalid(f"condition {left.sql()} {sign} {right.sql()} names no column")
        if b.literal is None:
            return _ARROW[sign](a.expression, _expression(b)), None
        value, exact = _fitted(b.literal, a, right)
        test = Test(a.column, sign, (value.as_py(),)) if exact and _counts(a) else None
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
            raise _refused(node)
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
        return inside, Test(operand.column, "in", tuple(values)) if _counts(operand) else None

    def _is(self, node: exp.Is, *, negated: bool) -> _Read:
        if isinstance(node.expression, exp.Boolean):
            operand = self._column(node.this)
            assert operand.expression is not None
            held = operand.expression == pc.scalar(bool(node.expression.this))
            return (~held | operand.expression.is_null() if negated else held & operand.expression.is_valid()), None
        if not isinstance(node.expression, exp.Null):
            raise _refused(node)
        operand = self._column(node.this)
        assert operand.expression is not None
        if negated:
            return operand.expression.is_valid(), Test(operand.column, "is not null") if operand.plain else None
        return operand.expression.is_null(), Test(operand.column, "is null") if operand.plain else None

    def _like(self, node: exp.Like | exp.ILike, *, negated: bool) -> _Read:
        operand, pattern = self._column(node.this), self._literal(node.expression).as_py()
        if not isinstance(pattern, str) or "\\" in pattern or not pa.types.is_string(operand.type):
            raise _refused(node)
        assert operand.expression is not None
        prefix = pattern[:-1] if pattern.endswith("%") else ""
        exact = bool(prefix) and not set(prefix) & set("%_") and isinstance(node, exp.Like)
        if exact:
            matched = pc.starts_with(operand.expression, pattern=prefix)
        else:
            matched = pc.match_like(operand.expression, pattern=pattern, ignore_case=isinstance(node, exp.ILike))
        if negated:
            return ~matched, None
        return matched, Test(operand.column, "starts with", (prefix,)) if exact and operand.plain else None

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
            inner, target = self._column(node.this), _cast_type(node)
            assert inner.expression is not None
            return _Operand(inner.column, inner.expression.cast(target), target)
        if not isinstance(node, exp.Column) or node.table or not isinstance(node.this, exp.Identifier):
            raise _refused(node)
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
            return _cast(self._literal(node.this), _cast_type(node), node)
        if isinstance(node, exp.Neg):
            value = self._literal(node.this)
            if pa.types.is_string(value.type):
                raise _refused(node)
            return pc.negate(value)
        if isinstance(node, exp.Null):
            raise Invalid("NULL equals nothing: write IS NULL or IS NOT NULL")
        return _constant(node)


def _constant(node: exp.Expr) -> pa.Scalar:
    if isinstance(node, exp.Boolean):
        return pa.scalar(bool(node.this))
    if isinstance(node, exp.HexString):
        return pa.scalar(bytes.fromhex(node.this))
    if not isinstance(node, exp.Literal):
        raise _refused(node)
    if node.is_string:
        return pa.scalar(node.this)
    try:
        return _number(node.this)
    except (ArithmeticError, ValueError, OverflowError, pa.ArrowInvalid) as error:
        raise Invalid(f"number {_short(node.this)} is too large") from error


def _number(text: str) -> pa.Scalar:
    if text.isdigit():
        return pa.scalar(int(text))
    if "e" in text.lower():
        return pa.scalar(float(text))
    return pa.scalar(Decimal(text))


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
    if pa.types.is_string(value.type) != pa.types.is_string(target) and not _readable(value, target):
        raise Invalid(f"{node.sql()} is a {value.type} and column {operand.column!r} a {target}: cast one of them")
    try:
        fitted = _cast_scalar(value, target)
        if pa.types.is_string(value.type) or pa.types.is_floating(target) or pc.equal(fitted, value).as_py():
            return fitted, True
    except pa.ArrowInvalid as error:
        if pa.types.is_string(value.type):
            raise Invalid(f"{node.sql()} is not a {target}, which column {operand.column!r} is") from error
    except pa.ArrowNotImplementedError as error:
        raise Invalid(f"{node.sql()} cannot be compared with column {operand.column!r}, a {target}") from error
    return value, False


def _readable(value: pa.Scalar, target: pa.DataType) -> bool:
    """Texts stand for dates and times, nothing else."""
    return bool(pa.types.is_string(value.type) and pa.types.is_temporal(target))


def _cast_scalar(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if pa.types.is_timestamp(target) and target.tz and pa.types.is_string(value.type):
        text = value.as_py()
        zoned = text.rstrip().endswith(("Z", "z")) or "+" in text[10:] or "-" in text[10:]
        return value.cast(target) if zoned else value.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    if pa.types.is_date(target) and pa.types.is_timestamp(value.type):
        raise pa.ArrowInvalid("a timestamp is no date")
    if pa.types.is_time(target):
        return _time(value, target)
    if pa.types.is_binary(target) and pa.types.is_string(value.type):
        return pa.scalar(_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), value.as_py().encode()), target)
    if pa.types.is_decimal(target) and pa.types.is_integer(value.type):
        return pa.scalar(Decimal(value.as_py())).cast(target)
    return value.cast(target)


def _time(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    """A time of the day from a text, which Arrow does not read."""
    if not pa.types.is_string(value.type):
        raise pa.ArrowInvalid(f"a {value.type} is no time")
    try:
        read = time.fromisoformat(value.as_py().strip())
    except ValueError as error:
        raise pa.ArrowInvalid(f"{value.as_py()!r} is no time such as 12:34:56.789") from error
    if read.tzinfo is not None:
        raise pa.ArrowInvalid("a time has no zone")
    return pa.scalar(read, target)


def _cast(value: pa.Scalar, target: pa.DataType, node: exp.Expr) -> pa.Scalar:
    try:
        return _cast_scalar(value, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"{node.sql()} is not possible: {_first_line(error)}") from error


def _cast_type(node: exp.Cast) -> pa.DataType:
    kind = node.to
    if kind.this == exp.DataType.Type.DECIMAL and len(kind.expressions) == 2:
        precision, scale = (int(part.name) for part in kind.expressions)
        if 0 < precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    name = kind.this.value if isinstance(kind.this, exp.DataType.Type) else str(kind.this)
    if kind.expressions or name not in _CASTS or isinstance(node, exp.TryCast):
        raise _refused(node)
    return _CASTS[name]


def _refused(node: exp.Expr) -> Invalid:
    return Invalid(
        f"{_short(node.sql())!r} is not understood in a condition: it takes comparisons of columns with literals, "
        "AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL and CAST; use lake.sql for more"
    )
