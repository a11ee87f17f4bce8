"""The rules of a contract as masks over Arrow batches.

- Arrow computes the conditions of all rules in one pass over a batch. Ten passes cost three times as much.
- A rule names columns by the contract's names. The checks rename the columns of a batch, so a condition in SQL needs
  no rewriting after a rename.
- A row on which a condition cannot be computed breaks the rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Exhausted, Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.contract import rules as rule_kinds
from lakestore.model.contract.rules import LENGTHS, SIGNS, Rule, quoted
from lakestore.model.outside_values import excerpt
from lakestore.model.table import Table
from lakestore.rows import condition_text
from lakestore.rows.condition import RowFilter, RowTest, masks
from lakestore.rows.literals import text_literal

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_FREE = ("last", "last_non_null", "first")
"""Functions of `aggregate` whose result is one of the values that were sent."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The rows of a batch that break one rule."""

    rule: Rule
    rows: Ints
    """Ascending."""


@dataclass(frozen=True, slots=True)
class KeptValues:
    """Rows that keep columns of the live row, by the contract's names."""

    columns: frozenset[str]
    rows: Flags


@dataclass(frozen=True, slots=True)
class _Check:
    """A rule as the test of its bad rows."""

    rule: Rule
    columns: frozenset[str]
    """The columns that it reads, by the contract's names."""
    bad: RowFilter


class RowChecks:
    """The rules of one version of a table's contract, compiled. Thread-safe."""

    def __init__(self, rules: Sequence[Rule], table: Table, names: Mapping[str, str] | None = None) -> None:
        """`names` maps the contract's names of columns to the present ones; without an entry they are equal.

        Raises `Invalid` for a rule that no write to this table can answer.
        """
        present = names or {}
        self._contract = {now: name for name, now in present.items() if now != name}
        for column in table.columns:
            if present.get(column.name, column.name) != column.name and column.name not in self._contract:
                # A later column with the old name of a renamed one: no rule can mean it.
                self._contract[column.name] = f"{column.name} (column {column.id})"
        columns = tuple(replace(each, name=self._name(each.name)) for each in table.columns)
        self._table = _view(table, columns)
        self._unique: list[Rule] = []
        self._key = tuple(self._name(name) for name in table.primary_key)
        self._last_wins = table.merge.engine == "upsert"
        self._checks: list[_Check] = []
        for rule in rules:
            self._add(rule, table)
        self.rules = tuple(rules)

    def _name(self, present: str) -> str:
        return self._contract.get(present, present)

    def _add(self, rule: Rule, table: Table) -> None:
        for name in rule.columns:
            if name not in self._table.schema.names:
                raise Invalid(f"table {table.name}: rule {rule.where}: the table has no column {name!r}")
        if rule.kind == rule_kinds.UNIQUE:
            for name in rule.columns:
                if pa.types.is_nested(kind := self._table.column(name).arrow.type):
                    raise Invalid(f"table {table.name}: rule {rule.where} is not for a column of {kind}")
            if not (self._key and set(self._key) <= set(rule.columns)):
                _check_whole(rule, frozenset(rule.columns) - set(self._key), table)
                self._unique.append(rule)
            return
        try:
            bad = _filter(rule, self._table)
            _check_sent(bad)
        except (Invalid, pa.ArrowException) as error:
            why = error.message if isinstance(error, Invalid) else str(error)
            raise Invalid(f"table {table.name}: rule {rule.where} cannot be checked at a write: {why}") from error
        check = _Check(rule, frozenset(bad.columns), bad)
        _check_whole(rule, check.columns - set(self._key), table)
        _check_functions(rule, check.columns, table, self._contract)
        self._checks.append(check)

    def violations(
        self,
        batch: pa.RecordBatch,
        given: Collection[str] | None = None,
        kept: Sequence[KeptValues] = (),
        gone: Ints | None = None,
    ) -> list[Violation]:
        """The broken rules in their order, with their rows.

        `given` are the present names of the columns that the rows bring; None: all. `kept` are the columns that rows
        leave as they are. A rule on columns that a row does not bring is not asked. `gone` are rows that are not stored
        anyway. Such rows, and rows that break another rule, repeat no value.
        """
        if not batch.num_rows or not self.rules:
            return []
        named = batch
        if self._contract:
            named = batch.rename_columns([self._name(name) for name in batch.schema.names])
        checks = self._checks
        if given is not None:
            brought = {self._name(name) for name in given}
            checks = [check for check in checks if check.columns <= brought]
        broken = {check.rule.name: np.flatnonzero(bad) for check, bad in _bad_rows(checks, named, kept)}
        stays = np.ones(batch.num_rows, dtype=np.bool_)
        stays[_NONE if gone is None else gone] = False
        for check in checks:
            if check.rule.action != rule_kinds.COUNT:
                stays[broken.get(check.rule.name, _NONE)] = False
        for rule in self._unique:
            if given is None or set(rule.columns) <= brought:
                rows = np.flatnonzero(stays)
                some = named if len(rows) == named.num_rows else named.take(pa.array(rows))
                broken[rule.name] = rows[self._repeated(rule, some)]
                if rule.action != rule_kinds.COUNT:
                    stays[broken[rule.name]] = False
        return [Violation(rule, rows) for rule in self.rules if len(rows := broken.get(rule.name, _NONE))]

    def columns_of(self) -> dict[str, frozenset[str]]:
        """Name of each rule to the present names of the columns that it reads."""
        present = {said: name for name, said in self._contract.items()}
        read = {check.rule.name: check.columns for check in self._checks}
        read |= {rule.name: frozenset(rule.columns) for rule in self.rules if rule.name not in read}
        return {rule: frozenset(present.get(name, name) for name in names) for rule, names in read.items()}

    def _repeated(self, rule: Rule, batch: pa.RecordBatch) -> Ints:
        """Rows whose values an earlier row of another key has in this batch. Nulls equal nothing."""
        values, valid = _codes(batch, rule.columns)
        rows = np.arange(batch.num_rows)
        if self._key:
            keys, _ = _codes(batch, self._key)
            if not self._last_wins:  # any row of the key may be the one that is stored
                keys = keys * (int(values.max()) + 1) + values
            last = np.zeros(len(keys), dtype=np.bool_)
            last[len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]] = True
            valid = valid & last  # an earlier row of the key is replaced by the last one
        rows = rows[valid]
        first = np.unique(values[rows], return_index=True)[1]
        return np.delete(rows, first)

    def bad_value(self, rule: Rule, batch: pa.RecordBatch, row: int) -> str:
        """The values of the rule's columns in a row, for an error."""
        present = {self._name(name): name for name in batch.schema.names}
        check = next((each for each in self._checks if each.rule is rule), None)
        columns = rule.columns or sorted(check.columns if check else ())
        values = {name: batch.column(present[name])[row].as_py() for name in columns if name in present}
        return ", ".join(
            f"{present[name]} is null" if value is None else f"{present[name]} = {excerpt(value)}"
            for name, value in values.items()
        )


_NONE: Ints = np.zeros(0, dtype=np.int64)


def _view(table: Table, columns: Any) -> Table:
    """The table with the contract's names, for conditions only."""
    return replace(table, columns=columns, primary_key=(), bucket_key=(), ttl=None)


def _bad_rows(
    checks: Sequence[_Check], batch: pa.RecordBatch, kept: Sequence[KeptValues]
) -> Iterator[tuple[_Check, Flags]]:
    """The broken rules with the masks of their bad rows."""
    whole = [check for check in checks if not isinstance(check.bad.expression, RowTest) and _may_break(check, batch)]
    found = masks([check.bad.expression for check in whole], batch) if whole else []
    by_rule = {check.rule.name: mask for check, mask in zip(whole, found, strict=True)}
    for check in checks:
        bad = by_rule.get(check.rule.name)
        if isinstance(check.bad.expression, RowTest):
            bad = _tested(check.bad, batch.select(check.bad.columns))
        for each in kept:
            keeps = check.columns & each.columns
            if bad is not None and keeps == check.columns:
                bad = bad & ~each.rows
            elif keeps and keeps != check.columns:
                # A part of the values is not at hand, so the condition cannot be computed.
                bad = each.rows if bad is None else bad | each.rows
        if bad is not None and bad.any():
            yield check, bad


def _may_break(check: _Check, batch: pa.RecordBatch) -> bool:
    return check.rule.kind != rule_kinds.REQUIRED or batch.column(check.rule.columns[0]).null_count > 0


def _tested(test: RowFilter, batch: pa.RecordBatch) -> Flags:
    """Mask of the bad rows of a test. A row on which it cannot be computed is bad."""
    try:
        return test.mask(batch)
    except (Invalid, Exhausted, pa.ArrowException, ArithmeticError):
        if batch.num_rows == 1:
            return np.ones(1, dtype=np.bool_)
        middle = batch.num_rows // 2
        return np.concatenate([_tested(test, batch.slice(0, middle)), _tested(test, batch.slice(middle))])


def _codes(batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[Ints, Flags]:
    """A number for each row, equal for equal values, and whether no value is null."""
    codes, valid = np.zeros(batch.num_rows, dtype=np.int64), np.ones(batch.num_rows, dtype=np.bool_)
    for name in columns:
        column = batch.column(name)
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0, column.type))  # -0.0 becomes 0.0, which it equals
        part = column.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        codes = codes * (int(part.max()) + 1) + part if len(columns) > 1 else part.astype(np.int64)
        if len(columns) > 2:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes, valid


def _check_sent(bad: RowFilter) -> None:
    """Refuse a condition on columns that the commit itself makes."""
    made = [name for name in bad.columns if name in SYSTEM_TYPES]
    if made:
        raise Invalid(f"column {made[0]!r} has no value before the commit")


def _check_whole(rule: Rule, columns: frozenset[str], table: Table) -> None:
    """Refuse a rule over several columns where a row may bring some of them only."""
    if table.merge.engine in ("partial", "aggregate") and len(columns) > 1:
        raise Invalid(
            f"table {table.name}: rule {rule.where} reads {len(columns)} columns, and a row of a table with the merge"
            f" engine {table.merge.engine} brings some of them: leave {rule_kinds.ON_VIOLATION} out and give it another"
            " threshold than mustBe 0 to check it by `contract test`, or split it"
        )


def _check_functions(rule: Rule, columns: frozenset[str], table: Table, contract: Mapping[str, str]) -> None:
    """Refuse a rule on a column whose stored value is computed of many rows."""
    for name, function in table.merge.functions:
        if contract.get(name, name) in columns and function.name not in _FREE:
            raise Invalid(
                f"table {table.name}: rule {rule.where} is about column {name!r}, whose value is the {function.name} of"
                " many rows: a write cannot check it"
            )


def _filter(rule: Rule, table: Table) -> RowFilter:
    """The condition that a bad row meets."""
    if rule.kind == rule_kinds.SQL:
        return condition_text.parse(str(rule.argument), table)
    [name] = rule.columns
    kind, column = table.column(name).arrow.type, pc.field(name)
    if rule.kind == rule_kinds.REQUIRED:
        return RowFilter(column.is_null(), (name,))
    if rule.kind == rule_kinds.PATTERN:
        return _pattern(rule, name, kind)
    if rule.kind in LENGTHS:
        return _length(rule, name, kind)
    if rule.kind in SIGNS:
        return condition_text.parse(f"{quoted(name)} {SIGNS[rule.kind]} {_literal(rule.argument)}", table)
    if rule.kind == rule_kinds.MULTIPLE_OF:
        if not pa.types.is_integer(kind):
            raise Invalid(f"multipleOf is for integers, and the column is {kind}")
        if type(rule.argument) not in (int, float, Decimal) or rule.argument <= 0:
            raise Invalid(f"multipleOf is a number above 0, not {excerpt(rule.argument)}")
        return condition_text.parse(f"{quoted(name)} % {_literal(rule.argument)} <> 0", table)
    if rule.kind in (rule_kinds.ENUM, rule_kinds.MISSING):
        return _listed(rule, name, table)
    raise Invalid(f"this release does not know rules of the kind {rule.kind!r}")


def _listed(rule: Rule, name: str, table: Table) -> RowFilter:
    """A value outside a list of values, or inside a list of values that mean nothing."""
    column, is_missing = quoted(name), rule.kind == rule_kinds.MISSING
    texts = ", ".join(map(_literal, rule.argument))
    if is_missing:
        text = f"{column} IS NULL" + (f" OR {column} IN ({texts})" if texts else "")
    else:
        text = f"{column} NOT IN ({texts})" if texts else f"{column} IS NOT NULL"
    return condition_text.parse(text, table)


def _pattern(rule: Rule, name: str, kind: pa.DataType) -> RowFilter:
    if not pa.types.is_string(kind):
        raise Invalid(f"a pattern is for texts, and the column is {kind}")
    if not isinstance(rule.argument, str):
        raise Invalid(f"a pattern is a text, not {excerpt(rule.argument)}")
    pc.match_substring_regex(pa.array(["a"]), rule.argument)  # this raises for what RE2 does not know
    return RowFilter(~pc.match_substring_regex(pc.field(name), rule.argument), (name,))


def _length(rule: Rule, name: str, kind: pa.DataType) -> RowFilter:
    column = pc.field(name)
    steps: list[tuple[Callable[[pa.DataType], bool], Callable[[pc.Expression], pc.Expression], tuple[str, ...]]] = [
        (pa.types.is_string, pc.utf8_length, ("minLength", "maxLength")),
        (pa.types.is_binary, pc.binary_length, ("minLength", "maxLength")),
        (pa.types.is_list, pc.list_value_length, ("minItems", "maxItems")),
    ]
    if type(rule.argument) is not int or not 0 <= rule.argument < 1 << 63:
        raise Invalid(f"{rule.kind} is a number from 0 to 2^63, not {excerpt(rule.argument)}")
    for fits, length, kinds in steps:
        if fits(kind) and rule.kind in kinds:
            long = length(column)
            return RowFilter(long < rule.argument if LENGTHS[rule.kind] == "<" else long > rule.argument, (name,))
    raise Invalid(f"{rule.kind} is not for a column of {kind}")


_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


def _literal(value: Any) -> str:
    """A value of the document in SQL."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float | Decimal):
        text = repr(value) if isinstance(value, float) else str(value)
        if not _NUMBER.fullmatch(text):
            raise Invalid(f"{excerpt(value)} is no number that a column can have")
        return text
    if isinstance(value, datetime | date | time):
        return f"'{value.isoformat()}'"
    if isinstance(value, str):
        return text_literal(value)
    raise Invalid(f"{excerpt(value)} is no value of a column")
