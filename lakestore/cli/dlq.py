"""`lakestore dlq`: list, show, replay and drop dead letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import Progress, emit, emit_json, emit_text
from lakestore.errors import Invalid
from lakestore.release import needs_extra

if TYPE_CHECKING:
    from lakestore.kafka.bridge.dead_letters import ReplayCounts, Selection

FAILED = 1
SHOWN = 20
BYTES_SHOWN = 200
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def dlq() -> None:
    """List, show, replay and drop records that a bridge rejected, and rows that broke a contract."""


def _selected(command: _Command) -> _Command:
    for name, what in (
        ("--where", "Only dead letters that meet a condition on their columns, such as \"topic = 'orders'\"."),
        ("--stage", "Only dead letters that were rejected at this stage; may be repeated."),
        ("--code", "Only dead letters with this error code; may be repeated."),
    ):
        command = click.option(name, multiple=name != "--where", help=what)(command)
    return command


def _selection(code: tuple[str, ...], stage: tuple[str, ...], where: str | None) -> Selection:
    from lakestore.kafka.bridge.dead_letters import Selection

    return Selection(code, stage, where or "")


@dlq.command("list")
@click.argument("table", required=False)
@server_option
@json_option
def list_letters(table: str | None, server: str, as_json: bool) -> None:
    """Count the dead letters of TABLE, or of all tables, by stage and code."""
    from lakestore.kafka.bridge import dead_letters

    with open_lake(server) as lake:
        counts = dead_letters.count_by_code(lake, table or "")
    emit([asdict(each) for each in counts], as_json=as_json, empty="no dead letters")


@dlq.command()
@click.argument("table")
@_selected
@click.option("--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Letters at most.")
@server_option
@json_option
def show(
    table: str, code: tuple[str, ...], stage: tuple[str, ...], where: str | None, limit: int, server: str, as_json: bool
) -> None:
    """Show dead letters of TABLE: position, reason and bytes; complete with --json."""
    from lakestore.kafka.bridge import dead_letters

    with open_lake(server) as lake:
        found = dead_letters.sample_rows(lake, table, _selection(code, stage, where), limit).to_pylist()
    if as_json:
        emit_json([{name: _readable(value) for name, value in row.items()} for row in found])
        return
    for row in found:
        place = f"{row['topic']}, partition {row['partition']}, offset {row['kafka_offset']:,}"
        at = f" at {row['path']}" if row["path"] else ""
        emit_text(f"{place}: {row['stage']} {row['code']}{at}")
        emit_text(f"  {row['sentence']}")
        if row["key"] is not None:
            emit_text(f"  key    {_short(row['key'], len(row['key']))}")
        for header in row["headers"] or ():
            emit_text(f"  header {header['name']}: {_short(header['value'] or b'', len(header['value'] or b''))}")
        emit_text("  value  " + ("null" if row["value"] is None else _short(row["value"], row["value_bytes"])))
    if not found:
        emit_text("no dead letters")


def _short(value: bytes, size: int) -> str:
    text = _text(value[:BYTES_SHOWN])
    return f"{' '.join(text.split())}{f' … ({size:,} bytes)' if size > BYTES_SHOWN else ''}"


def _text(value: bytes) -> str:
    return "".join(each if each.isprintable() or each.isspace() else "�" for each in value.decode(errors="replace"))


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, dict):
        return {name: _readable(each) for name, each in value.items()}
    return value


@dlq.command()
@click.argument("table")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The bridge.yaml; without it, rows that broke a rule of the table's contract are replayed.",
)
@_selected
@click.option("--overwrite", is_flag=True, help="Also into a table with a key that keeps no order of its rows.")
@server_option
@json_option
def replay(
    table: str,
    path: Path | None,
    code: tuple[str, ...],
    stage: tuple[str, ...],
    where: str | None,
    overwrite: bool,
    server: str,
    as_json: bool,
) -> int:
    """Replay dead letters of TABLE, after the cause is fixed. Exit code 1 if any fail.

    With a bridge.yaml its records go through it again. A row that a later record of its key wrote stays, and the older
    record is counted as superseded. Without the file, rows are written again that broke a rule of the contract.
    """
    selection = _selection(code, stage, where)
    counts = (
        _of_rows(server, table, selection, overwrite)
        if path is None
        else _of_records(server, table, path, selection, overwrite)
    )
    if as_json:
        emit_json(asdict(counts))
    else:
        emit_text(
            f"{counts.applied:,} applied, {counts.superseded:,} superseded, {counts.left_out:,} left out,"
            f" {counts.failed:,} failed"
        )
        for name, sentence in counts.examples.items():
            emit_text(f"  {name}: {sentence}")
    return FAILED if counts.failed else 0


def _of_rows(server: str, table: str, selection: Selection, overwrite: bool) -> ReplayCounts:
    from lakestore.loading.row_replay import RowReplay

    progress = Progress(f"replay of {table}")
    with open_lake(server) as lake:
        replay = RowReplay(
            lake, table, overwrite=overwrite, progress=lambda counts: progress.add(counts.letters - progress.rows)
        )
        return replay.run(selection)


def _of_records(server: str, table: str, path: Path, selection: Selection, overwrite: bool) -> ReplayCounts:
    with needs_extra("kafka", "Kafka"):
        from lakestore.kafka.bridge import spec_file
        from lakestore.kafka.bridge.assembly import Assembly
        from lakestore.kafka.bridge.cluster import Clusters
        from lakestore.kafka.bridge.replay import Replay
    spec = spec_file.read(path)
    progress = Progress(f"replay of {table}")
    with open_lake(server) as lake, Clusters(spec.sources) as clusters:
        made = Assembly(spec, lake)
        running = Replay(
            lake,
            spec,
            table,
            made.pipeline,
            clusters,
            overwrite=overwrite,
            progress=lambda counts: progress.add(counts.letters - progress.rows),
        )
        return running.run(selection)


@dlq.command()
@click.argument("table")
@_selected
@click.option("--all", "everything", is_flag=True, help="All dead letters of the table.")
@server_option
@json_option
def drop(
    table: str,
    code: tuple[str, ...],
    stage: tuple[str, ...],
    where: str | None,
    everything: bool,
    server: str,
    as_json: bool,
) -> None:
    """Delete dead letters of TABLE for ever: the selected ones, or --all."""
    from lakestore.kafka.bridge import dead_letters

    if everything == bool(code or stage or where):
        raise Invalid("say which dead letters to drop by --code, --stage or --where, or say --all")
    with open_lake(server) as lake:
        dropped = dead_letters.drop(lake, table, _selection(code, stage, where))
    emit_json({"dropped": dropped}) if as_json else emit_text(f"{dropped:,} dead letters dropped")


COMMANDS = (dlq,)
