"""Verbs of databases, which are the catalog's namespaces."""

from __future__ import annotations

from collections import Counter

from lakestore.errors import Conflict, Invalid, NotFound
from lakestore.model.table import check_database
from lakestore.model.typed import shown_name
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.iceberg import catalog_steps, locations
from lakestore_server.state.catalog_change import DropNamespace, SetNamespace
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State


class Databases:
    """Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list_databases(self, _: pb.ListDatabasesRequest) -> pb.ListDatabasesAnswer:
        """All of them by name, with the number of our tables in each."""
        view = self._engine.view
        tables = Counter(name.partition(".")[0] for name in view.names)
        entries = [pb.DatabaseEntry(name=name, tables=tables[name]) for name in sorted({*view.namespaces, *tables})]
        return pb.ListDatabasesAnswer(databases=entries)

    def create_database(self, request: pb.DatabaseRequest) -> pb.DatabaseAnswer:
        """Make an empty one; a table's database is made with the table."""
        name = request.database
        check_database(name)
        locations.check_namespace(name)

        def plan(state: State, record: CommitRecord) -> None:
            if name in state.view.namespaces:
                raise Conflict(f"database {name} exists already")
            catalog_steps.add(state.view, record, SetNamespace(name))

        return pb.DatabaseAnswer(token=self._engine.operate(plan).view.token())

    def drop_database(self, request: pb.DatabaseRequest) -> pb.DatabaseAnswer:
        """Remove an empty one; it is refused while anything has a name in it."""
        name = request.database

        def plan(state: State, record: CommitRecord) -> None:
            view = state.view
            if name not in view.namespaces:
                raise NotFound(f"there is no database {shown_name(name)}")
            inside = sorted(table for namespace, table in view.pointers if namespace == name)
            if inside:
                more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
                raise Invalid(
                    f"database {name} is not empty: it has the table {inside[0]}{more}; drop its tables first"
                )
            catalog_steps.add(view, record, DropNamespace(name))

        return pb.DatabaseAnswer(token=self._engine.operate(plan).view.token())
