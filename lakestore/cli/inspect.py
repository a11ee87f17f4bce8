"""`lakestore inspect`: a microscope for a server's files, working offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lakestore.cli.connection import json_option
from lakestore.cli.output import emit, emit_json, emit_lines, emit_text


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rows", is_flag=True, help="Print the rows of journal frames and segments, one line of JSON each.")
@json_option
@click.pass_context
def inspect(context: click.Context, paths: tuple[Path, ...], rows: bool, as_json: bool) -> None:
    """Describe journal, segment, checkpoint and index files, or all of a data folder or a backup.

    From the bytes alone: nothing is changed and no server is needed. Damaged files are described up to the damage; the
    exit code is then 1.
    """
    from lakestore_server.operate.inspect.file import look

    damaged = False
    listed: list[dict[str, Any]] = []
    for path in paths:
        for found in look(path, rows=rows):
            damaged = damaged or bool(found.damage)
            if as_json:
                listed.append(found.as_dict())
                continue
            _show(found)
    if as_json:
        emit_json(listed)
    context.exit(1 if damaged else 0)


def _show(found: Any) -> None:
    emit_text(f"{found.kind} {found.path}: {'DAMAGED' if found.damage else 'whole'}")
    for name, value in found.about.items():
        emit_text(f"  {name:22}{value}")
    if found.parts:
        emit_text("")
        emit([{name: _plain(value) for name, value in part.items()} for part in found.parts], as_json=False)
    for where, batch in found.rows:
        emit_text(f"\n-- {where}")
        emit_lines(batch)
    for sentence in (*found.unread, *found.damage):
        emit_text(f"lakestore: {sentence}", err=True)
    emit_text("")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return " ".join(f"{name[:8]}…{name[name.rfind('/') :]} {of}" for name, of in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


COMMANDS = (inspect,)
