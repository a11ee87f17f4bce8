"""Commands that keep data safe: backup, restore."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from pathlib import Path

import click

from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.output import emit_json, size


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@server_option
@json_option
def backup(dest: Path, server: str, as_json: bool) -> None:
    """Copy a running server's data into the new folder DEST of its machine.

    The copy is consistent as of one commit and has a checksum for every file. Files of the lake are not copied: keep
    the warehouse, whose state the copy points to, with its own means, and longer than the backup.
    """
    from lakestore.v1 import lakestore_pb2 as pb

    with connected(server) as lake:
        done = lake.transport.backup(pb.BackupRequest(folder=str(dest.absolute())))
    if as_json:
        emit_json({"folder": str(dest.absolute()), "token": done.token, "files": done.files, "bytes": done.bytes})
        return
    click.echo(f"{done.files} files, {size(done.bytes)}, in {dest.absolute()}; as of {done.token}")


@click.command()
@click.argument("src", type=click.Path(path_type=Path, file_okay=False))
@click.option("--data", required=True, type=click.Path(path_type=Path, file_okay=False), help="A new data folder.")
@json_option
def restore(src: Path, data: Path, as_json: bool) -> None:
    """Make a data folder of the backup SRC, after checking every byte of it; no server is needed.

    Commits after the backup are gone, so every position handed out by the old server is refused by the new one:
    consumers begin with a snapshot. Producers and subscriptions stand where they stood.
    """
    from lakestore_server.operate.restore import restore as run

    done = run(src, data)
    if as_json:
        emit_json(asdict(done))
        return
    when = dt.datetime.fromtimestamp(done.time_us / 1e6, dt.UTC).isoformat(timespec="seconds")
    click.echo(f"{done.files} files, {size(done.bytes)}, as of {when} (LSN {done.lsn}); lakestore serve --data {data}")


COMMANDS = (backup, restore)
