"""The making of the system tables, before the first contract is committed."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4, uuid5

from lakestore.errors import Conflict
from lakestore.model.names import SYSTEM_DATABASE
from lakestore.model.system_tables import system_tables
from lakestore.model.table import Table
from lakestore_server.catalog.catalog import Catalog, add_steps
from lakestore_server.commit.engine import Engine
from lakestore_server.state.catalog_change import CatalogStep, SetNamespace, SetPointer
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import View


def make_system_tables(engine: Engine, catalog: Catalog) -> None:
    """Make the system tables that are missing, in one commit. They do not count against the limit of tables.
    `Conflict` if users have a table or view with such a name, from before the name was the server's."""
    if not _missing(engine.view):
        return
    made = [replace(table, uuid=str(uuid5(uuid4(), table.name))) for table in _missing(engine.view)]
    pointers = {table.name: catalog.create_own(table) for table in made}

    def plan(state: State, record: CommitRecord) -> None:
        names = {table.name for table in _missing(state.view)}
        chosen = [table for table in made if table.name in names]
        if chosen:
            _add(state, record, chosen, pointers)

    engine.operate(plan)


def _missing(view: View) -> list[Table]:
    missing = [table for table in system_tables() if table.name not in view.names]
    taken = [name for table in system_tables() if (name := view.names.get(table.name))]
    users = [view.tables[uuid].table.name for uuid in taken if not view.tables[uuid].table.is_system]
    for table in missing:
        key = (table.namespace, table.short_name)
        if key in view.pointers or key in view.sql_views:
            users.append(table.name)
    if users:
        raise Conflict(
            f"{users[0]} is a table or view of users, and the server needs the name for a system table: rename it to"
            " another database, then try again"
        )
    return missing


def _add(state: State, record: CommitRecord, made: list[Table], pointers: dict[str, SetPointer]) -> None:
    for number, table in enumerate(made, state.next_number):
        record.create.append(replace(table, number=number))
    steps: list[CatalogStep] = [pointers[table.name] for table in made]
    if SYSTEM_DATABASE not in state.view.namespaces:
        steps.insert(0, SetNamespace(SYSTEM_DATABASE))
    add_steps(state.view, record, *steps)
