"""The command `write`, which loads files into a table. Whatever happens, it says what is committed."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import Progress, emit_json, emit_text
from lakestore.client.snapshot import head
from lakestore.errors import Invalid, NotFound
from lakestore.loading.files import FORMATS, TEXTS, Source, source_of
from lakestore.loading.load import MAX_BAD, Load, LoadStopped
from lakestore.loading.reading import ColumnRequest, Options
from lakestore.model.names import no_column, rows_text, suggestion
from lakestore.model.terminal_text import terminal_text
from lakestore.model.types import canonical, type_name
from lakestore.wire.commit_message import COUNTS

if TYPE_CHECKING:
    from types import FrameType

    from lakestore.client.lake import Lake
    from lakestore.model.table import Table


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of the command."""

    keys: tuple[str, ...]
    buckets: int
    create: bool
    yes: bool
    delete: bool
    where: str
    skip_bad: Path | None
    max_bad: int
    again: bool
    types: dict[str, str]
    options: Options


@click.command()
@click.argument("table")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="The format, where names do not say it.")
@click.option("--delimiter", default="", help="Separator of CSV values; default: a comma, or a tab in .tsv.")
@click.option("--null", default="", help="A text of CSV that means null, in addition to an empty value.")
@click.option("--header/--no-header", default=True, help="Whether CSV names its columns first; else the table's order.")
@click.option("--where", default="", help="Only the rows that match: \"amount > 10 AND customer = 'x'\".")
@click.option("--op-column", default="", help="Column with the operation of each row: I U D, +I -U +U -D, c u d r.")
@click.option(
    "--delete", is_flag=True, help="The rows are keys to delete; with columns to empty (partial) or versions."
)
@click.option(
    "--skip-bad", type=click.Path(path_type=Path, dir_okay=False), help="Leave bad rows out, and keep them here."
)
@click.option("--max-bad", default=MAX_BAD, show_default=True, help="The most bad rows that are left out.")
@click.option("--name", default="", help="Name of the load, instead of the file's name; stdin has none.")
@click.option("--again", is_flag=True, help="Load from the beginning, also what was loaded before.")
@click.option("--create", is_flag=True, help="Make the table if it is absent; --key says so too.")
@click.option("--key", "keys", multiple=True, help="Primary-key column of the table to be made; may be repeated.")
@click.option(
    "--type", "kinds", multiple=True, metavar="COLUMN=TYPE", help="Type of a column of the table to be made: id=int32."
)
@click.option("--buckets", default=4, show_default=True, help="Buckets of the table to be made.")
@click.option("-y", "--yes", is_flag=True, help="Make the table without asking.")
@server_option
@json_option
def write(
    table: str, files: tuple[str, ...], kind: str | None, name: str, server: str, as_json: bool, **said: Any
) -> None:
    """Write FILE to TABLE: a path, a folder, a glob, a URI, or - for stdin.

    Names of Parquet, CSV, JSON lines and Arrow files tell the format; they may end in .gz or .zst. After a failure or
    interrupt run the same command again: it continues where the load stopped, exactly once. Loaded files are skipped;
    new files in a folder are loaded. A file, its folder and a glob are three loads. The token of the last commit is
    printed on stdout: `read --at` it to see exactly this state. docs/loading.md has the details.

    Columns that FILE does not name have their default. In partial and aggregate tables they keep their values, and each
    line of JSON may name other columns.
    """
    if name and len(files) > 1:
        raise Invalid("--name is the name of one source: give one FILE, a folder or a glob in quotes")
    started = time.monotonic()
    texts = {key: said.pop(key) for key in ("delimiter", "null", "header", "op_column")}
    asked = _Asked(options=Options(**texts), types=_types(said.pop("kinds")), **said)
    sources = [source_of(file, name=name, kind=kind) for file in files]
    with open_lake(server) as lake:
        definition, waited = _target(lake, table, sources[0], asked)
        started += waited
        told = []
        for source in sources:
            told.append(_loaded(lake, definition, source, asked, started))
            started = time.monotonic()
        token = told[-1]["token"] or head(lake.transport)
    if as_json:
        emit_json(_summed(table, told, token))
    else:
        emit_text(token)


def _summed(table: str, results: list[dict[str, Any]], token: str) -> dict[str, Any]:
    counts = {name: sum(each["result"][name] for each in results) for name in results[0]["result"]}
    summed = {name: sum(each[name] for each in results) for name in ("rows", "refused")}
    return {"table": table, **summed, "result": counts, "sources": results, "token": token}


def _types(kinds: Sequence[str]) -> dict[str, str]:
    types: dict[str, str] = {}
    for text in kinds:
        column, sign, kind = text.partition("=")
        if not column or not sign:
            raise Invalid(f"--type takes COLUMN=TYPE, such as id=int32, unlike {text!r}")
        types[column] = canonical(kind)
    return types


def _target(lake: Lake, name: str, source: Source, options: _Asked) -> tuple[Table, float]:
    """The table, created from the first rows if it is absent, and the seconds of the user's answer."""
    try:
        definition = lake.table(name).definition
    except NotFound as error:
        if not options.keys and not options.create:
            hint = suggestion(name, [table.name for table in lake.tables()])
            raise NotFound(
                f"table {name} does not exist{hint}{';' if hint else ':'} give --key COLUMN to make a primary-key"
                " table, --create for a log table"
            ) from error
    else:
        for column, kind in options.types.items():
            known = definition.schema.field(column).type if column in definition.schema.names else None
            if known is None or type_name(known, column) != kind:
                raise Invalid(
                    f"table {name} exists, and --type {column}={kind} differs from it: `lakestore describe {name}`"
                    " shows its columns, `lakestore alter` changes them"
                )
        return definition, 0.0
    return _created(lake, name, source, options)


def _created(lake: Lake, name: str, source: Source, options: _Asked) -> tuple[Table, float]:
    """Create a table after reading its first rows with it. Also returns the seconds that the user took to answer."""
    from lakestore.loading.inference import first_chunk, sample_columns
    from lakestore.model.table import define

    file = source.files[0]
    emit_text(f"reading the first rows of {file.shown}", err=True)
    sample = sample_columns(file, options.options, options.types)
    keys = list(options.keys) or list(sample.key)
    for key in keys:
        if key not in sample.schema.names:
            raise Invalid(no_column(file.shown, key, sample.schema.names))
    definition = define(name, sample.schema, primary_key=keys, buckets=options.buckets)
    chunk = first_chunk(file, ColumnRequest(definition, options.options, options.delete), options.where)
    if chunk is not None and chunk.bad and options.skip_bad is None:
        unit = "line" if file.kind in TEXTS else "row"
        bad = chunk.bad[0]
        raise Invalid(f"{file.shown}, {unit} {bad.line}: {bad.reason}; table {name} was not made")
    kind = f"primary-key table ({', '.join(keys)})" if keys else "log table"
    origin = f"types from the first {rows_text(sample.rows)}" if sample.rows else "types as the file has them"
    emit_text(f"{name}: {kind}, {options.buckets} buckets; {origin} of {file.shown}", err=True)
    for field in sample.schema:
        emit_text(f"  {field.name}  {type_name(field.type, field.name)}", err=True)
    asked_at = time.monotonic()
    if not options.yes:
        _ask(name)
    waited = time.monotonic() - asked_at
    return lake.create(definition).definition, waited


def _ask(name: str) -> None:
    if not sys.stdin.isatty():
        raise Invalid(f"table {name} would be made so, and nobody is here to ask: say --yes")
    if not click.confirm(terminal_text(f"Make table {name}?"), default=True, err=True):
        raise click.Abort


def _loaded(lake: Lake, table: Table, source: Source, options: _Asked, started: float) -> dict[str, Any]:
    progress = Progress(f"{table.name} ← {source.shown}", started)
    load = Load(
        lake, table, source, options.options,
        where=options.where, deletes=options.delete, again=options.again, skip_bad=options.skip_bad,
        max_bad=options.max_bad, on_rows=progress.add,
    )  # fmt: skip
    try:
        with _interruptible(load):
            load.run()
    except LoadStopped:
        emit_text(f"interrupted; {_committed(load)}", err=True)
        raise click.Abort from None
    except BaseException:
        emit_text(_committed(load), err=True)
        raise
    if load.files == 0 and not load.rows:
        emit_text(f"{source.shown} is loaded already, {_total(load)}: --again loads it once more", err=True)
    else:
        progress.done()
        emit_text(_done(load), err=True)
    result = {name: load.counts[name] for name in sorted(load.counts)} if load.counts else {}
    return {
        "source": source.shown,
        "producer": load.producer,
        "rows": load.rows,
        "refused": load.refused,
        "went_on_from": load.started.place_text if load.started.rows else None,
        "result": {name: result.get(name, 0) for name in COUNTS},
        "token": load.token,
    }


def _done(load: Load) -> str:
    parts = [f"{load.counts[name]:,} {name.replace('_', ' ')}" for name in COUNTS if load.counts[name]]
    text = ", ".join(parts) or "nothing changed"
    if load.started.rows:
        text += f"; went on from {load.started.place_text}, with {rows_text(load.started.rows)} loaded before"
    if load.refused:
        text += f"; {rows_text(load.refused, 'bad row')} left out"
    if not load.producer:
        text += "; stdin without --name: giving the same again would load it again"
    return text


def _committed(load: Load) -> str:
    text = f"committed: {rows_text(load.rows)}"
    if load.progress.file and load.rows:
        text += f", to {load.progress.place_text}"
    if load.started.rows:
        text += f", and {rows_text(load.started.rows)} before"
    if load.doubtful:
        text += f"; {load.doubtful}, may be committed too"
    if not load.producer:
        return f"{text}; stdin without --name cannot go on: what is committed stays"
    return f"{text}; the same command goes on from there"


def _total(load: Load) -> str:
    return rows_text(load.progress.rows)


@contextmanager
def _interruptible(load: Load) -> Iterator[None]:
    """The first interrupt lets the current commit finish. The second one does not wait."""

    def stop(number: int, frame: FrameType | None) -> None:
        load.stop()
        for each, former in before.items():
            signal.signal(each, former)

    before: dict[int, Any] = {}
    try:
        for each in (int(signal.SIGINT), int(signal.SIGTERM)):
            before[each] = signal.signal(each, stop)
    except ValueError:
        before = {}  # only the main thread receives signals
    try:
        yield
    finally:
        for each, former in before.items():
            signal.signal(each, former)


COMMANDS = (write,)
