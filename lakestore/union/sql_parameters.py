"""The types of a text's parameters, `$1` or `?`, and casts that give them these types.

DuckDB gives a parameter the type of its value, and none without a value. A driver asks for the types first and sends
values of exactly these types. The text tells them: the column that is compared with the parameter, a cast, the place
behind LIMIT. A parameter whose place tells nothing is a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from lakestore.errors import Invalid
from lakestore.union.sql_text import parameter_places

STRING, JSON = "VARCHAR", "JSON"
PARAMETERS_MAX = 65_535
"""Parameters of a query, as many as Postgres's protocol can send."""
_SCALE_MORE = 10
"""Digits behind the point that a decimal parameter has more than its column: `amount > 0.005` must not be rounded."""
_DECIMAL_DIGITS = 38
_DECIMALS = re.compile(r"DECIMAL\((\d+), *(\d+)\)((?:\[\d*\])*)")
"""A decimal, or lists of decimals."""
_NO_TYPES = frozenset({"UNKNOWN", "NULL", ""})
_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.month_day_nano_interval(): "INTERVAL",
    pa.duration("us"): "INTERVAL",
    pa.uuid(): "UUID",
    pa.json_(): JSON,
}
_TEMPORAL = frozenset({"DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})
_SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "INT", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"), 0),
    **dict.fromkeys(("UBIGINT", "HUGEINT", "FLOAT", "REAL", "DOUBLE", "DECIMAL"), 0),
    **dict.fromkeys((STRING, "TEXT"), ""),
    **dict.fromkeys(("DATE", "TIMESTAMP"), "2000-01-01"),
    "BLOB": b"",
    "BOOLEAN": False,
    "INTERVAL": "0 days",
    "TIME": "00:00:00",
    "UUID": "00000000-0000-0000-0000-000000000000",
}
_COUNTS = (exp.Limit, exp.Offset)
_WRAPPERS = (exp.Paren, exp.Neg)


def sql_type(kind: pa.DataType, *, has_value: bool = True) -> str | None:
    """The name in SQL of a type; None if a value of the type needs no cast, or has none. A decimal keeps the digits of
    its value, so it has a type only without a value."""
    if pa.types.is_decimal128(kind) and not has_value:
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind) and kind.tz:
        return "TIMESTAMPTZ"
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = sql_type(kind.value_type, has_value=has_value)
        return f"{inside}[]" if inside else None
    return _NAMES.get(kind)


def samples(kinds: Sequence[str | None]) -> list[Any] | None:
    """A value of each type, for a query that is only bound; None without parameters.

    For NULL, DuckDB takes `'a' || $1` for an integer.
    """
    return [_sample(kind or "") for kind in kinds] or None


def _sample(kind: str) -> Any:
    if kind.endswith("[]"):
        return []
    name = kind.partition("(")[0]
    return _SAMPLES.get("TIMESTAMP" if name.startswith("TIMESTAMP") else name)


def column_types(schema: pa.Schema) -> dict[str, str]:
    """The types of a table's columns as sqlglot reads them."""
    return {field.name: _column_type(field.type) for field in schema}


def _column_type(kind: pa.DataType) -> str:
    return _nested_type(kind) or "UNKNOWN"


def _nested_type(kind: pa.DataType) -> str | None:
    """The name in SQL of any type; None if a part of it has none."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = _nested_type(kind.value_type)
        return f"{inside}[]" if inside else None
    if pa.types.is_map(kind):
        parts = [_nested_type(kind.key_type), _nested_type(kind.item_type)]
        return None if None in parts else f"MAP({parts[0]}, {parts[1]})"
    if pa.types.is_struct(kind):
        fields = [
            (exp.to_identifier(field.name, quoted=True).sql("duckdb"), _nested_type(field.type)) for field in kind
        ]
        return None if None in dict(fields).values() else f"STRUCT({', '.join(f'{name} {of}' for name, of in fields)})"
    return f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else sql_type(kind)


def placed_type(given: str | None, inferred: str) -> str | None:
    """The type of a parameter by the type of its value, if it is known, and by its place. JSON becomes the nested type
    of the place."""
    if given == JSON:
        return inferred if is_json(inferred) else None
    return given or inferred


def is_json(kind: str) -> bool:
    """Whether drivers send values of a type as JSON."""
    return kind.startswith(("STRUCT(", "MAP(")) or kind.endswith("[][]")


def with_casts(text: str, kinds: Sequence[str | None]) -> str:
    """The text with each parameter cast to its type."""
    parts, done = list[str](), 0
    for number, begin, end in parameter_places(text):
        kind = kinds[number] if 0 <= number < len(kinds) else None
        name = text[begin:end]
        if kind and is_json(kind):
            name = f"CAST({name} AS JSON)"
        parts += [text[done:begin], f"CAST({name} AS {kind})" if kind else name]
        done = end
    return "".join([*parts, text[done:]])


def parameter_types(
    text: str, tree: exp.Expr, tables: Mapping[str, pa.Schema], aliases: Mapping[str, str]
) -> list[str]:
    """The type in SQL of each parameter of a query over tables, by `database.table`.

    `aliases` are names without a database and their tables.
    """
    count = max((number for number, _, _ in parameter_places(text)), default=-1) + 1
    if count > PARAMETERS_MAX:
        raise Invalid(f"the query has a parameter ${count}; a query takes {PARAMETERS_MAX:,} parameters")
    kinds = [STRING] * count
    if not count:
        return kinds
    for number, kind in _found(_with_databases(tree, aliases), tables):
        if 0 <= number < count and kinds[number] == STRING:
            kinds[number] = kind
    return kinds


def _found(tree: exp.Expr, tables: Mapping[str, pa.Schema]) -> Iterator[tuple[int, str]]:
    schema: dict[str, Any] = {}
    for name, columns in tables.items():
        database, _, table = name.rpartition(".")
        schema.setdefault(database, {})[table] = column_types(columns)
    try:
        tree = qualify(
            tree, schema=schema, dialect="duckdb", validate_qualify_columns=False, quote_identifiers=False,
            expand_stars=False,
        )  # fmt: skip
        tree = annotate_types(tree, schema=schema, dialect="duckdb")
    except (SqlglotError, RecursionError, KeyError, AttributeError):
        pass  # DuckDB accepts more than this reader: what the text says without columns still counts
    structs = {name.lower(): name for columns in tables.values() for name in _struct_names(columns.types)}
    for node in tree.find_all(exp.Placeholder, exp.Parameter):
        if str(node.name).isdecimal() and (kind := _kind(node)):
            yield int(node.name) - 1, structs.get(kind.lower(), kind)


def _struct_names(kinds: Iterable[pa.DataType]) -> Iterator[str]:
    """The names of types with structs, as sqlglot prints them: it folds the names of their fields."""
    for kind in kinds:
        if pa.types.is_nested(kind) and (name := _nested_type(kind)) and "STRUCT(" in name:
            yield exp.DataType.build(name, dialect="duckdb").sql("duckdb")
            yield from _struct_names(kind.field(place).type for place in range(kind.num_fields))


def _with_databases(tree: exp.Expr, aliases: Mapping[str, str]) -> exp.Expr:
    """The tree with the database of each table: sqlglot wants all names of one depth."""
    tree = tree.copy()
    for table in tree.find_all(exp.Table):
        if not table.db and (full := aliases.get(table.name)):
            database, _, name = full.partition(".")
            if name != table.alias_or_name:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.alias_or_name)))
            table.set("this", exp.to_identifier(name))
            table.set("db", exp.to_identifier(database))
    return tree


def _kind(node: exp.Expr) -> str:
    """The type that the place of a parameter tells; empty if it tells none."""
    inside, parent = node, node.parent
    while isinstance(parent, _WRAPPERS):
        inside, parent = parent, parent.parent
    if parent is None or isinstance(parent, exp.Select):
        return ""
    if isinstance(parent, exp.Cast):
        return _shown(parent.to)
    if isinstance(parent, _COUNTS) or (isinstance(parent, exp.Substring) and inside is not parent.this):
        return "BIGINT"
    if isinstance(parent, exp.Any | exp.All) and isinstance(parent.parent, exp.Binary):
        kind = _other(parent.parent, parent)
        return f"{kind}[]" if kind else ""
    if isinstance(parent, exp.ArrayContains):
        return _of_list(parent, inside)
    if isinstance(parent, exp.Tuple):
        return _in_tuple(parent, inside)
    kind = _other(parent, inside)
    if kind.partition("(")[0] in _TEMPORAL and isinstance(parent, exp.Add | exp.Sub):
        return "INTERVAL"
    if kind == "INTERVAL" and isinstance(parent, exp.Mul | exp.Div):
        return "DOUBLE"
    return kind


def _of_list(parent: exp.ArrayContains, node: exp.Expr) -> str:
    """The type of a list by its item, or of an item by its list."""
    kind = _other(parent, node)
    return f"{kind}[]" * bool(kind) if node is parent.this else kind.removesuffix("[]")


def _other(parent: exp.Expr, node: exp.Expr) -> str:
    """The type of what stands beside a node; the first that has one."""
    if isinstance(parent, exp.Func) and not isinstance(parent, exp.Coalesce | exp.Greatest | exp.Least | exp.Binary):
        return ""
    beside = (each for each in parent.iter_expressions() if each is not node)
    return next((kind for each in beside if (kind := _shown(each.type))), "")


def _in_tuple(parent: exp.Tuple, node: exp.Expr) -> str:
    """The type of the same place in the tuple that this tuple is compared with."""
    number, above = parent.expressions.index(node), parent.parent
    others = above.iter_expressions() if above is not None else iter(())
    for each in others:
        if isinstance(each, exp.Tuple) and each is not parent and number < len(each.expressions):
            if kind := _shown(each.expressions[number].type):
                return kind
    return ""


def _shown(kind: Any) -> str:
    if not isinstance(kind, exp.DataType):
        return ""
    name = kind.sql("duckdb")
    if decimal := _DECIMALS.fullmatch(name):
        precision, scale = int(decimal[1]), int(decimal[2])
        more = min(scale + _SCALE_MORE, _DECIMAL_DIGITS - precision + scale)
        return f"DECIMAL({_DECIMAL_DIGITS}, {more}){decimal[3]}"
    return "" if name in _NO_TYPES else name
