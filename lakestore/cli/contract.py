"""`lakestore contract`: read, check, apply and compare contracts of the Open Data Contract Standard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import pyarrow as pa

from lakestore.cli.apply import make_changes
from lakestore.cli.connect import catalog_of
from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import emit_json, emit_text
from lakestore.client.contract_measures import BROKEN, KEPT, NOT_MEASURED, Measure
from lakestore.errors import Invalid
from lakestore.model import table_file
from lakestore.model.contract import document, file
from lakestore.model.contract.file import ServerPlace
from lakestore.model.contract.rules import COUNT
from lakestore.model.outside_values import excerpt
from lakestore.model.table import Table
from lakestore.model.table_changes import contract_changes
from lakestore.rows.contract_review import BrokenRule, Review, broken_rules, repeated_keys, review

SAMPLE_ROWS = 100_000
FOUND = 3
"""Exit code of `check`, `diff` and `test` if they have something to tell."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def contract() -> None:
    """Read, check, apply, compare and measure contracts of tables; docs/contracts.md describes the file."""


def _file_argument(command: _Command) -> _Command:
    return click.argument("path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))(command)


def _text_in(path: Path) -> str:
    """The text of a contract. Raises `Invalid` with the name of a file that is none."""
    text = path.read_text()
    try:
        document.parse(text)
    except Invalid as error:
        raise Invalid(f"{path}: {error.message}") from error
    return text


def _choice_options(command: _Command) -> _Command:
    command = click.option(
        "--database", default="", metavar="NAME", help="The database of tables for which the contract tells none."
    )(command)
    return click.option(
        "--table", "names", multiple=True, metavar="NAME", help="Only this table of the contract; may be repeated."
    )(command)


@contract.command("import")
@_file_argument
@_choice_options
@json_option
def import_(path: Path, names: tuple[str, ...], database: str, as_json: bool) -> None:
    """Print the tables of a contract as a tables.yaml. It asks no server."""
    root = document.parse(_text_in(path))
    tables = [file.wanted(root, entry, database) for entry in file.selected(root, names, database)]
    for table in tables:
        table.definition()
    text = table_file.yaml_of(tables)
    emit_json({"tables": [table.name for table in tables], "file": text}) if as_json else emit_text(text, nl=False)


@contract.command()
@click.argument("tables", nargs=-1, metavar="TABLE…")
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="A tables.yaml instead of tables."
)
@click.option("--kafka", default="", metavar="HOST:PORT", help="A broker that consumers are told as a server.")
@server_option
@json_option
def export(tables: tuple[str, ...], path: Path | None, kafka: str, server: str, as_json: bool) -> None:
    """Print the contract of tables as it was applied, or a new one for tables without one.

    A new contract tells consumers the server's Iceberg catalog: warehouse `now` is the head, `lake` is the tiered
    state.
    """
    if bool(tables) == (path is not None):
        raise Invalid("say the tables, such as shop.orders, or a file with -f")
    if path is not None:
        definitions = [table.definition() for table in table_file.parse(path.read_text(), path.name)]
        text = file.exported(definitions, _kafka(kafka))
    else:
        with open_lake(server) as lake:
            definitions = [lake.table(name).definition for name in tables]
        text = _text_of(definitions, [*_iceberg(server), *_kafka(kafka)])
    emit_json({"document": text}) if as_json else emit_text(text.removesuffix("\n"))


def _text_of(definitions: Sequence[Table], places: Sequence[ServerPlace]) -> str:
    documents = {table.contract.document if table.contract else "" for table in definitions}
    if documents == {""}:
        return file.exported(definitions, places)
    if len(documents) > 1:
        raise Invalid("the tables have not one contract in common: export one table at a time")
    return documents.pop()


def _iceberg(server: str) -> list[ServerPlace]:
    place = catalog_of(server)
    return file.iceberg_places(f"{place.scheme}://{place.host}/iceberg")


def _kafka(address: str) -> list[ServerPlace]:
    return [ServerPlace("kafka", "kafka", (("host", address),))] if address else []


@contract.command()
@_file_argument
@_choice_options
@click.option("--why", default="", metavar="TEXT", help="The reason, which is stored with the contract.")
@click.option(
    "--allow-drop", "allowed", multiple=True, metavar="DB.TABLE.COLUMN", help="Drop this column; may be repeated."
)
@server_option
@json_option
def apply(
    path: Path,
    names: tuple[str, ...],
    database: str,
    why: str,
    allowed: tuple[str, ...],
    server: str,
    as_json: bool,
) -> int:
    """Create or alter the tables of a contract, each in one commit together with the contract.

    Everything is checked before the first change.
    """
    return _made(path, names, database, why, allowed, server, plan=False, as_json=as_json)


@contract.command()
@_file_argument
@_choice_options
@server_option
@json_option
def diff(path: Path, names: tuple[str, ...], database: str, server: str, as_json: bool) -> int:
    """Show what `contract apply` would change; exit code 3 if there is anything."""
    return _made(path, names, database, "", (), server, plan=True, as_json=as_json)


def _made(
    path: Path,
    names: Sequence[str],
    database: str,
    why: str,
    allowed: Sequence[str],
    server: str,
    *,
    plan: bool,
    as_json: bool,
) -> int:
    text = _text_in(path)
    with open_lake(server) as lake:
        there = {table.name: table.definition for table in lake.tables()}
        changes = contract_changes(text, there, names=names, database=database, why=why)
        return make_changes(lake, changes, allowed, plan=plan, as_json=as_json)


@contract.command()
@_file_argument
@_choice_options
@click.option(
    "--rows", "sample", default="", metavar="FILE", help="Rows to check too: Parquet, CSV, JSON lines, Arrow."
)
@click.option("--most", default=SAMPLE_ROWS, show_default=True, type=click.IntRange(1), help="Rows to read of them.")
@json_option
def check(path: Path, names: tuple[str, ...], database: str, sample: str, most: int, as_json: bool) -> int:
    """Check a contract before its tables exist, and a sample of rows; exit code 3 if there is a fault.

    A fault is a line that the standard or a table does not allow. With --rows it is also a row that breaks a rule, such
    as a null in a key. The share of repeated keys is told, because an upsert replaces a row whose key is there. It
    asks no server.
    """
    found = review(path.read_text(), names, database)
    samples = [_sampled(table, sample, most) for table in _one(found.tables)] if sample and not found.faults else []
    if as_json:
        emit_json(
            {
                "tables": [table.name for table in found.tables],
                "findings": [asdict(finding) for finding in found.findings],
                "samples": [asdict(told) for told in samples],
            }
        )
    else:
        for finding in found.findings:
            line = f"line {finding.line}: " if finding.line else ""
            emit_text(f"{finding.level}: {line}{finding.text}")
        for told in samples:
            for text in told.lines():
                emit_text(text)
        emit_text(_told(found, samples))
    return FOUND if found.faults or any(told.is_faulty for told in samples) else 0


def _one(tables: Sequence[Table]) -> Sequence[Table]:
    if len(tables) != 1:
        raise Invalid(f"rows are of one table: choose it with --table {' or --table '.join(t.name for t in tables)}")
    return tables


def _told(found: Review, samples: Sequence[Sample]) -> str:
    faults = found.faults + sum(told.is_faulty for told in samples)
    names = ", ".join(table.name for table in found.tables) or "no table"
    return f"{faults} fault{'s' if faults != 1 else ''}; the contract describes {names}"


@dataclass(frozen=True, slots=True)
class Sample:
    """Facts about a sample of rows."""

    table: str
    source: str
    rows: int
    key: tuple[str, ...]
    repeated: int
    """Rows whose key an earlier row has."""
    broken: list[BrokenRule]
    refused: int
    """Records that are no rows of the table."""
    first_refused: str

    @property
    def is_faulty(self) -> bool:
        return bool(self.refused or any(broken.action != COUNT for broken in self.broken))

    def lines(self) -> Iterator[str]:
        """The facts as sentences."""
        if self.refused:
            yield f"fault: {self.refused:,} records of {self.source} are no rows of {self.table}: {self.first_refused}"
        for broken in self.broken:
            level = "note" if broken.action == COUNT else "fault"
            yield f"{level}: {_sentence(broken, self.rows)}"
        if self.key:
            share = 100 * self.repeated / self.rows if self.rows else 0
            yield f"note: {self.repeated:,} of {self.rows:,} rows ({share:.1f} %) repeat a key ({', '.join(self.key)})"


def _sentence(broken: BrokenRule, rows: int) -> str:
    at = f"the first is row {broken.first_row + 1:,}: {broken.value}"
    return f"{broken.rows:,} of {rows:,} rows break the rule {broken.rule!r} of line {broken.line}; {at}"


def _sampled(table: Table, path: str, most: int) -> Sample:
    from lakestore.loading.files import source_of
    from lakestore.loading.json_blocks import chunks_of
    from lakestore.loading.progress import Place
    from lakestore.loading.reading import ColumnRequest, Options

    wanted = ColumnRequest(table, Options(), bad_max=most)
    batches: list[pa.Table] = []
    bad: list[str] = []
    rows = 0
    for source in source_of(path).files:
        for chunk in chunks_of(source, wanted, Place()):
            batches.append(pa.Table.from_batches([chunk.batch]).slice(0, most - rows))
            bad += [f"line {refused.line}: {refused.reason}" for refused in chunk.bad]
            rows += batches[-1].num_rows
            if rows >= most:
                break
    schema = table.nullable_schema
    read = pa.concat_tables([schema.empty_table(), *batches], promote_options="default")
    broken, repeated = broken_rules(table, read), repeated_keys(table, read)
    first = bad[0] if bad else ""
    return Sample(table.name, path, rows, table.primary_key, repeated, broken, len(bad), first)


@contract.command()
@click.argument("source", metavar="TABLE|FILE")
@_choice_options
@server_option
@json_option
def test(source: str, names: tuple[str, ...], database: str, server: str, as_json: bool) -> int:
    """Measure the checks of a contract on the newest rows of TABLE, or of the tables of FILE; exit code 3 if one fails.

    Rows that break a rule are shown with their key and values. Checks of the whole table, such as rowCount and queries,
    are measured too; a check that another tool runs is told as not measured.
    """
    text = Path(source).read_text() if Path(source).is_file() else ""
    tables = [source] if not text else _names_in(text, names, database)
    with open_lake(server) as lake:
        told = {name: lake.table(name).test_contract(text) for name in tables}
    if as_json:
        emit_json({name: [asdict(measure) for measure in measures] for name, measures in told.items()})
    else:
        for name, measures in told.items():
            for line in _measured(name, measures):
                emit_text(line)
    return FOUND if any(measure.state == BROKEN for measures in told.values() for measure in measures) else 0


def _names_in(text: str, names: Sequence[str], database: str) -> list[str]:
    root = document.parse(text)
    return [file.table_name(root, entry, database) for entry in file.selected(root, names, database)]


def _measured(name: str, measures: Sequence[Measure]) -> Iterator[str]:
    for measure in measures:
        value = f": {_number(measure.value)}" if measure.value is not None else ""
        expected = f", expected {measure.expected.removeprefix('is ')}" if measure.state == BROKEN else ""
        why = f": {measure.why}" if measure.why else ""
        yield f"{measure.state}: line {measure.line}, {measure.rule}{value}{expected}{why}"
        for example in measure.examples:
            yield f"  {', '.join(f'{column} = {_cell(value)}' for column, value in example.items())}"
    count = Counter(measure.state for measure in measures)
    said = [f"{count[state]} {state}" for state in (BROKEN, KEPT, NOT_MEASURED) if count[state]]
    yield f"{name}: {', '.join(said) or 'the contract has no checks'}"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cell(value: Any) -> str:
    return "null" if value is None else excerpt(value)


COMMANDS = (contract,)
