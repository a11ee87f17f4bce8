"""Literals of conditions: reads SQL constants as Arrow scalars and casts them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import ROUND_HALF_UP, Decimal
from uuid import UUID

import pyarrow as pa
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid
from lakestore.model.decimals import fit_type, round_exact
from lakestore.model.outside_values import first_line

_MOMENTS = {"now", "current_timestamp", "get_current_timestamp", "transaction_timestamp"}
_DAYS = {"current_date", "today"}
_LOCAL = {"localtimestamp", "current_localtimestamp"}
_BARE = {"current_timestamp", "current_date", "localtimestamp"}
"""Clock words without parentheses."""


def fixed(text: str, at: datetime | None = None) -> str:
    """The condition with clock words replaced by literals of one moment. The default moment is now."""
    lowered = text.lower()
    if not any(word in lowered for word in _MOMENTS | _DAYS | _LOCAL):
        return text
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except SqlglotError:
        return text  # the reader of the condition reports the error
    moment = (datetime.now(UTC) if at is None else at).astimezone(UTC)
    said, done = [], 0
    for place, token in enumerate(tokens):
        word = token.text.lower()
        called = [each.token_type for each in tokens[place + 1 : place + 3]] == [TokenType.L_PAREN, TokenType.R_PAREN]
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER)
        inside = place > 0 and tokens[place - 1].token_type is TokenType.DOT
        literal = "" if quoted or inside or not (called or word in _BARE) else _literal(word, moment)
        if literal:
            said += [text[done : token.start], literal]
            done = (tokens[place + 2].end if called else token.end) + 1
    return "".join([*said, text[done:]])


def _literal(word: str, moment: datetime) -> str:
    naive = moment.replace(tzinfo=None)
    if word in _MOMENTS:
        return f"TIMESTAMPTZ '{naive.isoformat(' ', 'microseconds')}+00'"
    if word in _DAYS:
        return f"DATE '{moment.date().isoformat()}'"
    return f"TIMESTAMP '{naive.isoformat(' ', 'microseconds')}'" if word in _LOCAL else ""


SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
"""Signs of the comparison nodes."""
NUMBER_CHARS_MAX = 400
"""Most characters of a number: more than any float has before its point."""
_INT64_MAX = (1 << 63) - 1
_ESCAPED = re.compile(rb"\\x([0-9A-Fa-f]{2})")
"""A byte in DuckDB's text form of a BLOB."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal of a condition."""

    value: pa.Scalar
    node: exp.Expr

    @property
    def text(self) -> str:
        """The literal as SQL, for errors."""
        return short(self.node.sql())


def text_literal(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def short(text: str, chars_max: int = 80) -> str:
    """The text, shortened to so many characters."""
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."


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
    "UUID": pa.binary(16),
}


def constant(node: exp.Expr) -> pa.Scalar:
    """The value of a constant node. Raises `Invalid` for any other node."""
    if isinstance(node, exp.Boolean):
        return pa.scalar(bool(node.this))
    if isinstance(node, exp.HexString):
        try:
            return pa.scalar(bytes.fromhex(node.this))
        except ValueError as error:
            raise refused(node) from error
    if not isinstance(node, exp.Literal):
        raise refused(node)
    if node.is_string:
        return pa.scalar(node.this)
    try:
        if len(node.this) > NUMBER_CHARS_MAX:
            raise OverflowError
        return _number(node.this)
    except (ArithmeticError, ValueError, OverflowError, pa.ArrowInvalid) as error:
        raise Invalid(f"number {short(node.this)} is too large") from error


def minus(value: pa.Scalar, node: exp.Expr) -> pa.Scalar:
    """The negated number. Raises `Invalid` that names the node."""
    number = value.as_py()
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        raise refused(node)
    return pa.scalar(number.copy_negate() if isinstance(number, Decimal) else -number)


def _number(text: str) -> pa.Scalar:
    if text.isdigit():
        number = int(text)
        return pa.scalar(number if number <= _INT64_MAX else Decimal(number))
    if "e" in text.lower():
        read = float(text)
        if math.isinf(read):
            raise OverflowError
        return pa.scalar(read)
    return pa.scalar(Decimal(text))


def readable(value: pa.Scalar, target: pa.DataType) -> bool:
    """True if a text may be cast to the type by DuckDB's rules: every type that is not nested."""
    return bool(pa.types.is_string(value.type) and not pa.types.is_nested(target))


_TRUTHS = {"true": True, "t": True, "yes": True, "y": True, "1": True}
_TRUTHS |= {"false": False, "f": False, "no": False, "n": False, "0": False}
_NUMERAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\s*")
_NO_NUMBERS = re.compile(r"\s*[+-]?(inf|infinity|nan)\s*", re.IGNORECASE)


def bytes_of(text: str, width: int = 0) -> bytes:
    """The bytes of a text. `\\xAB` is one byte, and for 16 bytes the text may be a UUID."""
    if width == 16 and len(text) in (32, 36):
        try:
            return UUID(text).bytes
        except ValueError:
            pass
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text.encode())


def _read_text(text: str, target: pa.DataType) -> pa.Scalar:
    """A number, a boolean or bytes from a text. A number is rounded half away from zero."""
    if pa.types.is_boolean(target):
        if text.strip().lower() not in _TRUTHS:
            raise pa.ArrowInvalid(f"{short(text)!r} is neither true nor false")
        return pa.scalar(_TRUTHS[text.strip().lower()])
    if pa.types.is_fixed_size_binary(target) or pa.types.is_binary(target):
        width = target.byte_width if pa.types.is_fixed_size_binary(target) else 0
        return pa.scalar(bytes_of(text, width), target)
    if len(text) > NUMBER_CHARS_MAX or not (_NUMERAL.fullmatch(text) or _NO_NUMBERS.fullmatch(text)):
        raise pa.ArrowInvalid(f"{short(text)!r} is no number")
    if pa.types.is_floating(target):
        return pa.scalar(float(text), target)
    scale = target.scale if pa.types.is_decimal(target) else 0
    number = Decimal(text.strip())
    if not number.is_finite() or number.adjusted() > 80:
        raise pa.ArrowInvalid(f"{short(text)!r} is too large for a {target}")
    near = round_exact(number, scale, ROUND_HALF_UP) if number.adjusted() > -100 else Decimal(0)
    return pa.scalar(fit_type(near, target) if pa.types.is_decimal(target) else int(near), target)


def cast_scalar(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    """The value in another type. Raises Arrow's error if there is none."""
    if pa.types.is_timestamp(target) and target.tz and pa.types.is_string(value.type):
        text = value.as_py()
        zoned = text.rstrip().endswith(("Z", "z")) or "+" in text[10:] or "-" in text[10:]
        return value.cast(target) if zoned else value.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    if pa.types.is_date(target) and pa.types.is_timestamp(value.type):
        raise pa.ArrowInvalid("a timestamp is no date")
    if pa.types.is_time(target):
        return _time(value, target)
    if pa.types.is_string(value.type) and not pa.types.is_string(target) and not pa.types.is_temporal(target):
        return _read_text(value.as_py(), target)
    if pa.types.is_decimal(target) and pa.types.is_decimal(value.type) and target.scale < value.type.scale:
        return pa.scalar(fit_type(round_exact(value.as_py(), target.scale, ROUND_HALF_UP), target), target)
    if pa.types.is_decimal(target) and pa.types.is_integer(value.type):
        return pa.scalar(Decimal(value.as_py())).cast(target)
    if pa.types.is_floating(target) and pa.types.is_decimal(value.type):
        return pa.scalar(float(value.as_py()), target)  # the nearest float; Arrow's cast may be off by one bit
    return value.cast(target)


def _time(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    """A time of day from a text. Arrow has no such cast."""
    if not pa.types.is_string(value.type):
        raise pa.ArrowInvalid(f"a {value.type} is no time")
    try:
        read = time.fromisoformat(value.as_py().strip())
    except ValueError as error:
        raise pa.ArrowInvalid(f"{value.as_py()!r} is no time such as 12:34:56.789") from error
    if read.tzinfo is not None:
        raise pa.ArrowInvalid("a time has no zone")
    return pa.scalar(read, target)


def cast(value: pa.Scalar, target: pa.DataType, node: exp.Expr) -> pa.Scalar:
    """The value in another type. Raises `Invalid` that names the node."""
    try:
        return cast_scalar(value, target)
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise Invalid(f"{short(node.sql())} is not possible: {short(first_line(error))}") from error


def cast_type(node: exp.Cast) -> pa.DataType:
    """The target type of a cast. Raises `Invalid` for an unknown type."""
    kind = node.to
    if kind.this == exp.DataType.Type.DECIMAL and len(kind.expressions) == 2:
        precision, scale = (
            int(part.name) if part.name.isdecimal() and len(part.name) < 3 else -1 for part in kind.expressions
        )
        if 0 < precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    name = kind.this.value if isinstance(kind.this, exp.DataType.Type) else str(kind.this)
    if kind.expressions or name not in _CASTS or isinstance(node, exp.TryCast):
        raise refused(node)
    return _CASTS[name]


def refused(node: exp.Expr) -> Invalid:
    """The error of a node that conditions do not support."""
    return Invalid(
        f"{short(node.sql())!r} is not understood in a condition: it takes comparisons, AND, OR, NOT, IN, BETWEEN,"
        " LIKE, IS, CASE, CAST, arithmetic and functions of one row; use lake.sql for more"
    )
