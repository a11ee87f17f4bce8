"""Reads nodes with a grammar of their own: AND, OR, IS, IN, LIKE, CASE, CAST and some functions."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakestore.errors import Invalid
from lakestore.rows.expressions import arithmetic, kinds, logic, texts, times
from lakestore.rows.expressions.kinds import Datum, Value, build_value, constant
from lakestore.rows.expressions.reader import Reader, node_text
from lakestore.rows.literals import cast, cast_type, minus, refused, short
from lakestore.rows.literals import constant as literal_of


def converted(value: Value, target: pa.DataType, text: str) -> Value:
    """The value in another type. Raises `Invalid` if the cast could fail on a row."""
    given, t = value.type, pa.types
    if given == target:
        return value
    if t.is_string(target):
        return _as_text(value, text)
    if t.is_date(target) and t.is_timestamp(given):
        return build_value(target, [value], lambda data: data.cast(pa.timestamp("us")).cast(target, safe=False))
    if t.is_time(target) and t.is_timestamp(given):
        return build_value(target, [value], lambda data: data.cast(pa.timestamp("us")).cast(target))
    if t.is_timestamp(target) and (t.is_date(given) or t.is_timestamp(given)):
        return build_value(target, [value], lambda data: data.cast(target))
    if t.is_integer(target) and t.is_boolean(given):
        return build_value(target, [value], lambda data: data.cast(target))
    if t.is_boolean(target) and t.is_integer(given):
        return build_value(target, [value], lambda data: pc.not_equal(data, 0))
    if kinds.is_number(given) and kinds.is_number(target) and _holds(given, target):
        return kinds.in_type(value, target, text)
    if t.is_binary(target) and t.is_fixed_size_binary(given):
        return build_value(target, [value], lambda data: data.cast(target))
    raise Invalid(
        f"{short(text)} may fail on a row, whose {given} need not be a {target}: a condition casts only to a type that"
        " holds every value; use lake.sql for other casts"
    )


def _holds(given: pa.DataType, target: pa.DataType) -> bool:
    """True if the target holds each number, perhaps rounded."""
    t = pa.types
    if t.is_floating(target):
        return bool(not t.is_floating(given) or t.is_float64(target))
    if t.is_floating(given):
        return False
    if t.is_integer(given) and t.is_integer(target):
        signed, wide = t.is_signed_integer(given), t.is_signed_integer(target)
        return bool(target.bit_width >= given.bit_width + (wide and not signed)) and (wide or not signed)
    if t.is_decimal(given) and t.is_integer(target):
        small = given.precision - given.scale < kinds.digits(target)[0] - 1
        return bool(small and t.is_signed_integer(target))
    whole, scale = kinds.digits(given)
    rounded = t.is_decimal(given) and scale > target.scale
    return bool(t.is_decimal(target) and target.precision - target.scale >= whole + rounded)


def _as_text(value: Value, text: str) -> Value:
    kind, t = value.type, pa.types
    if t.is_timestamp(kind):
        return build_value(pa.string(), [value], _moment)
    if t.is_time(kind):
        return build_value(pa.string(), [value], lambda data: _trimmed(data.cast(pa.string())))
    return kinds.texts(value, text)


def _moment(data: Datum) -> Datum:
    """A timestamp as DuckDB's text, without trailing zeros after the seconds."""
    zoned = data.type.tz is not None
    said = _trimmed(data.cast(pa.timestamp("us")).cast(pa.string()))
    return pc.binary_join_element_wise(said, "+00", "") if zoned else said


def _trimmed(data: Datum) -> Datum:
    return pc.replace_substring_regex(data, pattern=r"(\.\d*?[1-9])0+$|\.0+$", replacement=r"\1")


PATTERN_CHARS_MAX = 1_000
"""Most characters of a LIKE pattern."""


def _connected(reader: Reader, node: exp.Expr) -> Value:
    parts = [reader.value(part) for part in node.flatten()]
    return logic.connected(parts, every=isinstance(node, exp.And), text=node_text(node))


def _is(reader: Reader, node: exp.Expr) -> Value:
    part = reader.value(node.this)
    if isinstance(node.expression, exp.Null):
        return logic.null(part, negated=False)
    if isinstance(node.expression, exp.Boolean) and pa.types.is_boolean(part.type):
        return logic.truth(part, bool(node.expression.this))
    raise refused(node)


def _between(reader: Reader, node: exp.Expr) -> Value:
    part, text = reader.value(node.this), node_text(node)
    low, high = reader.value(node.args["low"]), reader.value(node.args["high"])
    _, (part, low, high) = kinds.aligned([part, low, high], text)
    both = [logic.compared(part, ">=", low, text), logic.compared(part, "<=", high, text)]
    return logic.connected(both, every=True, text=text)


def _among(reader: Reader, node: exp.Expr) -> Value:
    if node.args.get("query") or node.args.get("unnest") or not node.expressions:
        raise refused(node)
    reader.count(0, len(node.expressions))
    values = [reader.value(part) for part in node.expressions]
    return logic.among(reader.value(node.this), values, node_text(node))


def _like(reader: Reader, node: exp.Expr) -> Value:
    escape: object = ""
    inner = node
    if isinstance(node, exp.Escape):
        inner, escape = node.this, reader.constant_of(node.expression)
    if not isinstance(inner, exp.Like | exp.ILike):
        raise refused(node)
    pattern = reader.constant_of(inner.expression)
    if not isinstance(pattern, str) or not isinstance(escape, str):
        raise Invalid(f"{node_text(node)}: LIKE and ESCAPE take a text")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise Invalid(f"a pattern of LIKE has at most {PATTERN_CHARS_MAX} characters, not {len(pattern)}")
    fold = isinstance(inner, exp.ILike)
    found = texts.like(reader.value(inner.this), pattern, escape, node_text(node), fold=fold)
    return logic.inverted(found) if inner.args.get("negate") else found


def _case(reader: Reader, node: exp.Expr) -> Value:
    of, text = node.args.get("this"), node_text(node)
    branches = node.args["ifs"]
    tests = [exp.EQ(this=of, expression=each.this) if of is not None else each.this for each in branches]
    values = [reader.value(each.args["true"]) for each in branches]
    default = node.args.get("default")
    last = constant(pa.scalar(None)) if default is None else reader.value(default)
    return logic.case([reader.condition(each) for each in tests], [*values, last], text)


def _if(reader: Reader, node: exp.Expr) -> Value:
    values = [reader.value(node.args["true"]), reader.value(node.args.get("false") or exp.Null())]
    return logic.case([reader.condition(node.this)], values, node_text(node))


def _cast(reader: Reader, node: exp.Expr) -> Value:
    assert isinstance(node, exp.Cast)
    part, target = reader.value(node.this), cast_type(node)
    if part.constant is not None:
        return constant(cast(part.constant, target, node)) if part.constant.is_valid else part
    return converted(part, target, node_text(node))


def _negative(reader: Reader, node: exp.Expr) -> Value:
    if isinstance(node.this, exp.Literal):
        return constant(minus(literal_of(node.this), node))
    return arithmetic.negative(reader.value(node.this), node_text(node))


def _interval(reader: Reader, node: exp.Expr) -> Value:
    name = node.args["unit"].name if node.args.get("unit") else ""
    return times.interval(str(reader.constant_of(node.this)), name, node_text(node))


def _distinct(reader: Reader, node: exp.Expr) -> Value:
    negated = isinstance(node, exp.NullSafeEQ)
    return logic.distinct(reader.value(node.this), reader.value(node.expression), node_text(node), negated=negated)


def _trim(reader: Reader, node: exp.Expr) -> Value:
    characters = reader.constant_of(node.expression) if node.args.get("expression") else None
    end = str(node.args.get("position") or "both").lower()
    return texts.trimmed(reader.value(node.this), _text(characters, node), end, node_text(node))


def _substring(reader: Reader, node: exp.Expr) -> Value:
    start, size = reader.number(node.args["start"]), node.args.get("length")
    return texts.cut(reader.value(node.this), start, None if size is None else reader.number(size), node_text(node))


def _appended(reader: Reader, node: exp.Expr) -> Value:
    return texts.joined([reader.value(node.this), reader.value(node.expression)], node_text(node), nulls_empty=False)


def _round(reader: Reader, node: exp.Expr) -> Value:
    places = reader.number(node.args["decimals"]) if node.args.get("decimals") else 0
    if abs(places) > 400:
        raise Invalid(f"{node_text(node)} rounds to more digits than a number has")
    return arithmetic.rounded(reader.value(node.this), places, node_text(node))


def _truncated(reader: Reader, node: exp.Expr) -> Value:
    return times.truncated(reader.value(node.this), node.args["unit"].name, node_text(node))


def _text(value: object, node: exp.Expr) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Invalid(f"{node_text(node)} takes a text")
    return value


READERS: dict[type[exp.Expr], Callable[[Reader, exp.Expr], Value]] = {
    exp.And: _connected,
    exp.Or: _connected,
    exp.Not: lambda reader, node: logic.inverted(reader.condition(node.this)),
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _among,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _like,
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
    exp.Neg: _negative,
    exp.Interval: _interval,
    exp.NullSafeEQ: _distinct,
    exp.NullSafeNEQ: _distinct,
    exp.Trim: _trim,
    exp.Substring: _substring,
    exp.Round: _round,
    exp.DPipe: _appended,
    exp.TimestampTrunc: _truncated,
    exp.DateTrunc: _truncated,
}
