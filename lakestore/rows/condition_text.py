"""Reads conditions in SQL, such as `amount > 10 AND customer = 'x'`, as filters on a table's rows.

The reader moves each NOT into the comparisons below it, so no result is inverted later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import Dialect, TokenType, exp
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser

from lakestore.errors import Invalid
from lakestore.model import decimals
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import suggestion
from lakestore.model.outside_values import first_line
from lakestore.model.table import Table
from lakestore.model.types import integer_bounds, is_bytes
from lakestore.rows.condition import (
    ALWAYS,
    NEVER,
    UNKNOWN,
    AllOf,
    AnyOf,
    Comparison,
    RowFilter,
    RowTest,
    Skip,
    connected,
)
from lakestore.rows.expressions import kinds, logic
from lakestore.rows.expressions.kinds import Value, is_true
from lakestore.rows.expressions.nodes import PATTERN_CHARS_MAX
from lakestore.rows.expressions.reading import ValueReader
from lakestore.rows.expressions.texts import in_slices
from lakestore.rows.literals import (
    SIGNS,
    Literal,
    bytes_of,
    cast_scalar,
    cast_type,
    readable,
    refused,
    short,
)

Read = tuple[pc.Expression, Skip]
_ARROW: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_BESIDE = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}
"""The sign for the next lower value, if the column's type does not hold the literal."""
_EPOCH_DAY, _DAY = date(1970, 1, 1), timedelta(days=1)
_FLOAT_MAX = {bits: float(np.finfo(f"f{bits // 8}").max) for bits in (32, 64)}
_EXACT_FLOAT_BITS = 32
"""Integers of up to this many bits are exact as 64-bit floats."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A column in a comparison, perhaps with a cast."""

    column: str
    expression: pc.Expression
    type: pa.DataType
    plain: bool = False
    """True for a column without a cast, which statistics know."""

    @property
    def counts(self) -> bool:
        """True if statistics may decide. Not for floats, because statistics leave NaN out."""
        return self.plain and not pa.types.is_floating(self.type)

    def skip(self, sign: str, *values: Any) -> Skip:
        """The comparison for statistics; `UNKNOWN` if they may not decide."""
        return Comparison(self.column, sign, values) if self.counts else UNKNOWN

    @property
    def present(self) -> Read:
        """The condition that the column is not null. Statistics answer it for floats too."""
        return self.expression.is_valid(), Comparison(self.column, "is not null") if self.plain else UNKNOWN


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A literal in a column's type."""

    value: Any
    """A Python value of exactly the type. None if all values of the type are greater."""
    exact: bool


def with_literal(operand: Operand, sign: str, literal: Literal) -> Read:
    """A comparison with a literal. Raises `Invalid` if the types do not fit."""
    kind, literal = operand.type, _as_bytes(operand, literal)
    if pa.types.is_fixed_size_binary(kind) and pa.types.is_binary(literal.value.type):
        return _with_bytes(operand, sign, literal)
    fitted = _fitted(operand, literal)
    if fitted.exact:
        return _beside(operand, sign, fitted.value), operand.skip(sign, fitted.value)
    if sign == "=" or (fitted.value is None and sign in ("<", "<=")):
        return pc.scalar(False), NEVER
    if sign == "!=" or fitted.value is None:
        return operand.present
    beside = _BESIDE[sign]
    return _beside(operand, beside, fitted.value), operand.skip(beside, fitted.value)


def _beside(operand: Operand, sign: str, value: Any) -> pc.Expression:
    """A comparison with a value of the operand's type. In Arrow each comparison with NaN is false, except `!=`."""
    column = operand.expression
    if isinstance(value, float) and math.isnan(value):
        nan = pc.is_nan(column)
        return {"=": nan, ">=": nan, "!=": ~nan, "<": ~nan, ">": pc.scalar(False), "<=": column.is_valid()}[sign]
    compared = _ARROW[sign](column, pc.scalar(pa.scalar(value, operand.type)))
    return compared | pc.is_nan(column) if sign in (">", ">=") and pa.types.is_floating(operand.type) else compared


def among(operand: Operand, literals: Sequence[Literal], *, negated: bool) -> Read:
    """IN or NOT IN, with all values in one Arrow array."""
    if pa.types.is_fixed_size_binary(operand.type):
        literals = [_as_bytes(operand, literal) for literal in literals]
        values = [literal.value.as_py() for literal in literals if _is_bytes(operand, literal)]
        operand, held = replace(_binary(operand), plain=False), values
    else:
        fitted = [_fitted(operand, literal) for literal in literals]
        held = [each.value for each in fitted if each.exact]
    if pa.types.is_floating(operand.type) and 0 in held:
        held += [0.0, -0.0]  # Arrow hashes these two equal values differently
    inside = operand.expression.isin(pa.array(held, operand.type)) if held else pc.scalar(False)
    if negated:
        return (~inside & operand.expression.is_valid(), UNKNOWN) if held else operand.present
    return inside, operand.skip("in", *held) if held else NEVER


def with_column(a: Operand, sign: str, b: Operand) -> pc.Expression:
    """A comparison of two columns in a type that holds the values of both. Raises `Invalid` if there is none."""
    kind = _common(a.type, b.type)
    if kind is None:
        raise Invalid(
            f"column {a.column!r} is {a.type} and column {b.column!r} is {b.type}, which cannot be compared without"
            " rounding or failing on some row: cast one of them, or use lake.sql"
        )
    first, second = (each.expression if each.type == kind else each.expression.cast(kind) for each in (a, b))
    compared = _ARROW[sign](first, second)
    return _with_nan(compared, sign, first, second) if pa.types.is_floating(kind) else compared


def _with_nan(compared: pc.Expression, sign: str, a: pc.Expression, b: pc.Expression) -> pc.Expression:
    """A comparison of two float columns in which NaN equals NaN and is the greatest number."""
    if sign in ("<", "<="):
        return _with_nan(compared, {"<": ">", "<=": ">="}[sign], b, a)
    nan_a, nan_b = pc.is_nan(a), pc.is_nan(b)
    if sign == "=":
        return compared | (nan_a & nan_b)
    if sign == "!=":
        return compared & ~(nan_a & nan_b)
    return compared | (nan_a & (~nan_b if sign == ">" else b.is_valid()))


def widened(operand: Operand, target: pa.DataType, text: str) -> Operand:
    """A column cast to another type. Raises `Invalid` if the cast can fail on a row or rounds a decimal."""
    if operand.type == target:
        return operand
    if not _casts(operand.type, target):
        raise Invalid(
            f"{short(text)} may fail on a row of column {operand.column!r}, which is {operand.type}: a condition casts"
            " a column only to a type that holds all its values; use lake.sql for other casts"
        )
    safe = not pa.types.is_floating(target) and not pa.types.is_date(target)
    return Operand(operand.column, operand.expression.cast(target, safe=safe), target)


def _casts(kind: pa.DataType, target: pa.DataType) -> bool:
    """True if the target holds every value: an integer perhaps as the nearest float, a time as its day."""
    t = pa.types
    if t.is_integer(kind):
        if t.is_decimal(target):
            digits = len(str(2 ** (kind.bit_width - t.is_signed_integer(kind)) - 1))
            return bool(target.precision - target.scale >= digits)
        return _is_wider_integer(kind, target) if t.is_integer(target) else t.is_float64(target) or t.is_string(target)
    if t.is_floating(kind):
        return bool(t.is_float64(target))
    if t.is_decimal(kind):
        whole = kind.precision - kind.scale
        return bool(t.is_decimal(target) and target.scale >= kind.scale and target.precision - target.scale >= whole)
    if t.is_timestamp(kind):
        return bool(t.is_date(target) or t.is_timestamp(target))
    return bool(t.is_fixed_size_binary(kind) and t.is_binary(target))


def _is_wider_integer(kind: pa.DataType, target: pa.DataType) -> bool:
    signed, wide = pa.types.is_signed_integer(kind), pa.types.is_signed_integer(target)
    if signed == wide:
        return bool(target.bit_width >= kind.bit_width)
    return bool(wide and target.bit_width > kind.bit_width)


def _common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """A type that holds all values of both without rounding. None if there is none."""
    t = pa.types
    if a == b:
        return a
    if t.is_integer(a) and t.is_integer(b):
        return pa.int64()
    if (t.is_integer(a) or t.is_floating(a)) and (t.is_integer(b) or t.is_floating(b)):
        exact = all(t.is_floating(kind) or kind.bit_width <= _EXACT_FLOAT_BITS for kind in (a, b))
        return pa.float64() if exact else None
    if all(t.is_decimal(kind) or t.is_integer(kind) for kind in (a, b)):
        (whole_a, scale_a), (whole_b, scale_b) = _digits(a), _digits(b)
        scale = max(scale_a, scale_b)
        precision = max(whole_a, whole_b) + scale
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    if all(is_bytes(kind) for kind in (a, b)):
        return pa.binary()
    return None


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """The most digits before and after the point of a decimal or an integer."""
    return (kind.precision - kind.scale, kind.scale) if pa.types.is_decimal(kind) else (19, 0)


def _binary(operand: Operand) -> Operand:
    return Operand(operand.column, operand.expression.cast(pa.binary()), pa.binary())


def _as_bytes(operand: Operand, literal: Literal) -> Literal:
    """A text literal next to fixed-length bytes becomes bytes."""
    if not pa.types.is_fixed_size_binary(operand.type):
        return literal
    if pa.types.is_fixed_size_binary(literal.value.type):
        return Literal(literal.value.cast(pa.binary()), literal.node)
    if not pa.types.is_string(literal.value.type):
        return literal
    return Literal(pa.scalar(bytes_of(literal.value.as_py(), operand.type.byte_width)), literal.node)


def _is_bytes(operand: Operand, literal: Literal) -> bool:
    if not pa.types.is_binary(literal.value.type):
        raise _unfit(operand, literal)
    return True


def _with_bytes(operand: Operand, sign: str, literal: Literal) -> Read:
    """Compare bytes of any length with bytes of a fixed length."""
    same = len(literal.value.as_py()) == operand.type.byte_width
    whole = operand if same else _binary(operand)
    skip = operand.skip(sign, literal.value.as_py()) if same else UNKNOWN
    return _ARROW[sign](whole.expression, pc.scalar(literal.value.cast(whole.type))), skip


def _fitted(operand: Operand, literal: Literal) -> _Fitted:
    """The literal in the column's type, or the next lower value. Raises `Invalid` for types that do not compare."""
    try:
        return _in_type(operand, literal)
    except (ArithmeticError, ValueError) as error:
        raise Invalid(f"{literal.text} is out of the range of literals: compare with another one") from error


def _in_type(operand: Operand, literal: Literal) -> _Fitted:
    kind, given = operand.type, literal.value.type
    t = pa.types
    if given == kind:
        return _Fitted(literal.value.as_py(), exact=True)
    if readable(literal.value, kind):
        return _Fitted(_read(operand, literal), exact=True)
    is_number = t.is_integer(given) or t.is_decimal(given) or t.is_floating(given)
    if is_number and t.is_floating(kind):
        return _float(literal.value.as_py(), kind)
    if is_number and (t.is_integer(kind) or t.is_decimal(kind)):
        return _number(operand, literal)
    if t.is_timestamp(given) and not given.tz and t.is_date(kind):
        day = literal.value.as_py()
        return _Fitted(day.date(), exact=day == datetime(day.year, day.month, day.day))
    if t.is_date(given) and t.is_timestamp(kind):
        day = literal.value.as_py()
        return _Fitted(datetime(day.year, day.month, day.day, tzinfo=UTC if kind.tz else None), exact=True)
    raise _unfit(operand, literal)


def _float(value: float | Decimal, kind: pa.DataType) -> _Fitted:
    """The nearest float. A number beyond the range of floats is not infinity: it becomes the next lower value."""
    nearest = pa.scalar(float(value), kind).as_py()
    if math.isinf(nearest) and nearest != value:
        return _Fitted(_FLOAT_MAX[kind.bit_width] if nearest > 0 else -math.inf, exact=False)
    return _Fitted(nearest, exact=True)


def _read(operand: Operand, literal: Literal) -> Any:
    try:
        return cast_scalar(literal.value, operand.type).as_py()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise Invalid(f"{literal.text} is not a {operand.type}, which column {operand.column!r} is") from error


def _number(operand: Operand, literal: Literal) -> _Fitted:
    value, kind = literal.value.as_py(), operand.type
    if isinstance(value, float) and not math.isfinite(value):
        return _Fitted(None if value < 0 else _range(kind)[1], exact=False)
    exact = Decimal(value)
    if isinstance(value, float) and pa.types.is_decimal(kind) and decimals.places(exact) > kind.scale:
        raise Invalid(
            f"{literal.text} is a float, which column {operand.column!r}, a {kind}, does not hold exactly: write"
            " it without an exponent"
        )
    least, most = _range(kind)
    if exact < least:
        return _Fitted(None, exact=False)
    if exact > most:
        return _Fitted(most, exact=False)
    below = decimals.round_exact(exact, kind.scale if pa.types.is_decimal(kind) else 0, ROUND_FLOOR)
    found = below if pa.types.is_decimal(kind) else int(below)
    return _Fitted(found, exact=below == exact)


def _range(kind: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value of an integer or decimal type."""
    if pa.types.is_decimal(kind):
        return decimals.extremes(kind)
    return integer_bounds(kind)


def _unfit(operand: Operand, literal: Literal) -> Invalid:
    kind, given = operand.type, literal.value.type
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(given):
        wanted = "TIMESTAMPTZ '2026-01-01 00:00:00+00'" if kind.tz else "TIMESTAMP '2026-01-01 00:00:00'"
        has = "has a time zone" if kind.tz else "has no time zone"
        return Invalid(f"{literal.text} is a {given} and column {operand.column!r} {has}: write {wanted}")
    return Invalid(f"{literal.text} is {given} and column {operand.column!r} is {kind}: cast one of them")


NODES_MAX = 1_000
"""Most comparisons, negations and connections of a condition. Values of IN are counted separately."""
VALUES_MAX = 10_000
"""Most values in all IN lists together."""
_TOKENS_MAX = 8 * NODES_MAX + 2 * VALUES_MAX
_STEPS_PER_TOKEN, _STEPS_MORE = 16, 10_000
"""Most steps of the parser. It takes one or two steps a token unless it goes back often."""
_LEVELS_MAX = 256
"""Most levels of the tree. A chain of AND or OR is one level."""
_TREES_KEPT = 4
_PLAIN_ARGUMENTS = frozenset({"this", "expression", "expressions"})
"""Arguments that every kind of node may have. The reader reads all of them."""
_MORE_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Between: frozenset({"low", "high"}),
    exp.Case: frozenset({"ifs", "default"}),
    exp.Cast: frozenset({"to"}),
    exp.Column: frozenset({"table", "db", "catalog"}),
    exp.Concat: frozenset({"safe", "coalesce"}),
    exp.DPipe: frozenset({"safe"}),
    exp.DataType: frozenset({"nested"}),
    exp.DateTrunc: frozenset({"unit"}),
    exp.Greatest: frozenset({"ignore_nulls"}),
    exp.ILike: frozenset({"negate"}),
    exp.Identifier: frozenset({"quoted"}),
    exp.If: frozenset({"true", "false"}),
    exp.In: frozenset({"query", "unnest"}),
    exp.Interval: frozenset({"unit"}),
    exp.Least: frozenset({"ignore_nulls"}),
    exp.Like: frozenset({"negate"}),
    exp.Literal: frozenset({"is_string"}),
    exp.Replace: frozenset({"replacement"}),
    exp.Round: frozenset({"decimals"}),
    exp.Substring: frozenset({"start", "length"}),
    exp.TimestampTrunc: frozenset({"unit"}),
    exp.Trim: frozenset({"position"}),
    exp.TryCast: frozenset({"to"}),
}
"""More arguments by kind of node. The parser sets `safe`, `coalesce` and `ignore_nulls` for DuckDB's own meaning."""


class _TooManySteps(Exception):
    """The parser went back too often. It is not a parser error, because the parser catches these and tries again."""


class _Parser(DuckDBParser):
    """DuckDB's parser with a limit of steps. It refuses arguments that the original drops."""

    steps_left = 0

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _TooManySteps
        super()._advance(times)

    def validate_expression(self, expression: Any, args: list[Any] | None = None) -> Any:
        """Refuse a call with more arguments than the parser keeps, such as the zone of date_trunc."""
        kept = sum(len(value) if isinstance(value, list) else bool(value) for value in expression.args.values())
        if args and kept < len(args):
            text = f"{short(expression.sql(dialect='duckdb'))!r} with {len(args)} arguments"
            raise Invalid(f"{text} is not understood in a condition: the last one is refused")
        return super().validate_expression(expression, args)


@lru_cache(maxsize=_TREES_KEPT)
def tree(text: str) -> exp.Expr:
    """Parse a condition. Callers share the tree and must not change it: a stream of many tables reads it for each.

    Raises `Invalid` for a text that is not a condition or too large, `RecursionError` for one that nests too deep.
    """
    dialect = Dialect.get_or_raise("duckdb")
    try:
        tokens = dialect.tokenize(text)
        brackets = sum(token.token_type is TokenType.L_BRACKET for token in tokens)  # costs the square
        if len(tokens) > _TOKENS_MAX or brackets > NODES_MAX:
            raise too_large()
        parser = _Parser(dialect=dialect)
        parser.steps_left = _STEPS_PER_TOKEN * len(tokens) + _STEPS_MORE
        found = parser.parse_into(exp.Condition, tokens, text)
    except SqlglotError as error:
        raise not_whole(text) from error
    except _TooManySteps:
        raise RecursionError from None
    if len(found) != 1 or found[0] is None:
        raise not_whole(text)
    _check_levels(found[0])
    for node in found[0].walk():
        _check_arguments(node)
    return found[0]


def _check_arguments(node: exp.Expr) -> None:
    """Refuse an argument that no reader knows, such as SYMMETRIC of BETWEEN. Ignoring it would change the answer."""
    known = _PLAIN_ARGUMENTS | _MORE_ARGUMENTS.get(type(node), frozenset())
    strange = sorted(name for name, value in node.args.items() if value and name not in known)
    if isinstance(node.args.get("unit"), exp.IntervalSpan):
        strange.append("unit")
    if strange:
        raise Invalid(
            f"{short(node.sql(dialect='duckdb'))!r} is not understood in a condition: {strange[0]} is refused"
        )


def _check_levels(root: exp.Expr) -> None:
    """Refuse a deep tree before it is read: each level writes the text of all levels below it for errors."""
    level = [root]
    for _ in range(_LEVELS_MAX):
        below: list[exp.Expr] = []
        for node in level:
            is_chain = isinstance(node, exp.And | exp.Or)
            below.extend(node.flatten() if is_chain else node.iter_expressions())
        if not below:
            return
        level = below
    raise RecursionError


def not_whole(text: str) -> Invalid:
    """The error of a text that cannot be parsed."""
    return Invalid(f"{short(text)!r} is not a whole condition in SQL, such as amount > 10")


def too_large() -> Invalid:
    """The error of a condition that is too large."""
    return Invalid(
        f"a condition has at most {NODES_MAX} comparisons and connections and {VALUES_MAX} values of IN: look the rows"
        " up by their keys, or use lake.sql"
    )


CHARS_MAX = 1 << 18
"""Most characters of a condition."""
DEPTH_MAX = 64
"""Most parentheses, negations and casts inside each other."""
_DAY_AND_TIME = {pa.date32(), pa.timestamp("us")}
_SPANS = (kinds.INTERVAL, kinds.DURATION)
Found = tuple[pc.Expression | RowTest, Skip]


def parse(text: str, table: Table) -> RowFilter:
    """The filter of a SQL condition on a table. Raises `Invalid` that names the piece that is not understood."""
    if len(text) > CHARS_MAX:
        raise Invalid(f"the condition has {len(text)} characters; at most {CHARS_MAX} are read")
    try:
        text.encode()
        reader = _Reader(table)
        expression, skip = reader.condition(tree(text), negated=False)
    except UnicodeEncodeError as error:
        raise Invalid("the condition holds half of a character (a surrogate): write it as Unicode") from error
    except RecursionError as error:
        raise Invalid(f"condition {short(text)!r} nests too deep: at most {DEPTH_MAX} levels are read") from error
    columns, inside = tuple(sorted(reader.columns)), tuple(sorted(reader.inside))
    made = RowFilter(expression, columns, skip=skip, text=text, inside=inside)
    _try(made, table, text)
    return made


def _try(made: RowFilter, table: Table, text: str) -> None:
    """Run the filter over one row of nulls, to refuse what Arrow cannot compare before any row is read."""
    kinds = {field.name: field.type for field in table.read_schema(made.columns)} if made.columns else {"": pa.null()}
    row = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in kinds.values()], names=list(kinds))
    try:
        if isinstance(made.expression, RowTest):
            made.expression.held(row)
        else:
            row.filter(made.expression)
    except pa.ArrowException as error:
        what = first_line(error)
        raise Invalid(f"condition {short(text)!r} compares values of types that do not fit: {what}") from error


_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ARGUMENTS = {"this", "expression", "expressions", "low", "high", "negate"}
"""Arguments that a comparison may have. Any other argument is refused."""


def _path(node: exp.Expr) -> list[str]:
    """The names from a column to a field inside it."""
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        return [*_path(node.this), node.name]
    if not isinstance(node, exp.Column) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise refused(node)
    return [part.name for part in node.parts]


def _field(outer: pa.Field, name: str, node: exp.Expr) -> pa.Field:
    """A field of a struct. Case matters only if two names differ in nothing else."""
    known = list(outer.type) if pa.types.is_struct(outer.type) else []
    found = [part for part in known if part.name == name] or [p for p in known if p.name.lower() == name.lower()]
    if len(found) != 1:
        raise Invalid(f"{short(node.sql())!r} is no column, nor a field of a struct: name one that there is")
    return found[0]


def _is_wider(operand: Operand, *literals: Operand | Literal | None) -> bool:
    """True if a 32-bit float column meets a 64-bit literal. Both are then compared as 64-bit floats."""
    if not pa.types.is_float32(operand.type):
        return False
    return any(isinstance(each, Literal) and pa.types.is_float64(each.value.type) for each in literals)


class _Reader:
    """Reads the tree of one condition."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns: set[str] = set()
        self.inside: set[str] = set()
        self._nodes = self._listed = 0
        self._values = ValueReader(self)
        self._names = {name.lower(): name for name in (*table.selected(None), *SYSTEM_TYPES) if name != "__change"}

    def condition(self, node: exp.Expr, *, negated: bool, depth: int = 0) -> Found:
        """Read a boolean node."""
        if depth > DEPTH_MAX:
            raise RecursionError
        if isinstance(node, exp.Paren):
            return self.condition(node.this, negated=negated, depth=depth + 1)
        self.count(1)
        if isinstance(node, exp.Not):
            return self.condition(node.this, negated=not negated, depth=depth + 1)
        if isinstance(node, exp.And | exp.Or):
            return self._connected(node, negated=negated, depth=depth + 1)
        return self._leaf(node, negated=negated)

    def count(self, nodes: int, values: int = 0) -> None:
        """Add to the size of the condition. Raises `Invalid` if the condition is too large."""
        self._nodes += nodes
        self._listed += values
        if self._nodes > NODES_MAX or self._listed > VALUES_MAX:
            raise too_large()

    def _connected(self, node: exp.And | exp.Or, *, negated: bool, depth: int) -> Found:
        reads = [self.condition(part, negated=negated, depth=depth) for part in node.flatten()]
        every = isinstance(node, exp.And) != negated
        skips = tuple(skip for _, skip in reads)
        return connected([read for read, _ in reads], every=every), (AllOf if every else AnyOf)(skips)

    def _leaf(self, node: exp.Expr, *, negated: bool) -> Found:
        if any(value for name, value in node.args.items() if name not in _ARGUMENTS):
            return self._computed(node, negated=negated)
        if isinstance(node, exp.Boolean):
            return pc.scalar(bool(node.this) != negated), NEVER if bool(node.this) == negated else ALWAYS
        if isinstance(node, exp.Column | exp.Dot) and not node.find(exp.Bracket):
            node, negated = exp.EQ(this=node, expression=exp.Boolean(this=not negated)), False
        switched = negated != bool(node.args.get("negate"))
        found = self._simple_leaf(node, negated=switched)
        return self._computed(node, negated=negated) if found is None else found

    def _simple_leaf(self, node: exp.Expr, *, negated: bool) -> Found | None:
        """A comparison of columns and literals, which statistics may answer. None for any other condition."""
        if type(node) in SIGNS:
            sign = SIGNS[type(node)]
            return self._compared(node.this, _NEGATED[sign] if negated else sign, node.expression)
        if isinstance(node, exp.Between):
            return self._between(node, negated=negated)
        if isinstance(node, exp.In):
            return self._among(node, negated=negated)
        if isinstance(node, exp.Is):
            return self._is(node, negated=negated)
        return self._like(node, negated=negated) if isinstance(node, exp.Like) else None

    def _computed(self, node: exp.Expr, *, negated: bool) -> Found:
        """A condition on computed values, which statistics cannot answer."""
        value = self._values.condition(node)
        if negated:
            value = logic.inverted(value)
        if value.constant is not None:
            held = value.constant.as_py() is True
            return pc.scalar(held), ALWAYS if held else NEVER
        return RowTest(in_slices(lambda batch: is_true(value.array(batch)))), UNKNOWN

    def _compared(self, left: exp.Expr, sign: str, right: exp.Expr) -> Found | None:
        a, b = self._operand(left), self._operand(right)
        if isinstance(a, Literal) and isinstance(b, Operand):
            a, b, sign = b, a, _MIRRORED[sign]
        if not isinstance(a, Operand) or b is None:
            return None
        if isinstance(b, Literal):
            return None if _is_wider(a, b) else with_literal(a, sign, b)
        return None if {a.type, b.type} == _DAY_AND_TIME else (with_column(a, sign, b), UNKNOWN)

    def _between(self, node: exp.Between, *, negated: bool) -> Found | None:
        low, high = node.args["low"], node.args["high"]
        operand = self._operand(node.this)
        if isinstance(operand, Operand) and _is_wider(operand, self._operand(low), self._operand(high)):
            return None
        first = self._compared(node.this, "<" if negated else ">=", low)
        last = self._compared(node.this, ">" if negated else "<=", high)
        if first is None or last is None:
            return None
        parts, skips = [first[0], last[0]], (first[1], last[1])
        return connected(parts, every=not negated), AnyOf(skips) if negated else AllOf(skips)

    def _among(self, node: exp.In, *, negated: bool) -> Found | None:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise refused(node)
        operand = self._operand(node.this)
        if any(isinstance(part, exp.Null) for part in node.expressions):
            return None
        values = [self._operand(part) for part in node.expressions]
        literals = [value for value in values if isinstance(value, Literal)]
        if not isinstance(operand, Operand) or len(literals) < len(values):
            return None
        if _is_wider(operand, *literals):
            return None
        self.count(0, len(values))
        return among(operand, literals, negated=negated)

    def _is(self, node: exp.Is, *, negated: bool) -> Found | None:
        operand = self._operand(node.this)
        if not isinstance(operand, Operand):
            return None
        if isinstance(node.expression, exp.Boolean) and pa.types.is_boolean(operand.type):
            held = operand.expression == pc.scalar(bool(node.expression.this))
            return (~held | operand.expression.is_null() if negated else held & operand.expression.is_valid()), UNKNOWN
        if not isinstance(node.expression, exp.Null):
            raise refused(node)
        if negated:
            return operand.present
        return operand.expression.is_null(), Comparison(operand.column, "is null") if operand.plain else UNKNOWN

    def _like(self, node: exp.Like, *, negated: bool) -> Found | None:
        """LIKE with a fixed beginning, which statistics may answer."""
        operand, literal = self._operand(node.this), self._operand(node.expression)
        pattern = literal.value.as_py() if isinstance(literal, Literal) else None
        if not isinstance(operand, Operand) or not isinstance(pattern, str) or not pa.types.is_string(operand.type):
            return None
        prefix = pattern[:-1] if pattern.endswith("%") else ""
        if not prefix or set(prefix) & set("%_") or len(pattern) > PATTERN_CHARS_MAX:
            return None
        matched = pc.starts_with(operand.expression, pattern=prefix)
        return (~matched, UNKNOWN) if negated else (matched, operand.skip("starts with", prefix))

    def _operand(self, node: exp.Expr) -> Operand | Literal | None:
        """A column or a constant. None for a computed value."""
        if isinstance(node, exp.Paren):
            return self._operand(node.this)
        if isinstance(node, exp.Column | exp.Dot) and not node.find(exp.Bracket):
            return self._column(node)
        if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast) and node.find(exp.Column):
            return self._cast(node)
        if node.find(exp.Column):
            return None
        if isinstance(node, exp.Null):
            raise Invalid("NULL equals nothing: write IS NULL or IS NOT NULL")
        value = self._values.value(node).constant
        if value is None or not value.is_valid or pa.types.is_nested(value.type) or value.type in _SPANS:
            return None
        return Literal(value, node)

    def _cast(self, node: exp.Cast) -> Operand | None:
        inner = self._operand(node.this)
        if not isinstance(inner, Operand):
            return None
        self.count(1)
        try:
            return widened(inner, cast_type(node), node.sql())
        except Invalid as error:
            try:
                self._values.value(node)
            except Invalid:
                raise error from None
            return None

    def _column(self, node: exp.Expr) -> Operand:
        name, inner, kind = self._found(node)
        if pa.types.is_nested(kind):
            raise Invalid(
                f"column {'.'.join(inner)!r} is nested and cannot stand in a condition: name a field of a struct"
                " (place.city), an element (tags[1]), or use lake.sql"
            )
        if inner[1:]:
            return Operand(name, pc.field(*inner), kind)
        return Operand(name, pc.field(name), kind, plain=True)

    def column(self, node: exp.Expr) -> Value:
        """The value of a column or of a field inside it."""
        name, inner, kind = self._found(node)

        def rows(batch: pa.RecordBatch) -> pa.Array:
            found = batch.column(name)
            return pc.struct_field(found, inner[1:]) if inner[1:] else found

        return Value(kind, rows)

    def _found(self, node: exp.Expr) -> tuple[str, list[str], pa.DataType]:
        """The column of a node, the path from it to a field, and the type of that field."""
        path = _path(node)
        name = self._names.get(path[0].lower())
        if name is None:
            close = suggestion(path[0], self._names.values())
            raise Invalid(f"table {self.table.name} has no column {short('.'.join(path))!r}{close}")
        field, inner = self.table.read_schema([name]).field(0), [name]
        for part in path[1:]:
            field = _field(field, part, node)
            inner.append(field.name)
        self.columns.add(name)
        if path[1:]:
            self.inside.add(name)
        return name, inner, field.type
