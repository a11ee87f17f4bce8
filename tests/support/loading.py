"""Files as `lakestore.loading` reads them, without a server; and loads through a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.loading.changes import Changes
from lakestore.loading.files import source_of
from lakestore.loading.json_blocks import chunks_of
from lakestore.loading.load import Load
from lakestore.loading.progress import Place
from lakestore.loading.reading import Chunk, ColumnRequest, Options
from lakestore.model.table import Table, define


def chunks(path: Path, table: Table, *, deletes: bool = False, where: str = "", **options: Any) -> list[Chunk]:
    """The chunks of a file, as they are written to a table."""
    wanted = ColumnRequest(table, Options(**options), deletes)
    changes = Changes(wanted, where)
    (file,) = source_of(str(path)).files
    return [changes.prepare(chunk) for chunk in chunks_of(file, wanted, Place())]


def read(path: Path, schema: pa.Schema, **options: Any) -> pa.Table:
    """The rows of a file of a log table; `Invalid` for the first that is refused, as a load says it."""
    found = chunks(path, define("d.t", schema, buckets=1), **options)
    for chunk in found:
        for bad in chunk.bad:
            raise Invalid(f"{path}, line {bad.line}: {bad.reason}")
    return pa.Table.from_batches([chunk.batch for chunk in found]) if found else schema.empty_table()


def load(lake: ls.Lake, table: str, path: Path | str, **said: Any) -> Load:
    """A load that has run."""
    made = Load(lake, lake.table(table).definition, source_of(str(path)), **said)
    made.run()
    return made
