"""information_schema as Arrow tables: the tables of the lake, without PostgreSQL's own relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakestore_server.queries.postgres.catalog import SERVER_ROLE, ListedColumn, format_type
from lakestore_server.queries.postgres.fixed_catalog import PG_CATALOG, Relation, rows_of

if TYPE_CHECKING:
    from lakestore_server.queries.postgres.catalog import Catalog

_BITS = {20: 64, 21: 16, 23: 32, 700: 24, 701: 53}
"""Precision of binary numbers, by the type's oid."""
_TIMES = frozenset({1083, 1114, 1184, 1186, 1266})
_NUMERIC = 1700


def rows(catalog: Catalog, relation: Relation) -> pa.Table:
    """The rows of a view; empty for a view of objects that a lake does not have."""
    make = _ROWS.get(relation.name)
    return make(catalog, relation) if make else relation.arrow_schema().empty_table()


def _catalog_name(catalog: Catalog, relation: Relation) -> pa.Table:
    return rows_of(relation, 1, {"catalog_name": catalog.session.database})


def _schemata(catalog: Catalog, relation: Relation) -> pa.Table:
    names = list(catalog.schemas)
    columns = {"catalog_name": catalog.session.database, "schema_name": names, "schema_owner": SERVER_ROLE}
    return rows_of(relation, len(names), columns)


def _tables(catalog: Catalog, relation: Relation) -> pa.Table:
    columns = {
        "table_catalog": catalog.session.database,
        "table_schema": [each.table.namespace for each in catalog.tables],
        "table_name": [each.table.short_name for each in catalog.tables],
        "table_type": "BASE TABLE",
        "is_insertable_into": "NO",
        "is_typed": "NO",
    }
    return rows_of(relation, len(catalog.tables), columns)


def _columns(catalog: Catalog, relation: Relation) -> pa.Table:
    found = [(each, column) for each in catalog.tables for column in each.columns]
    database = catalog.session.database
    columns = {
        "table_catalog": database,
        "table_schema": [each.table.namespace for each, _ in found],
        "table_name": [each.table.short_name for each, _ in found],
        "column_name": [column.column.name for _, column in found],
        "ordinal_position": [column.place for _, column in found],
        "column_default": [column.default or None for _, column in found],
        "is_nullable": ["NO" if column.column.required else "YES" for _, column in found],
        "data_type": [_data_type(column) for _, column in found],
        "numeric_precision": [_precision(column) for _, column in found],
        "numeric_precision_radix": [_radix(column) for _, column in found],
        "numeric_scale": [_scale(column) for _, column in found],
        "datetime_precision": [_time_digits(column) for _, column in found],
        "udt_catalog": database,
        "udt_schema": PG_CATALOG,
        "udt_name": [column.type.name for _, column in found],
        "dtd_identifier": [str(column.place) for _, column in found],
        "is_self_referencing": "NO",
        "is_identity": "NO",
        "identity_cycle": "NO",
        "is_generated": "NEVER",
        "is_updatable": "NO",
    }
    return rows_of(relation, len(found), columns)


def _data_type(column: ListedColumn) -> str:
    return "ARRAY" if column.type.name.startswith("_") else format_type(column.type.oid, -1)


def _precision(column: ListedColumn) -> int | None:
    if column.type.oid == _NUMERIC:
        return column.type.modifier - 4 >> 16 if column.type.modifier >= 4 else None
    return _BITS.get(column.type.oid)


def _radix(column: ListedColumn) -> int | None:
    return 10 if column.type.oid == _NUMERIC else 2 if column.type.oid in _BITS else None


def _scale(column: ListedColumn) -> int | None:
    if column.type.oid == _NUMERIC:
        return column.type.modifier - 4 & 0x7FF if column.type.modifier >= 4 else None
    return 0 if column.type.oid in (20, 21, 23) else None


def _time_digits(column: ListedColumn) -> int | None:
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


def _table_privileges(catalog: Catalog, relation: Relation) -> pa.Table:
    user = catalog.session.user
    columns = {
        "grantor": [each.owner for each in catalog.readable],
        "grantee": user,
        "table_catalog": catalog.session.database,
        "table_schema": [each.table.namespace for each in catalog.readable],
        "table_name": [each.table.short_name for each in catalog.readable],
        "privilege_type": "SELECT",
        "is_grantable": "NO",
        "with_hierarchy": "YES",
    }
    return rows_of(relation, len(catalog.readable), columns)


def _roles(catalog: Catalog, relation: Relation) -> pa.Table:
    return rows_of(relation, 1, {"role_name": catalog.session.user})


def _character_sets(catalog: Catalog, relation: Relation) -> pa.Table:
    columns = {
        "character_set_name": "UTF8",
        "character_repertoire": "UCS",
        "form_of_use": "UTF8",
        "default_collate_catalog": catalog.session.database,
        "default_collate_schema": PG_CATALOG,
        "default_collate_name": "C",
    }
    return rows_of(relation, 1, columns)


_ROWS: dict[str, Callable[[Catalog, Relation], pa.Table]] = {
    "character_sets": _character_sets,
    "columns": _columns,
    "constraint_column_usage": _constraint_column_usage,
    "enabled_roles": _roles,
    "information_schema_catalog_name": _catalog_name,
    "key_column_usage": _key_column_usage,
    "role_table_grants": _table_privileges,
    "schemata": _schemata,
    "table_constraints": _constraints,
    "table_privileges": _table_privileges,
    "tables": _tables,
}
