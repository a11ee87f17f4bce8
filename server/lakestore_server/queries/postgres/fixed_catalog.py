"""The part of the catalog that is the same for everybody: PostgreSQL 15's own relations, types and functions.

- `postgres15.json` is written by `python -m tests.support.postgres_catalog` from a real server.
- Oids are PostgreSQL's own, so clients that know them by number are right.
- An oid is a uint32 here, and a "char" a dictionary, which DuckDB gets as an ENUM of `LETTERS`. So a result that
  comes from a column of the catalog shows which of them it is: `types.of_catalog`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import pyarrow as pa

PG_CATALOG, INFORMATION_SCHEMA = "pg_catalog", "information_schema"
CATALOG_OID = 11
"""The oid of the schema pg_catalog."""
INFORMATION_OID = 13_000
FIRST_USER_OID = 16_384
_ARROW = {
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "cardinal_number": pa.int32(),
    "int8": pa.int64(),
    "char": pa.dictionary(pa.uint8(), pa.string()),
    "_char": pa.list_(pa.string()),
    "oid": pa.uint32(),
    "regproc": pa.uint32(),
    "regtype": pa.uint32(),
    "xid": pa.uint32(),
    "numeric": pa.decimal128(38, 10),
    "interval": pa.month_day_nano_interval(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "time_stamp": pa.timestamp("us", tz="UTC"),
    "int2vector": pa.list_(pa.int16()),
    "oidvector": pa.list_(pa.uint32()),
}
"""Arrow types of column types; other types are texts, and `_x` is a list of x."""
LETTERS = ("", *map(chr, range(0x20, 0x7F)))
"""The values of PostgreSQL's type "char", in order."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view of PostgreSQL's own schemas."""

    schema: str
    name: str
    oid: int
    kind: str
    """`r` for a table, `v` for a view."""
    columns: Mapping[str, str]
    """Type by name."""
    required: frozenset[str] = frozenset()
    """The columns that are never null."""

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, _arrow(kind)) for name, kind in self.columns.items()])


def _arrow(kind: str) -> pa.DataType:
    if kind.startswith("_") and kind not in _ARROW:
        return pa.list_(_arrow(kind[1:]))
    return _ARROW.get(kind, pa.string())


@cache
def _document() -> Any:
    return json.loads(resources.files(__package__).joinpath("postgres15.json").read_bytes())


@cache
def relations() -> Mapping[tuple[str, str], Relation]:
    """Every relation, by schema and name."""
    return {(each["schema"], each["name"]): _relation(each) for each in _document()["relations"]}


def _relation(said: Mapping[str, Any]) -> Relation:
    return Relation(
        said["schema"], said["name"], said["oid"], said["kind"], dict(said["columns"]), frozenset(said["required"])
    )


@cache
def fixed_rows(name: str, schema: str = PG_CATALOG) -> pa.Table:
    """The rows of a relation that are the same for everybody; empty for most relations."""
    said = _document()["rows"].get(name)
    relation = relations().get((schema, name))
    if said is None:
        return relations()[schema, name].arrow_schema().empty_table()
    relation = relation or Relation(PG_CATALOG, name, 0, "f", dict.fromkeys(said["columns"], "text"))
    columns = dict(zip(said["columns"], zip(*said["rows"], strict=True), strict=True))
    return rows_of(relation, len(said["rows"]), columns)


@cache
def type_oids() -> Mapping[str, int]:
    """The oid of each type, by its name in pg_type."""
    said = _document()["rows"]["pg_type"]
    name, oid = said["columns"].index("typname"), said["columns"].index("oid")
    return {row[name]: row[oid] for row in said["rows"]}


def rows_of(relation: Relation, count: int, columns: Mapping[str, Any]) -> pa.Table:
    """A table of `count` rows. A column is a sequence of values, or one value for all rows; a column that is left out
    is null. Raises `KeyError` for a column that the relation does not have.
    """
    schema = relation.arrow_schema()
    unknown = columns.keys() - set(schema.names)
    if unknown:
        raise KeyError(f"{relation.name} has no columns {sorted(unknown)}")
    return pa.Table.from_arrays(
        [_column(columns.get(field.name), count, field.type) for field in schema], schema=schema
    )


def _column(values: Any, count: int, kind: pa.DataType) -> pa.Array:
    if isinstance(values, Sequence) and not isinstance(values, str):
        return pa.array(values, kind)
    if values is None:
        return pa.nulls(count, kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, kind.index_type), count), pa.array([values]))
    return pa.repeat(pa.scalar(values, kind), count)


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables of one relation as one table of one chunk per column."""
    return pa.concat_tables(tables).combine_chunks()
