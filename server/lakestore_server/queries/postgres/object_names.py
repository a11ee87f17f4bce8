"""Casts to regclass, regtype and their kin: names of objects where PostgreSQL has oids.

- A constant name becomes its oid before the query runs. An unknown name is refused, as PostgreSQL does.
- An oid is shown as a name where rows leave the query, and stays a number where it is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakestore.errors import NotFound
from lakestore_server.queries.postgres.fixed_catalog import PG_CATALOG, fixed_rows, type_oids
from lakestore_server.queries.postgres.nodes import Node, call, cast, constant_text, number

if TYPE_CHECKING:
    from lakestore_server.queries.postgres.dialect import LazyCatalog

KINDS = frozenset(
    {"regclass", "regtype", "regproc", "regprocedure", "regoper", "regoperator", "regnamespace", "regrole"}
)
NUMBER_FUNCTIONS = ("pg_", "has_", "obj_description", "col_description", "format_type")
"""Beginnings of the names of functions that take oids."""
_NUMBERS = frozenset({"oid", "int4", "int8", "BIGINT", "INTEGER", "UINTEGER", "regproc"})
_TEXT_CALLS = frozenset({"||", "quote_ident", "concat", "concat_ws", "format", "printf", "lower", "replace"})


def kind_of(cast_type: Node | None) -> str | None:
    """The kind of object of a cast's type; None for other types."""
    if not cast_type or cast_type.get("id") != "UNBOUND":
        return None
    name = str(cast_type["type_info"]["name"]).lower()
    if name not in KINDS or cast_type["type_info"]["schema"] not in ("", PG_CATALOG):
        return None
    return "regproc" if name == "regprocedure" else name


def target_of(cast_type: Node) -> str:
    """`number` for a cast to an oid or integer, `text` for a cast to a text, otherwise empty."""
    name = cast_type["type_info"]["name"] if cast_type["id"] == "UNBOUND" else cast_type["id"]
    if name in _NUMBERS:
        return "number"
    return "text" if name in ("VARCHAR", "name") else ""


def oid_of(catalog: LazyCatalog, kind: str, node: Node) -> Node:
    """The oid that a cast gives."""
    child = node["child"]
    text = constant_text(child)
    if text is not None:
        return oid_constant(catalog, kind, text)
    if _is_text(child):
        return call(f"{kind}_of", child)
    inner = kind_of(child.get("cast_type")) if child.get("class") == "CAST" else None
    return oid_of(catalog, inner, child) if inner else child


def shown_name(catalog: LazyCatalog, kind: str, node: Node) -> Node:
    """The value that a cast shows: the oid of a constant name, because it is compared; otherwise a name."""
    alias = node["alias"]
    if constant_text(node["child"]) is not None or _is_text(node["child"]):
        return oid_of(catalog, kind, node) | {"alias": alias}
    return name_of(catalog, kind, node) | {"alias": alias}


def name_of(catalog: LazyCatalog, kind: str, node: Node) -> Node:
    """The name of the object that a cast gives."""
    return call(f"{kind}_name", oid_of(catalog, kind, node))


def _is_text(node: Node) -> bool:
    if node.get("class") == "PARAMETER":
        return True
    if node.get("class") == "CAST":
        return bool(target_of(node["cast_type"]) == "text")
    return node.get("class") == "FUNCTION" and node["function_name"] in _TEXT_CALLS


def oid_constant(catalog: LazyCatalog, kind: str, text: str) -> Node:
    """The oid of a name. Raises `NotFound`."""
    if text.isdecimal():
        return number(int(text))
    oid = _LOOK_UPS[kind](catalog, text)
    if oid is None:
        raise NotFound(f'there is no {_SAID[kind]} {text!r}: "{text}" does not exist')
    return cast(number(oid), "UINTEGER")


_SAID = {
    "regclass": "relation",
    "regtype": "type",
    "regproc": "function",
    "regoper": "operator",
    "regoperator": "operator",
    "regnamespace": "schema",
    "regrole": "role",
}


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a name, such as `shop."Order"`; a part without quotes becomes lowercase."""
    parts: list[str] = []
    rest = text.strip()
    while rest:
        if rest.startswith('"'):
            end = rest.find('"', 1)
            while rest[end : end + 2] == '""':
                end = rest.find('"', end + 2)
            part, rest = rest[1:end].replace('""', '"'), rest[end + 1 :]
        else:
            part, _, rest = rest.partition(".")
            part, rest = part.strip().lower(), f".{rest}" if rest else ""
        parts.append(part)
        rest = rest.strip().removeprefix(".")
    return tuple(parts)


def _relation(catalog: LazyCatalog, text: str) -> int | None:
    parts = split_name(text)
    rows = catalog.made.relation(PG_CATALOG, "relation_names").to_pylist()
    if len(parts) >= 2:
        full = ".".join(parts[-2:])
        return next((row["oid"] for row in rows if row["full_name"] == full), None)
    return next((row["oid"] for row in rows if row["visible"] and row["short_name"] == parts[-1]), None)


def _type(catalog: LazyCatalog, text: str) -> int | None:
    name = text.strip().removeprefix("pg_catalog.").strip('"')
    suffix = name.endswith("[]")
    base = name.removesuffix("[]").partition("(")[0].strip().lower()
    rows = catalog.made.relation(PG_CATALOG, "type_names").to_pylist()
    oid = type_oids().get(base) or type_oids().get(_WORDS.get(base, ""))
    oid = oid or next((row["oid"] for row in rows if row["name"] == base), None)
    if not suffix or oid is None:
        return oid
    return next((row["oid"] for row in rows if row["base"] == oid and row["suffix"]), None)


_WORDS = {
    "int": "int4",
    "float": "float8",
    "decimal": "numeric",
    "char": "bpchar",
    "timestamp": "timestamp",
    "time": "time",
    "string": "text",
}


def _function(_catalog: LazyCatalog, text: str) -> int | None:
    name = split_name(text.partition("(")[0])[-1]
    found: list[dict[str, Any]] = fixed_rows("pg_proc").select(["oid", "proname"]).to_pylist()
    return next((row["oid"] for row in found if row["proname"] == name), None)


def _operator(_catalog: LazyCatalog, text: str) -> int | None:
    name = text.partition("(")[0].strip().removeprefix("pg_catalog.")
    found: list[dict[str, Any]] = fixed_rows("pg_operator").select(["oid", "oprname"]).to_pylist()
    return next((row["oid"] for row in found if row["oprname"] == name), None)


def _schema(catalog: LazyCatalog, text: str) -> int | None:
    return catalog.made.schemas.get(split_name(text)[-1])


def _role(catalog: LazyCatalog, text: str) -> int | None:
    return catalog.made.roles.get(split_name(text)[-1])


_LOOK_UPS = {
    "regclass": _relation,
    "regtype": _type,
    "regproc": _function,
    "regoper": _operator,
    "regoperator": _operator,
    "regnamespace": _schema,
    "regrole": _role,
}
