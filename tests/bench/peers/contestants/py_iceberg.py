"""PyIceberg: a table of Iceberg in this machine's files, with a catalog in SQLite.

An upsert runs in a process of its own, so that it can be ended at the limit.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from tests.bench.peers.contest import Contestant, Failed
from tests.bench.peers.order_changes import Change, Slow, Sums

LIMIT_SECONDS = 20.0
"""apache/iceberg-python #3129: 17.5 minutes for an upsert of 1 M rows."""
SYNCED = "The catalog's transaction in SQLite is synced to the disk. Files are written without fsync."
FAIRNESS = f"{SYNCED} An upsert that takes over {LIMIT_SECONDS:.0f} s is ended: a dash (iceberg-python #3129)."


def catalog(folder: Path) -> SqlCatalog:
    """The catalog of a folder."""
    return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/data")


class PyIceberg:
    """A catalog in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._catalog = folder, catalog(folder)
        self._catalog.create_namespace("bench")

    def fill(self, name: str, file: Path) -> None:
        """Make a table of a file's orders."""
        rows = pq.read_table(file)
        self._catalog.create_table(f"bench.{name}", rows.schema).append(rows)

    def change(self, name: str, file: Path) -> Change:
        """Upsert a file's orders."""
        context = multiprocessing.get_context("spawn")
        answers, answer = context.Pipe(duplex=False)
        child = context.Process(target=_upsert, args=(self._folder, name, file, answer))
        child.start()
        answer.close()
        try:
            answers.recv()  # it has loaded its modules
            if not answers.poll(LIMIT_SECONDS):
                raise Slow
            return Change.of(answers.recv())
        except EOFError:
            raise Failed("the process of PyIceberg's upsert ended") from None
        finally:
            child.kill()
            child.join()

    def sums(self, name: str) -> Sums:
        """Scan the table."""
        rows = (
            self._catalog.load_table(f"bench.{name}").scan(selected_fields=("amount", "quantity", "price")).to_arrow()
        )
        found = {column: pc.sum(rows.column(column)).as_py() for column in rows.column_names}
        return Sums(rows.num_rows, found["quantity"])

    def commits(self, name: str, batch: pa.RecordBatch, count: int) -> list[float]:
        """Milliseconds of so many appends of a small batch, one after the other. Makes the table if need be."""
        rows, took = pa.Table.from_batches([batch]), []
        table = self._catalog.create_table_if_not_exists(f"bench.{name}", rows.schema)
        for _ in range(count):
            began = time.perf_counter()
            table.append(rows)
            took.append((time.perf_counter() - began) * 1e3)
        return took

    def aggregates(self, name: str, columns: Sequence[str]) -> float:
        """Milliseconds of a query for an aggregate of each column, by DuckDB upon the rows that PyIceberg reads."""
        began = time.perf_counter()
        rows = self._catalog.load_table(f"bench.{name}").scan().to_arrow()
        duckdb.from_arrow(rows).aggregate(", ".join(columns)).fetchall()
        return (time.perf_counter() - began) * 1e3

    def count(self, name: str) -> int:
        """Rows of a table."""
        return self._catalog.load_table(f"bench.{name}").scan().count()


def _upsert(folder: Path, name: str, file: Path, answer: Connection) -> None:
    table = catalog(folder).load_table(f"bench.{name}")
    answer.send(0.0)
    began = time.perf_counter()
    table.upsert(pq.read_table(file), join_cols=["order_id"])
    answer.send(time.perf_counter() - began)


@contextmanager
def _started(folder: Path) -> Iterator[PyIceberg]:
    folder.mkdir(parents=True, exist_ok=True)
    yield PyIceberg(folder)


CONTESTANT = Contestant("PyIceberg upsert", version("pyiceberg"), _started, FAIRNESS)
APPENDS = Contestant("PyIceberg", version("pyiceberg"), _started, SYNCED)
