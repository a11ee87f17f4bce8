"""Changes of DuckDB's tree of a text, where PostgreSQL means something else.

- The tree is what `json_serialize_sql` gives: a node is a dict with `class` (expressions) or `type`.
- A rule gets a node and returns the node that takes its place. A rule that returns another node sees that node again.
- Function names lose their schema: the macros of `functions` stand in DuckDB's first schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakestore.union import sql_functions, sql_text
from lakestore.union.sql_gate import folded
from lakestore_server.queries.postgres import (
    comparisons,
    functions,
    names,
    object_names,
    patterns,
    privileges,
    value_macros,
)
from lakestore_server.queries.postgres.fixed_catalog import INFORMATION_SCHEMA, PG_CATALOG, relations
from lakestore_server.queries.postgres.kinds import Kinds
from lakestore_server.queries.postgres.kinds import of_type as kind_of_type
from lakestore_server.queries.postgres.lookup_relations import NAMES as LOOKUPS
from lakestore_server.queries.postgres.nodes import (
    Node,
    call,
    cast,
    conjunction,
    constant,
    constant_text,
    negation,
    number,
    scalar_type,
    subquery,
    true_condition,
)
from lakestore_server.queries.postgres.operators import Operators, refused
from lakestore_server.queries.postgres.spelling import Spelling

if TYPE_CHECKING:
    from lakestore_server.queries.postgres.dialect import LazyCatalog

SCHEMAS = {PG_CATALOG: functions.SCHEMA, INFORMATION_SCHEMA: "__information_schema"}
"""Schemas in DuckDB of PostgreSQL's own schemas."""
POSTGRES_SCHEMAS = {ours: schema for schema, ours in SCHEMAS.items()}
_SESSION_NAMES = frozenset(
    {"current_user", "session_user", "user", "current_role", "current_catalog", "current_schema"}
)
"""Functions that are written without parentheses; in the tree they are columns."""
_PLAIN_COLLATIONS = frozenset({"default", "c", "posix", "ucs_basic"})
_VECTORS = frozenset({"indkey", "indclass", "indoption", "indcollation", "proargtypes"})
"""Columns of pg_catalog whose subscripts begin at 0."""
_ONE_COLUMN = frozenset(
    {"generate_series", "generate_subscripts", "unnest", "regexp_split_to_table", "string_to_table"}
)
"""Table functions whose column has the name of the table's alias."""
_ELEMENTS = frozenset(
    {"json_array_elements", "json_array_elements_text", "jsonb_array_elements", "jsonb_array_elements_text"}
)
_PAIRS = {
    **dict.fromkeys(("json_each", "jsonb_each"), "json_values"),
    **dict.fromkeys(("json_each_text", "jsonb_each_text"), "json_value_texts"),
}
"""Table functions of two columns, and the macros of the second one."""
_SETS = frozenset({"generate_series"})
"""Functions that return a list in DuckDB and rows in PostgreSQL."""
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin"})
_JSON_PATHS = {"|->>": "json_extract_string", "|->": "json_extract"}
_REGEXES = {"<~>": ("s", False), "!<~>": ("s", True), "~*": ("is", False), "!~*": ("is", True)}
"""Options, and whether the answer is negated, of each operator of regular expressions. With `s`, a point matches a
line's end too."""
_LIKES = {"~~": "like_escape", "!~~": "not_like_escape", "~~*": "ilike_escape", "!~~*": "not_ilike_escape"}
"""LIKE with an escape, for each LIKE without one. PostgreSQL's escape is a backslash, and DuckDB has none."""
_REFLEXIVE = 20
"""The most rules that follow each other at one place."""


class Rewriting:
    """One change of a tree."""

    _operators: Operators
    """The rules that need the kinds of values; made when the names of the tree are known."""

    def __init__(self, catalog: LazyCatalog, said: Spelling) -> None:
        self._catalog, self._sizes, self._symmetric = catalog, said.sizes, said.symmetric
        self._parts: frozenset[str] = frozenset()
        self._named: frozenset[str] = frozenset()
        """Last parts of the names of columns that the text names."""
        self._sources: dict[str, Node] = {}
        self._unnamed: set[int] = set()
        """Ids of queries whose columns need no names."""
        self._shifted: set[int] = set()
        """Ids of nodes whose subscripts are counted from 1."""
        self._rules: dict[str, Callable[[Node, Node], Node]] = {
            "table BASE_TABLE": self._table,
            "BETWEEN": self._between,
            "CAST": self._cast,
            "COLLATE": self._collate,
            "COLUMN_REF": self._column,
            "CONSTANT": self._constant,
            "COMPARISON": self._comparison,
            "FUNCTION": self._function,
            "table JOIN": self._join,
            "LAMBDA": self._arrow,
            "OPERATOR": self._operator,
            "table SELECT_NODE": self._select,
            "table SET_OPERATION_NODE": self._set_operation,
            "SUBQUERY": self._subquery,
            "table TABLE_FUNCTION": self._table_function,
            "table EXPRESSION_LIST": self._values,
            "WINDOW": self._window,
        }
        self.changed = False

    def rewritten(self, statement: Node) -> bool:
        """Change the tree in place; True if anything changed."""
        aliases = self._survey(statement)
        self._operators = Operators(Kinds(self._sources, aliases, self._types_of))
        self._typed_nulls(statement["node"])
        left: list[tuple[Any, Any, Node]] = [(statement, "node", {})]
        while left:
            owner, key, parent = left.pop()
            value = owner[key]
            if isinstance(value, dict):
                value = self._settled(value, parent)
                owner[key] = value
                left += [(value, inner, value) for inner in value]
            elif isinstance(value, list):
                left += [(value, place, parent) for place in range(len(value))]
        return self.changed

    def _types_of(self, tables: Iterable[tuple[str, str]], column: str) -> Iterator[pa.DataType]:
        """The types of a column in tables of the lake. Names of WITH are none."""
        lake = [(database, name) for database, name in tables if database or name not in self._parts]
        return self._catalog.types_of(lake, column)

    def _survey(self, statement: Node) -> set[str]:
        """Collect the names in a tree; the names that the text itself gives to tables, columns and parts."""
        parts, named, aliases = set[str](), set[str](), set[str]()
        for node in _nodes(statement):
            if node.get("class") == "COLUMN_REF":
                named.add(node["column_names"][-1])
            elif "cte_map" in node:
                for entry in node["cte_map"]["map"]:
                    parts.add(entry["key"])
                    aliases.update(entry["value"].get("aliases") or ())
            elif _is_table(node):
                self._sources[node["alias"] or node["table_name"]] = node
            aliases.add(node.get("alias") or "")
            aliases.update(node.get("column_name_alias") or ())
        self._parts, self._named = frozenset(parts), frozenset(named)
        return aliases | parts

    def _settled(self, node: Node, parent: Node) -> Node:
        for _ in range(_REFLEXIVE):
            new = self._visited(node, parent)
            if new is node:
                break
            self.changed = True
            node = new
        return node

    def _visited(self, node: Node, parent: Node) -> Node:
        rule = self._rules.get(str(node.get("class") or f"table {node.get('type')}"))
        return rule(node, parent) if rule else node

    def _typed_nulls(self, query: Node) -> None:
        """NULL as a column of the result is a text."""
        for place, item in enumerate(query.get("select_list", ())):
            if item.get("class") == "CONSTANT" and item["value"]["is_null"]:
                query["select_list"][place] = cast(item | {"alias": ""}, "VARCHAR", item["alias"] or names.NO_NAME)
                self.changed = True

    # tables

    def _values(self, node: Node, _parent: Node) -> Node:
        if node["values"] and not node["expected_names"]:
            node["expected_names"] = [f"column{place}" for place, _ in enumerate(node["values"][0], 1)]
            self.changed = True
        for column in zip(*node["values"], strict=False):
            self.changed |= self._operators.column(list(column))
        return node

    def _table(self, node: Node, _parent: Node) -> Node:
        if node["catalog_name"] and folded(node["catalog_name"]) == folded(self._catalog.session.database):
            node["catalog_name"] = ""
            self.changed = True
        schema, name = node["schema_name"], node["table_name"]
        if node["catalog_name"] or schema in POSTGRES_SCHEMAS:
            return node
        if not schema and name in self._parts:
            return node
        if schema in SCHEMAS or (not schema and (PG_CATALOG, name) in relations()):
            if (schema or PG_CATALOG, name) in relations():
                node["schema_name"] = SCHEMAS[schema or PG_CATALOG]
                self.changed = True
        elif not schema and "." not in name:
            database = self._catalog.database_of(name)
            if database:
                node["schema_name"] = database
                self.changed = True
        return node

    def _table_function(self, node: Node, _parent: Node) -> Node:
        function = node["function"]
        if function.get("class") != "FUNCTION":
            return node
        name = function["function_name"]
        self._unqualified(function)
        if name in LOOKUPS and not function["children"]:
            table = {key: node[key] for key in ("alias", "sample", "query_location", "column_name_alias")}
            found = {"type": "BASE_TABLE", "schema_name": functions.SCHEMA, "table_name": name, "at_clause": None}
            return table | found | {"catalog_name": ""}
        if name not in sql_functions.TABLE_FUNCTIONS and (name in functions.MACROS or name in sql_functions.FUNCTIONS):
            alias = node["alias"] or name
            names_of = node["column_name_alias"] or [self._column_of(name, alias)]
            return subquery([function], alias) | {"column_name_alias": names_of}
        if name in _PAIRS and len(function["children"]) == 1:
            (value,) = function["children"]
            value = value if constant_text(value) is None else call("json", value)
            items = [call("json_object_keys", value), call(_PAIRS[name], value)]
            names_of = node["column_name_alias"] or ["key", "value"]
            return subquery(items, node["alias"] or name) | {"column_name_alias": names_of}
        if name == "generate_subscripts" and len(function["children"]) == 2:
            function["function_name"] = "generate_series"
            function["children"] = [number(1), call("len", function["children"][0])]
            node["alias"] = node["alias"] or name
            self.changed = True
        if node["alias"] and not node["column_name_alias"] and name in _ONE_COLUMN:
            node["column_name_alias"] = [node["alias"]]
            self.changed = True
        return node

    def _column_of(self, name: str, alias: str) -> str:
        """The name of a table function's column, which the text may call by its own name or by the table's."""
        if name in _ELEMENTS and "value" in self._named:
            return "value"
        return "value" if name in _ELEMENTS and alias == name else alias

    def _join(self, node: Node, _parent: Node) -> Node:
        """A cross join inside another join is printed as a comma, which binds weaker."""
        for side in ("left", "right"):
            inner = node[side]
            is_cross = inner.get("type") == "JOIN" and inner["ref_type"] == "CROSS"
            if is_cross and (side == "right" or node["ref_type"] != "CROSS"):
                inner |= {"ref_type": "REGULAR", "join_type": "INNER", "condition": true_condition()}
                self.changed = True
        return node

    def _select(self, node: Node, _parent: Node) -> Node:
        for place, item in enumerate(node["select_list"]):
            if item.get("class") == "FUNCTION" and item["function_name"] == "row":
                fields = [each | {"alias": f"f{at}"} for at, each in enumerate(item["children"], 1)]
                node["select_list"][place] = call("struct_pack", *fields, alias=item["alias"])
                self.changed = True
            if item.get("class") == "FUNCTION" and item["function_name"] in _SETS:
                alias = item["alias"] or item["function_name"]
                node["select_list"][place] = call("unnest", item | {"alias": ""}, alias=alias)
                self.changed = True
        if id(node) in self._unnamed:
            return node
        for item in node["select_list"]:
            is_column = item.get("class") == "COLUMN_REF" and item["column_names"][-1] not in _SYSTEM_COLUMNS
            if is_column or item.get("class") == "STAR" or item.get("alias"):
                continue
            if item.get("class") == "FUNCTION" and item["function_name"] == "columns":
                continue
            item["alias"] = names.column_name(item)
            self.changed = True
        return node

    def _set_operation(self, node: Node, _parent: Node) -> Node:
        """A constant without a type has the type of the other values in its column."""
        for column in zip(*_lists_of(node), strict=False):
            self.changed |= self._operators.column(list(column), names.NO_NAME)
        return node

    # expressions

    def _arrow(self, node: Node, _parent: Node) -> Node:
        return self._operators.json_field(node) or node

    def _system_column(self, node: Node) -> Node:
        """`tableoid` is the oid of a relation of the catalog; its `xmin` is 0."""
        parts = node["column_names"]
        table = self._sources.get(parts[-2]) if len(parts) > 1 else next(iter(self._sources.values()), None)
        if table is None:
            return node
        schema = POSTGRES_SCHEMAS.get(table["schema_name"], table["schema_name"] or PG_CATALOG)
        known = relations().get((schema, table["table_name"]))
        if known is None:
            return node
        return cast(number(known.oid if parts[-1] == "tableoid" else 0), "UINTEGER", node["alias"])

    def _column(self, node: Node, _parent: Node) -> Node:
        parts = node["column_names"]
        if parts[-1] in _SYSTEM_COLUMNS:
            return self._system_column(node)
        if len(parts) == 4 and folded(parts[0]) == folded(self._catalog.session.database):
            parts = parts[1:]
        if len(parts) >= 3 and parts[0] in SCHEMAS and (parts[0], parts[1]) in relations():
            parts = [SCHEMAS[parts[0]], *parts[1:]]
        if parts != node["column_names"]:
            node["column_names"] = parts
            self.changed = True
        return node

    def _unqualified(self, node: Node) -> None:
        is_builtin = node["schema"] in ("", "main") and node["function_name"] not in functions.MACROS
        if node["catalog"] or (node["schema"] and not is_builtin):
            node["schema"] = node["catalog"] = ""
            self.changed = True

    def _function(self, node: Node, _parent: Node) -> Node:
        self._unqualified(node)
        return self._operators.function(node) or self._operator_call(node)

    def _operator_call(self, node: Node) -> Node:
        name, children = node["function_name"], node["children"]
        if name in _REGEXES and len(children) == 2:
            options, is_negated = _REGEXES[name]
            made = call("regexp_matches", *children, constant(options), alias=node["alias"])
            return negation(made) if is_negated else made
        if name == "<~>":
            return node | {"function_name": "~"}
        if name in _JSON_PATHS and len(children) == 2:
            path = constant_text(children[1])
            pointer = children[1] if path is None else constant(patterns.json_pointer(path))
            return call(_JSON_PATHS[name], children[0], pointer, alias=node["alias"])
        if name in _LIKES and len(children) == 2 and _has_escape(children[1]):
            return call(_LIKES[name], *children, constant("\\"), alias=node["alias"])
        if name in value_macros.RENAMED:
            return node | {"function_name": value_macros.RENAMED[name], "is_operator": False}
        if (
            name == "generate_subscripts"
            and children
            and _is_vector(children[0])
            and id(children[0]) not in self._shifted
        ):
            self._shifted.add(id(children[0]))
            return call("-", node | {"alias": ""}, number(1), alias=node["alias"], is_operator=True)
        new = patterns.rewritten(name, node)
        if new is not None:
            return new
        if name.startswith(object_names.NUMBER_FUNCTIONS):
            for place, child in enumerate(children):
                children[place] = self._as_number(child)
                self.changed |= children[place] is not child
            self._named_object(name, children)
        return node

    def _named_object(self, name: str, arguments: list[Node]) -> None:
        """Look up the constant name of an object whose privileges are asked. Raises `NotFound`."""
        kind, place = privileges.OBJECTS.get(name, ("", 0))
        text = constant_text(arguments[place]) if kind and -place <= len(arguments) else None
        if text is not None:
            arguments[place] = object_names.oid_constant(self._catalog, kind, text)
            self.changed = True

    def _cast(self, node: Node, parent: Node) -> Node:
        size = self._sizes.get(node["query_location"])
        if size is not None and node["cast_type"]["id"] == "VARCHAR":
            inner = node | {"query_location": 0, "alias": ""}
            return call("left", inner, number(size), alias=node["alias"])
        kind = object_names.kind_of(node["cast_type"])
        if kind is not None:
            return object_names.shown_name(self._catalog, kind, node)
        of_child = (
            object_names.kind_of(node["child"].get("cast_type")) if node["child"].get("class") == "CAST" else None
        )
        if of_child is not None:
            target = object_names.target_of(node["cast_type"])
            if target == "number":
                return self._as_number(node["child"]) | {"alias": node["alias"]}
            if target == "text":
                return object_names.name_of(self._catalog, of_child, node["child"]) | {"alias": node["alias"]}
        typed = self._typed(node)
        return self._operators.cast(typed) or typed if typed.get("class") == "CAST" else typed

    def _window(self, node: Node, _parent: Node) -> Node:
        self._unqualified(node)
        return self._operators.function(node) or node

    def _typed(self, node: Node) -> Node:
        kind = scalar_type(node["cast_type"])
        if kind != node["cast_type"]:
            node["cast_type"] = kind
            self.changed = True
        text = constant_text(node["child"])
        if node["cast_type"]["id"] == "LIST" and text is not None and text.lstrip().startswith("{"):
            node["child"] = patterns.array_constant(text)
            self.changed = True
        if node["cast_type"]["id"] == "BLOB" and text is not None:
            node["child"] = constant(patterns.bytes_text(text))
            self.changed = True
        if node["cast_type"]["id"] == "VARCHAR" and _is_vector(node["child"]):
            return call("array_to_string", node["child"], constant(" "), alias=node["alias"])
        return node

    def _as_bytes(self, values: list[Node]) -> list[Node]:
        """Casts the texts among values that are compared with a column of bytes, in place."""
        if any(constant_text(each) is not None for each in values) and any(map(self._is_bytes, values)):
            for place, value in enumerate(values):
                if constant_text(value) is not None:
                    values[place] = cast(value, "BLOB")
                    self.changed = True
        return values

    def _between(self, node: Node, _parent: Node) -> Node:
        sides = ("input", "lower", "upper")
        values = self._as_bytes([node[side] for side in sides])
        self.changed |= self._operators.compared(values)
        node |= dict(zip(sides, values, strict=True))
        if node["query_location"] not in self._symmetric:
            return node
        turned = node | {"lower": node["upper"], "upper": node["lower"]}
        terms = [{**each, "alias": "", "query_location": 0} for each in (node, turned)]
        made = conjunction(terms) if "NOT" in node["type"] else comparisons.disjunction(terms)
        return made | {"alias": node["alias"]}

    def _is_bytes(self, node: Node) -> bool:
        return node.get("class") == "COLUMN_REF" and self._operators.kind(node) == "bytea"

    def _as_number(self, node: Node) -> Node:
        """A cast to regclass and the like as an oid; another node as it is."""
        kind = object_names.kind_of(node.get("cast_type")) if node.get("class") == "CAST" else None
        return node if kind is None else object_names.oid_of(self._catalog, kind, node)

    def _comparison(self, node: Node, _parent: Node) -> Node:
        rows = comparisons.of_rows(node)
        if rows is not None:
            return rows
        sides = ("left", "right")
        values = self._as_bytes([node["left"], node["right"]])
        if any(kind_of_type(each["cast_type"]) == "jsonb" for each in values if each.get("class") == "CAST"):
            raise refused("a comparison of JSON values", "compare a field by ->>")
        self.changed |= self._operators.compared(values)
        node["left"], node["right"] = values
        kinds = [object_names.kind_of(node[side].get("cast_type")) for side in sides]
        for side, other, kind in zip(sides, reversed(sides), kinds, strict=True):
            if kind is None or node[side].get("class") != "CAST":
                continue
            node[side] = self._as_number(node[side])
            self.changed = True
            text = constant_text(node[other])
            if text is not None:
                node[other] = object_names.oid_constant(self._catalog, kind, text)
        return node

    def _constant(self, node: Node, _parent: Node) -> Node:
        """A float is printed with a point, which DuckDB reads as a decimal; a boolean as a cast."""
        value = node["value"]
        if value["type"]["id"] == "BOOLEAN" and not value["is_null"]:
            return cast(constant("t" if value["value"] else "f"), "BOOLEAN", node["alias"])
        if value["type"]["id"] == "DOUBLE" and not value["is_null"]:
            made = cast(constant(repr(value["value"])), "DOUBLE", node["alias"])
            node.clear()
            node.update(made)
        return node

    def _collate(self, node: Node, _parent: Node) -> Node:
        name = str(node["collation"]).rpartition(".")[2].lower()
        return node["child"] | {"alias": node["alias"]} if name in _PLAIN_COLLATIONS else node

    def _subquery(self, node: Node, _parent: Node) -> Node:
        inner = node["subquery"]["node"]
        self._unnamed.add(id(inner))
        if node["subquery_type"] != "ANY" or node["comparison_type"] != "COMPARE_EQUAL":
            return node
        items = inner.get("select_list", ())
        if len(items) != 1 or items[0].get("function_name") != "unnest" or inner["from_table"]["type"] != "EMPTY":
            return node
        (values,) = items[0]["children"]
        return comparisons.equals_any(node["child"], values, node["alias"])

    def _operator(self, node: Node, _parent: Node) -> Node:
        rows = comparisons.of_rows(node)
        if rows is not None:
            return rows
        if node["type"] == "OPERATOR_NOT" and node["children"][0].get("class") == "SUBQUERY":
            made = self._subquery(node["children"][0], node)
            return comparisons.negated_list(made) | {"alias": node["alias"]} if made["type"] == "COMPARE_IN" else node
        if node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
            self._as_bytes(node["children"])
            self.changed |= self._operators.compared(node["children"])
        if node["type"] == "ARRAY_EXTRACT" and not _is_vector(node["children"][0]):
            return self._operators.element(node) or node
        if node["type"] != "ARRAY_EXTRACT" or not _is_vector(node["children"][0]):
            return node
        vector, place = node["children"]
        if id(vector) in self._shifted:
            return node
        self._shifted.add(id(vector))
        node["children"] = [vector, call("+", place, number(1), is_operator=True)]
        self.changed = True
        return node


def _lists_of(query: Node) -> list[list[Node]]:
    """The columns of each SELECT of a set operation."""
    if query.get("type") == "SET_OPERATION_NODE":
        return [*_lists_of(query["left"]), *_lists_of(query["right"])]
    return [query["select_list"]] if query.get("type") == "SELECT_NODE" else []


def _is_vector(node: Node) -> bool:
    return node.get("class") == "COLUMN_REF" and node["column_names"][-1] in _VECTORS


def _has_escape(pattern: Node) -> bool:
    """Whether a pattern may have a backslash."""
    text = constant_text(pattern)
    return text is None or "\\" in text


def _is_table(node: Node) -> bool:
    return node.get("type") == "BASE_TABLE" and "class" not in node


def _nodes(root: Any) -> Iterator[Node]:
    left = [root]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left += node.values()
        elif isinstance(node, list):
            left += node


def called(statement: Node) -> frozenset[str]:
    """The names of the functions that a tree calls."""
    found = {node["function_name"] for node in _nodes(statement) if "function_name" in node}
    columns = (node["column_names"] for node in _nodes(statement) if node.get("class") == "COLUMN_REF")
    return frozenset(found | {parts[0] for parts in columns if len(parts) == 1 and parts[0] in _SESSION_NAMES})


def relations_of(statement: Node) -> frozenset[str]:
    """The relations of the catalog that a tree names, as `schema.name` in DuckDB."""
    tables = (node for node in _nodes(statement) if node.get("type") == "BASE_TABLE")
    return frozenset(
        f"{node['schema_name']}.{node['table_name']}" for node in tables if node["schema_name"] in POSTGRES_SCHEMAS
    )


def internal(short: Iterable[str]) -> frozenset[str]:
    """Relations of pg_catalog as `schema.name` in DuckDB."""
    return frozenset(f"{functions.SCHEMA}.{name}" for name in short)


def is_same(one: Any, other: Any) -> bool:
    """Whether two trees mean the same: their places in the text do not count."""
    left = [(one, other)]
    while left:
        a, b = left.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            b = _values_of(a, b)
            keys = (a.keys() | b.keys()) - _PLACES
            left += [(a.get(key), b.get(key)) for key in keys]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            left += zip(a, b, strict=True)
        elif a != b:
            return False
    return True


def _values_of(one: Node, other: Node) -> Node:
    """A list of values is printed in parentheses, and then read as `SELECT * FROM (VALUES …)`."""
    if one.get("type") != "EXPRESSION_LIST" or other.get("type") != "SUBQUERY":
        return other
    inner = other["subquery"]["node"].get("from_table") or {}
    names_of = {"alias": other["alias"], "expected_names": other["column_name_alias"]}
    return inner | names_of if inner.get("type") == "EXPRESSION_LIST" else other


_PLACES = frozenset({"query_location", "is_operator", "schema"})
_EXPLAIN = re.compile(r"\s*EXPLAIN\b(\s+ANALYZE\b)?", re.IGNORECASE)
_PAST = re.compile(rf'"?{sql_text.PAST}(\d+)"?\.("(?:[^"]|"")*"|\w+)')


def explained(text: str) -> tuple[str, str]:
    """The words EXPLAIN of a text, and the text behind them."""
    match = _EXPLAIN.match(text)
    return (match[0] + " ", text[match.end() :]) if match else ("", text)


def with_past(text: str, past: list[tuple[str, str]]) -> str:
    """The text with the past cuts that `sql_text.without_past` took out of it."""

    def clause(match: re.Match[str]) -> str:
        name, position = past[int(match[1])]
        return f'"{name.split(".")[0]}".{match[2]} AT (TOKEN => {position})'

    return _PAST.sub(clause, text) if past else text
