"""Table definitions for reading rows offline, from the newest whole checkpoint of a data folder and from journal
frames.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt, LakestoreError
from lakestore.model.table import Table
from lakestore_server.files import checkpoint
from lakestore_server.files.journal import RawFrame
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.view import stored_schema


class Definitions:
    """The known versions of every table."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, int], Table] = {}

    @staticmethod
    def of_folder(folder: Path) -> Definitions:
        """The definitions in the newest whole checkpoint; empty without a checkpoint."""
        known = Definitions()
        try:
            held = checkpoint.newest(RealDisk(), folder)
        except Corrupt:
            return known
        for entry in held.tables if held else ():
            for table in entry.versions.tables:
                known._add(table)
        return known

    def _add(self, table: Table) -> None:
        self._tables[table.uuid, table.schema_id] = table

    def follow(self, frame: RawFrame) -> None:
        for definition in frame.definitions():
            try:
                self._add(Table.from_dict(definition))
            except (LakestoreError, KeyError, TypeError):
                continue  # a frame of another release: its rows are not shown, its sizes are

    def stored(self, uuid: str, schema_id: int) -> pa.Schema | None:
        """The schema of stored batches; None if the definition is unknown."""
        table = self._tables.get((uuid, schema_id))
        return stored_schema(table) if table else None

    def name(self, uuid: str) -> str:
        """The table's name, or its uuid if the name is unknown."""
        return next((table.name for (each, _), table in self._tables.items() if each == uuid), uuid)
