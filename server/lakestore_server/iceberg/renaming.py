"""Another name for a table: the plan of one commit, which moves the name, the definition and the catalog's pointer.

Everything that goes by the table's uuid goes on: leases, streams, subscriptions, producers, files, the lake's folder.
Feeds are registers named after a table, which would be lost for the promise that they make, so they are to go first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lakestore.errors import Conflict
from lakestore.limits import Limits
from lakestore.model import table as schema
from lakestore.model.table import Table
from lakestore_server.iceberg import locations
from lakestore_server.iceberg.catalog_steps import moved
from lakestore_server.state.commit_record import CommitRecord, Rename
from lakestore_server.state.state import State
from lakestore_server.state.view import View


def check_free(view: View, table: Table, limits: Limits) -> None:
    """Refuse a name that a table cannot have, or that is taken."""
    schema.check(table, limits)
    locations.check_namespace(table.namespace)
    if table.name in view.names:
        raise Conflict(f"table {table.name} exists already")
    if (table.namespace, table.short_name) in view.pointers:
        raise Conflict(f"the catalog has a table {table.name} already, which is not Lakestore's")


def plan(limits: Limits, name: str, uuid: str, new_name: str, key: str = "") -> Callable[[State, CommitRecord], Table]:
    """The plan of a rename; its result is the definition under the new name."""

    def renamed(state: State, record: CommitRecord) -> Table:
        view = state.view
        table = view.meant(name, uuid).table
        made = replace(table, name=new_name)
        if new_name == name:
            return table
        check_free(view, made, limits)
        feeds = [feed for feed, _ in state.registers.said(name, view.lsn)]
        if feeds:
            raise Conflict(
                f"table {name} has the feed {feeds[0]!r}, a register that is named after it: drop it first, with"
                f" `lakestore producers --drop-registers {feeds[0]}`, and have it opened under the new name"
            )
        record.rename.append(Rename(table.uuid, new_name))
        moved(view, record, (table.namespace, table.short_name), (made.namespace, made.short_name), key)
        return made

    return renamed
