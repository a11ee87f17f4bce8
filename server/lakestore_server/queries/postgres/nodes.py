"""Nodes of DuckDB's tree of a query."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]
NOWHERE = 18_446_744_073_709_551_615
"""The place of a node that no text has."""
_SCALARS = {
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "oid": "UINTEGER",
    "xid": "UINTEGER",
    "cid": "UINTEGER",
    "regproc": "UINTEGER",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "bool": "BOOLEAN",
    "bytea": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timetz": "TIME WITH TIME ZONE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "uuid": "UUID",
    **dict.fromkeys(("bpchar", "char", "citext", "cstring", "name", "text", "unknown", "varchar", "xml"), "VARCHAR"),
}
"""DuckDB's types by the names of PostgreSQL that DuckDB does not know, or not with a schema before them."""
_VECTORS = {"int2vector": "SMALLINT", "oidvector": "UINTEGER"}


def call(name: str, *children: Node, alias: str = "", is_operator: bool = False) -> Node:
    """A call of a function."""
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": alias,
        "query_location": NOWHERE,
        "function_name": name,
        "schema": "",
        "children": list(children),
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": is_operator,
        "export_state": False,
        "catalog": "",
    }


def _value(kind: str, value: Any) -> Node:
    said = {"type": {"id": kind, "type_info": None}, "is_null": value is None}
    if value is not None:
        said["value"] = value
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": NOWHERE, "value": said}


def constant(text: str | None) -> Node:
    """A text, or NULL."""
    return _value("VARCHAR", text) if text is not None else _value("NULL", None)


def number(value: int) -> Node:
    """An integer constant."""
    return _value("INTEGER" if -(1 << 31) <= value < 1 << 31 else "BIGINT", value)


def cast(child: Node, kind: str, alias: str = "") -> Node:
    """A cast to a type of DuckDB."""
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": alias,
        "query_location": NOWHERE,
        "child": child,
        "cast_type": {"id": kind, "type_info": None},
        "try_cast": False,
    }


def decimal_type(width: int, scale: int) -> Node:
    """The type of a cast to a decimal."""
    info = {"type": "DECIMAL_TYPE_INFO", "alias": "", "extension_info": None, "width": width, "scale": scale}
    return {"id": "DECIMAL", "type_info": info}


def conjunction(terms: list[Node]) -> Node:
    """All of the terms."""
    if len(terms) == 1:
        return terms[0]
    return {
        "class": "CONJUNCTION",
        "type": "CONJUNCTION_AND",
        "alias": "",
        "query_location": NOWHERE,
        "children": terms,
    }


def negation(child: Node) -> Node:
    """NOT child, under the child's alias."""
    alias, inner = child["alias"], child | {"alias": ""}
    return {
        "class": "OPERATOR",
        "type": "OPERATOR_NOT",
        "alias": alias,
        "query_location": NOWHERE,
        "children": [inner],
    }


def subquery(items: list[Node], alias: str) -> Node:
    """A table of one row, or of as many as its items return."""
    nothing = {"type": "EMPTY", "alias": "", "sample": None, "query_location": NOWHERE}
    select: Node = {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": items,
        "from_table": nothing,
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }
    table = {"type": "SUBQUERY", "alias": alias, "sample": None, "query_location": NOWHERE}
    return table | {"subquery": {"node": select, "named_param_map": []}, "column_name_alias": [alias]}


def true_condition() -> Node:
    """A condition that always holds."""
    return cast(constant("t"), "BOOLEAN")


def false_condition() -> Node:
    """A condition that never holds."""
    return cast(constant("f"), "BOOLEAN")


def constant_text(node: Node) -> str | None:
    """The text of a constant; None for other nodes."""
    if node.get("class") != "CONSTANT" or node["value"]["is_null"]:
        return None
    value = node["value"]
    return str(value["value"]) if value["type"]["id"] == "VARCHAR" else None


def scalar_type(kind: Node) -> Node:
    """A type of a cast, with DuckDB's name for a name of PostgreSQL."""
    if kind["id"] == "LIST":
        inner = kind["type_info"]["child_type"]
        made = scalar_type(inner)
        return kind if made == inner else kind | {"type_info": kind["type_info"] | {"child_type": made}}
    if kind["id"] != "UNBOUND":
        return kind
    name, schema = str(kind["type_info"]["name"]).lower(), kind["type_info"]["schema"]
    if schema not in ("", "pg_catalog"):
        return kind
    if name in _SCALARS:
        return {"id": _SCALARS[name], "type_info": None}
    if name in _VECTORS:
        info = {"type": "LIST_TYPE_INFO", "alias": "", "extension_info": None}
        return {"id": "LIST", "type_info": info | {"child_type": {"id": _VECTORS[name], "type_info": None}}}
    plain = "json" if name == "jsonb" else name
    return kind | {"type_info": kind["type_info"] | {"name": plain, "schema": ""}}
