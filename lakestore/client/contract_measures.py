"""The checks of a contract measured on the rows of a table at one cut.

- Rules of a commit are masks over the rows; repeated values, counts and queries are SQL.
- A check that another tool runs is told as not measured, with the reason. It is never told as kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakestore.client.snapshot import Snapshot
from lakestore.errors import Invalid, LakestoreError
from lakestore.model.contract import document, file
from lakestore.model.contract import rules as kinds
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.document import Entry, column_name
from lakestore.model.contract.rules import Rule
from lakestore.model.table import Table
from lakestore.rows.literals import text_literal
from lakestore.rows.row_checks import RowChecks
from lakestore.union.views import quoted

EXAMPLES = 5
"""Rows that are shown of a broken rule."""
KEPT, BROKEN, NOT_MEASURED = "kept", "broken", "not measured"
_COMPARISONS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "mustBe": ("is", lambda value, bound: bool(value == bound)),
    "mustNotBe": ("is not", lambda value, bound: bool(value != bound)),
    "mustBeGreaterThan": ("is more than", lambda value, bound: bool(value > bound)),
    "mustBeGreaterOrEqualTo": ("is at least", lambda value, bound: bool(value >= bound)),
    "mustBeLessThan": ("is less than", lambda value, bound: bool(value < bound)),
    "mustBeLessOrEqualTo": ("is at most", lambda value, bound: bool(value <= bound)),
    "mustBeBetween": ("is between", lambda value, bound: bool(bound[0] <= value <= bound[1])),
    "mustNotBeBetween": ("is not between", lambda value, bound: not bound[0] <= value <= bound[1]),
}
_PLACE = re.compile(r'"?\$?\{(\w+)\}"?')
_TABLE_WORDS, _COLUMN_WORDS = ("object", "model", "table", "schema"), ("property", "column", "field")


@dataclass(frozen=True, slots=True)
class Measure:
    """One check and what the rows say."""

    rule: str
    columns: tuple[str, ...]
    line: int
    state: str
    """kept, broken or not measured."""
    value: Any = None
    """The number of rows that break a rule, or the value of a metric or query."""
    expected: str = ""
    why: str = ""
    """Why it is not measured."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Some rows that break the rule: their key, or bucket and offset, and the values of the rule's columns."""


def measures(cut: Snapshot, table: Table, contract: Contract) -> list[Measure]:
    """The checks of a contract that is bound to a table, in the order of their lines."""
    made = [*_of_rows(cut, table, contract), *_of_table(cut, table, contract)]
    return sorted(made, key=lambda measure: measure.line)


def contract_of(text: str, table: Table) -> Contract:
    """The contract of a text for an existing table. Raises `Invalid` if it does not describe the table."""
    root = document.parse(text)
    for entry in root.listed("schema"):
        if file.table_name(root, entry, table.namespace) == table.name:
            contract = Contract(text, entry.text("name")).bind(table)
            contract.check(table)
            return contract
    raise root.error(f"does not describe the table {table.name}")


def _of_rows(cut: Snapshot, table: Table, contract: Contract) -> Iterator[Measure]:
    names = _present_names(table, contract)
    masked = [rule for rule in contract.rules.at_write if rule.kind != kinds.UNIQUE]
    checks = RowChecks(masked, table, names)
    counts: dict[str, int] = {rule.name: 0 for rule in masked}
    examples: dict[str, list[dict[str, Any]]] = {rule.name: [] for rule in masked}
    place = list(table.primary_key) or ["__bucket", "__offset"]
    columns = [*table.schema.names, *(name for name in place if name not in table.schema.names)]
    for batch in cut.scan(table.name, columns).to_batches() if masked else ():
        for broken in checks.violations(batch.select(table.schema.names)):
            counts[broken.rule.name] += len(broken.rows)
            shown = [*place, *(names.get(name, name) for name in broken.rule.columns if names.get(name) not in place)]
            free = EXAMPLES - len(examples[broken.rule.name])
            examples[broken.rule.name] += batch.select(shown).take(pa.array(broken.rows[:free])).to_pylist()
    for rule in masked:
        yield _counted(rule, counts[rule.name], examples[rule.name])
    for rule in contract.rules.at_write:
        if rule.kind == kinds.UNIQUE:
            yield _counted(rule, _repeated(cut, table, [names[name] for name in rule.columns]), [])


def _counted(rule: Rule, count: int, examples: list[dict[str, Any]]) -> Measure:
    state = BROKEN if count else KEPT
    return Measure(rule.name, rule.columns, rule.line, state, count, "is 0", examples=examples)


def _present_names(table: Table, contract: Contract) -> dict[str, str]:
    ids = {column.id: column.name for column in table.columns}
    return {name: ids[number] for name, number in contract.bound}


def _repeated(cut: Snapshot, table: Table, columns: list[str]) -> int:
    """Rows whose values another row has too, without one of each."""
    listed = ", ".join(quoted(name) for name in columns)
    there = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    return int(_value(cut, _repeats(f"{_sql_name(table)} WHERE {there}", listed)))


def _of_table(cut: Snapshot, table: Table, contract: Contract) -> Iterator[Measure]:
    for test in contract.rules.in_test:
        entry, column = test.entry, test.columns[0] if test.columns else ""
        if entry is None or entry.text("type") == "custom" or ".quality[" not in entry.path:
            yield Measure(test.name, test.columns, test.line, NOT_MEASURED, why=test.reason)
            continue
        try:
            query = _query(entry, column, table, contract)
            value = _value(cut, query)
            if entry.text("unit") == "percent" and entry.text("type") != "sql":
                rows = _value(cut, _count(_sql_name(table)))
                value = 100 * value / rows if rows else 0
        except LakestoreError as error:
            yield Measure(test.name, test.columns, test.line, NOT_MEASURED, why=error.message)
            continue
        yield _compared(test.name, test.columns, entry, value)


def _compared(name: str, columns: tuple[str, ...], entry: Entry, value: Any) -> Measure:
    said = [(word, entry.value[word]) for word in _COMPARISONS if word in entry.value]
    if len(said) != 1:
        return Measure(name, columns, entry.line, NOT_MEASURED, value, why="it has no comparison such as mustBe")
    word, bound = said[0]
    text, holds = _COMPARISONS[word]
    expected = f"{text} {' and '.join(map(str, bound)) if isinstance(bound, list) else bound}"
    try:
        kept = value is not None and holds(value, bound)
    except TypeError:
        return Measure(
            name, columns, entry.line, NOT_MEASURED, value, expected, "the value and the bound differ in type"
        )
    return Measure(name, columns, entry.line, KEPT if kept else BROKEN, value, expected)


def _query(entry: Entry, column: str, table: Table, contract: Contract) -> str:
    names = _present_names(table, contract)
    if entry.text("type") == "sql":
        return _placed(entry, names.get(column, ""), table, contract)
    name, metric = _sql_name(table), entry.text("metric") or entry.text("rule")
    if metric == "rowCount":
        return _count(name)
    if metric == "duplicateValues":
        arguments = entry.field("arguments")
        listed = [part.value for part in arguments.listed("properties")] if arguments else []
        columns = ", ".join(quoted(names.get(part, part)) for part in ([column] if column else listed))
        return _repeats(name, columns)
    if not column:
        raise Invalid(f"the metric {metric} is for a column")
    return _count(f"{name} WHERE {_condition(entry, metric, quoted(names[column]))}")


def _condition(entry: Entry, metric: str, column: str) -> str:
    arguments = entry.field("arguments")
    if metric == "nullValues":
        return f"{column} IS NULL"
    if metric == "missingValues":
        values = [part.value for part in arguments.listed("missingValues")] if arguments else []
        listed = [_literal(value) for value in values if value is not None]
        return f"{column} IS NULL" + (f" OR CAST({column} AS VARCHAR) IN ({', '.join(listed)})" if listed else "")
    valid = [part.value for part in arguments.listed("validValues")] if arguments else []
    pattern = arguments.text("pattern") if arguments else ""
    tests = [f"CAST({column} AS VARCHAR) NOT IN ({', '.join(map(_literal, valid))})"] if valid else []
    tests += [f"NOT regexp_matches(CAST({column} AS VARCHAR), {_literal(pattern)})"] if pattern else []
    if metric != "invalidValues" or not tests:
        raise Invalid(f"the metric {metric} has no arguments by which it is measured")
    return f"{column} IS NOT NULL AND ({' OR '.join(tests)})"


def _literal(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text_literal(text)


def _placed(entry: Entry, column: str, table: Table, contract: Contract) -> str:
    """The query with the names of the table and of the column."""

    def placed(match: re.Match[str]) -> str:
        word = match[1]
        if word in _TABLE_WORDS:
            return _sql_name(table)
        if word in _COLUMN_WORDS and column:
            return quoted(column)
        raise Invalid(f"its query has {match[0]}, which means nothing there")

    text = _PLACE.sub(placed, entry.text("query"))
    names = "|".join(re.escape(name) for name in {contract.object, column_name(contract.entry)})
    return re.sub(rf'(?i)\b(FROM|JOIN)\s+"?({names})"?(?![\w.])', lambda m: f"{m[1]} {_sql_name(table)}", text)


def _count(rows: str) -> str:
    """The query of the number of rows. Names in it are quoted, values are literals, and DuckDB only reads."""
    return f"SELECT count(*) FROM {rows}"  # noqa: S608


def _repeats(rows: str, columns: str) -> str:
    """The query of the number of rows whose values another row has, without one of each."""
    return f"SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM {rows} GROUP BY {columns})"  # noqa: S608


def _sql_name(table: Table) -> str:
    return f"{quoted(table.namespace)}.{quoted(table.short_name)}"


def _value(cut: Snapshot, query: str) -> Any:
    rows = cut.sql(query).to_arrow()
    if rows.num_rows != 1 or rows.num_columns != 1:
        raise Invalid(f"its query gives {rows.num_rows} rows of {rows.num_columns} columns, not one value")
    value = rows.column(0)[0].as_py()
    return float(value) if hasattr(value, "as_tuple") else value
