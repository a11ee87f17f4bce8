"""A review of a contract before it is applied: its faults and notes, and what sampled rows say, without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.contract import document, file, standard
from lakestore.model.contract.document import Entry
from lakestore.model.table import Table
from lakestore.rows.row_checks import RowChecks

_LINE = re.compile(r"line (\d+): ")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, which `apply` refuses, or a note about what commits do not enforce."""

    level: str
    """fault or note."""
    line: int
    """0: the whole file."""
    text: str

    @staticmethod
    def fault(error: Invalid | str) -> Finding:
        """The finding of an error, whose message may begin with its line."""
        message = error if isinstance(error, str) else error.message
        match = _LINE.match(message)
        return Finding("fault", int(match[1]), message[match.end() :]) if match else Finding("fault", 0, message)


@dataclass(frozen=True, slots=True)
class Review:
    """The tables of a contract and everything that is to be said about them."""

    tables: tuple[Table, ...]
    """Definitions without faults."""
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> int:
        return sum(finding.level == "fault" for finding in self.findings)


def review(text: str, names: Sequence[str] = (), database: str = "") -> Review:
    """Check a contract against the standard and against what a table can be."""
    try:
        root = document.parse(text)
        entries = file.selected(root, names, database)
    except Invalid as error:
        return Review((), (Finding.fault(error),))
    findings = [Finding.fault(message) for message in standard.faults(root)]
    tables: list[Table] = []
    for entry in entries:
        try:
            table = _definition(root, entry, text, database)
        except Invalid as error:
            findings.append(Finding.fault(error))
            continue
        tables.append(table)
        findings += _notes(table)
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: (finding.line, finding.level))
    return Review(tuple(tables), tuple(ordered))


def _definition(root: Entry, entry: Entry, text: str, database: str) -> Table:
    wanted, contract = file.with_contract(root, entry, text, database=database)
    try:
        table = wanted.definition()
    except Invalid as error:
        raise Invalid(f"{wanted.place}: {error.message}") from error
    contract = contract.bind(table)
    contract.check(table)
    for rule in contract.rules.at_write:
        try:
            RowChecks([rule], table)
        except Invalid as error:
            raise Invalid(f"line {rule.line}: {error.message}") from error
    return replace(table, contract=contract)


def _notes(table: Table) -> Iterator[Finding]:
    contract = table.contract
    assert contract is not None
    for column in contract.entry.listed("properties"):
        if column.text("semanticType") == "measure":
            yield Finding("note", column.line, f"{column.path} is a measure and no column of the table")
    for test in contract.rules.in_test:
        yield Finding("note", test.line, f"the check {test.name!r} is no rule of a commit: {test.reason}")


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that rows break."""

    rule: str
    columns: tuple[str, ...]
    action: str
    line: int
    rows: int
    first_row: int
    """The number of the first of these rows, from 0."""
    value: str
    """The values of that row in the columns of the rule."""


def broken_rules(table: Table, rows: pa.Table) -> list[BrokenRule]:
    """The rules of the table's contract that rows break. Columns that the rows lack are null."""
    contract = table.contract
    if contract is None or not contract.rules.at_write:
        return []
    ids = {column.id: column.name for column in table.columns}
    checks = RowChecks(contract.rules.at_write, table, {name: ids[number] for name, number in contract.bound})
    batch = pa.concat_tables([table.nullable_schema.empty_table(), rows], promote_options="default")
    (whole,) = batch.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.nullable_schema)]
    return [
        BrokenRule(
            broken.rule.name,
            broken.rule.columns,
            broken.rule.action,
            broken.rule.line,
            len(broken.rows),
            int(broken.rows[0]),
            checks.bad_value(broken.rule, whole, int(broken.rows[0])),
        )
        for broken in checks.violations(whole)
    ]


def repeated_keys(table: Table, rows: pa.Table) -> int:
    """The number of rows whose key an earlier row has. Rows with a null in the key do not count."""
    if not table.keyed:
        return 0
    keys = rows.select(list(table.primary_key)).drop_null()
    return int(keys.num_rows - keys.group_by(list(table.primary_key)).aggregate([]).num_rows)
