"""Merge engines decide what happens to a row whose key exists. Values only; the server merges.

`upsert` replaces the row, `partial` only the columns sent. `first_row` keeps the existing row. `versioned(column)`
keeps the row with the higher version, with `within` only if that column is equal. `aggregate({column: function, …})`
combines both rows; columns without a function take the last value that is not null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.outside_values import excerpt

ENGINES = ("upsert", "partial", "first_row", "versioned", "aggregate")
DELETES = ("allow", "ignore", "refuse", "dead_letter")
_VERSION_TYPES = ("int", "uint", "timestamp", "date")
_WITHIN_TYPES = ("int", "uint", "string")
_VERSIONED = re.compile(r"\s*versioned\(\s*(\w+)\s*(?:,\s*within\s+(\w+)\s*)?\)\s*")
_NUMBERS = ("int", "uint", "float", "decimal")
_ORDERED = (*_NUMBERS, "string", "date", "time", "bool")
_FUNCTION = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "sum": _NUMBERS,
    "product": _NUMBERS,
    "max": _ORDERED,
    "min": _ORDERED,
    "first": (),
    "last": (),
    "last_non_null": (),
    "count": ("int",),
    "bool_and": ("bool",),
    "bool_or": ("bool",),
    "string_list": ("string",),
    "bitmap": ("binary",),
    "distinct_count": ("int64",),
}
"""Function to prefixes of the column types it accepts; empty: any type."""
REST = "last_non_null"
"""The default function in an `aggregate` table."""


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """The aggregation of one column."""

    name: str
    argument: str = ""
    """Separator of `string_list` (default: comma), or the bitmap column of a `distinct_count`."""

    def __str__(self) -> str:
        return f"{self.name}({self.argument})" if self.argument else self.name


@dataclass(frozen=True, slots=True)
class Merge:
    """A table's merge engine."""

    engine: str = "upsert"
    column: str = ""
    within: str = ""
    """Column of `versioned` that must be equal for versions to be compared; empty: always compared."""
    functions: tuple[tuple[str, Function], ...] = ()

    @property
    def folds(self) -> bool:
        """True if changes of one key in a batch are combined and the live row is read."""
        return self.engine != "upsert"

    @property
    def version(self) -> tuple[str, ...]:
        """Columns that decide which row is older, for `versioned`. They are required, and stored with deletes."""
        return tuple(name for name in (self.column, self.within) if name)

    @property
    def columns(self) -> tuple[str, ...]:
        counted = [f.argument for _, f in self.functions if f.name == "distinct_count"]
        return tuple(dict.fromkeys([*self.version, *(column for column, _ in self.functions), *counted]))

    def renamed(self, name: Callable[[str], str]) -> Merge:
        functions = sorted(
            (name(c), replace(f, argument=name(f.argument)) if f.name == "distinct_count" else f)
            for c, f in self.functions
        )
        column, within = (name(part) if part else "" for part in (self.column, self.within))
        return replace(self, column=column, within=within, functions=tuple(functions))

    def as_data(self) -> str | dict[str, Any]:
        """The stored form, which `parse_merge` reads."""
        if self.engine == "versioned":
            return {"versioned": self.column, **({"within": self.within} if self.within else {})}
        if self.engine == "aggregate":
            return {"aggregate": {column: str(function) for column, function in self.functions}}
        return self.engine

    def __str__(self) -> str:
        if self.engine == "versioned":
            return f"versioned({', within '.join(self.version)})"
        if self.engine == "aggregate":
            return f"aggregate({', '.join(f'{column}: {function}' for column, function in self.functions)})"
        return self.engine


UPSERT = Merge()


def versioned(column: str, *, within: str = "") -> Merge:
    """`merge=versioned("updated_at")`: the row with the higher version stays, of equal ones the later.

    With `within="source"` versions are compared only if that column is equal; otherwise the later row stays.
    """
    for name in (column, within):
        if type(name) is not str:
            raise Invalid(f"versioned takes names of columns, not {excerpt(name)}")
    return Merge("versioned", column, within)


def aggregate(functions: Mapping[str, str]) -> Merge:
    """`merge=aggregate({"total": "sum", "tags": "string_list(;)"})`."""
    given: Any = functions
    if not isinstance(given, Mapping):
        raise Invalid(f"aggregate takes a function for each column, as in {{'total': 'sum'}}, not {excerpt(given)}")
    for column, text in given.items():
        if not isinstance(text, str):
            raise Invalid(
                f"aggregate takes a function for each column, as in {{'total': 'sum'}}, not {excerpt(text)} for"
                f" {column!r}"
            )
    return Merge("aggregate", functions=tuple((column, _function(functions[column])) for column in sorted(functions)))


def parse_merge(value: Any) -> Merge:
    """Parse a user's `merge=`: a `Merge`, a name, `"versioned(column, within column)"`, or a dict such as
    `{"aggregate": {…}}`. Raises `Invalid`.
    """
    if isinstance(value, Merge):
        return value
    if isinstance(value, dict) and set(value) == {"versioned", "within"} and value["within"]:
        return versioned(value["versioned"], within=value["within"])
    if isinstance(value, dict) and len(value) == 1:
        engine, of = next(iter(value.items()))
        if engine == "versioned" and isinstance(of, str):
            return versioned(of)
        if engine == "aggregate":
            return aggregate(of)
    if isinstance(value, str):
        match = _VERSIONED.fullmatch(value)
        if match:
            return versioned(match[1], within=match[2] or "")
        if value in ("upsert", "partial", "first_row"):
            return Merge(value)
    raise Invalid(
        f"merge engine {excerpt(value)} is not known: say 'upsert', 'partial', 'first_row', 'versioned(column)',"
        " 'versioned(column, within column)' or aggregate({column: function})"
    )


def _function(text: str) -> Function:
    match = _FUNCTION.fullmatch(text)
    if not match or match[1] not in FUNCTIONS:
        raise Invalid(f"aggregate function {excerpt(text)} is not known; known are {', '.join(FUNCTIONS)}")
    takes = match[1] in ("string_list", "distinct_count")
    if match[2] is not None and not takes:
        raise Invalid(f"aggregate function {match[1]} takes no argument, unlike {excerpt(text)}")
    if match[1] == "distinct_count" and not match[2]:
        raise Invalid("distinct_count names the bitmap column that it counts: distinct_count(column)")
    return Function(match[1], match[2] or "")


def check(merge: Merge, columns: Mapping[str, tuple[str, bool]], keys: Sequence[str], table: str) -> None:
    """Refuse an engine that the columns, name to (type, required), do not allow."""
    if not keys:
        if merge != UPSERT:
            raise Invalid(f"table {table}: a log table has no merge engine; leave merge out, or name a primary key")
        return
    for name in merge.columns:
        if name not in columns:
            raise Invalid(f"table {table}: the merge engine names column {name!r}, which is not there")
        if name in keys:
            raise Invalid(f"table {table}: column {name!r} is in the primary key and cannot be merged")
    needed = [name for name, (_, required) in columns.items() if required and name not in keys]
    if merge.engine == "partial" and needed:
        raise Invalid(
            f"table {table}: column {needed[0]!r} is required, which partial rows need not bring: make it optional"
        )
    if merge.engine == "versioned":
        _check_version(merge, columns, table)
    if merge.engine == "aggregate":
        _check_functions(merge, columns, table)


def _check_version(merge: Merge, columns: Mapping[str, tuple[str, bool]], table: str) -> None:
    if not merge.column:
        raise Invalid(f"table {table}: versioned names the column with the version")
    if merge.within == merge.column:
        raise Invalid(f"table {table}: column {merge.column!r} is the version, and cannot be within as well")
    roles: dict[str, tuple[str, tuple[str, ...], str]] = {
        merge.column: ("version", _VERSION_TYPES, "an integer, a date or a timestamp")
    }
    if merge.within:
        roles[merge.within] = ("within", _WITHIN_TYPES, "an integer or a string")
    for column, (role, taken_types, taken) in roles.items():
        kind, required = columns[column]
        if not kind.startswith(taken_types):
            raise Invalid(f"table {table}: {role} column {column!r} is {kind}: take {taken}")
        if not required:
            raise Invalid(f"table {table}: {role} column {column!r} must be required")


def _check_functions(merge: Merge, columns: Mapping[str, tuple[str, bool]], table: str) -> None:
    if not merge.functions:
        raise Invalid(f"table {table}: aggregate names a function for at least one column")
    functions = dict(merge.functions)
    for name, function in merge.functions:
        kind, _ = columns[name]
        starts = FUNCTIONS[function.name]
        if starts and not kind.startswith(starts):
            raise Invalid(f"table {table}: column {name!r} is {kind}, and {function.name} takes {', '.join(starts)}")
        if function.name == "distinct_count" and functions.get(function.argument, function).name != "bitmap":
            raise Invalid(
                f"table {table}: {function} counts column {function.argument!r}, which is not a bitmap column"
            )
