"""Reads Arrow expressions that an engine pushes down as conditions in our SQL.

Arrow writes an expression as a Substrait message, whose layout is public and stable: extensions with the names of
functions, then the expression. This module reads what DuckDB pushes: comparisons of columns or struct fields with
literals, lists of values, AND, OR, NOT. It returns None for anything else, and the caller applies the expression.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model import varint
from lakestore.model.decimals import from_unscaled_value
from lakestore.model.table import Table
from lakestore.rows import condition_text
from lakestore.rows.condition import RowFilter
from lakestore.rows.literals import text_literal

Value = int | bytes
ANOTHER = "the engine pushed down another condition than the query has"
_TRUE = re.compile(r"^true$|\(true (and|or) | (and|or) true\)")


class _Other(Exception):
    """The expression has a part that this module does not know."""


def check(expression: pc.Expression) -> None:
    """Refuse a condition that is always true. DuckDB makes it of `x <= NaN`, which must not match null."""
    if _TRUE.search(str(expression)):
        raise pa.ArrowInvalid(ANOTHER)


def parse(expression: pc.Expression, table: Table, schema: pa.Schema) -> RowFilter | None:
    """The condition of an expression over these columns of the table. None if a part is not known."""
    try:
        message = _Message(bytes(expression.to_substrait(schema)))
        return condition_text.parse(_Reader(message, schema).text(), table)
    except (_Other, Invalid, pa.ArrowException, struct.error, OverflowError, ValueError):
        return None


class _Message:
    """A Protocol Buffers message: its fields by number."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[Value]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    @property
    def only(self) -> int:
        """The number of the only field."""
        numbers = [number for number in self._fields if number != _NULLABLE]
        if len(numbers) != 1:
            raise _Other
        return numbers[0]

    def all(self, number: int) -> list[_Message]:
        """The messages of a repeated field."""
        return [_Message(self._bytes(value)) for value in self._fields.get(number, [])]

    def one(self, number: int) -> _Message:
        """The message of a required field."""
        if number not in self._fields:
            raise _Other
        return _Message(self._bytes(self._fields[number][-1]))

    def number(self, number: int) -> int:
        """The integer of a field; 0 if absent."""
        value = self._fields.get(number, [0])[-1]
        if isinstance(value, bytes):
            raise _Other
        return value

    def data(self, number: int) -> bytes:
        """The bytes of a field; empty if absent."""
        return self._bytes(self._fields.get(number, [b""])[-1])

    @staticmethod
    def _bytes(value: Value) -> bytes:
        if isinstance(value, int):
            raise _Other
        return value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        key, at = varint.read(data, at)
        kind = key & 7
        if kind == 0:
            number, at = varint.read(data, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = varint.read(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, len(data) + 1)
        if at + size > len(data):
            raise _Other
        yield key >> 3, data[at : at + size]
        at += size


_NULLABLE = 50
"""Field number of a literal's nullability."""
_EXTENSIONS, _EXPRESSIONS, _LITERAL, _SELECTION, _CALL, _LIST = 2, 3, 1, 2, 3, 8
_CONNECTIONS = {"and": " AND ", "or": " OR ", "and_kleene": " AND ", "or_kleene": " OR "}
_COMPARISONS = {"equal": "=", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}


class _Reader:
    """Reads one expression of a message."""

    def __init__(self, message: _Message, schema: pa.Schema) -> None:
        functions = [part.one(3) for part in message.all(_EXTENSIONS) if 3 in part]
        self._functions = {each.number(2): each.data(3).decode().split(":")[0] for each in functions}
        (referred,) = message.all(_EXPRESSIONS)
        self._expression, self._schema = referred.one(1), schema

    def text(self) -> str:
        """The condition in SQL."""
        return self._condition(self._expression)

    def _condition(self, node: _Message) -> str:
        if node.only == _LITERAL and node.one(_LITERAL).only == 1:
            return "TRUE" if node.one(_LITERAL).number(1) else "FALSE"
        if node.only == _LIST:
            return self._among(node.one(_LIST))
        if node.only != _CALL:
            raise _Other
        call = node.one(_CALL)
        name, arguments = self._functions[call.number(1)], [part.one(3) for part in call.all(4)]
        if name in _CONNECTIONS:
            return f"({_CONNECTIONS[name].join(map(self._condition, self._flat(name, arguments)))})"
        if name in ("not", "invert"):
            return f"(NOT {self._condition(*arguments)})"
        if name in ("is_null", "is_not_null", "is_valid"):
            return f"({self._column(*arguments)} IS {'' if name == 'is_null' else 'NOT '}NULL)"
        if name == "is_nan":
            return f"({self._column(*arguments)} = CAST('nan' AS DOUBLE))"
        if name not in _COMPARISONS:
            raise _Other
        left, right = arguments
        return f"({self._column(left)} {_COMPARISONS[name]} {_literal(right)})"

    def _flat(self, name: str, arguments: list[_Message]) -> Iterator[_Message]:
        """The parts of one AND or OR, which Arrow nests in pairs."""
        waiting = arguments[::-1]
        while waiting:
            node = waiting.pop()
            call = node.one(_CALL) if node.only == _CALL else None
            if call is not None and self._functions[call.number(1)] == name:
                waiting += [part.one(3) for part in call.all(4)][::-1]
            else:
                yield node

    def _among(self, node: _Message) -> str:
        values = ", ".join(_literal(option) for option in node.all(2))
        return f"({self._column(node.one(1))} IN ({values}))" if values else "FALSE"

    def _column(self, node: _Message) -> str:
        """The SQL name of a column, or of a field in it."""
        if node.only != _SELECTION:
            raise _Other
        segment = node.one(_SELECTION).one(1)
        kind: pa.DataType = pa.struct(list(self._schema))
        names = []
        while True:
            found = segment.one(2)
            part = kind.field(found.number(1))
            names.append('"' + part.name.replace('"', '""') + '"')
            if 2 not in found:
                return ".".join(names)
            segment, kind = found.one(2), part.type
            if not pa.types.is_struct(kind):
                raise _Other


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _float(value: float) -> str:
    return repr(value) + ("" if "e" in repr(value) else "e0") if value - value == 0 else f"CAST('{value}' AS DOUBLE)"


def _days(number: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


def _moment(number: int, zone: str) -> str:
    """A time as SQL, with a four-digit year."""
    return (datetime(1970, 1, 1) + timedelta(microseconds=number)).isoformat(" ", "microseconds") + zone


def _of_day(number: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(microseconds=number)).time().isoformat("microseconds")


def _text(data: bytes) -> str:
    return text_literal(data.decode())


def _bytes(data: bytes) -> str:
    return "CAST('" + "".join(f"\\x{byte:02x}" for byte in data) + "' AS BLOB)"


def _decimal(node: _Message) -> str:
    unscaled = int.from_bytes(node.data(1), "little", signed=True)
    return f"{from_unscaled_value(unscaled, node.number(3)):f}"


def _precise(node: _Message) -> int:
    """Microseconds of a time with a declared precision."""
    if node.number(1) != 6:
        raise _Other
    return _signed(node.number(2))


def _unsigned(node: _Message) -> str:
    """An unsigned integer. Substrait lacks the type, so Arrow wraps it as UInt64Value."""
    value = node.one(2)
    if not value.data(1).endswith(b".UInt64Value"):
        raise _Other
    return str(_Message(value.data(2)).number(1))


_LITERALS: dict[int, Callable[[_Message], str]] = {
    1: lambda node: "TRUE" if node.number(1) else "FALSE",
    **{number: (lambda node, at=number: str(_signed(node.number(at)))) for number in (2, 3, 5, 7)},  # type: ignore[misc]
    10: lambda node: _float(*struct.unpack("<f", node.data(10))),
    11: lambda node: _float(*struct.unpack("<d", node.data(11))),
    12: lambda node: _text(node.data(12)),
    13: lambda node: _bytes(node.data(13)),
    14: lambda node: f"'{_moment(_signed(node.number(14)), '')}'",
    16: lambda node: f"'{_days(_signed(node.number(16)))}'",
    17: lambda node: f"'{_of_day(_signed(node.number(17)))}'",
    23: lambda node: _bytes(node.data(23)),
    24: lambda node: _decimal(node.one(24)),
    27: lambda node: f"'{_moment(_signed(node.number(27)), '+00:00')}'",
    33: lambda node: _unsigned(node.one(33)),
    34: lambda node: f"'{_moment(_precise(node.one(34)), '')}'",
    35: lambda node: f"'{_moment(_precise(node.one(35)), '+00:00')}'",
}
"""Field number of a literal to a function that writes SQL."""


def _literal(node: _Message) -> str:
    if node.only != _LITERAL:
        raise _Other
    literal = node.one(_LITERAL)
    if literal.only not in _LITERALS:
        raise _Other
    return _LITERALS[literal.only](literal)
