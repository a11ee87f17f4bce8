"""Commands backup and restore."""

from __future__ import annotations

import datetime as dt
import logging
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from lakestore.cli.connection import json_option, open_lake, server_option
from lakestore.cli.output import emit_json, emit_text, size
from lakestore.model import file_uri


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--without-lake", is_flag=True, help="Leave out the files of a warehouse that lies in the data folder.")
@server_option
@json_option
def backup(dest: Path, without_lake: bool, server: str, as_json: bool) -> None:
    """Copy a running server's data into the new folder DEST on the server's machine.

    The copy is consistent as of one commit and has a checksum for every file. A warehouse inside the data folder is
    copied too, with hard links if DEST is on the same file system. A warehouse elsewhere is not copied: back it up with
    its own tools, and keep files that expire from it longer than the backup.
    """
    from lakestore.v1 import lakestore_pb2 as pb

    request = pb.BackupRequest(folder=str(dest.absolute()), without_lake=without_lake)
    with open_lake(server) as lake:
        done = lake.transport.backup(request)
    if as_json:
        about = {"token": done.token, "files": done.files, "bytes": done.bytes}
        emit_json({"folder": str(dest.absolute()), **about, "lake": done.lake, "warehouse": done.warehouse})
        return
    emit_text(f"{done.files} files, {size(done.bytes)}, in {dest.absolute()}; as of {done.token}")
    emit_text(_LAKE.get(done.lake, "without the lake").format(done.warehouse))


_LAKE = {
    "inside": "with the lake, {}",
    "outside": "without the lake, which lies outside of the data folder: keep {} with its own means",
    "left out": "without the lake, {}, as you said: restore it with --without-lake, or with those files",
}


@click.command()
@click.argument("src", type=click.Path(path_type=Path, file_okay=False))
@click.option("--data", required=True, type=click.Path(path_type=Path, file_okay=False), help="A new data folder.")
@click.option("--warehouse", default="", help="Place of the lake; by default in the data folder, or where it was.")
@click.option("--rewind-lake", is_flag=True, help="Set tables of a lake that continued after the backup back to it.")
@click.option("--without-lake", is_flag=True, help="Start the lake over, from the log.")
@click.option("--accept-loss", is_flag=True, help="Give up the rows that only the lake had.")
@click.option("--replica", is_flag=True, help="Create a further server of the shared journal.")
@json_option
def restore(
    src: Path,
    data: Path,
    warehouse: str,
    rewind_lake: bool,
    without_lake: bool,
    accept_loss: bool,
    replica: bool,
    as_json: bool,
) -> None:
    """Create a data folder from the backup SRC after checking every byte; no server is needed.

    Commits after the backup are lost. The new server refuses every position that the old server handed out after it, so
    consumers begin with a snapshot. Producers and subscriptions are as they were at the backup.

    A lake in the backup is restored with it. A lake outside the backup must still exist. If it continued after the
    backup, --rewind-lake sets its tables back to the newest snapshot that the backup covers. If it is gone,
    --without-lake tiers the tables from the log. Rows that only the lake had are listed, and given up with
    --accept-loss. --rewind-lake with --without-lake starts those tables over that cannot be set back.

    With --replica the folder continues the shared journal of the server that was backed up: nothing is lost, the
    history stays the same, and the new server follows. Use a backup that is newer than the beginning of the journal.
    """
    from lakestore_server.operate.restore import Ways, restore_replica
    from lakestore_server.operate.restore import restore as run

    # The restored server builds the index, so a missing index is not reported.
    logging.getLogger("lakestore.index").addHandler(logging.NullHandler())
    ways = Ways(rewind_lake, without_lake, accept_loss)
    if replica and (warehouse or ways.any or accept_loss):
        raise click.UsageError("--replica leaves the lake as it is: use it without options for the lake")
    done = restore_replica(src, data) if replica else run(src, data, warehouse=warehouse, ways=ways)
    if as_json:
        emit_json(asdict(done))
        return
    when = dt.datetime.fromtimestamp(done.time_us / 1e6, dt.UTC).isoformat(timespec="seconds")
    is_default = done.warehouse == file_uri.to_uri(data / "warehouse")
    serve = f"lakestore serve --data {shlex.quote(str(data))}"
    at = f" --warehouse {shlex.quote(done.warehouse)}" if done.warehouse and not is_default else ""
    if replica:
        at = ", with the journal and the warehouse of the other servers"
    emit_text(f"{done.files} files, {size(done.bytes)}, as of {when} (LSN {done.lsn}); {serve}{at}")
    lake = done.lake
    about = {"set back": lake.rewound, "tiered since": lake.followed, "started over": lake.anew, "lost": lake.lost}
    for what, tables in about.items():
        if tables:
            emit_text(f"{what}: {', '.join(tables)}")
    for problem in done.lake.problems:
        emit_text(f"\n{problem}")


COMMANDS = (backup, restore)
