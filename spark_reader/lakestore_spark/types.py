"""Spark's types for declared types, Arrow rows in the types that Spark takes, and columns of the lake as declared.

Spark has no unsigned integers and cannot read Iceberg's times: as in the lake, it sees wider integers, the microseconds
of the day, and bytes of fixed size as bytes. Iceberg has no int8 and int16, so these alone are cast back.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import types as st

from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.model.types import arrow_type, mapped, optional
from lakestore.union.lake_columns import recast

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
    """The Arrow type in which values of a type of ours are handed to Spark."""
    if pa.types.is_nested(kind):
        return mapped(kind, arrow_for_spark)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    return _WIDER.get(kind, kind)


def schema_for_spark(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema in which rows of this one are handed to Spark."""
    return pa.schema([field.with_type(optional(arrow_for_spark(field.type))) for field in schema])


def for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in a schema that `schema_for_spark` gave."""
    arrays = [recast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def spark_type(name: str) -> st.DataType:
    """Spark's type for a declared type; nested fields may be null in it."""
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
    """Spark's schema of these columns, system columns among them."""
    return st.StructType([_field(table, name) for name in columns])


def _field(table: Table, name: str) -> st.StructField:
    if name in SYSTEM_TYPES:
        return st.StructField(name, _SCALARS[SYSTEM_TYPES[name]], False)
    column = table.column(name)
    return st.StructField(name, spark_type(column.type), not column.required)


def shown(table: Table, name: str) -> str:
    """The SQL that shows a column of the lake in its declared type: its name, or a cast of it."""
    column = quoted(name)
    if name in SYSTEM_TYPES or not is_cast(table.column(name).type):
        return column
    return f"CAST({column} AS {_ddl(spark_type(table.column(name).type))}) AS {column}"


def is_cast(name: str) -> bool:
    """Whether Iceberg shows a declared type to Spark as another one than Lakestore does."""
    kind = arrow_for_spark(arrow_type(name))
    return bool(_in_lake(kind) != kind)


def quoted(name: str) -> str:
    """A name as Spark SQL takes it, whatever it holds."""
    return "`{}`".format(name.replace("`", "``"))


def _in_lake(kind: pa.DataType) -> pa.DataType:
    """The Arrow type of what Iceberg hands to Spark for a type that Spark shows."""
    return mapped(kind, _in_lake) if pa.types.is_nested(kind) else _IN_LAKE.get(kind, kind)


def _ddl(kind: st.DataType) -> str:
    """A type as SQL writes it; `simpleString` quotes no names of fields."""
    if isinstance(kind, st.StructType):
        return f"STRUCT<{', '.join(f'{quoted(part.name)}: {_ddl(part.dataType)}' for part in kind)}>"
    if isinstance(kind, st.ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, st.MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString()
