"""Operators, casts and calls whose meaning depends on the kinds of their values: see `kinds`.

- A rule gets a node and returns the node that takes its place, or None if the node stays.
- Where no kind is known, a macro asks DuckDB's `typeof`, which DuckDB computes before the query runs.
- What DuckDB cannot answer as PostgreSQL does is refused with SQLSTATE 0A000.
"""

from __future__ import annotations

import re
import struct
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
_NAMES = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bool": "boolean",
}
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
        wide = self.arithmetic(node)
        if wide is not None:
            return wide
        if node["function_name"] == "/" and self._kinds.of(left) == "interval":
            factor = call("/", cast(number(1), "DOUBLE"), right, is_operator=True)
            return node | {"function_name": "*", "children": [left, factor]}
        if _is_divisor(right):
            return None
        return node | {"children": [left, call("divisor", right)]}

    def arithmetic(self, node: Node) -> Node | None:
        """A float4 with another number is a float8; the gap of two times is an interval."""
        children = node["children"]
        kinds = [self._kinds.of(child) for child in children]
        if kinds == ["time", "time"] and node["function_name"] == "-":
            return call("time_gap", *children, alias=node["alias"])
        pairs = list(zip(children, kinds, strict=True))
        if "unknown" in kinds and len(kinds) == 2:
            target = _ELEMENTS.get(next((kind for kind in kinds if kind in _OTHER_NUMBERS), ""))
            if target is None:
                return None
            made = [cast(child, target) if constant_text(child) is not None else child for child in children]
            return node | {"children": made} if made != children else None
        if len(kinds) != 2 or kinds.count("float4") != 1 or not set(kinds) <= _WIDENING:
            return None
        return node | {"children": [cast(child, "DOUBLE") if kind == "float4" else child for child, kind in pairs]}

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
        is_changed = self.arrays(values)
        if node["function_name"] != "&&" and any(self._kinds.of(each).endswith("[]") for each in values):
            outer, inner = values if node["function_name"] == "@>" else reversed(values)
            return call("contains_items", outer, inner, alias=node["alias"])
        return node | {"children": values} if is_changed else None

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
        """A float is rounded to the even neighbour; a numeric gets as many digits as it is rounded to."""
        child, *places = node["children"]
        if not places:
            is_float = self._kinds.of(child) in FLOATS
            return node | {"function_name": "round_even", "children": [child, number(0)]} if is_float else None
        digits = places[0]["value"].get("value") if places[0].get("class") == "CONSTANT" else None
        if not isinstance(digits, int) or not 0 <= digits <= _DIGITS_MAX or not self._is_numeric(child):
            return None
        plain = self._final(node | {"alias": ""})
        return cast(plain, "", node["alias"]) | {"cast_type": decimal_type(38, digits)}

    def _is_numeric(self, node: Node) -> bool:
        """Whether a value is numeric in PostgreSQL."""
        if _is_call(node, "avg") and len(node["children"]) == 1:
            return self._kinds.of(node["children"][0]) in INTEGERS | {"numeric"}
        return self._kinds.of(node) == "numeric"

    def series(self, node: Node) -> Node | None:
        """A series of dates is one of times with a zone; constants are read as times."""
        kinds = [self._kinds.of(child) for child in node["children"]]
        if len(kinds) != 3 or TIMES.isdisjoint(kinds[:2]):
            return None
        moment = "TIMESTAMP" if "timestamp" in kinds[:2] else "TIMESTAMP WITH TIME ZONE"
        targets = (moment, moment, "INTERVAL")
        made = [
            cast(child, target) if kind in ("date", "unknown") else child
            for child, kind, target in zip(node["children"], kinds, targets, strict=True)
        ]
        return node | {"children": made} if made != node["children"] else None

    def interval(self, node: Node) -> Node | None:
        """The sum of the parts of `make_interval`."""
        made: list[Node] = []
        for place, child in enumerate(node["children"]):
            part = child["alias"] or _PARTS_OF_INTERVAL[place]
            if part not in _PARTS_OF_INTERVAL:
                raise refused(f"make_interval with {part}", "write the interval as a text")
            made.append(call(f"to_{_UNITS.get(part, part)}", child | {"alias": ""}))
        if not made:
            return None
        total = made[0]
        for each in made[1:]:
            total = call("+", total, each, is_operator=True)
        return total | {"alias": node["alias"]}

    def overlaps(self, node: Node) -> Node | None:
        """The end of a period may be its length."""
        children = node["children"]
        if len(children) != 4 or "interval" not in (self._kinds.of(children[1]), self._kinds.of(children[3])):
            return None
        made = [
            call("+", children[place - 1], child, is_operator=True) if self._kinds.of(child) == "interval" else child
            for place, child in enumerate(children)
        ]
        return node | {"children": made}

    def object(self, node: Node) -> Node | None:
        """Times in JSON have a T between day and hour."""
        kinds = [self._kinds.of(child) for child in node["children"]]
        if not {"timestamp", "timestamptz"} & set(kinds):
            return None
        pairs = zip(node["children"], kinds, strict=True)
        return node | {
            "children": [
                call("json_of", child) if kind in ("timestamp", "timestamptz") else child for child, kind in pairs
            ]
        }

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
        is_arrow = node["class"] == "LAMBDA"
        value, key = (node["lhs"], node["expr"]) if is_arrow else node["children"]
        text = constant_text(key)
        if text is None or not (text == "" or text[0] in "$/"):
            return None
        name = "json_extract" if is_arrow else "json_extract_string"
        return call(name, value, constant(patterns.json_key(text)), alias=node["alias"])

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
        if target in _FLOAT_TARGETS and text is not None:
            _check_float(_FLOAT_TARGETS[target], text)
        if target == "TIME" and kind == "timestamptz":
            return node | {"child": cast(child, "TIMESTAMP")}
        made = time_texts.value(text, target) if text is not None and target in time_texts.TARGETS else None
        return None if made is None else made | {"alias": node["alias"]}

    def _whole(self, node: Node, text: str | None, kind: str) -> Node | None:
        child = node["child"]
        if text is not None:
            _check_integer(_TARGETS[node["cast_type"]["id"]], text)
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

    def column(self, values: list[Node], name: str = "") -> bool:
        """Cast the constants without a type of one column to the type of its other values; whether there are any."""
        texts = [each for each in values if constant_text(each) is not None]
        target = _ELEMENTS.get(self._kinds.common(values), "VARCHAR") if texts else "VARCHAR"
        if target == "VARCHAR":
            return False
        for each in texts:
            made = cast(each | {"alias": ""}, target, each["alias"] or name)
            each.clear()
            each.update(made)
        return True

    # comparisons

    def compared(self, values: list[Node]) -> bool:
        """Change values that are compared with each other, in place; whether any changed."""
        return self._widened(values) | self.constants(values)

    def _widened(self, values: list[Node]) -> bool:
        """A float4 is compared with another number as a float8, which tells 0.1 from the float4 0.1."""
        kinds = [self._kinds.of(each) for each in values]
        if "float4" not in kinds:
            return False
        others = [each for each, kind in zip(values, kinds, strict=True) if kind in _OTHER_NUMBERS]
        if all(map(_is_float4, others)):
            return False
        for place, kind in enumerate(kinds):
            if kind == "float4":
                values[place] = cast(values[place], "DOUBLE")
        return True

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
            if kind in INTEGERS:
                _check_integer("int8", text, kind)
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
            return node | {"children": [outer, number(_NO_PLACE)]} if is_before else None
        if _is_call(place, "item_place") or not self._kinds.of(outer).endswith("[]"):
            return None
        return node | {"children": [outer, call("item_place", place)]}


_PLAIN = re.compile(r"\d+|\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?)?")
"""Constants that DuckDB reads as PostgreSQL does, whatever they are compared with."""
_WIDENING = frozenset({"float4", "int2", "int4", "int8", "numeric"})
"""Kinds of numbers. A float4 with one of the others makes a float8."""
_OTHER_NUMBERS = _WIDENING - {"float4"} | {"float8"}
_DIGITS_MAX = 20
_NO_PLACE = (1 << 31) - 1
"""A place that no array has."""
_PARTS_OF_INTERVAL = ("years", "months", "weeks", "days", "hours", "mins", "secs")
_UNITS = {"mins": "minutes", "secs": "seconds"}
_BITS = {"int2": 15, "int4": 31, "int8": 63}
_FLOAT_TARGETS = {"FLOAT": "float4", "DOUBLE": "float8"}
_GREATEST = {"float4": 3.4028235677973366e38, "float8": 1.7976931348623157e308}
"""The greatest number of each kind of float."""
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


def _check_integer(kind: str, text: str, name: str = "") -> None:
    """Raises `Invalid` for a text that is no integer of this kind; `name` is the kind that the error names."""
    if not _INTEGER.fullmatch(text):
        raise syntax(name or kind, text)
    bits = _BITS[kind]
    if not -(1 << bits) <= int(text) < 1 << bits:
        raise Invalid(f'the query failed: value "{text}" is out of range for type {_NAMES[kind]}')


def _check_float(kind: str, text: str) -> None:
    """Raises `Invalid` for a number beyond the greatest float."""
    if _NUMBER.fullmatch(text) and abs(float(text)) > _GREATEST[kind]:
        raise Invalid(f'the query failed: "{text}" is out of range for type {_NAMES[kind]}')


def _is_float4(node: Node) -> bool:
    """Whether a node is a constant that a float4 has exactly."""
    if node.get("class") != "CONSTANT" or node["value"]["is_null"]:
        return False
    kind, value = node["value"]["type"], node["value"]["value"]
    if kind["id"] == "DECIMAL":
        value /= 10 ** kind["type_info"]["scale"]
    return isinstance(value, int | float) and struct.unpack("f", struct.pack("f", value))[0] == value


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
    "+": Operators.arithmetic,
    "-": Operators.arithmetic,
    "*": Operators.arithmetic,
    "generate_series": Operators.series,
    "json_array": Operators.object,
    "json_object": Operators.object,
    "make_interval": Operators.interval,
    "overlaps": Operators.overlaps,
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
    "->>": Operators.json_field,
}
