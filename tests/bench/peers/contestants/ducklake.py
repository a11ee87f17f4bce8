"""DuckLake in DuckDB: Parquet files in a folder, and a catalog in a DuckDB file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension

from tests.bench.peers.contest import Contestant, Missing
from tests.bench.peers.order_changes import SUMS, Change, Sums

VERSION = f"1.0 in DuckDB {duckdb.__version__}"
FAIRNESS = "The catalog's transaction is synced to the disk. Data files are written without fsync."
_MERGE = "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT"


def connection(catalog: str, folder: Path, *extensions: str) -> Any:
    """A DuckDB whose `lake` is a DuckLake with its data in a folder. Raises `Missing`."""
    try:
        for extension in ("ducklake", *extensions):
            import_extension(extension)
    except Exception as error:  # a wheel that is not installed; the package raises several errors
        raise Missing(f"DuckDB's extension of a wheel: {error}") from error
    database = duckdb.connect()
    for extension in ("ducklake", *extensions):
        database.execute(f"LOAD {extension}")
    database.execute(f"ATTACH 'ducklake:{catalog}' AS lake (DATA_PATH '{folder}')")
    return database


class DuckLake:
    """One connection."""

    def __init__(self, database: Any) -> None:
        self.database = database

    def fill(self, name: str, file: Path) -> None:
        """Make a table of a file's orders."""
        self.database.execute(f"CREATE TABLE lake.{name} AS SELECT * FROM '{file}'")

    def change(self, name: str, file: Path) -> Change:
        """Merge a file's orders into the table."""
        began = time.perf_counter()
        source = f"(SELECT * FROM '{file}') AS c"
        self.database.execute(f"MERGE INTO lake.{name} AS t USING {source} ON t.order_id = c.order_id {_MERGE}")
        return Change.of(time.perf_counter() - began)

    def sums(self, name: str) -> Sums:
        """Scan the table."""
        _, quantity, _, rows = self.database.execute(f"SELECT {SUMS} FROM lake.{name}").fetchone()
        return Sums(rows, int(quantity))

    def commits(self, name: str, batch: pa.RecordBatch, count: int) -> list[float]:
        """Milliseconds of so many inserts of a small batch, one after the other. Makes the table if need be."""
        self.database.register("batch", batch)
        self.database.execute(f"CREATE TABLE IF NOT EXISTS lake.{name} AS SELECT * FROM batch LIMIT 0")
        took = []
        for _ in range(count):
            began = time.perf_counter()
            self.database.execute(f"INSERT INTO lake.{name} SELECT * FROM batch")
            took.append((time.perf_counter() - began) * 1e3)
        return took

    def count(self, name: str) -> int:
        """Rows of a table."""
        return int(self.database.execute(f"SELECT count(*) FROM lake.{name}").fetchone()[0])


@contextmanager
def _started(folder: Path) -> Iterator[DuckLake]:
    folder.mkdir(parents=True, exist_ok=True)
    with connection(str(folder / "catalog.ducklake"), folder / "data") as database:
        yield DuckLake(database)


CONTESTANT = Contestant("DuckLake", VERSION, _started, FAIRNESS)
