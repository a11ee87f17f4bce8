"""The fixed part of a PostgreSQL catalog: relations of pg_catalog and information_schema, types, functions.

`python -m tests.support.postgres_catalog` writes `queries/postgres/postgres15.json` from a PostgreSQL 15 server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lakestore.union import sql_functions
from tests.support.postgres import Postgres

FILE = Path(__file__).parents[2] / "server/lakestore_server/queries/postgres/postgres15.json"
COLUMNS = """
SELECT n.nspname AS schema, c.relname AS name, c.oid::int8 AS oid, c.relkind AS kind,
    json_agg(json_build_array(a.attname, t.typname) ORDER BY a.attnum) AS columns,
    coalesce(json_agg(a.attname ORDER BY a.attnum) FILTER (WHERE a.attnotnull), '[]') AS required
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname IN ('pg_catalog', 'information_schema') AND c.relkind IN ('r', 'v') AND a.attnum > 0
    AND NOT (n.nspname = 'information_schema' AND c.relname ~ '^_pg_')
GROUP BY 1, 2, 3, 4 ORDER BY 1 DESC, 2
"""
_ROWS = {
    "pg_type": "typrelid = 0 AND (typelem = 0 OR typelem IN (SELECT oid FROM pg_type WHERE typrelid = 0))"
    " AND typnamespace = 11 AND typtype IN ('b', 'p', 'r', 'm')",
    "pg_range": "true",
    "pg_am": "true",
    "pg_language": "lanname IN ('internal', 'sql')",
    "pg_collation": "collname IN ('default', 'C', 'POSIX')",
    "pg_opclass": "opcmethod = 403 AND opcdefault",
    "pg_proc": "pronamespace = 11 AND (proname = ANY ({names}) OR oid IN (SELECT unnest(ARRAY[typinput, typoutput,"
    " typreceive, typsend, typmodin, typmodout, typanalyze]) FROM pg_type WHERE typrelid = 0 AND typnamespace = 11))",
}
"""Condition of the rows that are kept of each table."""
_STANDARD_ROWS = (
    "collation_character_set_applicability",
    "collations",
    "domain_constraints",
    "domains",
    "sql_features",
    "sql_implementation_info",
    "sql_sizing",
)
"""Views of information_schema whose rows are the same for everybody but for the name of the database."""
_LEFT_OUT = frozenset({"pg_node_tree", "_aclitem"})
_OWN = (
    "format_type pg_get_userbyid pg_table_is_visible pg_get_expr pg_get_constraintdef pg_get_indexdef pg_get_viewdef"
    " obj_description col_description shobj_description pg_encoding_to_char current_schema current_schemas"
    " current_database version pg_is_in_recovery pg_relation_size pg_total_relation_size pg_table_size"
    " pg_backend_pid quote_ident quote_literal to_char to_date to_regclass to_regtype set_config current_setting"
)


def _selected(name: str, kind: str) -> str:
    if kind in ("oidvector", "int2vector"):
        return f"string_to_array({name}::text, ' ')::int8[] AS {name}"
    if kind == "_oid":
        return f"{name}::int8[] AS {name}"
    return f"{name}::int8 AS {name}" if kind in ("oid", "regproc") else name


def _bare(column: str, value: Any) -> Any:
    """A value without the name of the database, for which an empty text stands."""
    return "" if column.endswith("_catalog") and value is not None else value


def fixed_catalog(postgres: Postgres) -> dict[str, Any]:
    """The relations and rows of a server."""
    relations = postgres.rows(COLUMNS)
    names = sorted({*sql_functions.FUNCTIONS, *_OWN.split()})
    quoted = "ARRAY[" + ", ".join(f"'{name}'" for name in names if name.replace("_", "").isalnum()) + "]::name[]"
    rows: dict[str, Any] = {}
    for table, condition in _ROWS.items():
        columns = next(each["columns"] for each in relations if each["name"] == table)
        kept = [(name, kind) for name, kind in columns if kind not in _LEFT_OUT]
        select = ", ".join(_selected(name, kind) for name, kind in kept)
        text = f"SELECT {select} FROM pg_catalog.{table} WHERE {condition.format(names=quoted)} ORDER BY 1"
        read = postgres.rows(text.replace("\n", " "))
        rows[table] = {"columns": [name for name, _ in kept], "rows": [list(row.values()) for row in read]}
    for view in _STANDARD_ROWS:
        told = postgres.rows(f"SELECT * FROM information_schema.{view}")
        kept_rows = [row for row in told if row.get("collation_name") in (None, "default", "C", "POSIX", "ucs_basic")]
        names_of = [name for name in told[0] if any(row[name] is not None for row in told)]
        rows[view] = {"columns": names_of, "rows": [[_bare(name, row[name]) for name in names_of] for row in kept_rows]}
    words = postgres.rows("SELECT word, catcode, barelabel::text, catdesc, baredesc FROM pg_get_keywords() ORDER BY 1")
    rows["pg_get_keywords"] = {"columns": list(words[0]), "rows": [list(row.values()) for row in words]}
    return {"relations": relations, "rows": rows}


def text_of(catalog: dict[str, Any]) -> str:
    """The catalog as the text of the file: one line for each relation and row."""
    lines = ['{"relations": [', ",\n".join(json.dumps(each) for each in catalog["relations"]), '],\n"rows": {']
    tables = []
    for name, table in catalog["rows"].items():
        inside = ",\n".join(json.dumps(row) for row in table["rows"])
        tables.append(f'"{name}": {{"columns": {json.dumps(table["columns"])}, "rows": [\n{inside}]}}')
    return "\n".join([*lines, ",\n".join(tables), "}}"]) + "\n"


if __name__ == "__main__":
    with Postgres() as server:
        FILE.write_text(text_of(fixed_catalog(server)))
