"""The catalog as the tables that Flight SQL prescribes: schemas, tables, keys. Values in, values out.

- A Lakestore database is a schema; all schemas are in one catalog, `lake`.
- A pattern is one of LIKE without an escape: `%` is any text, `_` any one character.
- There are no foreign keys, so three of the commands answer with an empty table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from lakestore.model.table import Table
from lakestore_server.edge.flight.messages import schema_bytes
from lakestore_server.edge.flight.sql_info import sql_name

CATALOG = "lake"
TABLE, SYSTEM_TABLE = "TABLE", "SYSTEM TABLE"
_TEXT, _INT = pa.string(), pa.int32()
CATALOGS = pa.schema([pa.field("catalog_name", _TEXT, nullable=False)])
SCHEMAS = pa.schema([("catalog_name", _TEXT), pa.field("db_schema_name", _TEXT, nullable=False)])
TABLES = pa.schema(
    [
        ("catalog_name", _TEXT),
        ("db_schema_name", _TEXT),
        pa.field("table_name", _TEXT, nullable=False),
        pa.field("table_type", _TEXT, nullable=False),
    ]
)
TABLES_WITH_SCHEMA = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
TABLE_TYPES = pa.schema([pa.field("table_type", _TEXT, nullable=False)])
PRIMARY_KEYS = pa.schema(
    [
        ("catalog_name", _TEXT),
        ("db_schema_name", _TEXT),
        pa.field("table_name", _TEXT, nullable=False),
        pa.field("column_name", _TEXT, nullable=False),
        ("key_name", _TEXT),
        pa.field("key_sequence", _INT, nullable=False),
    ]
)
FOREIGN_KEYS = pa.schema(
    [
        ("pk_catalog_name", _TEXT),
        ("pk_db_schema_name", _TEXT),
        pa.field("pk_table_name", _TEXT, nullable=False),
        pa.field("pk_column_name", _TEXT, nullable=False),
        ("fk_catalog_name", _TEXT),
        ("fk_db_schema_name", _TEXT),
        pa.field("fk_table_name", _TEXT, nullable=False),
        pa.field("fk_column_name", _TEXT, nullable=False),
        pa.field("key_sequence", _INT, nullable=False),
        ("fk_key_name", _TEXT),
        ("pk_key_name", _TEXT),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)
_KEY = "ARROW:FLIGHT:SQL:"
_DIGITS = {"int8": 3, "int16": 5, "int32": 10, "int64": 19, "uint8": 3, "uint16": 5, "uint32": 10, "uint64": 20}


def catalogs() -> pa.Table:
    """The answer to `CommandGetCatalogs`: a server has one catalog."""
    return _table(CATALOGS, [(CATALOG,)])


def schemas(databases: Iterable[str], asked: Any) -> pa.Table:
    """The databases that a `CommandGetDbSchemas` asks for."""
    if not _has_catalog(asked, "catalog"):
        return SCHEMAS.empty_table()
    like = _like(asked, "db_schema_filter_pattern")
    return _table(SCHEMAS, [(CATALOG, name) for name in sorted(databases) if like.fullmatch(name)])


def tables(definitions: Iterable[Table], asked: Any) -> pa.Table:
    """The tables that a `CommandGetTables` asks for."""
    schema = TABLES_WITH_SCHEMA if asked.include_schema else TABLES
    if not _has_catalog(asked, "catalog"):
        return schema.empty_table()
    databases, names = _like(asked, "db_schema_filter_pattern"), _like(asked, "table_name_filter_pattern")
    kinds = set(asked.table_types) or {TABLE, SYSTEM_TABLE}
    rows = [
        (CATALOG, each.namespace, each.short_name, kind)
        + ((schema_bytes(described(each)),) if asked.include_schema else ())
        for each in sorted(definitions, key=lambda table: (table.namespace, table.short_name))
        if (kind := _kind(each)) in kinds and databases.fullmatch(each.namespace) and names.fullmatch(each.short_name)
    ]
    return _table(schema, rows)


def table_types() -> pa.Table:
    """The types that tables have."""
    return _table(TABLE_TYPES, [(SYSTEM_TABLE,), (TABLE,)])


def primary_keys(definitions: Iterable[Table], asked: Any) -> pa.Table:
    """The key columns that a `CommandGetPrimaryKeys` asks for, in the order of the key."""
    if not _has_catalog(asked, "catalog"):
        return PRIMARY_KEYS.empty_table()
    rows = [
        (CATALOG, each.namespace, each.short_name, column, f"{each.short_name}_pkey", place)
        for each in sorted(definitions, key=lambda table: table.name)
        if each.short_name == asked.table and (not asked.HasField("db_schema") or each.namespace == asked.db_schema)
        for place, column in enumerate(each.primary_key, 1)
    ]
    return _table(PRIMARY_KEYS, rows)


def described(table: Table) -> pa.Schema:
    """The columns of a table with what Flight SQL says of them in their metadata."""
    fields = []
    for field in table.schema:
        about = {
            "CATALOG_NAME": CATALOG,
            "DB_SCHEMA_NAME": table.namespace,
            "TABLE_NAME": table.short_name,
            "TYPE_NAME": sql_name(field.type),
            "IS_AUTO_INCREMENT": "0",
            "IS_CASE_SENSITIVE": "1" if pa.types.is_string(field.type) else "0",
            "IS_READ_ONLY": "1",
            "IS_SEARCHABLE": "1",
        } | _size(field.type)
        fields.append(field.with_metadata({_KEY + name: value for name, value in about.items()}))
    return pa.schema(fields)


def _size(kind: pa.DataType) -> dict[str, str]:
    """Precision and scale of a number."""
    if pa.types.is_decimal(kind):
        return {"PRECISION": str(kind.precision), "SCALE": str(kind.scale)}
    digits = _DIGITS.get(str(kind))
    return {"PRECISION": str(digits), "SCALE": "0"} if digits else {}


def _kind(table: Table) -> str:
    return SYSTEM_TABLE if table.is_system else TABLE


def _has_catalog(asked: Any, name: str) -> bool:
    """Whether the one catalog is asked for, by its name or by none."""
    return not asked.HasField(name) or getattr(asked, name) == CATALOG


def _like(asked: Any, name: str) -> re.Pattern[str]:
    """The pattern of a filter; a filter that is not set matches every name."""
    if not asked.HasField(name):
        return re.compile(".*", re.DOTALL)
    shapes = {"%": ".*", "_": "."}
    said = "".join(shapes.get(letter) or re.escape(letter) for letter in getattr(asked, name))
    return re.compile(said, re.DOTALL)


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
