"""Kinds of values in DuckDB's tree of a text, as far as the tree and the tables tell.

- A kind is the name of a type of PostgreSQL, such as `int4`, `numeric`, `text`, `jsonb` or `int8[]`.
- `unknown` is a constant without a type. An empty kind means that the tree does not tell.
- The kinds of columns come from the tables that the whole text names. A name that is an alias somewhere tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

import pyarrow as pa

from lakestore_server.queries.postgres.nodes import Node

INTEGERS = frozenset({"int2", "int4", "int8"})
FLOATS = frozenset({"float4", "float8"})
TIMES = frozenset({"date", "time", "timestamp", "timestamptz", "interval"})
_RANKS = ("int2", "int4", "int8", "numeric", "float4", "float8")
"""Kinds of numbers: of two that meet, the later one is the kind of the result."""
_TYPES = {
    "BIGINT": "int8",
    "BLOB": "bytea",
    "BOOLEAN": "bool",
    "DATE": "date",
    "DECIMAL": "numeric",
    "DOUBLE": "float8",
    "FLOAT": "float4",
    "HUGEINT": "numeric",
    "INTEGER": "int4",
    "INTERVAL": "interval",
    "NULL": "unknown",
    "SMALLINT": "int2",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TINYINT": "int2",
    "VARCHAR": "text",
}
_NAMED = {"json": "jsonb", "jsonb": "jsonb", "uuid": "uuid"}
_FUNCTIONS = {
    **dict.fromkeys(("count", "count_star", "row_number", "rank", "dense_rank"), "int8"),
    **dict.fromkeys(("length", "char_length", "octet_length", "strpos", "position", "len"), "int4"),
    **dict.fromkeys(("now", "current_timestamp", "to_timestamp", "get_current_timestamp"), "timestamptz"),
    **dict.fromkeys(
        "lower upper concat concat_ws format string_agg to_char substring substr left right trim btrim ltrim rtrim"
        " replace lpad rpad md5 split_part initcap repeat reverse regexp_replace array_to_string ->> text_of"
        " shown_text float_text json_text".split(),
        "text",
    ),
    **dict.fromkeys(("sqrt", "random", "exp", "ln", "pi", "date_part", "stddev", "corr"), "float8"),
    **dict.fromkeys(("->", "to_json", "to_jsonb", "json_object", "json_array", "row_to_json", "json"), "jsonb"),
    **dict.fromkeys(("json_build_object", "jsonb_build_object", "json_build_array", "jsonb_build_array"), "jsonb"),
    **dict.fromkeys(("json_agg", "jsonb_agg", "json_group_object", "json_extract"), "jsonb"),
    **dict.fromkeys(("string_to_array", "regexp_split_to_array"), "text[]"),
    "current_date": "date",
    "json_of": "jsonb",
}
_SAME = frozenset(
    "abs ceil ceiling first_value floor lag last_value lead max min nth_value nullif round sum trunc".split()
)
"""Functions whose result has the kind of their first argument."""
_ARITHMETIC = frozenset("+-*/%")


class Kinds:
    """The kinds of the nodes of one tree."""

    def __init__(
        self, sources: Mapping[str, Node], aliases: Container[str], types_of: Callable[..., Iterator[pa.DataType]]
    ) -> None:
        """`types_of` returns the types that a column has in tables, (database, name)."""
        self._sources, self._aliases, self._types_of = sources, aliases, types_of
        self._found: dict[int, tuple[Node, str]] = {}
        """By the id of a node: the node, which keeps its id from being used again, and its kind."""

    def of(self, node: Node) -> str:
        """The kind of an expression."""
        left = [] if id(node) in self._found else [node]
        while left:  # a sum of hundreds of terms is a tree as deep
            top = left[-1]
            unknown = [each for each in _operands(top) if id(each) not in self._found]
            if unknown:
                left += unknown
            else:
                left.pop()
                rule = _RULES.get(str(top.get("class")))
                self._found[id(top)] = top, rule(self, top) if rule else ""
        return self._found[id(node)][1]

    def column(self, node: Node) -> str:
        *path, name = node["column_names"]
        if path:
            found = [self._sources[path[-1]]] if path[-1] in self._sources else []
        else:
            found = [] if name in self._aliases else list(self._sources.values())
        kinds = {_of_arrow(kind) for kind in self._types_of(_tables(found), name)} if found else set()
        return kinds.pop() if len(kinds) == 1 else ""

    def cast(self, node: Node) -> str:
        return of_type(node["cast_type"])

    def constant(self, node: Node) -> str:
        kind = node["value"]["type"]["id"]
        return "unknown" if kind == "VARCHAR" else _TYPES.get(kind, "")

    def function(self, node: Node) -> str:
        name, children = node["function_name"], node["children"]
        if name == "date_part":
            return "numeric" if node["schema"] else "float8"
        if name in _SAME and children:
            kind = self.of(children[0])
            return {"int2": "int8", "int4": "int8", "int8": "numeric"}.get(kind, kind) if name == "sum" else kind
        if name == "avg" and children:
            kind = self.of(children[0])
            return {"float4": "float8"}.get(kind, kind) if kind in FLOATS | {"interval"} else ""
        if name == "array_agg" and children:
            kind = self.of(children[0])
            return f"{kind}[]" if kind else ""
        if name in _ARITHMETIC:
            return self._arithmetic([self.of(child) for child in children])
        return "text" if name == "||" and "text" in map(self.of, children) else _FUNCTIONS.get(name, "")

    def _arithmetic(self, kinds: list[str]) -> str:
        if "unknown" in kinds and len(kinds) == 2:
            kinds = [each for each in kinds if each != "unknown"] * 2
        if not kinds or any(kind not in _RANKS for kind in kinds):
            return ""
        kind = max(kinds, key=_RANKS.index)
        return "float8" if kind == "float4" and set(kinds) != {"float4"} else kind

    def operator(self, node: Node) -> str:
        kind, children = node["type"], node["children"]
        if kind == "OPERATOR_COALESCE":
            return self.common(children)
        if kind == "ARRAY_CONSTRUCTOR":
            inner = self.common(children)
            return f"{'text' if inner == 'unknown' else inner}[]" if inner else ""
        if kind == "ARRAY_EXTRACT":
            outer = self.of(children[0])
            return outer.removesuffix("[]") if outer.endswith("[]") else outer if outer == "jsonb" else ""
        return "" if kind.startswith(("ARRAY", "STRUCT")) else "bool"

    def arrow(self, _node: Node) -> str:
        return "jsonb"

    def case(self, node: Node) -> str:
        return self.common(_operands(node))

    def boolean(self, _node: Node) -> str:
        return "bool"

    def common(self, nodes: list[Node]) -> str:
        """The kind of several values for one place."""
        kinds = {self.of(node) for node in nodes} - {"unknown"}
        if not kinds:
            return "unknown"
        if kinds <= set(_RANKS):
            return max(kinds, key=_RANKS.index)
        return kinds.pop() if len(kinds) == 1 else ""


def of_type(kind: Node) -> str:
    """The kind of a type in a tree."""
    if kind["id"] in ("LIST", "ARRAY"):
        inner = of_type(kind["type_info"]["child_type"])
        return f"{inner}[]" if inner else ""
    if kind["id"] == "UNBOUND":
        return _NAMED.get(str(kind["type_info"]["name"]).lower(), "")
    return _TYPES.get(kind["id"], "")


def _of_arrow(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        inner = _of_arrow(kind.value_type)
        return "jsonb" if inner == "jsonb" or inner.endswith("[]") else f"{inner}[]" if inner else ""
    for test, name in _ARROW:
        if test(kind):
            return name
    return ""


def _is_naive(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


_ARROW: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.uint8()), "int2"),
    (lambda kind: kind in (pa.int32(), pa.uint16()), "int4"),
    (lambda kind: kind in (pa.int64(), pa.uint32()), "int8"),
    (lambda kind: kind == pa.uint64() or pa.types.is_decimal(kind), "numeric"),
    (pa.types.is_float32, "float4"),
    (pa.types.is_float64, "float8"),
    (pa.types.is_string, "text"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (_is_naive, "timestamp"),
    (pa.types.is_timestamp, "timestamptz"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind), "bytea"),
    (lambda kind: pa.types.is_struct(kind) or pa.types.is_map(kind), "jsonb"),
)
_RULES: Mapping[str, Callable[[Kinds, Node], str]] = {
    "BETWEEN": Kinds.boolean,
    "CASE": Kinds.case,
    "CAST": Kinds.cast,
    "COLUMN_REF": Kinds.column,
    "COMPARISON": Kinds.boolean,
    "CONJUNCTION": Kinds.boolean,
    "CONSTANT": Kinds.constant,
    "FUNCTION": Kinds.function,
    "LAMBDA": Kinds.arrow,
    "OPERATOR": Kinds.operator,
    "WINDOW": Kinds.function,
}


def _operands(node: Node) -> list[Node]:
    """The values whose kinds decide about a node's kind."""
    if node.get("class") == "CASE":
        return [check["then_expr"] for check in node["case_checks"]] + [node["else_expr"]]
    return node["children"] if node.get("class") in ("FUNCTION", "OPERATOR", "WINDOW") else []


def _tables(sources: list[Node]) -> Iterator[tuple[str, str]]:
    return ((each["schema_name"], each["table_name"]) for each in sources)
