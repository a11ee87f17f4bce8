"""information_schema as Arrow tables: the tables of the lake, and PostgreSQL's own relations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakestore_server.queries.postgres.catalog import SERVER_ROLE, ListedTable, format_type
from lakestore_server.queries.postgres.fixed_catalog import (
    INFORMATION_SCHEMA,
    PG_CATALOG,
    Relation,
    fixed_rows,
    joined,
    relations,
    rows_of,
    type_oids,
)
from lakestore_server.queries.postgres.lookup_relations import SECRET
from lakestore_server.queries.postgres.types import PostgresType

if TYPE_CHECKING:
    from lakestore_server.queries.postgres.catalog import Catalog

_BITS = {20: 64, 21: 16, 23: 32, 700: 24, 701: 53}
"""Precision of binary numbers, by the type's oid."""
_VECTORS = frozenset({"int2vector", "oidvector"})
_TIMES = frozenset({1083, 1114, 1184, 1186, 1266})
_NUMERIC = 1700


DOMAINS = {
    "cardinal_number": "int4",
    "character_data": "varchar",
    "sql_identifier": "name",
    "time_stamp": "timestamptz",
    "yes_or_no": "varchar",
}
"""The type of each domain of information_schema."""
_TEXTS, _OCTETS_MAX = frozenset({25, 1042, 1043}), 1 << 30
_YES_OR_NO = 3
"""Characters of the domain yes_or_no; the other texts have no bound."""


@dataclass(frozen=True, slots=True)
class _Described:
    """A column of a table of the lake or of PostgreSQL's own relations."""

    schema: str
    table: str
    name: str
    place: int
    type: PostgresType
    default: str = ""
    required: bool = False
    domain: str = ""


def rows(catalog: Catalog, relation: Relation) -> pa.Table:
    """The rows of a view; empty for a view of objects that a lake does not have."""
    make = _ROWS.get(relation.name)
    if make is not None:
        return make(catalog, relation)
    fixed = fixed_rows(relation.name, INFORMATION_SCHEMA)
    for place, name in enumerate(fixed.column_names):
        if name.endswith("_catalog"):  # an empty text stands for the name of the database
            told = pc.if_else(pc.equal(fixed[name], ""), catalog.session.database, fixed[name])
            fixed = fixed.set_column(place, fixed.schema.field(place), told)
    return fixed


@cache
def _system_relations() -> tuple[Relation, ...]:
    """PostgreSQL's own relations that every role may read."""
    return tuple(each for each in relations().values() if each.name not in SECRET)


@cache
def _system_columns() -> tuple[_Described, ...]:
    known = type_oids()
    return tuple(
        _Described(
            each.schema,
            each.name,
            name,
            place,
            PostgresType(known[DOMAINS.get(kind, kind)], -1, -1, DOMAINS.get(kind, kind)),
            required=name in each.required,
            domain=kind if kind in DOMAINS else "",
        )
        for each in _system_relations()
        for place, (name, kind) in enumerate(each.columns.items(), 1)
    )


def _lake_columns(tables: Iterable[ListedTable]) -> list[_Described]:
    return [
        _Described(
            each.table.namespace,
            each.table.short_name,
            column.column.name,
            column.place,
            column.type,
            column.default,
            column.column.required,
        )
        for each in tables
        for column in each.columns
    ]


def _catalog_name(catalog: Catalog, relation: Relation) -> pa.Table:
    return rows_of(relation, 1, {"catalog_name": catalog.session.database})


def _schemata(catalog: Catalog, relation: Relation) -> pa.Table:
    names = list(catalog.schemas)
    columns = {"catalog_name": catalog.session.database, "schema_name": names, "schema_owner": SERVER_ROLE}
    return rows_of(relation, len(names), columns)


def _tables(catalog: Catalog, relation: Relation) -> pa.Table:
    system, tables = _system_relations(), catalog.tables
    kinds = ["VIEW" if each.kind == "v" else "BASE TABLE" for each in system]
    columns = {
        "table_catalog": catalog.session.database,
        "table_schema": [*(each.table.namespace for each in tables), *(each.schema for each in system)],
        "table_name": [*(each.table.short_name for each in tables), *(each.name for each in system)],
        "table_type": ["BASE TABLE"] * len(tables) + kinds,
        "is_insertable_into": "NO",
        "is_typed": "NO",
    }
    return rows_of(relation, len(tables) + len(system), columns)


def _views(catalog: Catalog, relation: Relation) -> pa.Table:
    views = [each for each in _system_relations() if each.kind == "v"]
    columns = {
        "table_catalog": catalog.session.database,
        "table_schema": [each.schema for each in views],
        "table_name": [each.name for each in views],
        "check_option": "NONE",
        "is_updatable": "NO",
        "is_insertable_into": "NO",
        "is_trigger_updatable": "NO",
        "is_trigger_deletable": "NO",
        "is_trigger_insertable_into": "NO",
    }
    return rows_of(relation, len(views), columns)


def _columns(catalog: Catalog, relation: Relation) -> pa.Table:
    found = [*_lake_columns(catalog.tables), *_system_columns()]
    database = catalog.session.database
    columns = {
        "table_catalog": database,
        "table_schema": [column.schema for column in found],
        "table_name": [column.table for column in found],
        "column_name": [column.name for column in found],
        "ordinal_position": [column.place for column in found],
        "column_default": [column.default or None for column in found],
        "is_nullable": ["NO" if column.required else "YES" for column in found],
        "data_type": [_data_type(column) for column in found],
        "character_maximum_length": [_YES_OR_NO if column.domain == "yes_or_no" else None for column in found],
        "character_octet_length": [_octets(column) for column in found],
        "numeric_precision": [_precision(column) for column in found],
        "numeric_precision_radix": [_radix(column) for column in found],
        "numeric_scale": [_scale(column) for column in found],
        "datetime_precision": [_time_digits(column) for column in found],
        "domain_catalog": [database if column.domain else None for column in found],
        "domain_schema": [INFORMATION_SCHEMA if column.domain else None for column in found],
        "domain_name": [column.domain or None for column in found],
        "udt_catalog": database,
        "udt_schema": PG_CATALOG,
        "udt_name": [column.type.name for column in found],
        "dtd_identifier": [str(column.place) for column in found],
        "is_self_referencing": "NO",
        "is_identity": "NO",
        "identity_cycle": "NO",
        "is_generated": "NEVER",
        "is_updatable": "NO",
    }
    return rows_of(relation, len(found), columns)


def _octets(column: _Described) -> int | None:
    if column.domain == "yes_or_no":
        return 4 * _YES_OR_NO
    return _OCTETS_MAX if column.type.oid in _TEXTS else None


def _data_type(column: _Described) -> str:
    return (
        "ARRAY"
        if column.type.name.startswith("_") or column.type.name in _VECTORS
        else format_type(column.type.oid, -1)
    )


def _precision(column: _Described) -> int | None:
    if column.type.oid == _NUMERIC:
        return column.type.modifier - 4 >> 16 if column.type.modifier >= 4 else None
    return _BITS.get(column.type.oid)


def _radix(column: _Described) -> int | None:
    return 10 if column.type.oid == _NUMERIC else 2 if column.type.oid in _BITS else None


def _scale(column: _Described) -> int | None:
    if column.type.oid == _NUMERIC:
        return column.type.modifier - 4 & 0x7FF if column.type.modifier >= 4 else None
    return 0 if column.type.oid in (20, 21, 23) else None


def _time_digits(column: _Described) -> int | None:
    if column.domain == "time_stamp":
        return 2
    return 6 if column.type.oid in _TIMES else 0 if column.type.oid == 1082 else None


def _constraints(catalog: Catalog, relation: Relation) -> pa.Table:
    rows = [(each.table, each.key_name, "PRIMARY KEY") for each in catalog.keyed]
    for each in catalog.tables:
        rows += [
            (each.table, f"{each.schema_oid}_{each.oid}_{column.column.id}_not_null", "CHECK")
            for column in each.columns
            if column.column.required
        ]
    database = catalog.session.database
    columns = {
        "constraint_catalog": database,
        "constraint_schema": [table.namespace for table, _, _ in rows],
        "constraint_name": [name for _, name, _ in rows],
        "table_catalog": database,
        "table_schema": [table.namespace for table, _, _ in rows],
        "table_name": [table.short_name for table, _, _ in rows],
        "constraint_type": [kind for _, _, kind in rows],
        "is_deferrable": "NO",
        "initially_deferred": "NO",
        "enforced": "YES",
    }
    return rows_of(relation, len(rows), columns)


def _key_columns(catalog: Catalog) -> tuple[int, dict[str, Any], list[int]]:
    """The number of key columns of all tables, the columns that two views share, and each column's place."""
    found = [(each, name, place) for each in catalog.keyed for place, name in enumerate(each.table.primary_key, 1)]
    columns: dict[str, Any] = {
        "constraint_catalog": catalog.session.database,
        "constraint_schema": [each.table.namespace for each, _, _ in found],
        "constraint_name": [each.key_name for each, _, _ in found],
        "table_catalog": catalog.session.database,
        "table_schema": [each.table.namespace for each, _, _ in found],
        "table_name": [each.table.short_name for each, _, _ in found],
        "column_name": [name for _, name, _ in found],
    }
    return len(found), columns, [place for _, _, place in found]


def _key_column_usage(catalog: Catalog, relation: Relation) -> pa.Table:
    count, columns, places = _key_columns(catalog)
    return rows_of(relation, count, columns | {"ordinal_position": places})


def _constraint_column_usage(catalog: Catalog, relation: Relation) -> pa.Table:
    count, columns, _ = _key_columns(catalog)
    return rows_of(relation, count, columns)


def _own_grants(catalog: Catalog, relation: Relation) -> pa.Table:
    columns = {
        "grantor": [each.owner for each in catalog.readable],
        "grantee": catalog.session.user,
        "table_catalog": catalog.session.database,
        "table_schema": [each.table.namespace for each in catalog.readable],
        "table_name": [each.table.short_name for each in catalog.readable],
        "privilege_type": "SELECT",
        "is_grantable": "NO",
        "with_hierarchy": "YES",
    }
    return rows_of(relation, len(catalog.readable), columns)


def _table_privileges(catalog: Catalog, relation: Relation) -> pa.Table:
    system = _system_relations()
    columns = _PUBLIC | {
        "table_catalog": catalog.session.database,
        "table_schema": [each.schema for each in system],
        "table_name": [each.name for each in system],
        "with_hierarchy": "YES",
    }
    return joined([_own_grants(catalog, relation), rows_of(relation, len(system), columns)])


_PUBLIC = {"grantor": SERVER_ROLE, "grantee": "PUBLIC", "privilege_type": "SELECT", "is_grantable": "NO"}


def _own_column_grants(catalog: Catalog, relation: Relation) -> pa.Table:
    tables = catalog.readable
    found = _lake_columns(tables)
    columns = _PUBLIC | _column_names(catalog, found)
    owners = [each.owner for each in tables for _ in each.columns]
    return rows_of(relation, len(found), columns | {"grantor": owners, "grantee": catalog.session.user})


def _column_privileges(catalog: Catalog, relation: Relation) -> pa.Table:
    found = _system_columns()
    system = rows_of(relation, len(found), _PUBLIC | _column_names(catalog, found))
    return joined([_own_column_grants(catalog, relation), system])


def _column_names(catalog: Catalog, found: Sequence[_Described]) -> dict[str, Any]:
    return {
        "table_catalog": catalog.session.database,
        "table_schema": [column.schema for column in found],
        "table_name": [column.table for column in found],
        "column_name": [column.name for column in found],
    }


def _roles(catalog: Catalog, relation: Relation) -> pa.Table:
    return rows_of(relation, 1, {"role_name": catalog.session.user})


def _character_sets(catalog: Catalog, relation: Relation) -> pa.Table:
    columns = {
        "character_set_name": "UTF8",
        "character_repertoire": "UCS",
        "form_of_use": "UTF8",
        "default_collate_catalog": catalog.session.database,
        "default_collate_schema": PG_CATALOG,
        "default_collate_name": "ucs_basic",
    }
    return rows_of(relation, 1, columns)


_ROWS: dict[str, Callable[[Catalog, Relation], pa.Table]] = {
    "character_sets": _character_sets,
    "column_privileges": _column_privileges,
    "columns": _columns,
    "constraint_column_usage": _constraint_column_usage,
    "enabled_roles": _roles,
    "information_schema_catalog_name": _catalog_name,
    "key_column_usage": _key_column_usage,
    "role_column_grants": _own_column_grants,
    "role_table_grants": _own_grants,
    "schemata": _schemata,
    "table_constraints": _constraints,
    "table_privileges": _table_privileges,
    "tables": _tables,
    "views": _views,
}
