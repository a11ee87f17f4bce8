"""The command that shows the server's judgement of its clock, and overrides it: clock."""

from __future__ import annotations

import json

import click

from lakestore.cli.connection import connected, json_option, server_option
from lakestore.cli.output import duration, emit_json, emit_text
from lakestore.errors import Invalid
from lakestore.model.times import text_of


@click.command()
@click.option("--accept", is_flag=True, help="Believe the machine's clock from now on, for deleting too.")
@server_option
@json_option
def clock(accept: bool, server: str, as_json: bool) -> None:
    """Show whether the server believes its clock, and what waits for that.

    A clock that jumps, and any clock after a start, is believed once it has stood for some minutes. Until then commits
    are stamped by the time since the last ones, and nothing is deleted because of its age. Look at the machine's clock
    (`date`) before --accept: what it makes too old is deleted then.
    """
    from lakestore.v1 import lakestore_pb2 as pb

    with connected(server) as lake:
        if accept:
            found = json.loads(lake.transport.accept_clock(pb.AcceptClockRequest()).clock)
        else:
            found = json.loads(lake.transport.status(pb.StatusRequest()).status).get("clock")
    if found is None:
        raise Invalid("the server is of an older release, which believes its clock as it is: run a newer one")
    if as_json:
        emit_json(found)
        return
    emit_text(f"{'state':12}{found['state']}, for {duration(found['seconds'])}")
    emit_text(f"{'time':12}{text_of(found['time_us'])}")
    emit_text(f"{'offset':12}{found['offset_seconds']:+,.3f} s: the machine's clock less this time")
    if found["holds"]:
        emit_text(f"{'waiting':12}{', '.join(found['holds'])}")
    if found["note"]:
        emit_text(f"\n{found['note']}")


COMMANDS = (clock,)
