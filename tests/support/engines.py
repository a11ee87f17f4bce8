"""Engines that are not ours, each reading tables of a warehouse of the catalog as its users would.

An answer is count, sum of ids, distinct ids and a checksum over id and value, the same numbers from every engine.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from duckdb_extensions import import_extension
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from tests.support.clickhouse import ClickHouseProcess

_FACTORS, _MODULUS = (31, 7), 1_000_003
SUMS = f"count(*), sum(id), count(DISTINCT id), sum((id * {_FACTORS[0]} + v * {_FACTORS[1]}) % {_MODULUS})"
"""The four numbers in SQL, over columns `id` and `v` of whole numbers."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The answer of an engine about a table; of an empty one all are 0."""

    count: int
    ids: int
    distinct: int
    checksum: int

    @staticmethod
    def of_row(row: Any) -> Sums:
        """From the row of a query for `SUMS`."""
        return Sums(*(int(value or 0) for value in row))

    @staticmethod
    def of_values(rows: dict[int, int]) -> Sums:
        """The sums of a table that holds these ids with their values."""
        check = sum((key * _FACTORS[0] + value * _FACTORS[1]) % _MODULUS for key, value in rows.items())
        return Sums(len(rows), sum(rows), len(rows), check)

    @staticmethod
    def of_arrow(rows: pa.Table) -> Sums:
        """The sums of rows with the columns `id` and `v`."""
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        check = ((pl.col("id") * _FACTORS[0] + pl.col("v") * _FACTORS[1]) % _MODULUS).sum()
        ids = pl.col("id")
        distinct, checksum = ids.n_unique().alias("distinct"), check.alias("checksum")
        return Sums.of_row(frame.select(pl.len(), ids.sum(), distinct, checksum).row(0))


Read = Callable[[str, str], Sums]
"""(warehouse, `database.table`) to what the engine says."""


class DuckDb:
    """DuckDB with one database attached for each warehouse."""

    def __init__(self, catalog: str, *, keeps_files: bool = False) -> None:
        """`keeps_files` leaves its cache of files on, as it is where nobody read docs/engines.md."""
        self._catalog, self._names = catalog, itertools.count()
        self._connection = duckdb.connect()
        self._connection.execute(f"SET enable_external_file_cache = {str(keeps_files).lower()}")
        for name in ("avro", "httpfs", "iceberg"):
            import_extension(name, con=self._connection)
            self._connection.execute(f"LOAD {name}")
        self._attached: dict[str, str] = {}

    def read(self, warehouse: str, table: str) -> Sums:
        """The sums; databases of cuts are detached again, for there is one for each."""
        name = self.attach(warehouse)
        found = Sums.of_row(self._connection.execute(f"SELECT {SUMS} FROM {name}.{table}").fetchone())
        if warehouse.startswith("at"):
            self._connection.execute(f"DETACH {self._attached.pop(warehouse)}")
        return found

    def attach(self, warehouse: str) -> str:
        """The name under which a warehouse can be read."""
        if warehouse not in self._attached:
            name = f"w{next(self._names)}"
            self._connection.execute(
                f"ATTACH '{warehouse}' AS {name} (TYPE iceberg, ENDPOINT '{self._catalog}', AUTHORIZATION_TYPE 'none')"
            )
            self._attached[warehouse] = name
        return self._attached[warehouse]

    def sql(self, text: str) -> list[Any]:
        """The rows of a statement."""
        return self._connection.execute(text).fetchall()

    def batches(self, text: str, rows: int) -> pa.RecordBatchReader:
        """The rows of a statement as Arrow batches, each read when it is taken."""
        return self._connection.execute(text).to_arrow_reader(rows)

    def close(self) -> None:
        """Let go of everything."""
        self._connection.close()


class ClickHouse:
    """ClickHouse with one database for each warehouse, whose name needs no escapes."""

    def __init__(self, catalog: str, **settings: str) -> None:
        """`settings` are more of each database, such as `storage_endpoint`."""
        self._catalog, self._names = catalog, itertools.count()
        self._more = "".join(f", {name} = '{value}'" for name, value in settings.items())
        self._process = ClickHouseProcess()
        self._process.rows("SET allow_database_iceberg = 1")
        self._opened: dict[str, str] = {}

    def read(self, warehouse: str, table: str) -> Sums:
        """The sums."""
        return Sums.of_row(self._process.rows(f"SELECT {SUMS} FROM {self.attach(warehouse)}.`{table}`")[0])

    def attach(self, warehouse: str) -> str:
        """The name under which a warehouse can be read."""
        if warehouse not in self._opened:
            name = f"w{next(self._names)}"
            self._process.rows(
                f"CREATE DATABASE {name} ENGINE = DataLakeCatalog('{self._catalog}')"
                f" SETTINGS catalog_type = 'rest', warehouse = '{warehouse}', vended_credentials = 0{self._more}"
            )
            self._opened[warehouse] = name
        return self._opened[warehouse]

    def close(self) -> None:
        """End the engine."""
        self._process.close()


def pyiceberg(catalog: str, **properties: str) -> Read:
    """PyIceberg, which plans and reads by Arrow. `properties` are more of its catalog, such as the store's address."""

    def read(warehouse: str, table: str) -> Sums:
        found = load_catalog("reader", type="rest", uri=catalog, warehouse=warehouse, **properties).load_table(table)
        return Sums.of_arrow(found.scan(selected_fields=("id", "v")).to_arrow())

    return read


def polars(catalog: str, **properties: str) -> Read:
    """Polars, which reads by itself what PyIceberg plans, and by PyIceberg what it cannot."""
    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")

    def read(warehouse: str, table: str) -> Sums:
        found = load_catalog("reader", type="rest", uri=catalog, warehouse=warehouse, **properties).load_table(table)
        rows = pl.scan_iceberg(found).select("id", "v").collect()
        return Sums.of_arrow(rows.to_arrow())

    return read


def spark(session: SparkSession, catalog: str, **properties: str) -> Read:
    """Spark with a catalog for each warehouse, as a shell has it that knows nothing of us."""
    names: dict[str, str] = {}

    def read(warehouse: str, table: str) -> Sums:
        if warehouse not in names:
            names[warehouse] = f"engine{len(names)}"
            key = f"spark.sql.catalog.{names[warehouse]}"
            conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": catalog}
            conf |= {f".{name}": value for name, value in properties.items()}
            for name, value in {**conf, ".warehouse": warehouse, ".cache-enabled": "false"}.items():
                session.conf.set(key + name, value)
        return Sums.of_row(session.sql(f"SELECT {SUMS} FROM {names[warehouse]}.{table}").collect()[0])

    return read
