"""Commands that print rows: read, lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import pyarrow as pa

from lakestore.cli import json_lines, row_files
from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import Progress, emit, emit_json, emit_lines, emit_text
from lakestore.errors import Invalid
from lakestore.model.types import type_name

_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_options(command: _Command) -> _Command:
    """Adds the options of commands that write rows to files."""
    command = click.option(
        "--rows-per-file", type=click.IntRange(min=1), help="Parts of so many rows, in the folder that -o names."
    )(command)
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="A file, whose name says the format, or a folder."
    )(command)


def chosen_kind(output: Path | None, kind: str | None) -> str | None:
    """The output format; None if no option names one."""
    if output is None or kind is not None:
        return kind
    return "parquet" if output.is_dir() or not output.suffix else row_files.kind_of(output)


def names_in(columns: str | None) -> list[str] | None:
    """Column names in an option; None: all columns."""
    return [name.strip() for name in columns.split(",")] if columns else None


SHOWN_ROWS = 50
_FORMATS = click.Choice(row_files.KINDS)


ABSENT = 4
"""Exit code of `lookup` if a key has no row."""


@click.command()
@click.argument("table")
@output_options
@click.option("--columns", help="Names with commas between; also __bucket, __offset, __timestamp.")
@click.option("--where", help="A condition in SQL: \"amount > 10 AND customer = 'x'\".")
@click.option("--at", help="A token or a time such as 2026-11-20T10:00Z: read exactly there.")
@click.option("--require-freshness", help="A span such as 60s: fail if what is read is older (docs/time.md).")
@click.option("--require-complete-through", help="A time: fail if what is read is not complete through it.")
@click.option("--limit", type=click.IntRange(min=0), help="No more rows than this.")
@click.option("--count", is_flag=True, help="Only the number of rows.")
@click.option("--explain", is_flag=True, help="Read, and report what was read and skipped instead of rows.")
@click.option("--format", "kind", type=_FORMATS, help="Format of the output; default: a short table on stdout.")
@server_option
@json_option
def read(
    table: str,
    output: Path | None,
    rows_per_file: int | None,
    columns: str | None,
    where: str | None,
    at: str | None,
    require_freshness: str | None,
    require_complete_through: str | None,
    limit: int | None,
    count: bool,
    explain: bool,
    kind: str | None,
    server: str,
    as_json: bool,
) -> None:
    """Read TABLE: the lake and newer rows together."""
    names = names_in(columns)
    with open_lake(server, by_profile=True) as lake:
        target = lake.table(table)
        required = {"require_freshness": require_freshness, "require_complete_through": require_complete_through}
        scan = target.scan(columns=names, where=where, at=at, **required)
        if explain:
            made = scan.explain()
            emit_json(made.as_dict()) if as_json else emit_text(made)
            return
        if count:
            found = scan.count()
            emit_json({"rows": found}) if as_json else emit_text(found)
            return
        chosen = chosen_kind(output, kind) or ("jsonl" if as_json else None)
        if chosen is None:
            _show(scan.to_batches(), SHOWN_ROWS if limit is None else limit)
            return
        stream = scan.to_reader()
        progress = Progress(f"{table} → {output.name if output else 'stdout'}")
        with row_files.Output(output, chosen, stream.schema, rows_per_file=rows_per_file) as sink:
            for batch in _limited(stream, limit):
                sink.write(batch)
                progress.add(batch.num_rows)
        if output:
            progress.done()


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def _show(batches: Iterator[pa.RecordBatch], limit: int) -> None:
    rows: list[dict[str, Any]] = []
    for batch in _limited(batches, limit + 1):
        rows += batch.to_pylist()
    if limit or not rows:
        emit(rows[:limit], as_json=False, empty="no rows")
    if len(rows) > limit:
        emit_text(f"… more rows: --limit N, --count, or -o FILE (shown {limit})", err=True)


@click.command()
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option("--columns", help="Names with commas between; also __bucket, __offset, __timestamp.")
@click.option("--at", help="A token or a time such as 2026-11-20T10:00Z: the rows as they were there.")
@server_option
@json_option
def lookup(table: str, key: tuple[str, ...], columns: str | None, at: str | None, server: str, as_json: bool) -> int:
    """Look up rows of TABLE by KEY. Separate the values of a composite key with commas.

    The first key columns, if they include the bucket key, return all rows with that prefix in key order. Exit code 4 if
    a key has no row. Write -- before a key that begins with a minus.
    """
    names = names_in(columns)
    with open_lake(server, by_profile=True) as lake:
        target = lake.table(table)
        keys = _keys(target.definition.key_schema, key)
        found = target.lookup(keys, columns=names, at=at)
    emit_lines(found) if as_json else emit(found.to_pylist(), as_json=False, empty="no such key")
    is_whole = keys.num_columns == len(target.definition.primary_key)
    lacking = (len(set(key)) if is_whole else 1) - found.num_rows
    if lacking > 0 and len(key) > 1:
        emit_text(f"{lacking} of {len(set(key))} keys have no row", err=True)
    return ABSENT if lacking > 0 else 0


def _keys(key: pa.Schema, texts: tuple[str, ...]) -> pa.Table:
    if not len(key):
        raise Invalid("the table has no primary key: read it with a condition instead")
    split = [text.split(",") if len(key) > 1 else [text] for text in texts]
    schema = pa.schema([key.field(i) for i in range(min(len(split[0]), len(key)))])
    for parts, text in zip(split, texts, strict=True):
        if len(parts) > len(key):
            raise Invalid(f"key {text!r} has {len(parts)} values; the primary key is ({', '.join(key.names)})")
        if len(parts) != len(schema):
            raise Invalid(f"key {text!r} has {len(parts)} values, {texts[0]!r} has {len(schema)}: give all as many")

    try:
        arrays = [_key_column([parts[i] for parts in split], field.type) for i, field in enumerate(schema)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        misfit = next((pair for pair in _values(split, schema) if not _fits(*pair)), None)
        reason = f"{misfit[0]!r} is no {type_name(misfit[1].type, misfit[1].name)}" if misfit else str(error)
        raise Invalid(f"a key does not fit the primary key ({', '.join(schema.names)}): {reason}") from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _values(split: list[list[str]], schema: pa.Schema) -> Iterator[tuple[str, pa.Field]]:
    for parts in split:
        yield from zip(parts, schema, strict=True)


def _fits(text: str, field: pa.Field) -> bool:
    try:
        _key_column([text], field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return False
    return True


def _key_column(texts: list[str], kind: pa.DataType) -> pa.Array:
    """Parse the printed form of a key column. Arrow parses all types except times and bytes (hex)."""
    if json_lines.by_hand(kind):
        return pa.array([json_lines.python_value(text, kind) for text in texts], kind)
    return pa.array(texts).cast(kind)


COMMANDS = (read, lookup)
