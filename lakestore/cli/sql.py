"""The command `sql`: one query, several from a pipe, or a shell."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lakestore.cli import row_files
from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import Progress, emit, emit_json, emit_text
from lakestore.cli.rows import chosen_kind
from lakestore.cli.shell import Shell, script
from lakestore.errors import Invalid
from lakestore.union.sql import SqlResult

SHOWN_ROWS = 50
_FORMATS = click.Choice(row_files.KINDS)


@click.command()
@click.argument("text", required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; its name says the format."
)
@click.option("--format", "kind", type=_FORMATS, help="Format on stdout; default: a short table.")
@click.option("--external-access", is_flag=True, help="The query may read files and addresses too.")
@click.option("--explain", is_flag=True, help="Run it, and report what was read of each table instead of rows.")
@click.option("--at", help="A token or a time such as 2026-11-20T10:00Z: read all tables exactly there.")
@click.option("--require-freshness", help="A span such as 60s: fail if what is read is older (docs/time.md).")
@click.option("--require-complete-through", help="A time: fail if what is read is not complete through it.")
@server_option
@json_option
def sql(
    text: str | None,
    at: str | None,
    require_freshness: str | None,
    require_complete_through: str | None,
    output: Path | None,
    kind: str | None,
    external_access: bool,
    explain: bool,
    server: str,
    as_json: bool,
) -> None:
    """Run queries over tables, each at one cut: lakestore sql "SELECT count(*) FROM shop.orders", or a shell.

    Without a query the command runs the statements and dot commands of stdin. On a terminal it opens a shell with
    history, completion and timing; .help lists its commands. docs/sql.md describes the language.
    """
    if text is None and sys.stdin.isatty() and sys.stdout.isatty():
        with open_lake(server, by_profile=True) as lake:
            Shell(lake, at=at, external_access=external_access).run()
        return
    texts = [text] if text is not None else script(sys.stdin.read())
    if output and len(texts) != 1:
        raise Invalid(f"-o {output} takes the rows of one query, and there are {len(texts)}")
    required = {"require_freshness": require_freshness, "require_complete_through": require_complete_through}
    with open_lake(server, by_profile=True) as lake:
        shell = Shell(lake, at=at, external_access=external_access, timing=False)
        for part in texts:
            if text is None and part.startswith((".", "\\")):
                if not shell.handle(part):
                    return
                continue
            result = lake.sql(part, at=shell.at, external_access=external_access, **required)
            if explain:
                emit_json([read.as_dict() for read in result.reads]) if as_json else emit_text(result.explain())
            else:
                _show(result, output, kind or ("jsonl" if as_json else None))


def _show(result: SqlResult, output: Path | None, kind: str | None) -> None:
    found = result.to_arrow()
    chosen = chosen_kind(output, kind)
    if chosen is None:
        emit(found.slice(0, SHOWN_ROWS).to_pylist(), as_json=False, empty="no rows")
        if found.num_rows > SHOWN_ROWS:
            emit_text(f"… more rows: --json, --format, or -o FILE (shown {SHOWN_ROWS})", err=True)
        return
    progress = Progress(f"query → {output.name if output else 'stdout'}")
    with row_files.Output(output, chosen, found.schema) as sink:
        for batch in found.to_batches():
            sink.write(batch)
            progress.add(batch.num_rows)
    if output:
        progress.done()


COMMANDS = (sql,)
