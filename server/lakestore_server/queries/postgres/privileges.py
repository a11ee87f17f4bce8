"""`has_table_privilege` and its kin as macros of DuckDB: answers by the rights of the caller.

- The port only reads: a table on which the caller has the right `read` has the privilege SELECT, and no other.
- An administrator is told the rights of every principal. To another caller, other principals do not exist (42704), not
  even the owners that `pg_roles` names. The owner `lakestore` has everything.
- As in PostgreSQL, an unknown name is an error, an unknown oid gives null, and an unknown privilege is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakestore.rows.literals import text_literal

_GRANT, _ADMIN = " WITH GRANT OPTION", " WITH ADMIN OPTION"
_TABLE = "SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER,RULE"
_COLUMN = "SELECT,INSERT,UPDATE,REFERENCES"
_ROLE = "USAGE,MEMBER"
OBJECTS = {
    "has_table_privilege": ("regclass", -2),
    "has_any_column_privilege": ("regclass", -2),
    "has_column_privilege": ("regclass", -3),
    "has_schema_privilege": ("regnamespace", -2),
    "has_function_privilege": ("regproc", -2),
    "has_type_privilege": ("regtype", -2),
}
"""The kind of object of a function, and the place of its argument from the end."""


def _privilege(known: str, granted: str) -> str:
    """Whether one of the privileges in the parameter `p` is granted."""
    ends = ("", _GRANT, _ADMIN) if known == _ROLE else ("", _GRANT)
    names = [text_literal(name + end) for name in known.split(",") for end in ends]
    return f"privilege_of(p, [{', '.join(names)}], {text_literal(granted)})"


def _if_right(right: str, privilege: str) -> str:
    """The privilege where the right is true; false where it is false, null where it is null."""
    refused = f"CASE WHEN ({privilege}) IS NOT NULL THEN false END"
    return f"CASE {right} WHEN true THEN {privilege} WHEN false THEN {refused} END"


def _table_forms(right: str, arguments: str, privilege: str) -> tuple[str, ...]:
    return (
        f"({arguments}, p) AS {_if_right(right.replace('{r}', '{user}'), privilege)}",
        f"(u, {arguments}, p) AS {_if_right(right.replace('{r}', 'role_of(u)'), privilege)}",
    )


def _object_forms(name: str, known: str, granted: str) -> tuple[str, ...]:
    """An object on which every role has the same privilege."""
    found = _privilege(known, granted)
    return (
        f"(o, p) AS CASE WHEN {name} IS NOT NULL THEN {found} END",
        f"(u, o, p) AS CASE WHEN {name} IS NOT NULL AND role_of(u) IS NOT NULL THEN {found} END",
    )


def _oid_forms(relation: str, name: str, kind: str) -> tuple[str, ...]:
    """The oid of an object by its name or oid: an unknown name is an error, an unknown oid is null."""
    named = f"SELECT oid AS __v, {name} AS __n FROM {{c}}.{relation}"  # noqa: S608 (texts of ours)
    return (
        f"(o) AS coalesce((SELECT any_value(__v) FROM ({named}) AS __x"  # noqa: S608 (texts of ours)
        " WHERE __n = CAST(o AS VARCHAR) OR CAST(__v AS VARCHAR) = CAST(o AS VARCHAR)), CASE WHEN o IS NULL OR"
        " TRY_CAST(o AS UINTEGER) IS NOT NULL THEN NULL ELSE"
        f" error('{kind} \"' || CAST(o AS VARCHAR) || '\" does not exist') END)",
    )


_RIGHT = "table_right({r}, table_of(o))"
_COLUMN_RIGHT = "CASE WHEN column_of(table_of(o), c) THEN table_right({r}, table_of(o)) END"
MACROS: Mapping[str, tuple[str, ...]] = {
    "privilege_of": (
        "(p, k, g) AS CASE WHEN p IS NULL THEN NULL WHEN len(list_filter(string_split(upper(p), ','), lambda x:"
        " NOT list_contains(k, trim(x)))) > 0 THEN error('unrecognized privilege type: \"' ||"
        " trim(list_filter(string_split(p, ','), lambda x: NOT list_contains(k, upper(trim(x))))[1]) || '\"')"
        " ELSE len(list_filter(string_split(upper(p), ','), lambda x: trim(x) = g)) > 0 END",
    ),
    "role_of": (
        "(u) AS coalesce((SELECT any_value(__n) FROM (SELECT oid AS __v, rolname AS __n FROM {c}.pg_roles) AS __x"
        " WHERE __n = CAST(u AS VARCHAR) OR CAST(__v AS VARCHAR) = CAST(u AS VARCHAR)), CASE WHEN u IS NULL THEN NULL"
        " WHEN CAST(u AS VARCHAR) = 'public' OR TRY_CAST(u AS UINTEGER) IS NOT NULL THEN ''"
        " ELSE error('role \"' || CAST(u AS VARCHAR) || '\" does not exist') END)",
    ),
    "table_of": (
        "(o) AS coalesce(regclass_of(o), CASE WHEN o IS NOT NULL THEN"
        " error('relation \"' || CAST(o AS VARCHAR) || '\" does not exist') END)",
    ),
    "table_right": (
        "(r, o) AS CASE WHEN r IS NULL THEN NULL WHEN NOT {knows_rights} AND r NOT IN ('', {user}, 'lakestore')"
        " THEN error('role \"' || r || '\" does not exist') ELSE (SELECT any_value(CASE WHEN r = {user} THEN __a"
        " WHEN r = 'lakestore' THEN true ELSE __p END) FROM (SELECT oid AS __k, readable AS __a, public AS __p"
        " FROM {c}.relation_names) AS __x WHERE __k = o) OR coalesce((SELECT any_value(list_contains(__r, r) OR"
        " list_contains(__r, '')) FROM (SELECT oid AS __k, readers AS __r FROM {c}.table_readers) AS __y"
        " WHERE __k = o), false) END",
    ),
    "column_of": (
        "(o, c) AS CASE WHEN c IS NULL THEN NULL WHEN (SELECT count(*) FROM (SELECT attrelid AS __k, attname AS __n,"
        " CAST(attnum AS VARCHAR) AS __a FROM {c}.pg_attribute) AS __x WHERE __k = o AND CAST(c AS VARCHAR)"
        " IN (__n, __a)) > 0 THEN true WHEN TRY_CAST(c AS SMALLINT) IS NOT NULL THEN NULL ELSE error('column \"' ||"
        " CAST(c AS VARCHAR) || '\" of relation does not exist') END",
    ),
    "has_table_privilege": _table_forms(_RIGHT, "o", _privilege(_TABLE, "SELECT")),
    "has_any_column_privilege": _table_forms(_RIGHT, "o", _privilege(_COLUMN, "SELECT")),
    "has_column_privilege": _table_forms(_COLUMN_RIGHT, "o, c", _privilege(_COLUMN, "SELECT")),
    "schema_of": _oid_forms("pg_namespace", "nspname", "schema"),
    "database_of": _oid_forms("pg_database", "datname", "database"),
    "has_schema_privilege": _object_forms("schema_of(o)", "CREATE,USAGE", "USAGE"),
    "has_database_privilege": _object_forms("database_of(o)", "CREATE,TEMPORARY,TEMP,CONNECT", "CONNECT"),
    "has_function_privilege": _object_forms("o", "EXECUTE", "EXECUTE"),
    "has_type_privilege": _object_forms("o", "USAGE", "USAGE"),
    "has_language_privilege": _object_forms("o", "USAGE", "USAGE"),
    "has_tablespace_privilege": _object_forms("o", "CREATE", ""),
    "has_sequence_privilege": _object_forms("o", "USAGE,SELECT,UPDATE", ""),
    "pg_has_role": (
        f"(r, p) AS CASE WHEN {_privilege(_ROLE, 'USAGE')} IS NOT NULL THEN role_of(r) = {{user}} END",
        f"(u, r, p) AS CASE WHEN {_privilege(_ROLE, 'USAGE')} IS NOT NULL"
        " THEN role_of(u) IN (role_of(r), 'lakestore') END",
    ),
}
"""Parameters and body of each form of a macro, by name."""
