"""Relations that our macros read: names, definitions and types of objects by oid. No user names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from lakestore_server.access.principals import Grant
from lakestore_server.queries.postgres.catalog import format_type, index_definition, quoted
from lakestore_server.queries.postgres.fixed_catalog import FIRST_USER_OID, PG_CATALOG, fixed_rows, relations

if TYPE_CHECKING:
    from lakestore_server.queries.postgres.catalog import Catalog


def rows(catalog: Catalog, name: str) -> pa.Table:
    """The rows of a relation. Raises `KeyError` for an unknown one."""
    return _ROWS[name](catalog)


def _definitions(catalog: Catalog) -> pa.Table:
    keys = [(each.constraint_oid, _key_definition(each.table.primary_key)) for each in catalog.keyed]
    indexes = [(each.index_oid, index_definition(each)) for each in catalog.keyed]
    return _table({"oid": pa.uint32(), "text": pa.string()}, [*keys, *indexes])


def _key_definition(names: tuple[str, ...]) -> str:
    return f"PRIMARY KEY ({', '.join(map(quoted, names))})"


def _table(columns: dict[str, pa.DataType], found: list[tuple[object, ...]]) -> pa.Table:
    arrays = zip(*found, strict=True) if found else [()] * len(columns)
    return pa.table([pa.array(part, kind) for part, kind in zip(arrays, columns.values(), strict=True)], list(columns))


_RELATION_NAMES = {
    "oid": pa.uint32(),
    "name": pa.string(),
    "full_name": pa.string(),
    "short_name": pa.string(),
    "visible": pa.bool_(),
    "readable": pa.bool_(),
    "public": pa.bool_(),
}
SECRET = frozenset(
    {"pg_authid", "pg_backend_memory_contexts", "pg_config", "pg_file_settings", "pg_hba_file_rules"}
    | {"pg_ident_file_mappings", "pg_largeobject", "pg_replication_origin_status", "pg_shadow", "pg_shmem_allocations"}
    | {"pg_statistic", "pg_statistic_ext_data", "pg_subscription", "pg_user_mapping", "sql_parts", "transforms"}
)
"""Relations that PostgreSQL shows to superusers alone."""


def _relation_names(catalog: Catalog) -> pa.Table:
    """`name` is the name that regclass shows; `visible` is true for what a name without a schema means. The caller may
    select from a `readable` relation, every role from a `public` one."""
    readable = {each.oid for each in catalog.readable}
    found: list[tuple[object, ...]] = []
    path = (PG_CATALOG, *catalog.session.search_path)
    named = sorted(_named_oids(catalog), key=lambda each: path.index(each[0]) if each[0] in path else len(path))
    taken: set[str] = set()
    for schema, name, oid in named:
        visible = schema in path and name not in taken
        taken.add(name)
        shown = quoted(name) if visible else f"{quoted(schema)}.{quoted(name)}"
        public = oid < FIRST_USER_OID and name not in SECRET
        found.append((oid, shown, f"{schema}.{name}", name, visible, public or oid in readable, public))
    return _table(_RELATION_NAMES, found)


def _table_readers(catalog: Catalog) -> pa.Table:
    """The principals that may read each table, as far as the caller may know."""
    readers: dict[str, list[str]] = {}
    for name, patterns in (catalog.session.readers or {}).items():
        for pattern in patterns:
            readers.setdefault(pattern, []).append(name)
    grants = [(Grant(frozenset(), (pattern,)), names) for pattern, names in readers.items()]

    def readers_of(table: str) -> list[str]:
        return [name for grant, names in grants if grant.covers(table) for name in names]

    found: list[tuple[object, ...]] = [(each.oid, readers_of(each.table.name)) for each in catalog.tables if grants]
    return _table({"oid": pa.uint32(), "readers": pa.list_(pa.string())}, found)


def _named_oids(catalog: Catalog) -> Iterator[tuple[str, str, int]]:
    for each in catalog.tables:
        yield each.table.namespace, each.table.short_name, each.oid
        if each.table.primary_key:
            yield each.table.namespace, each.key_name, each.index_oid
    for system in relations().values():
        yield system.schema, system.name, system.oid


@cache
def _type_names(_catalog: Catalog | None) -> pa.Table:
    columns = {
        "oid": pa.uint32(),
        "base": pa.uint32(),
        "name": pa.string(),
        "suffix": pa.string(),
        "short_name": pa.string(),
    }
    found: list[tuple[object, ...]] = []
    for row in fixed_rows("pg_type").select(["oid", "typname", "typelem", "typcategory"]).to_pylist():
        is_array = row["typcategory"] == "A"
        base, suffix = (row["typelem"], "[]") if is_array else (row["oid"], "")
        found.append((row["oid"], base, format_type(row["oid"], -1), suffix, row["typname"]))
    return _table(columns, found)


@cache
def _function_names(_catalog: Catalog | None) -> pa.Table:
    columns = {"oid": pa.uint32(), "result": pa.string(), "arguments": pa.string()}
    found: list[tuple[object, ...]] = []
    for row in fixed_rows("pg_proc").select(["oid", "prorettype", "proargtypes", "proretset"]).to_pylist():
        arguments = ", ".join(format_type(kind, -1) for kind in row["proargtypes"] or ())
        result = ("SETOF " if row["proretset"] else "") + format_type(row["prorettype"], -1)
        found.append((row["oid"], result, arguments))
    return _table(columns, found)


def _keywords(_catalog: Catalog) -> pa.Table:
    return fixed_rows("pg_get_keywords")


_ROWS: dict[str, Callable[[Catalog], pa.Table]] = {
    "definitions": _definitions,
    "function_names": lambda _: _function_names(None),
    "pg_get_keywords": _keywords,
    "relation_names": _relation_names,
    "table_readers": _table_readers,
    "type_names": lambda _: _type_names(None),
}
NAMES = frozenset(_ROWS)
