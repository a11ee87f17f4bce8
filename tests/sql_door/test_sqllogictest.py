"""SQLite's sqllogictest files through the Postgres port. DuckDB answers the same queries in memory."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from zipfile import ZipFile

import psycopg
import pytest

import lakestore as ls
from lakestore.limits import Limits
from lakestore_server.main import Server
from lakestore_server.settings import Postgres as PostgresPort
from lakestore_server.settings import Settings
from tests.support import sqllogictest
from tests.support.postgres import Postgres
from tests.support.seeds import seed

FILES_EVERY, QUERIES = 60, 16
"""Of a short run: one file in so many, and the queries of each."""
LONG_SECONDS, LONG_QUERIES = 3_000.0, 150
QUERIES_FEWEST = 100


class Comparison:
    """A server, and a PostgreSQL that is started when two answers differ. A context manager."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(
            folder, port=0, http_port=0, postgres=PostgresPort(port=0), limits=Limits(principal_percent=100)
        )
        self._stack = ExitStack()
        self._server = Server(settings)
        self._server.start()
        self._stack.callback(self._server.close)
        self._lake = self._stack.enter_context(ls.connect(self._server.about["grpc"]))
        self._real: Postgres | None = None
        self.asked = 0
        self.differences: list[str] = []

    def compare(self, archive: ZipFile, name: str, queries: int, chance: random.Random) -> None:
        """Ask some queries of a file; the others are passed over, the statements are not."""
        records = list(sqllogictest.records(archive.read(name).decode()))
        places = [place for place, record in enumerate(records) if record.is_query]
        chosen = set(chance.sample(places, min(queries, len(places))))
        database = name.removesuffix(".test").replace("/", "_")
        tables = sqllogictest.Tables(self._lake, database)
        with ExitStack() as stack:
            stack.callback(tables.close)
            connection: psycopg.Connection | None = None
            for place, record in enumerate(records):
                if not record.is_query:
                    tables.run(record.text)
                elif place in chosen:
                    tables.carry()
                    connection = connection or stack.enter_context(self._connection(database))
                    self._ask(connection, tables, f"{name}:{record.line}", record)
            tables.drop()

    def _ask(
        self, connection: psycopg.Connection, tables: sqllogictest.Tables, where: str, record: sqllogictest.Record
    ) -> None:
        self.asked += 1
        ours, theirs = sqllogictest.ask(connection, record.text), tables.ask(record.text)
        if ours.agrees(theirs, record.sort) and not ours.error:
            return
        if self._real is None:
            self._real = self._stack.enter_context(Postgres())
        right = tables.judged(self._real, record.text)
        if not ours.agrees(right, record.sort):
            self.differences.append(f"{where}: {record.text}\n  here {ours}\n  DuckDB {theirs}\n  PostgreSQL {right}")

    def _connection(self, database: str) -> psycopg.Connection:
        host, port = self._server.about["postgres"].rsplit(":", 1)
        return psycopg.connect(host=host, port=int(port), user="any", password="any", dbname=database, autocommit=True)

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def comparison(tmp_path: Path) -> Iterator[Comparison]:
    """A comparison that has asked nothing yet."""
    with Comparison(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sample_of_the_files(comparison: Comparison) -> None:
    chance = random.Random(seed(36))
    with sqllogictest.archive() as archive:
        for name in sqllogictest.names(archive)[::FILES_EVERY]:
            comparison.compare(archive, name, QUERIES, chance)
    assert comparison.differences == []
    assert comparison.asked >= QUERIES_FEWEST


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 600)
def test_all_files_for_an_hour(comparison: Comparison) -> None:
    chance, ends = random.Random(seed()), time.monotonic() + LONG_SECONDS
    with sqllogictest.archive() as archive:
        names = sqllogictest.names(archive)
        chance.shuffle(names)
        for name in names:
            if time.monotonic() < ends:
                comparison.compare(archive, name, LONG_QUERIES, chance)
    print(f"{comparison.asked} queries of {len(names)} files")
    assert comparison.differences == []
