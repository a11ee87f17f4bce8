"""Spark types of declared types, conversion of Arrow rows for Spark, and casts of lake columns.

Spark has no unsigned integers and cannot read Iceberg's times. It sees wider integers, microseconds of the day, and
bytes instead of fixed-size bytes, as in the lake. Iceberg has no int8 and int16, so only these are cast back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from pyspark.sql import types as st
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.model.types import arrow_type, map_parts, optional
from lakestore.union.lake_snapshot import recast

_WORD = re.compile(r"\w+")
_HINT_START = len("/*+")


@dataclass(frozen=True, slots=True)
class Word:
    """The characters [start, end) of a text."""

    text: str
    start: int
    end: int
    is_name: bool
    """True if the word may be part of a name; most SQL words may."""
    is_own: bool
    """True if the word is no SQL keyword."""
    is_hint: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """The characters [start, end) of a text and their replacement."""

    start: int
    end: int
    new: str


def words_of(text: str, begin: int = 0) -> list[Word]:
    """The words of a text from a position, also inside sqlglot's long tokens; empty if it fails."""
    try:
        tokens = sqlglot.tokenize(text[begin:], dialect="spark")
    except SqlglotError:
        return []
    if tokens and tokens[0].token_type in (TokenType.COMMAND, TokenType.SHOW):
        first = _word(tokens[0], begin)
        return [first, *words_of(text, first.end)]
    return [_word(token, begin) for token in tokens]


def _word(token: Token, begin: int) -> Word:
    kind = token.token_type
    quoted = kind is TokenType.IDENTIFIER
    plain = kind not in (TokenType.STRING, TokenType.NUMBER) and _WORD.fullmatch(token.text) is not None
    start, end = begin + token.start, begin + token.end + 1
    return Word(token.text, start, end, quoted or plain, quoted or kind is TokenType.VAR, kind is TokenType.HINT)


def pairs(words: Sequence[Word]) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of possible `database.table` names: two names with a point between, and no point around."""
    for place in range(len(words) - 2):
        first, point, last = words[place : place + 3]
        around = [words[place - 1].text if place else "", words[place + 3].text if place + 3 < len(words) else ""]
        if first.is_name and point.text == "." and last.is_name and "." not in around:
            yield f"{first.text}.{last.text}", first.start, last.end


def hint_names(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of possible `database.table` names in hints."""
    for word in words_of(text):
        if word.is_hint:
            yield from pairs(words_of(text[: word.end - 2], word.start + _HINT_START))


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits that do not overlap."""
    # From the end, so that earlier positions stay valid.
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


_SCALARS: dict[pa.DataType, st.DataType] = {
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.timestamp("us"): st.TimestampNTZType(),
    pa.timestamp("us", tz="UTC"): st.TimestampType(),
}
_IN_LAKE: dict[pa.DataType, pa.DataType] = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
_WIDER = {pa.uint8(): pa.int32(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.time64("us"): pa.int64()}


def arrow_for_spark(kind: pa.DataType) -> pa.DataType:
    """The Arrow type in which Spark gets values of a type."""
    if pa.types.is_nested(kind):
        return map_parts(kind, arrow_for_spark)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    return _WIDER.get(kind, kind)


def schema_for_spark(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema in which Spark gets rows of a schema."""
    return pa.schema([field.with_type(optional(arrow_for_spark(field.type))) for field in schema])


def for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in a schema of `schema_for_spark`."""
    arrays = [recast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def spark_type(name: str) -> st.DataType:
    """Spark's type of a declared type. Nested fields are nullable."""
    return _spark(optional(arrow_for_spark(arrow_type(name))))


def _spark(kind: pa.DataType) -> st.DataType:
    if pa.types.is_struct(kind):
        return st.StructType([st.StructField(part.name, _spark(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return st.ArrayType(_spark(kind.value_type))
    if pa.types.is_map(kind):
        return st.MapType(_spark(kind.key_type), _spark(kind.item_type))
    if pa.types.is_decimal(kind):
        return st.DecimalType(kind.precision, kind.scale)
    return _SCALARS[kind]


def spark_schema(table: Table, columns: Sequence[str]) -> st.StructType:
    """Spark's schema of these columns, system columns too."""
    return st.StructType([_field(table, name) for name in columns])


def _field(table: Table, name: str) -> st.StructField:
    if name in SYSTEM_TYPES:
        return st.StructField(name, _SCALARS[SYSTEM_TYPES[name]], False)
    column = table.column(name)
    return st.StructField(name, spark_type(column.type), not column.required)


def declared_sql(table: Table, name: str, shown: str = "") -> str:
    """SQL that returns a lake column in its declared type, under its name or the name `shown`."""
    column, alias = quote_name(name), quote_name(shown or name)
    if name in SYSTEM_TYPES or not is_cast(table.column(name).type):
        return column if alias == column else f"{column} AS {alias}"
    return f"CAST({column} AS {_ddl(spark_type(table.column(name).type))}) AS {alias}"


def is_cast(name: str) -> bool:
    """True if Iceberg shows another type to Spark than Lakestore does."""
    kind = arrow_for_spark(arrow_type(name))
    return bool(_in_lake(kind) != kind)


def quote_name(name: str) -> str:
    """Quote a name for Spark SQL."""
    return "`{}`".format(name.replace("`", "``"))


def _in_lake(kind: pa.DataType) -> pa.DataType:
    return map_parts(kind, _in_lake) if pa.types.is_nested(kind) else _IN_LAKE.get(kind, kind)


def _ddl(kind: st.DataType) -> str:
    """The SQL of a type. `simpleString` does not quote field names."""
    if isinstance(kind, st.StructType):
        return f"STRUCT<{', '.join(f'{quote_name(part.name)}: {_ddl(part.dataType)}' for part in kind)}>"
    if isinstance(kind, st.ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, st.MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString()
