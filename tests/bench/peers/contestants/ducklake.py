"""DuckLake in DuckDB: Parquet files in a folder, and a catalog in a DuckDB file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension

from tests.bench.peers.contest import Contestant, Missing, Setting
from tests.bench.peers.order_changes import SUMS, Change, Sums
from tests.bench.peers.together import timed_together
from tests.support.postgres import DATABASE, USER, Postgres

VERSION = f"1.0 in DuckDB {duckdb.__version__}"
FAIRNESS = "The catalog's transaction is synced to the disk. Data files are written without fsync."
POSTGRES = (
    Setting("fsync", "on", "PostgreSQL's default; the support code of tests switches it off"),
    Setting("synchronous_commit", "on", "PostgreSQL's default"),
    Setting("full_page_writes", "on", "PostgreSQL's default"),
    Setting("shared_buffers", "128MB", "PostgreSQL's default"),
)
RETRIES = Setting(
    "ducklake_max_retry_count",
    "100",
    "DuckLake's error advises it: with 10, as shipped, four of eight writers failed in a run of 29 November 2026",
)
"""The waits between tries are as shipped: 100 ms, growing by 1.5. In a trial of 29 November 2026 waits of 5, 10 and
25 ms gave the same rates."""
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

    def __init__(self, database: Any, connect: Callable[[], Any] | None = None) -> None:
        """`connect` makes a further connection, of a catalog that takes several."""
        self.database, self._connect = database, connect

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

    def together(self, name: str, batch: pa.RecordBatch, writers: int, count: int) -> tuple[list[float], float]:
        """Milliseconds of the commits of so many connections, and the seconds of all."""
        assert self._connect is not None
        self.database.register("batch", batch)
        self.database.execute(f"CREATE TABLE lake.{name} AS SELECT * FROM batch LIMIT 0")
        with ExitStack() as stack:
            databases = [stack.enter_context(self._connect()) for _ in range(writers)]
            for database in databases:
                database.register("batch", batch)
            insert = f"INSERT INTO lake.{name} SELECT * FROM batch"
            return timed_together([partial(database.execute, insert) for database in databases], count)

    def aggregates(self, name: str, columns: Sequence[str]) -> float:
        """Milliseconds of a query for an aggregate of each column."""
        began = time.perf_counter()
        self.database.execute(f"SELECT {', '.join(columns)} FROM lake.{name}").fetchall()
        return (time.perf_counter() - began) * 1e3

    def count(self, name: str) -> int:
        """Rows of a table."""
        return int(self.database.execute(f"SELECT count(*) FROM lake.{name}").fetchone()[0])


@contextmanager
def _started(folder: Path) -> Iterator[DuckLake]:
    folder.mkdir(parents=True, exist_ok=True)
    with connection(str(folder / "catalog.ducklake"), folder / "data") as database:
        yield DuckLake(database)


@contextmanager
def _started_on_postgres(folder: Path) -> Iterator[DuckLake]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        server = Postgres({each.name: each.value for each in POSTGRES})
    except FileNotFoundError as error:
        raise Missing(str(error)) from error
    with server:
        catalog = f"postgres:dbname={DATABASE} host=127.0.0.1 port={server.port} user={USER}"

        def connect() -> Any:
            database = connection(catalog, folder / "data", "postgres_scanner")
            database.execute(f"SET {RETRIES.name} = {RETRIES.value}")
            return database

        with connect() as database:
            yield DuckLake(database, connect)


CONTESTANT = Contestant("DuckLake", VERSION, _started, FAIRNESS)
ON_POSTGRES = Contestant(
    "DuckLake on PostgreSQL",
    f"{VERSION}, PostgreSQL of this machine",
    _started_on_postgres,
    "The catalog's transaction is synced to the disk by PostgreSQL. Ten rows lie in the catalog itself, as shipped.",
    (*POSTGRES, RETRIES),
)
