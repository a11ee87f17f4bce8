"""Verbs of tables: create, alter, rename, get, list. A table is a lake table too, so both are made in one commit."""

from __future__ import annotations

import uuid
from dataclasses import replace

from lakestore import evolution
from lakestore.errors import Conflict, Invalid, LimitReached
from lakestore.model import altered
from lakestore.model import table as schema
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.iceberg import catalog_steps, definition_rules, locations, renaming
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.state.catalog_change import CatalogStep, SetNamespace
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState


class TableVerbs:
    """The verbs of table definitions. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine, self._catalog = engine, catalog

    def create_table(self, request: pb.CreateTableRequest) -> pb.TableInfo:
        """Create a table and its lake table."""
        table = replace(Table.received(request.definition), uuid=str(uuid.uuid4()), schema_id=0)
        schema.check(table, self._engine.limits)
        if table.name in self._engine.view.names:
            raise Conflict(f"table {table.name} exists already")
        definition_rules.check_new(table)
        locations.check_namespace(table.namespace)
        if request.check_only:
            return pb.TableInfo(definition=table.to_json())
        step = self._catalog.create_own(table)

        def plan(state: State, record: CommitRecord) -> Table:
            if table.name in state.view.names:
                raise Conflict(f"table {table.name} exists already")
            _check_room(state, self._engine.limits.tables)
            made = replace(table, number=state.next_number)
            record.create.append(made)
            steps: list[CatalogStep] = [step]
            if table.namespace not in state.view.namespaces:
                steps.insert(0, SetNamespace(table.namespace))
            catalog_steps.add(state.view, record, *steps)
            return made

        return pb.TableInfo(definition=self._engine.operate(plan).result.to_json())

    def alter_table(self, request: pb.AlterTableRequest) -> pb.TableInfo:
        """Another definition of a table, from the next commit on."""
        steps = evolution.from_json(request.alteration)

        def plan(state: State, record: CommitRecord) -> Table:
            held = state.view.meant(request.table, request.table_uuid)
            made = self._altered(held, steps, request.schema_id)
            if made != held.table:
                record.alter.append(made)
            return made

        if request.check_only:
            held = self._engine.view.meant(request.table, request.table_uuid)
            made = self._altered(held, steps, request.schema_id)
        else:
            made = self._engine.operate(plan).result
        return pb.TableInfo(definition=made.to_json())

    def _altered(self, held: TableState, steps: list[evolution.Step], schema_id: int) -> Table:
        table, most = held.table, self._engine.limits.schema_versions
        if table.schema_id != schema_id:
            raise Conflict(
                f"table {table.name} has schema version {table.schema_id}, the change was made for {schema_id}:"
                " load the table again"
            )
        made = altered.altered(table, steps, self._engine.limits)
        definition_rules.check_version(held.versions.tables[0], made)
        if made.schema_id >= most:
            raise Invalid(
                f"table {table.name} has had {most} schema versions, the most that are kept: make a new table"
            )
        return made

    def rename_table(self, request: pb.RenameTableRequest) -> pb.TableInfo:
        """Another name for a table."""
        made = renaming.plan(self._engine.limits, request.table, request.table_uuid, request.new_name)
        return pb.TableInfo(definition=self._engine.operate(made).result.to_json())

    def get_table(self, request: pb.TableRequest) -> pb.TableInfo:
        """A table's definition."""
        return pb.TableInfo(definition=self._engine.view.named(request.table).table.to_json())

    def list_tables(self, _: pb.ListTablesRequest) -> pb.ListTablesAnswer:
        """All tables by name."""
        view = self._engine.view
        infos = [pb.TableInfo(definition=view.named(name).table.to_json()) for name in sorted(view.names)]
        return pb.ListTablesAnswer(tables=infos)


def _check_room(state: State, most: int) -> None:
    """Room for one more table; dropped ones count, or who creates and drops again and again fills the disk."""
    dropped = len(state.view.dropped)
    if len(state.view.tables) + dropped < most:
        return
    kept = f", {dropped} of them dropped ones: `lakestore drop NAME --now` removes such a one" if dropped else ""
    raise LimitReached(f"the server has {most} tables, its limit{kept}")
