"""Names of columns of a result, and of types, as PostgreSQL gives them."""

from __future__ import annotations

from typing import Any

from lakestore.release import RELEASE
from lakestore_server.queries.postgres.settings_rows import SERVER_VERSION

VERSION = f"PostgreSQL {SERVER_VERSION.partition(' ')[0]} (Lakestore {RELEASE}, read-only)"
"""The answer of `version()`. Clients read the number behind the first word."""
OID = "UINTEGER"
"""DuckDB's type for an oid: no other type of PostgreSQL has its values."""
_TYPES = {
    "BIGINT": "int8",
    "BLOB": "bytea",
    "BOOLEAN": "bool",
    "DECIMAL": "numeric",
    "DOUBLE": "float8",
    "FLOAT": "float4",
    "HUGEINT": "numeric",
    "INTEGER": "int4",
    "SMALLINT": "int2",
    **dict.fromkeys(("TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP_S"), "timestamp"),
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TIME WITH TIME ZONE": "timetz",
    "TINYINT": "int2",
    OID: "oid",
    "VARCHAR": "text",
}
"""Names in pg_type of DuckDB's types; other names are lowercased."""
_FUNCTIONS = {
    **dict.fromkeys(("to_days", "to_hours", "to_minutes", "to_months", "to_seconds", "to_years"), "interval"),
    "count_star": "count",
    "list_value": "array",
    "quantile_cont": "percentile_cont",
    "quantile_disc": "percentile_disc",
    "struct_pack": "row",
    "trim": "btrim",
}
"""Names of functions that DuckDB's parser writes in place of PostgreSQL's."""
_SPELLED_OPERATORS = frozenset(
    {"regexp_full_match", "like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape"}
)
"""Functions that DuckDB's parser writes for operators."""
_OPERATORS = {"OPERATOR_COALESCE": "coalesce", "ARRAY_CONSTRUCTOR": "array", "GROUPING_FUNCTION": "grouping"}
NO_NAME = "?column?"


def column_name(node: dict[str, Any]) -> str:
    """The name of a result's column whose expression has no alias."""
    return _named(node)[0] or NO_NAME


def _named(node: dict[str, Any]) -> tuple[str, bool]:
    """(the name, whether it is stronger than the name of a cast's type)."""
    kind = node.get("class")
    if kind == "COLUMN_REF":
        return str(node["column_names"][-1]), True
    if kind == "CAST":
        name, strong = _named(node["child"])
        return (name, True) if strong else (type_name(node["cast_type"]), False)
    if kind == "COLLATE":
        return _named(node["child"])
    if kind == "CASE":
        name, strong = _named(node["else_expr"])
        return (name, True) if strong else ("case", False)
    if kind in ("FUNCTION", "WINDOW"):
        return _function_name(node)
    if kind == "SUBQUERY":
        return _subquery_name(node)
    if node.get("type") in ("ARRAY_EXTRACT", "ARRAY_SLICE"):
        return _named(node["children"][0])
    if node.get("type") == "STRUCT_EXTRACT":
        return str(node["children"][1].get("value", {}).get("value", "")), True
    name = _OPERATORS.get(str(node.get("type")), "")
    return name, bool(name)


def _function_name(node: dict[str, Any]) -> tuple[str, bool]:
    name = str(node["function_name"])
    if node.get("is_operator") or name in _SPELLED_OPERATORS:
        return "", False
    if name == "date_part":
        return "extract" if node["schema"] else name, True
    return _FUNCTIONS.get(name, name), True


def _subquery_name(node: dict[str, Any]) -> tuple[str, bool]:
    if node["subquery_type"] == "EXISTS":
        return "exists", True
    inner = node["subquery"]["node"]
    if node["subquery_type"] != "SCALAR" or inner.get("type") != "SELECT_NODE":
        return "", False
    first = inner["select_list"][0]
    if first.get("class") == "CASE" and _has_place(first["else_expr"]):
        return "array", True
    return (first["alias"], True) if first.get("alias") else _named(first)


def _has_place(node: dict[str, Any]) -> bool:
    """Whether a call is the one that DuckDB's parser writes for `ARRAY (SELECT …)`."""
    return any(each.get("class") == "POSITIONAL_REFERENCE" for each in node.get("children", ()))


def type_name(kind: dict[str, Any]) -> str:
    """The name in pg_type of a type in DuckDB's tree."""
    if kind["id"] in ("LIST", "ARRAY"):
        return type_name(kind["type_info"]["child_type"])
    if kind["id"] == "UNBOUND":
        return str(kind["type_info"]["name"]).lower()
    return _TYPES.get(kind["id"], str(kind["id"]).lower())
