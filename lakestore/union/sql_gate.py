"""The first wall around SQL: a query runs only if every part of it is on an allow list.

DuckDB's own parser turns the text into a tree: `json_serialize_sql` only parses, and accepts SELECT only.

1. The text that was checked is the text that runs, and the same parser reads it both times.
2. Every node is compared with a list: node kinds here, functions and views in `sql_functions`.
3. A node that is in no list is refused. So syntax that a newer DuckDB adds is refused until somebody lists it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.names import suggestion
from lakestore.rows.literals import short
from lakestore.union import sql_functions as lists
from lakestore.union.sql_text import KEPT_CHARS_MAX, TEXTS_KEPT, past_hint

CLOSED = {
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""DuckDB's settings: no files, no network, no extensions, no variables of the program."""
_PARSER = CLOSED | {"threads": "1", "memory_limit": "256MB", "temp_directory": ""}
_PARSE = "SELECT json_serialize_sql(?::VARCHAR, skip_default := true, skip_empty := true, skip_null := true)"
_CLASSES = frozenset(
    "BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR PARAMETER"
    " POSITIONAL_REFERENCE STAR SUBQUERY WINDOW".split()
)
"""Classes of expressions."""
_CONSTANT_CLASSES = frozenset({"CAST", "CONSTANT", "FUNCTION"})
_KINDS = frozenset(
    "SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE CTE_NODE BASE_TABLE EMPTY EMPTY_FROM EXPRESSION_LIST JOIN"
    " PIVOT SHOW_REF SUBQUERY TABLE_FUNCTION DISTINCT_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER"
    " ORDER_MODIFIER ASCENDING DESCENDING ORDER_DEFAULT ARRAY_TYPE_INFO DECIMAL_TYPE_INFO LIST_TYPE_INFO"
    " STRING_TYPE_INFO STRUCT_TYPE_INFO UNBOUND_TYPE_INFO".split()
)
"""Kinds of nodes other than expressions: queries, tables, modifiers, types."""
_TYPES = frozenset(
    {"TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE"}.union(
        "ARRAY BIGINT BIGNUM BIT BLOB BOOLEAN CHAR DATE DECIMAL DOUBLE FLOAT HUGEINT INTEGER INTEGER_LITERAL"
        " INTERVAL LIST MAP NULL SMALLINT STRING_LITERAL STRUCT TIME TIME_NS TIMESTAMP TIMESTAMP_MS TIMESTAMP_NS"
        " TIMESTAMP_S TINYINT UBIGINT UHUGEINT UINTEGER UNBOUND UNION USMALLINT UTINYINT UUID VARCHAR VARIANT".split()
    )
)
"""Types of constants and casts. POINTER and AGGREGATE_STATE are missing: they are addresses in the process."""
_NAMED_TYPES = frozenset({"enum", "json"})
_SHOWN = frozenset({"DESCRIBE", "SUMMARY"})
_CONSTANT_NODE = frozenset({"type", "select_list", "from_table", "aggregate_handling"})
_CONSTANT_FUNCTIONS = lists.TIMES | lists.OPERATORS | {"trunc"}
_DOC = "docs/sql.md lists what a query may call"
_OPEN_FILES = (
    "a query reads the tables of the lake alone: external_access=True (--external-access of the command) lets it read"
    " files and addresses"
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The names that one query may use, in the form of `folded`."""

    tables: frozenset[str] = frozenset()
    """`database.table` of each table that is registered for the query."""
    bare: frozenset[str] = frozenset()
    """Names without a database, and `database.table` names that are registered as one quoted name."""
    functions: frozenset[str] = lists.FUNCTIONS
    macros: frozenset[str] = frozenset()
    """Names of macros of the server that hide DuckDB's functions of these names, so no schema stands before them."""
    table_functions: frozenset[str] = lists.TABLE_FUNCTIONS
    views: bool = True
    """Whether DuckDB's own views may be named."""
    files: bool = False
    """Whether files and URLs may be read."""
    hint: Callable[[str], str] = field(default=lambda _: "")
    """The end of the error for an unknown table name."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The WITH parts in scope at one place of a query.

    DuckDB resolves any other name among its tables, and then as a file name. A part is therefore in scope only where
    DuckDB resolves it: below its WITH, in the parts after it, and in itself if it is recursive.
    """

    places: Mapping[str, int]
    """Index of each part of one WITH, by name."""
    end: int
    """Parts from this index on are not in scope yet."""
    above: _Parts | None = None

    def __contains__(self, name: str) -> bool:
        parts: _Parts | None = self
        while parts is not None:
            if parts.places.get(name, parts.end) < parts.end:
                return True
            parts = parts.above
        return False


def folded(name: object) -> str:
    """A name in the form in which DuckDB compares names: only A to Z are lowercased."""
    return str(name).encode(errors="surrogatepass").lower().decode(errors="surrogatepass")


def check(engine: Any, text: str, rules: Rules) -> None:
    """Raises `Invalid` unless the text is one query and every part of it is on a list."""
    _Walk(rules).query(_statement(engine, text))


def constant(engine: Any, text: str) -> Any:
    """The value of a text that is one constant, such as a literal or `TIMESTAMP '…' - INTERVAL 1 HOUR`.

    Raises `Invalid` for any other text, and DuckDB's error if the constant cannot be computed.
    """
    node = _statement(engine, f"SELECT {text}")["node"]
    items = node.get("select_list", ())
    if node.keys() - _CONSTANT_NODE or node.get("from_table") != {"type": "EMPTY"} or len(items) != 1:
        raise Invalid("the text is not one constant")
    _Walk(Rules(functions=_CONSTANT_FUNCTIONS), _CONSTANT_CLASSES).query(node)
    (value,) = parser(engine).cursor().execute(f"SELECT {text}").fetchone()
    return value


def _statement(engine: Any, text: str) -> dict[str, Any]:
    """The tree of a text that is exactly one query."""
    try:
        found = json.loads((_kept_json if len(text) <= KEPT_CHARS_MAX else _json)(engine, text))
    except (engine.Error, ValueError, RecursionError) as error:
        raise Invalid("the query failed: its text cannot be read, or nests too deep") from error
    if found["error"]:
        said = found["error_message"]
        if found.get("error_type") == "parser":
            raise Invalid(f"the query failed: Parser Error: {said}{past_hint(text)}")
        raise Invalid(f"the query failed: only one SELECT is run ({said})")
    if len(found["statements"]) != 1:
        raise Invalid(f"the query failed: the text has {len(found['statements'])} statements, only one is run")
    statement: dict[str, Any] = found["statements"][0]
    return statement


def _json(engine: Any, text: str) -> str:
    """The tree of a text as DuckDB writes it."""
    (answer,) = parser(engine).cursor().execute(_PARSE, [text]).fetchone()
    return str(answer)


_kept_json = lru_cache(TEXTS_KEPT)(_json)
"""Keeps texts and not trees: the tree of a thousand characters takes some megabytes."""


@lru_cache(maxsize=1)
def parser(engine: Any) -> Any:
    """A connection for parsing: it has no tables, and its settings are locked."""
    connection = engine.connect(":memory:", config=_PARSER)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


class _Walk:
    """One walk over the tree of a query."""

    def __init__(self, rules: Rules, classes: frozenset[str] = _CLASSES) -> None:
        self._rules, self._classes = rules, classes

    def query(self, tree: dict[str, Any]) -> None:
        """Visit every node, each with the WITH parts in its scope."""
        left: list[tuple[Any, _Parts]] = [(tree, _Parts({}, 0))]
        while left:
            node, parts = left.pop()
            if isinstance(node, list):
                left += [(each, parts) for each in node]
            elif isinstance(node, dict):
                self._visit(node, parts)
                left += self._below(node, parts)

    def _below(self, node: dict[str, Any], parts: _Parts) -> Iterator[tuple[Any, _Parts]]:
        """The children of a node. A table function's call is checked together with its table."""
        inner = parts
        if "cte_map" in node:
            entries = node["cte_map"].get("map", ())
            places = {folded(entry["key"]): place for place, entry in enumerate(entries)}
            inner = _Parts(places, len(places), parts)
            for place, entry in enumerate(entries):
                yield entry["value"], _Parts(places, place, parts)
        for key, value in node.items():
            if key == "function" and node.get("type") == "TABLE_FUNCTION":
                yield [part for name, part in value.items() if name != "function_name"], inner
            elif key == "right" and node.get("type") == "RECURSIVE_CTE_NODE":
                yield value, _Parts({folded(node.get("cte_name")): 0}, 1, inner)
            elif key != "cte_map" and isinstance(value, dict | list):
                yield value, inner

    def _visit(self, node: dict[str, Any], parts: _Parts) -> None:
        kind = node.get("type")
        if "class" in node:
            if node["class"] not in self._classes:
                raise _refused(f"an expression of the kind {node['class']}")
        elif isinstance(kind, str) and kind not in _KINDS:
            raise _refused(f"a part of the kind {kind}")
        if "id" in node and "class" not in node:
            self._check_type(node)
        if node.get("export_state"):
            raise _refused("EXPORT_STATE")
        if "function_name" in node:
            self._check_function(node)
        if kind == "TABLE_FUNCTION":
            self._check_table_function(node["function"])
        elif kind == "BASE_TABLE":
            self._check_table(node, parts)
        elif kind == "SHOW_REF" and (node.get("show_type") not in _SHOWN or "query" not in node):
            raise _refused("SHOW inside a query")

    def _check_type(self, node: dict[str, Any]) -> None:
        told = node.get("type_info") or {}
        if node["id"] not in _TYPES:
            raise _refused(f"the type {node['id']}")
        if node["id"] == "UNBOUND" and (told.get("schema") or folded(told.get("name")) not in _NAMED_TYPES):
            raise _refused(f"the type {short(str(told.get('name')))}")

    def _check_function(self, call: dict[str, Any]) -> None:
        name = folded(call["function_name"])
        if name in self._rules.macros and not call.keys() & {"catalog", "schema"}:
            return
        if name not in self._rules.functions:
            raise _unlisted(name, self._rules.functions)
        if name in lists.AGGREGATE_BY_NAME:
            # In t.x.list_aggregate('sum') the parser reads t as a catalog and x as a schema: the first argument is the
            # column t.x.
            arguments = call.get("children", ())
            constant = arguments[1] if len(arguments) > 1 and not call.keys() & {"catalog", "schema"} else {}
            value = constant.get("value") or {}
            if constant.get("class") != "CONSTANT" or folded(value.get("value")) not in lists.AGGREGATES:
                raise _refused(f"{name}() without the name of an aggregate as its second argument")

    def _check_table_function(self, call: dict[str, Any]) -> None:
        name = folded(call.get("function_name"))
        if call.get("class") != "FUNCTION":
            raise _refused("a table function of an unknown form")
        if name in self._rules.table_functions or (self._rules.files and name in lists.FILE_TABLES):
            return
        if name in lists.FILE_TABLES:
            raise Invalid(f"the query failed: {name}() is refused; {_OPEN_FILES}")
        raise _unlisted(name, self._rules.table_functions)

    def _check_table(self, node: dict[str, Any], parts: _Parts) -> None:
        schema, name = folded(node.get("schema_name", "")), folded(node.get("table_name", ""))
        if node.get("catalog_name") or node.get("at_clause"):
            raise _refused(f"the form in which table {short(name)} is named: write database.table")
        if schema:
            if name in lists.VIEWS.get(schema, ()) and self._rules.views:
                return
            if f"{schema}.{name}" in self._rules.tables:
                return
            if schema in lists.OWN_SCHEMAS:
                raise _refused(f"table {short(f'{schema}.{name}')}")
            raise _absent(node, self._rules, f"{schema}.{name}")
        listed = lists.VIEWS["main"] | lists.VIEWS["pg_catalog"]
        if name.startswith(lists.ENGINE_PREFIXES):
            if name in listed and self._rules.views:
                return
            raise _refused(f"table {short(name)}")
        if name not in parts and name not in self._rules.bare and not self._rules.files:
            raise _absent(node, self._rules, name)


def _refused(what: str) -> Invalid:
    return Invalid(f"the query failed: {what} is refused; {_DOC}")


def _absent(node: dict[str, Any], rules: Rules, name: str) -> Invalid:
    is_file = "schema_name" not in node and set(name) & set("./")
    why = f"; {_OPEN_FILES}" if is_file else rules.hint(name)
    return Invalid(f"the query failed: there is no table {short(name)!r}{why}")


def _unlisted(name: str, listed: frozenset[str]) -> Invalid:
    if any(name in names for names in lists.REFUSED.values()) or name.startswith(lists.REFUSED_PREFIXES):
        return _refused(f"the function {short(name)}")
    return Invalid(f"the query failed: the function {short(name)} is on no list{suggestion(name, listed)}; {_DOC}")
