"""Operators, casts and calls whose meaning depends on the kinds of their values: see `kinds`.

- A rule gets a node and returns the node that takes its place, or None if the node stays.
- Where no kind is known, a macro asks DuckDB's `typeof`, which DuckDB computes before the query runs.
- What DuckDB cannot answer as PostgreSQL does is refused with SQLSTATE 0A000.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lakestore.errors import Invalid
from lakestore_server.queries.postgres import json_operators, patterns, time_texts
from lakestore_server.queries.postgres.kinds import FLOATS, INTEGERS, TIMES, Kinds
from lakestore_server.queries.postgres.nodes import Node, call, cast, constant, constant_text, decimal_type, number

Rule = Callable[["Operators", Node], "Node | None"]
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_PLAIN_TEXTS = INTEGERS | TIMES | {"text", "numeric", "unknown", "uuid"}
"""Kinds whose text is the same in DuckDB."""
_ELEMENTS = {
    "bool": "BOOLEAN",
    "date": "DATE",
    "float8": "DOUBLE",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "text": "VARCHAR",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
}
"""Types of the items of an array that is written as a text."""
_NAMES = {"int2": "smallint", "int4": "integer", "int8": "bigint", "float8": "double precision", "bool": "boolean"}
_TARGETS = {"SMALLINT": "int2", "INTEGER": "int4", "BIGINT": "int8"}
_SCALES = {"second": 6, "epoch": 6, "millisecond": 3, "milliseconds": 3, "seconds_of": 6, "milliseconds_of": 3}
"""Digits behind the point of parts of a time; other parts have none."""


def refused(what: str, instead: str) -> Invalid:
    """The error for a text that DuckDB cannot answer as PostgreSQL does."""
    return Invalid(f"the query failed: {what} is not supported by the Postgres port: {instead}")


def syntax(kind: str, text: str) -> Invalid:
    """The error for a constant that is no value of a type."""
    return Invalid(f'the query failed: invalid input syntax for type {_NAMES.get(kind, kind)}: "{text}"')


class Operators:
    """The rules for one tree."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._done: set[int] = set()
        """Ids of nodes that have their final form."""

    def function(self, node: Node) -> Node | None:
        """The form of a call or a window function."""
        rule = _FUNCTIONS.get(node["function_name"])
        return rule(self, node) if rule and id(node) not in self._done else None

    def _final(self, node: Node) -> Node:
        self._done.add(id(node))
        return node

    def divide(self, node: Node) -> Node | None:
        """Division by zero is an error; DuckDB answers null."""
        if len(node["children"]) != 2:
            return None
        left, right = node["children"]
        if node["function_name"] == "/" and self._kinds.of(left) == "interval":
            factor = call("/", cast(number(1), "DOUBLE"), right, is_operator=True)
            return node | {"function_name": "*", "children": [left, factor]}
        if _is_divisor(right):
            return None
        return node | {"children": [left, call("divisor", right)]}

    def total(self, node: Node) -> Node | None:
        """A sum of int8 is numeric, which `/` does not cut to an integer; a sum of int4 is int8."""
        if len(node["children"]) != 1:
            return None
        (child,) = node["children"]
        kind = self._kinds.of(child)
        alias = node["alias"]
        if kind in ("int2", "int4"):
            return cast(self._final(node | {"alias": ""}), "BIGINT", alias)
        if kind in FLOATS or kind == "numeric":
            return None
        wide = cast(child, "") | {"cast_type": decimal_type(19, 0)} if kind == "int8" else call("wide", child)
        return self._final(node | {"children": [wide]})

    def joined(self, node: Node) -> Node | None:
        """`||` of texts, arrays and JSON."""
        kinds = [self._kinds.of(child) for child in node["children"]]
        if len(kinds) != 2:
            return None
        if "jsonb" in kinds and "text" not in kinds:
            raise refused("|| of JSON values", "ask for the values by -> and join them in the client")
        if any(kind.endswith("[]") for kind in kinds):
            return self._joined_lists(node, kinds)
        if not FLOATS.isdisjoint(kinds):
            return self._with_texts(node)
        return None

    def _with_texts(self, node: Node) -> Node:
        kinds = map(self._kinds.of, node["children"])
        pairs = zip(node["children"], kinds, strict=True)
        return node | {"children": [self._text(child, kind) if kind in FLOATS else child for child, kind in pairs]}

    def _text(self, child: Node, kind: str) -> Node:
        """A value as PostgreSQL writes it."""
        if kind in FLOATS:
            written = self._final(cast(child, "VARCHAR"))
            return call("float_text", written, number(16 if kind == "float8" else 7))
        if kind == "bytea":
            return call("||", constant("\\x"), call("lower", call("hex", child)), is_operator=True)
        if kind == "jsonb":
            return call("json_text", self._final(cast(call("to_json", child), "VARCHAR")))
        return call("text_of", child)

    def _joined_lists(self, node: Node, kinds: list[str]) -> Node | None:
        left, right = node["children"]
        alias = node["alias"]
        if kinds[0].endswith("[]") and kinds[1].endswith("[]"):
            return call("list_concat", left, right, alias=alias)
        is_right = kinds[0].endswith("[]")
        values, other, kind = (left, right, kinds[1]) if is_right else (right, left, kinds[0])
        if kind == "unknown":
            if constant_text(other) is None:
                kept: Node = values | {"alias": alias}
                return kept
            made = self._array(other, kinds[0] if is_right else kinds[1])
            return call("list_concat", *((values, made) if is_right else (made, values)), alias=alias)
        if not kind:
            return None
        return call("appended" if is_right else "prepended", left, right, alias=alias)

    def _array(self, node: Node, kind: str) -> Node:
        """A constant such as '{a,b}' as an array of this kind."""
        text = constant_text(node) or ""
        element = _ELEMENTS.get(kind.removesuffix("[]"))
        if element is None:
            raise refused(f"the array {text!r} as {kind}", "write ARRAY[…]")
        made = patterns.array_constant(text)
        kind_of_items = made["cast_type"] | {"type_info": _list_of(made, element)}
        return cast(made["child"], "LIST") | {"cast_type": kind_of_items}

    def arrays(self, values: list[Node]) -> bool:
        """Make arrays of the constants that are compared with an array, in place; whether there are any."""
        if not any((constant_text(each) or "").lstrip().startswith("{") for each in values):
            return False
        kind = next((kind for each in values if (kind := self._kinds.of(each)).endswith("[]")), "")
        for place, value in enumerate(values):
            if kind and constant_text(value) is not None:
                values[place] = self._array(value, kind)
        return bool(kind)

    def contains(self, node: Node) -> Node | None:
        values = list(node["children"])
        if len(values) == 2 and "jsonb" in map(self._kinds.of, values):
            outer, inner = values if node["function_name"] == "@>" else reversed(values)
            text = constant_text(inner["child"] if inner.get("class") == "CAST" else inner)
            if text is None or node["function_name"] == "&&":
                raise refused(f"{node['function_name']} of two JSON values", "compare with a constant")
            return json_operators.contains(outer, text) | {"alias": node["alias"]}
        return node | {"children": values} if self.arrays(values) else None

    def concat(self, node: Node) -> Node | None:
        made = [
            child if kind in _PLAIN_TEXTS else self._text(child, kind) if kind in FLOATS else call("shown_text", child)
            for child, kind in ((child, self._kinds.of(child)) for child in node["children"])
        ]
        return node | {"children": made} if made != node["children"] else None

    def date_part(self, node: Node) -> Node | None:
        """`extract` is numeric and `date_part` float8, which `/` does not cut to an integer."""
        if len(node["children"]) != 2:
            return None
        field = (constant_text(node["children"][0]) or "").lower()
        made = patterns.rewritten("date_part", node) or node
        plain = self._final(made | {"alias": "", "schema": ""})
        if not node["schema"]:
            return cast(plain, "DOUBLE", node["alias"])
        return cast(plain, "", node["alias"]) | {
            "cast_type": decimal_type(38, _SCALES.get(field.rstrip("s"), _SCALES.get(field, 0)))
        }

    def date_trunc(self, node: Node) -> Node | None:
        """A date is cut as a time with a zone."""
        if len(node["children"]) == 3:
            part, moment, zone = node["children"]
            local = call("date_trunc", part, call("timezone", zone, moment))
            return call("timezone", zone, local, alias=node["alias"])
        if len(node["children"]) != 2 or self._kinds.of(node["children"][1]) != "date":
            return None
        return cast(self._final(node | {"alias": ""}), "TIMESTAMP WITH TIME ZONE", node["alias"])

    def rounded(self, node: Node) -> Node | None:
        """A float is rounded to the even neighbour."""
        if len(node["children"]) != 1 or self._kinds.of(node["children"][0]) not in FLOATS:
            return None
        return node | {"function_name": "round_even", "children": [node["children"][0], number(0)]}

    def length(self, node: Node) -> Node | None:
        """The length of bytes, and the length in bytes of a text."""
        if len(node["children"]) != 1:
            return None
        is_bytes = self._kinds.of(node["children"][0]) == "bytea"
        if node["function_name"] == "length":
            return node | {"function_name": "octet_length"} if is_bytes else None
        return None if is_bytes else node | {"function_name": "strlen"}

    def json_field(self, node: Node) -> Node | None:
        """A key of JSON that DuckDB would read as a path."""
        text = constant_text(node["children"][1]) if len(node["children"]) == 2 else None
        if text is None or not (text == "" or text[0] in "$/") or id(node) in self._done:
            return None
        return self._final(node | {"children": [node["children"][0], constant(patterns.json_key(text))]})

    # casts

    def cast(self, node: Node) -> Node | None:
        """The form of a cast; its type is one of DuckDB."""
        target, child = node["cast_type"]["id"], node["child"]
        if node["try_cast"] or id(node) in self._done:
            return None
        text, kind = constant_text(child), self._kinds.of(child) if target in _CASTS else ""
        if target == "VARCHAR":
            if child.get("class") in ("CONSTANT", "PARAMETER") or kind in _PLAIN_TEXTS | {"bool"}:
                return None
            return self._text(child, kind) | {"alias": node["alias"]}
        if target in _TARGETS:
            return self._whole(node, text, kind)
        if target == "BOOLEAN":
            return self._truth(node, text, kind)
        if target == "DECIMAL":
            return self._numeric(node, text, kind)
        if target == "TIME" and kind == "timestamptz":
            return node | {"child": cast(child, "TIMESTAMP")}
        made = time_texts.value(text, target) if text is not None and target in time_texts.TARGETS else None
        return None if made is None else made | {"alias": node["alias"]}

    def _whole(self, node: Node, text: str | None, kind: str) -> Node | None:
        child = node["child"]
        if text is not None:
            if not _INTEGER.fullmatch(text):
                raise syntax(_TARGETS[node["cast_type"]["id"]], text)
            return None
        if kind not in ("", "text") or child.get("class") in ("PARAMETER", "CONSTANT") or _is_call(child, "whole"):
            return None
        return node | {"child": call("whole", child)}

    def _truth(self, node: Node, text: str | None, kind: str) -> Node | None:
        if text is not None:
            return None if text in ("t", "f", "true", "false") else node | {"child": constant(truth(text))}
        if kind in ("numeric", *FLOATS):
            raise Invalid(f"the query failed: cannot cast type {kind} to boolean")
        return (
            node | {"child": call("truth_text", node["child"])}
            if kind == "text" and not _is_call(node["child"], "truth_text")
            else None
        )

    def _numeric(self, node: Node, text: str | None, kind: str) -> Node | None:
        """`numeric` without digits keeps the digits of its value, where they are known."""
        child = node["child"]
        if node["cast_type"] != decimal_type(38, 10):
            return None
        if text is not None:
            match = _NUMBER.fullmatch(text)
            if match is None:
                raise syntax("numeric", text)
            return None if match[2] else node | {"cast_type": decimal_type(38, len(match[1].partition(".")[2]))}
        if kind == "numeric":
            kept: Node = child | {"alias": node["alias"]}
            return kept
        return node | {"cast_type": decimal_type(38, 0)} if kind in INTEGERS else None

    # comparisons

    def constants(self, values: list[Node]) -> bool:
        """Read constants as PostgreSQL does where they are compared with another kind, in place; whether any changed.

        Raises `Invalid` for a constant that is no value of that kind; DuckDB would round it.
        """
        odd = [text for each in values if (text := constant_text(each)) is not None and not _PLAIN.fullmatch(text)]
        if not odd:
            return False
        if self.arrays(values):
            return True
        kinds = [self._kinds.of(each) for each in values]
        kind = next((each for each in kinds if each in INTEGERS | TIMES | {"bool"}), "")
        if "jsonb" in kinds:
            raise refused("a comparison of JSON values", "compare a field by ->>")
        changed = False
        for place, value in enumerate(values):
            text = constant_text(value)
            if text is None or not kind:
                continue
            if kind in INTEGERS and not _INTEGER.fullmatch(text):
                raise syntax(kind, text)
            made = constant(truth(text)) if kind == "bool" else time_texts.value(text, _TIME_TARGETS.get(kind, ""))
            if made is not None:
                values[place] = made | {"alias": value["alias"]}
                changed = True
        return changed

    def kind(self, node: Node) -> str:
        """The kind of an expression; empty if it is not known."""
        return self._kinds.of(node)

    def element(self, node: Node) -> Node | None:
        """An item of an array: places before the first item are null. A field of JSON by a subscript."""
        outer, place = node["children"]
        if self._kinds.of(outer) == "jsonb":
            key = constant_text(place)
            step = place if key is None else constant(patterns.json_key(key))
            return call("json_extract", outer, step, alias=node["alias"])
        if place.get("class") == "CONSTANT":
            value = place["value"].get("value")
            is_before = isinstance(value, int) and value < 1
            return node | {"children": [outer, cast(constant(None), "BIGINT")]} if is_before else None
        if _is_call(place, "item_place") or not self._kinds.of(outer).endswith("[]"):
            return None
        return node | {"children": [outer, call("item_place", place)]}


_PLAIN = re.compile(r"\d+|\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?)?")
"""Constants that DuckDB reads as PostgreSQL does, whatever they are compared with."""
_CASTS = frozenset({"VARCHAR", "BOOLEAN", "DECIMAL", "TIME", *_TARGETS})
_TIME_TARGETS = {"date": "DATE", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP WITH TIME ZONE"}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def truth(text: str) -> str:
    """The text of a boolean that DuckDB reads. Raises `Invalid`."""
    word = text.strip().lower()
    if word and word != "o":
        for words, value in ((_TRUE, "true"), (_FALSE, "false")):
            if any(each.startswith(word) for each in words):
                return value
    raise syntax("bool", text)


def _is_divisor(node: Node) -> bool:
    """Whether a divisor is checked, or a constant other than zero."""
    if node.get("class") == "CAST":
        return _is_divisor(node["child"])
    if node.get("class") == "CONSTANT":
        value = node["value"].get("value")
        return value is None or (isinstance(value, int | float) and value != 0)
    return _is_call(node, "divisor")


def _is_call(node: Node, name: str) -> bool:
    return node.get("class") == "FUNCTION" and node["function_name"] == name


def _list_of(made: Node, element: str) -> Node:
    info: Node = made["cast_type"]["type_info"]
    return info | {"child_type": {"id": element, "type_info": None}}


_FUNCTIONS: dict[str, Rule] = {
    "/": Operators.divide,
    "%": Operators.divide,
    "mod": Operators.divide,
    "sum": Operators.total,
    "||": Operators.joined,
    "@>": Operators.contains,
    "<@": Operators.contains,
    "&&": Operators.contains,
    "concat": Operators.concat,
    "concat_ws": Operators.concat,
    "date_part": Operators.date_part,
    "date_trunc": Operators.date_trunc,
    "round": Operators.rounded,
    "length": Operators.length,
    "octet_length": Operators.length,
    "->": Operators.json_field,
    "->>": Operators.json_field,
}
