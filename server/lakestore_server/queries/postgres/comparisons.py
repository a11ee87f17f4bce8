"""Comparisons with several values at once: `= ANY`, and rows such as `(a, b) = (1, 2)`.

DuckDB's `list_contains` and its comparison of structs answer false where PostgreSQL answers null, so `<> ALL` and
`NOT` would return rows that PostgreSQL does not return.
"""

from __future__ import annotations

from lakestore_server.queries.postgres import patterns
from lakestore_server.queries.postgres.nodes import NOWHERE, Node, call, cast, constant_text, false_condition, negation

_ROW = "row"
_EQUAL, _OTHER = "COMPARE_EQUAL", "COMPARE_NOTEQUAL"
_LISTS = {"COMPARE_IN": _EQUAL, "COMPARE_NOT_IN": _OTHER}
_LIKE_ANY = {"like_patterns": "like_any", "ilike_patterns": "ilike_any"}
_ORDERS = {
    "COMPARE_LESSTHAN": ("COMPARE_LESSTHAN", "COMPARE_LESSTHAN"),
    "COMPARE_LESSTHANOREQUALTO": ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"),
    "COMPARE_GREATERTHAN": ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHAN"),
    "COMPARE_GREATERTHANOREQUALTO": ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"),
}
"""(the comparison of a field that decides, the comparison of the last field) of each order of rows."""
_NULLS = frozenset({"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"})


def equals_any(child: Node, values: Node, alias: str) -> Node:
    """`child = ANY (values)`, or `child LIKE ANY (values)`."""
    if values.get("class") == "FUNCTION" and values["function_name"] in _LIKE_ANY:
        (inner,) = values["children"]
        text = constant_text(inner)
        made = inner if text is None else patterns.array_constant(text)
        return call(_LIKE_ANY[values["function_name"]], made, child, alias=alias)
    items = _items(values)
    if items:
        return _operator("COMPARE_IN", [child, *items], alias)
    text = constant_text(values)
    if text is not None and text.lstrip().startswith("{"):
        values = patterns.array_constant(text)
    contains = _operator("OPERATOR_COALESCE", [call("list_contains", values, child), false_condition()])
    unknown = call("any_is_unknown", values, child)
    return _joined("CONJUNCTION_OR", [contains, unknown]) | {"alias": alias}


def disjunction(terms: list[Node]) -> Node:
    """One of the terms holds."""
    return _joined("CONJUNCTION_OR", terms)


def negated_list(node: Node) -> Node:
    """NOT IN for IN."""
    return node | {"type": "COMPARE_NOT_IN"}


def of_rows(node: Node) -> Node | None:
    """A comparison of rows as one of their fields; None for another node."""
    kind = node["type"]
    if kind in (_EQUAL, _OTHER):
        made = _equal(node["left"], node["right"])
        is_negated = kind == _OTHER
    elif kind in _ORDERS:
        made, is_negated = _ordered(kind, node["left"], node["right"]), False
    elif kind in _LISTS:
        first, *others = node["children"]
        pairs = [_equal(first, other) for other in others]
        made = None if None in pairs else _joined("CONJUNCTION_OR", [pair for pair in pairs if pair is not None])
        is_negated = _LISTS[kind] == _OTHER
    elif kind in _NULLS and _is_row(node["children"][0]):
        fields = node["children"][0]["children"]
        made, is_negated = _joined("CONJUNCTION_AND", [_operator(kind, [each]) for each in fields]), False
    else:
        return None
    if made is None:
        return None
    made = made | {"alias": node["alias"]}
    return negation(made) if is_negated else made


def _ordered(kind: str, left: Node, right: Node) -> Node | None:
    """The order of two rows: `a < c OR (a = c AND b < d)`; None unless both are written as rows."""
    if _equal(left, right) is None:
        return None
    strict, last = _ORDERS[kind]
    pairs = list(zip(left["children"], right["children"], strict=True))
    made = _compared(last, *pairs.pop())
    for one, other in reversed(pairs):
        rest = _joined("CONJUNCTION_AND", [_compared(_EQUAL, one, other), made])
        made = _joined("CONJUNCTION_OR", [_compared(strict, one, other), rest])
    return made


def _compared(kind: str, left: Node, right: Node) -> Node:
    said = {"class": "COMPARISON", "type": kind, "alias": "", "query_location": NOWHERE}
    return said | {"left": left, "right": right}


def _equal(left: Node, right: Node) -> Node | None:
    """The equality of two rows; None unless both are written as rows of as many fields."""
    if not (_is_row(left) and _is_row(right) and len(left["children"]) == len(right["children"]) > 0):
        return None
    pairs = zip(left["children"], right["children"], strict=True)
    terms = [_compared(_EQUAL, one, other) for one, other in pairs]
    return _joined("CONJUNCTION_AND", terms)


def _is_row(node: Node) -> bool:
    return node.get("class") == "FUNCTION" and node["function_name"] == _ROW


def _items(values: Node) -> list[Node]:
    """The items of an array that is written out; empty for another value, and for an array without items."""
    if values.get("type") == "ARRAY_CONSTRUCTOR":
        return list(values["children"])
    kind = None
    if values.get("class") == "CAST" and values["cast_type"]["id"] == "LIST":
        kind, values = values["cast_type"]["type_info"]["child_type"], values["child"]
    text = constant_text(values)
    if text is None or not text.lstrip().startswith("{"):
        return []
    items: list[Node] = patterns.array_constant(text)["child"]["children"]
    return items if kind is None else [cast(each, "") | {"cast_type": kind} for each in items]


def _operator(kind: str, children: list[Node], alias: str = "") -> Node:
    return {"class": "OPERATOR", "type": kind, "alias": alias, "query_location": NOWHERE, "children": children}


def _joined(kind: str, terms: list[Node]) -> Node:
    if len(terms) == 1:
        return terms[0]
    return {"class": "CONJUNCTION", "type": kind, "alias": "", "query_location": NOWHERE, "children": terms}
