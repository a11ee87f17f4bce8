"""PostgreSQL's functions as DuckDB's macros. A question gets the macros that its text calls, and no others.

- A macro hides DuckDB's function of the same name.
- `{c}` is the schema with the catalog's relations. `{user}` and the like are constants of the session.
- Bodies call functions of the allow list, other macros, and these relations; a test reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lakestore.rows.literals import text_literal
from lakestore_server.queries.postgres import privileges, settings_rows, value_macros
from lakestore_server.queries.postgres.catalog import Session

SCHEMA = "__pg_catalog"
"""The schema of DuckDB with the relations of pg_catalog: DuckDB creates nothing in a schema `pg_catalog`."""


def _looked_up(relation: str, key: str, value: str, where: str = "{k} = o") -> str:
    """The value of the row with a key. The names inside are ours, so a user's argument cannot mean one of them."""
    inner = f"SELECT {key} AS __k, {value} AS __v FROM {{c}}.{relation}"  # noqa: S608 (texts of ours)
    return f"(SELECT any_value(__v) FROM ({inner}) AS __x WHERE {where.replace('{k}', '__k')})"  # noqa: S608


_DEFINITION = _looked_up("definitions", "oid", "text")
_DESCRIPTION = _looked_up("pg_description WHERE objsubid = 0", "objoid", "description")
_ARGUMENTS = _looked_up("function_names", "oid", "arguments")
_PLAIN_NAME = "{k} = replace(lower(CAST(o AS VARCHAR)), 'pg_catalog.', '')"

MACROS: Mapping[str, tuple[str, ...]] = {
    # names of objects
    "format_type": (
        "(o, m) AS CASE WHEN o IS NULL THEN NULL ELSE coalesce((SELECT any_value(CASE WHEN __b = 1700 AND m >= 4 THEN"
        " 'numeric(' || ((m - 4) >> 16) || ',' || ((m - 4) & 2047) || ')' || __s"
        " WHEN __b IN (1042, 1043) AND m >= 4 THEN split_part(__v, '[', 1) || '(' || (m - 4) || ')' || __s"
        " ELSE __v END) FROM (SELECT oid AS __k, base AS __b, name AS __v, suffix AS __s FROM {c}.type_names) AS __x"
        " WHERE __k = o), '???') END",
    ),
    "pg_get_userbyid": (f"(o) AS coalesce({_looked_up('pg_roles', 'oid', 'rolname')}, 'unknown (OID=' || o || ')')",),
    "pg_table_is_visible": (f"(o) AS {_looked_up('relation_names', 'oid', 'visible')}",),
    "pg_get_expr": ("(a, b) AS CAST(a AS VARCHAR)", "(a, b, c) AS CAST(a AS VARCHAR)"),
    "pg_get_constraintdef": (f"(o) AS {_DEFINITION}", f"(o, p) AS {_DEFINITION}"),
    "pg_get_indexdef": (
        f"(o) AS {_DEFINITION}",
        f"(o, n, p) AS CASE WHEN n = 0 THEN {_DEFINITION} ELSE"
        f" {_looked_up('pg_attribute', '[attrelid, attnum]', 'attname', '{k} = [o, n]')} END",
    ),
    "obj_description": (f"(o, n) AS {_DESCRIPTION}", f"(o) AS {_DESCRIPTION}"),
    "col_description": (
        f"(o, n) AS {_looked_up('pg_description', '[objoid, objsubid]', 'description', '{k} = [o, n]')}",
    ),
    "shobj_description": ("(o, n) AS CAST(NULL AS VARCHAR)",),
    "pg_get_function_result": (f"(o) AS {_looked_up('function_names', 'oid', 'result')}",),
    **dict.fromkeys(("pg_get_function_arguments", "pg_get_function_identity_arguments"), (f"(o) AS {_ARGUMENTS}",)),
    "pg_encoding_to_char": ("(n) AS CASE n WHEN 6 THEN 'UTF8' WHEN 0 THEN 'SQL_ASCII' ELSE '' END",),
    "getdatabaseencoding": ("() AS 'UTF8'",),
    "pg_statistics_obj_is_visible": ("(o) AS true",),
    "pg_char_to_encoding": ("(n) AS CASE lower(n) WHEN 'utf8' THEN 6 WHEN 'sql_ascii' THEN 0 ELSE -1 END",),
    **dict.fromkeys(
        ("pg_get_viewdef", "pg_get_ruledef", "pg_get_triggerdef"),
        ("(o) AS CAST(NULL AS VARCHAR)", "(o, p) AS CAST(NULL AS VARCHAR)"),
    ),
    **dict.fromkeys(
        (
            "pg_get_functiondef",
            "pg_get_function_sqlbody",
            "pg_get_partkeydef",
            "pg_get_statisticsobjdef",
            "pg_get_statisticsobjdef_columns",
            "pg_get_partition_constraintdef",
            "pg_stat_get_numscans",
            "pg_get_replica_identity_index",
        ),
        ("(o) AS CAST(NULL AS VARCHAR)",),
    ),
    "pg_cancel_backend": ("(p) AS false",),
    "pg_terminate_backend": ("(p) AS false", "(p, ms) AS false"),
    "pg_tablespace_location": ("(o) AS ''",),
    "pg_get_serial_sequence": ("(a, b) AS CAST(NULL AS VARCHAR)",),
    "pg_relation_is_publishable": ("(o) AS false",),
    "pg_relation_is_updatable": ("(o, b) AS 0",),
    "pg_column_is_updatable": ("(o, n, b) AS false",),
    # casts
    "folded_name": (
        "(t) AS replace(CASE WHEN contains(CAST(t AS VARCHAR), '\"') THEN CAST(t AS VARCHAR)"
        " ELSE lower(CAST(t AS VARCHAR)) END, '\"', '')",
    ),
    "regclass_of": (
        "(o) AS coalesce(TRY_CAST(o AS UINTEGER), (SELECT any_value(__v) FROM (SELECT oid AS __v, full_name AS __f,"
        " CASE WHEN visible THEN short_name END AS __s FROM {c}.relation_names) AS __x"
        " WHERE folded_name(o) IN (__f, __s)))",
    ),
    "regclass_name": (f"(o) AS coalesce({_looked_up('relation_names', 'oid', 'name')}, CAST(o AS VARCHAR))",),
    "regtype_of": (
        "(o) AS coalesce(TRY_CAST(o AS UINTEGER), (SELECT any_value(__v) FROM (SELECT oid AS __v, name AS __f,"
        " short_name AS __s FROM {c}.type_names) AS __x WHERE __f = lower(CAST(o AS VARCHAR))"
        " OR __s = replace(lower(CAST(o AS VARCHAR)), 'pg_catalog.', '')))",
    ),
    "regtype_name": ("(o) AS CASE WHEN o = 0 THEN '-' ELSE format_type(o, CAST(NULL AS INTEGER)) END",),
    "regproc_of": (f"(o) AS {_looked_up('pg_proc', 'proname', 'oid', _PLAIN_NAME)}",),
    "regproc_name": (
        f"(o) AS coalesce({_looked_up('pg_proc', 'oid', 'proname')}, CASE WHEN o = 0 THEN '-' ELSE"
        " CAST(o AS VARCHAR) END)",
    ),
    **dict.fromkeys(("regoper_of", "regoperator_of"), (f"(o) AS {_looked_up('pg_operator', 'oprname', 'oid')}",)),
    "regoper_name": (f"(o) AS coalesce({_looked_up('pg_operator', 'oid', 'oprname')}, CAST(o AS VARCHAR))",),
    "regoperator_name": (
        f"(o) AS coalesce({_looked_up('pg_operator', 'oid', 'oprname')} || '(' ||"
        f" operand_name({_looked_up('pg_operator', 'oid', 'oprleft')}) || ',' ||"
        f" operand_name({_looked_up('pg_operator', 'oid', 'oprright')}) || ')', CAST(o AS VARCHAR))",
    ),
    "operand_name": ("(o) AS CASE WHEN o = 0 THEN 'NONE' ELSE format_type(o, CAST(NULL AS INTEGER)) END",),
    "regnamespace_of": (f"(o) AS {_looked_up('pg_namespace', 'nspname', 'oid')}",),
    "regnamespace_name": (f"(o) AS coalesce({_looked_up('pg_namespace', 'oid', 'nspname')}, CAST(o AS VARCHAR))",),
    "regrole_of": (f"(o) AS {_looked_up('pg_roles', 'rolname', 'oid')}",),
    "regrole_name": ("(o) AS pg_get_userbyid(o)",),
    "to_regclass": ("(t) AS regclass_of(t)",),
    "to_regtype": ("(t) AS regtype_of(t)",),
    "to_regnamespace": ("(t) AS regnamespace_of(t)",),
    "to_regproc": ("(t) AS regproc_of(t)",),
    "to_regrole": ("(t) AS regrole_of(t)",),
    # the session
    "version": ("() AS {version}",),
    "current_database": ("() AS {database}",),
    "current_catalog": ("() AS {database}",),
    **dict.fromkeys(("current_user", "session_user", "user", "current_role"), ("() AS {user}",)),
    "current_schema": ("() AS CAST({path}[1] AS VARCHAR)",),
    "current_schemas": ("(i) AS CASE WHEN i THEN list_concat(['pg_catalog'], {path}) ELSE {path} END",),
    "current_setting": (
        "(n) AS coalesce({settings}[lower(n)], error('unrecognized configuration parameter \"' || n || '\"'))",
        "(n, m) AS {settings}[lower(n)]",
    ),
    "set_config": ("(n, v, l) AS CAST(v AS VARCHAR)",),
    "pg_backend_pid": ("() AS CAST({backend} AS INTEGER)",),
    "pg_is_in_recovery": ("() AS false",),
    "pg_is_wal_replay_paused": ("() AS false",),
    "pg_my_temp_schema": ("() AS CAST(0 AS UINTEGER)",),
    "pg_is_other_temp_schema": ("(o) AS false",),
    "pg_advisory_unlock_all": ("() AS ''",),
    "txid_current": ("() AS CAST(1 AS BIGINT)",),
    "clock_timestamp": ("() AS now()",),
    "statement_timestamp": ("() AS now()",),
    **privileges.MACROS,
    **dict.fromkeys(
        (
            "pg_relation_size",
            "pg_total_relation_size",
            "pg_table_size",
            "pg_indexes_size",
            "pg_database_size",
            "pg_tablespace_size",
            "pg_relation_filenode",
        ),
        ("(o) AS CAST(NULL AS BIGINT)", "(o, f) AS CAST(NULL AS BIGINT)"),
    ),
    **value_macros.MACROS,
}
"""Parameters and body of each form of a macro, by name."""
_CALL = re.compile(r"\b([a-z_]+)\(")
_RELATION = re.compile(r"\{c\}\.(\w+)")


def calls_of(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """(the macros, the relations of pg_catalog) that calls of these functions need, with what the macros call."""
    macros: set[str] = set()
    relations: set[str] = set()
    left = [name for name in names if name in MACROS]
    while left:
        name = left.pop()
        if name in macros:
            continue
        macros.add(name)
        for form in MACROS[name]:
            relations.update(_RELATION.findall(form))
            left += [called for called in _CALL.findall(form) if called in MACROS and called != name]
    return frozenset(macros), frozenset(relations)


def _ordered(names: Iterable[str]) -> list[str]:
    """The macros in an order in which each follows the macros that it calls: DuckDB looks names up at once."""
    made: dict[str, None] = {}

    def make(name: str) -> None:
        for called in _CALL.findall(" ".join(MACROS[name])):
            if called in MACROS and called != name and called not in made:
                make(called)
        made[name] = None

    for name in sorted(names):
        make(name)
    return list(made)


def texts(names: Iterable[str], session: Session, version: str) -> tuple[str, ...]:
    """The statements that create these macros."""
    path = ", ".join(map(text_literal, session.search_path))
    rows = settings_rows.rows(session.variables, session.search_path)
    known = [text_literal(name.lower()) for name, _, _ in rows]
    values_of = [text_literal(value) for _, value, _ in rows]
    values = {
        "c": f'memory."{SCHEMA}"',
        "version": text_literal(version),
        "database": text_literal(session.database),
        "user": text_literal(session.user),
        "knows_rights": "false" if session.readers is None else "true",
        "path": f"CAST([{path}] AS VARCHAR[])",
        "backend": str(session.backend),
        "settings": f"map([{', '.join(known)}], [{', '.join(values_of)}])",
    }
    made = []
    for name in _ordered(names):
        forms = ", ".join(form.format(**values) for form in MACROS[name])
        made.append(f'CREATE MACRO memory.main."{name}"{forms}')
    return tuple(made)
