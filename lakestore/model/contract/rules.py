"""The rules of a contract that a row or a batch can answer, read from an entry of ODCS `schema`.

- `Rule` is a rule for a write. It names columns by the document's names and has an action.
- `TestOnly` is a check that no write can answer, with the reason. `contract test` runs it on the table.
- Nulls break `required`, `nullValues` and `missingValues` only. A null passes every other rule, as in SQL.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from lakestore.model.contract.document import Entry, column_name, custom_properties, properties, stored_columns
from lakestore.model.outside_values import excerpt

ON_VIOLATION = "lakestore.onViolation"
REFUSE, DEAD_LETTER, COUNT = ACTIONS = ("refuse", "dead_letter", "count")
REQUIRED, MISSING, UNIQUE, ENUM, SQL = "required", "missingValues", "unique", "enum", "sql"
PATTERN, MULTIPLE_OF = "pattern", "multipleOf"
SIGNS = {"minimum": "<", "exclusiveMinimum": "<=", "maximum": ">", "exclusiveMaximum": ">="}
"""The option of a range to the sign that a value outside it has."""
LENGTHS = {"minLength": "<", "maxLength": ">", "minItems": "<", "maxItems": ">"}
OPTIONS = (*SIGNS, *LENGTHS, PATTERN, MULTIPLE_OF)
"""The logicalTypeOptions that are rules. The others describe the type."""
RULES_MAX = 5_000
"""Rules and checks of a table. Each is asked of every batch."""
_TYPE_OPTIONS = (
    "timezone",
    "defaultTimezone",
    "dimensions",
    "elementType",
    "distanceMetric",
    "embeddingModel",
    "embeddingModelVersion",
    "normalized",
)
_OPERATORS = (
    "mustBe",
    "mustNotBe",
    "mustBeGreaterThan",
    "mustBeGreaterOrEqualTo",
    "mustBeLessThan",
    "mustBeLessOrEqualTo",
    "mustBeBetween",
    "mustNotBeBetween",
)
_COUNT_QUERY = re.compile(
    r"\s*SELECT\s+COUNT\s*\(\s*\*\s*\)\s+FROM\s+(?P<object>\S+)\s+WHERE\s+(?P<where>.+?)\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_OBJECTS = ("{object}", "{model}", "{table}", "${object}", "${model}", "${table}")
_PROPERTIES = ("${property}", "${column}", "${field}", "{property}", "{column}", "{field}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that a row or a batch of rows can answer."""

    name: str
    """Unique in the contract, and the code of a dead letter: the id or name of the quality entry, or column.kind."""
    kind: str
    columns: tuple[str, ...]
    """The document's names of the columns. Empty for `sql`: the condition names them."""
    argument: Any = None
    """The option's value, the values of a list, the pattern, or the condition that a bad row meets."""
    action: str = REFUSE
    line: int = 0
    """The line of the document."""

    @property
    def where(self) -> str:
        """The rule for an error, as in `'amount.minimum' (minimum 0 of column 'amount')`."""
        said = "" if self.argument is None else f" {excerpt(self.argument)}"
        of = f" of {_listed(self.columns)}" if self.columns else ""
        return f"{self.name!r} ({self.kind}{said}{of})"


@dataclass(frozen=True, slots=True)
class TestOnly:
    """A check that no write can answer."""

    name: str
    columns: tuple[str, ...]
    reason: str
    line: int = 0
    entry: Entry | None = field(default=None, compare=False, repr=False)
    """The check in the document."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one table."""

    at_write: tuple[Rule, ...] = ()
    in_test: tuple[TestOnly, ...] = ()

    @property
    def null_counted(self) -> frozenset[str]:
        """The columns whose nulls are only counted, so that the table must take them."""
        required = [rule for rule in self.at_write if rule.kind == REQUIRED]
        others = {rule.columns[0] for rule in required if rule.action != COUNT}
        return frozenset(rule.columns[0] for rule in required) - others


def _listed(columns: Sequence[str]) -> str:
    return f"column{'s' if len(columns) > 1 else ''} {', '.join(map(repr, columns))}"


def rules_of(root: Entry, table: Entry) -> Rules:
    """The rules of an entry of `schema`. Raises `Invalid` with the line of a fault."""
    return _Reader(root, table).rules()


class _Reader:
    def __init__(self, root: Entry, table: Entry) -> None:
        self._table, self._object = table, table.text("name")
        said = properties(root, table).get(ON_VIOLATION)
        self._action = _action(said) if said else REFUSE
        self._columns = {column.text("name"): column_name(column) for column in stored_columns(table)}
        self._rules: list[Rule] = []
        self._tests: list[TestOnly] = []
        self._names: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def rules(self) -> Rules:
        for column in stored_columns(self._table):
            self._column(column)
        for quality in self._table.listed("quality"):
            self._quality(quality, "", self._action)
        return Rules(tuple(self._rules), tuple(self._tests))

    def _column(self, column: Entry) -> None:
        name = column_name(column)
        actions = _ColumnActions(custom_properties(column).get(ON_VIOLATION), self._action)
        is_key = column.value.get("primaryKey") is True
        if is_key or column.value.get("required") is True:
            action = actions.of(REQUIRED)
            if is_key and action == COUNT:
                if actions.is_said(REQUIRED):
                    raise column.error("is a key column: its nulls are never stored, so they are not only counted")
                action = REFUSE
            self._add(column, f"{name}.{REQUIRED}", REQUIRED, (name,), None, action)
        if column.value.get("unique") is True:
            self._add(column, f"{name}.{UNIQUE}", UNIQUE, (name,), None, actions.of(UNIQUE))
        self._enum(column, name, actions)
        self._options(column, name, actions)
        for quality in column.listed("quality"):
            self._quality(quality, name, actions.of(""))
        for inner in _nested_rules(column):
            self._test(inner, inner.path, (name,), "a rule on a field inside a column is not checked at a write")
        actions.check()

    def _enum(self, column: Entry, name: str, actions: _ColumnActions) -> None:
        options = column.field("logicalTypeOptions")
        said, older = column.field(ENUM), options.field(ENUM) if options else None
        if said is not None:
            values = tuple(_value(each) for each in said.entries())
        elif older is not None:
            values = _values(older)
        else:
            return
        self._add(said or older or column, f"{name}.{ENUM}", ENUM, (name,), values, actions.of(ENUM))

    def _options(self, column: Entry, name: str, actions: _ColumnActions) -> None:
        options = column.field("logicalTypeOptions")
        is_text = column.text("logicalType", "string") == "string"
        for key in options.keys() if options else ():
            option = str(key.value)
            if option in OPTIONS:
                value = options.field(option) if options else None
                argument = None if value is None else _exact(value)
                self._add(key, f"{name}.{option}", option, (name,), argument, actions.of(option))
            elif option == "format" and is_text:
                self._test(key, f"{name}.format", (name,), "the format of a text is a remark: write a pattern")
            elif option not in ("format", ENUM, *_TYPE_OPTIONS):
                self._test(key, f"{name}.{option}", (name,), f"the option {option!r} is not checked at a write")

    def _quality(self, quality: Entry, column: str, default: str) -> None:
        said = custom_properties(quality).get(ON_VIOLATION)
        action = _action(said) if said else default
        metric = quality.text("metric") or quality.text("rule")
        kind = quality.text("type") or ("library" if metric else "text")
        usual = f"{column}.{metric or kind}" if column else metric or kind
        label = quality.text("id") or quality.text("name") or usual
        if kind == "text":
            return
        reason = f"{excerpt(quality.text('engine'))} runs it" if kind == "custom" else _threshold(quality.value)
        if not reason:
            add = self._sql if kind == "sql" else self._metric
            reason = add(quality, column, label, action)
        if not reason:
            return
        if said is not None:
            raise said.error(f"{action!r} cannot be honoured for the check {label!r}: {reason}")
        self._test(quality, label, (column,) if column else (), reason)

    def _sql(self, quality: Entry, column: str, label: str, action: str) -> str:
        """Add the condition of a query, or return the reason why a row cannot answer it."""
        match = _COUNT_QUERY.fullmatch(quality.text("query"))
        if match is None or match["object"].strip('"`') not in (*_OBJECTS, self._object):
            return "a write answers only SELECT COUNT(*) FROM {object} WHERE condition"
        condition = match["where"]
        for holder in _PROPERTIES if column else ():
            condition = condition.replace(f'"{holder}"', holder).replace(holder, quoted(column))
        if any(holder in condition for holder in (*_OBJECTS, *_PROPERTIES)):
            return "its condition names the table, or a property without a column"
        self._add(quality, label, SQL, (), condition, action)
        return ""

    def _metric(self, quality: Entry, column: str, label: str, action: str) -> str:
        """Add the rules of a library metric, or return the reason why no write can answer it."""
        metric, arguments = quality.text("metric") or quality.text("rule"), quality.field("arguments")
        named = {str(key.value): arguments.field(str(key.value)) for key in arguments.keys()} if arguments else {}
        if metric == "duplicateValues":
            columns = (column,) if column else self._named_columns(quality, named.get("properties"))
            self._add(quality, label, UNIQUE, columns, None, action)
        elif not column or metric not in ("nullValues", MISSING, "invalidValues"):
            return f"the metric {metric} is about the whole table"
        elif metric == "nullValues":
            self._add(quality, label, REQUIRED, (column,), None, action)
        elif metric == MISSING:
            missing = named.get(MISSING)
            self._add(quality, label, MISSING, (column,), _values(missing) if missing else (), action)
        else:
            values, pattern = named.get("validValues"), named.get(PATTERN)
            if values is None and pattern is None:
                raise quality.error("has the metric invalidValues without the argument validValues or pattern")
            if values is not None:
                self._add(values, label, ENUM, (column,), _values(values), action)
            if pattern is not None:
                self._add(pattern, label, PATTERN, (column,), pattern.value, action)
        return ""

    def _named_columns(self, quality: Entry, names: Entry | None) -> tuple[str, ...]:
        if names is None or not names.entries():
            raise quality.error("has the metric duplicateValues without the argument properties")
        for each in names.entries():
            if each.value not in self._columns:
                raise each.error(f"names {excerpt(each.value)}, which is no property of {self._object!r}")
        return tuple(self._columns[each.value] for each in names.entries())

    def _add(self, at: Entry, name: str, kind: str, columns: tuple[str, ...], argument: Any, action: str) -> None:
        self._rules.append(Rule(self._free(at, name), kind, columns, argument, action, at.line))

    def _test(self, at: Entry, name: str, columns: tuple[str, ...], reason: str) -> None:
        self._tests.append(TestOnly(self._free(at, name), columns, reason, at.line, at))

    def _free(self, at: Entry, name: str) -> str:
        free = name
        while free in self._names:
            self._repeats[name] += 1
            free = f"{name}#{self._repeats[name] + 1}"
        if len(self._names) == RULES_MAX:
            raise at.error(f"is one check too many: a table has at most {RULES_MAX:,} rules and checks")
        self._names.add(free)
        return free


class _ColumnActions:
    """The actions of one column's rules: one for all, or one by kind of rule."""

    def __init__(self, said: Entry | None, default: str) -> None:
        self._said, self._used = said, {""}
        self._by_kind: dict[str, str] = {}
        if said is not None and isinstance(said.value, dict):
            self._by_kind = {str(kind): _action(said.field(str(kind)) or said) for kind in said.value}
        elif said is not None:
            self._by_kind = {"": _action(said)}
        self._default = self._by_kind.get("", default)

    def of(self, kind: str) -> str:
        self._used.add(kind)
        return self._by_kind.get(kind, self._default)

    def is_said(self, kind: str) -> bool:
        return kind in self._by_kind or "" in self._by_kind

    def check(self) -> None:
        """Refuse an action for a rule that the column does not have."""
        unused = sorted(set(self._by_kind) - self._used)
        if unused and self._said is not None:
            raise self._said.error(f"has an action for {unused[0]!r}, and the column has no such rule")


def quoted(name: str) -> str:
    """A column's name in a SQL condition."""
    return '"' + name.replace('"', '""') + '"'


def _action(said: Entry) -> str:
    if said.value not in ACTIONS:
        raise said.error(f"is {', '.join(ACTIONS)}, not {excerpt(said.value)}")
    return str(said.value)


def _value(said: Entry) -> Any:
    if not isinstance(said.value, dict) or said.value.get("value") is None:
        raise said.error("is an object with a value")
    return _exact(said.field("value") or said)


def _exact(said: Entry) -> Any:
    """A value in which a number with a point has all digits that the document has."""
    if isinstance(said.value, float) and math.isfinite(said.value):
        try:
            exact = Decimal(said.node.value.replace("_", ""))
        except ArithmeticError:  # a number to the base 60
            return said.value
        return said.value if Decimal(repr(said.value)) == exact else exact
    return said.value


def _values(said: Entry) -> tuple[Any, ...]:
    """The values of a list without null: `required` alone decides whether a value may be null."""
    return tuple(_exact(each) for each in said.entries() if each.value is not None)


def _threshold(quality: Mapping[str, Any]) -> str:
    """Empty if a check demands 0, otherwise the reason why no write can answer it."""
    operators = [name for name in _OPERATORS if name in quality]
    if operators == ["mustBe"] and type(quality["mustBe"]) in (int, float) and quality["mustBe"] == 0:
        return ""
    shown = f"{operators[0]} {excerpt(quality[operators[0]])}" if operators else "no threshold"
    return f"a write answers only mustBe 0, and it says {shown}"


def _nested_rules(column: Entry) -> Iterator[Entry]:
    """The fields inside a column that have rules."""
    items = column.field("items")
    for each in [*column.listed("properties"), *([items] if items else [])]:
        options = each.field("logicalTypeOptions")
        found = {str(key.value) for key in options.keys()} if options else set()
        if any(each.value.get(name) for name in ("unique", ENUM, "quality")) or found & set(OPTIONS):
            yield each
        yield from _nested_rules(each)
