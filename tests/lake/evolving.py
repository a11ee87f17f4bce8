"""A primary-key table and a log table whose columns change, a model of their rows by column id, and every reader."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore import evolution
from lakestore.evolution import Step
from lakestore.model import defaults
from lakestore.model.table import Table
from lakestore.spark import SparkLake
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from tests.support.seeds import seeded

ITEMS, EVENTS = "shop.items", "shop.events"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("count", pa.int32()),
        ("ratio", pa.float32()),
        ("price", pa.decimal128(8, 2)),
        pa.field("small", pa.int8(), nullable=False),
    ]
)
Row = dict[int, Any]
"""Column id to value; a column younger than the row is absent."""
Rows = list[tuple[Any, ...]]


def alter(lake: ls.Lake, table: str, *steps: Step) -> Table:
    """The table's definition after the steps."""
    before = lake.table(table).definition
    request = pb.AlterTableRequest(table=table, alteration=evolution.to_json(steps), schema_id=before.schema_id)
    return Table.from_json(lake.transport.alter_table(request).definition)


def shown(definition: Table, rows: list[Row]) -> Rows:
    """Model rows as a reader of this version sees them."""

    def value(row: Row, number: int) -> Any:
        column = columns[number]
        return row[number] if number in row else defaults.scalar(column.initial, column.type, column.name).as_py()

    columns = {column.id: column for column in definition.columns}
    return sorted((tuple(value(row, number) for number in columns) for row in rows), key=repr)


@dataclass
class Evolving:
    """Both tables, and what they hold."""

    server: Server
    lake: ls.Lake
    spark: SparkSession
    version: int
    rng: random.Random = field(default_factory=lambda: seeded(7))
    items: dict[int, Row] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    step: int = 0

    def create(self) -> None:
        """Both tables, partitioned and sorted by a column that will be renamed."""
        layout = {"format_version": self.version, "sort_by": ["text"], "partition_by": ["bucket(2, id)"]}
        self.lake.create_table(ITEMS, SCHEMA, primary_key=["id"], buckets=2, lake=layout)
        self.lake.create_table(EVENTS, SCHEMA, buckets=2, lake={"format_version": self.version})

    def definition(self, table: str) -> Table:
        """The newest one."""
        return self.lake.table(table).definition

    def alter(self, *steps: Step) -> None:
        """The same change of both tables."""
        for table in (ITEMS, EVENTS):
            alter(self.lake, table, *steps)

    def write(self) -> None:
        """New rows, updates and deletes of old ones, in the newest version."""
        first = self.upsert(12)
        gone = [first - 4, first + 5]
        self.lake.table(ITEMS).delete([{"id": i} for i in gone])
        for i in gone:
            del self.items[i]
        happened = [self._row(self.definition(EVENTS), i) for i in range(first, first + 6)]
        self.lake.table(EVENTS).append(self._arrow(EVENTS, happened))
        self.events.extend(happened)

    def upsert(self, count: int) -> int:
        """New rows and updates of old ones, in one commit; the first id that was new."""
        self.step += 1
        first = self.step * 6
        rows = [self._row(self.definition(ITEMS), i) for i in range(first - 4, first - 4 + count)]
        self.lake.table(ITEMS).upsert(self._arrow(ITEMS, rows))
        self.items.update((row[1], row) for row in rows)
        return first

    def _row(self, definition: Table, i: int) -> Row:
        return {c.id: i if c.name == "id" else self._value(c.type, i, c.required) for c in definition.columns}

    def _value(self, kind: str, i: int, required: bool) -> Any:
        if not required and i % 5 == 2:
            return None
        large = self.rng.randrange(1 << 33, 1 << 40)
        if kind.startswith("decimal"):
            scale = int(kind[-2])
            return Decimal(i * 25 + (10**14 if "20" in kind else 0)).scaleb(-scale)
        moment = dt.datetime(2024, 3, 1 + i % 28, 1, 2, 3, i)
        return {
            "string": f"s{self.step}-{i}",
            "int8": i % 100,
            "int16": 300 + i,
            "int32": 70_000 + i,
            "int64": large + i,
            "float32": i / 4,
            "float64": i / 4 + 1e-9,
            "bool": i % 2 == 0,
            "date": moment.date(),
            "timestamp": moment,
            "timestamptz": moment.replace(tzinfo=dt.UTC),
            "binary": bytes([i % 256, 0, 255]),
            "fixed(3)": bytes([i % 256, 0, 255]),
            "time": moment.time(),
            "uint8": 150 + i,
            "uint32": 3_000_000_000 + i,
        }[kind]

    def _arrow(self, table: str, rows: list[Row]) -> pa.Table:
        definition = self.definition(table)
        named = [{column.name: row[column.id] for column in definition.columns} for row in rows]
        return pa.Table.from_pylist(named, schema=definition.schema)

    def model(self, table: str) -> list[Row]:
        """What the table holds."""
        return list(self.items.values()) if table == ITEMS else self.events

    def check(self, *readers: Callable[[str], pa.Table]) -> None:
        """Each reader gives the newest version's columns with the model's rows, and log, index and read agree."""
        for table in (ITEMS, EVENTS):
            definition = self.definition(table)
            expected = shown(definition, self.model(table))
            for reader in readers:
                found = reader(table)
                names = [name for name in found.schema.names if not name.startswith("__")]
                assert names == definition.schema.names, f"{reader.__name__} of {table}"
                assert tuples(found, definition) == expected, f"{reader.__name__} of {table}"

    def check_conditions(self) -> None:
        """A condition on each column finds the model's rows: none is skipped for what another column says."""
        for table in (ITEMS, EVENTS):
            definition, rows = self.definition(table), shown(self.definition(table), self.model(table))
            wanted: dict[str, Rows] = {}
            for place, column in enumerate(definition.columns):
                for text, holds in conditions(column.name, [row[place] for row in rows]):
                    wanted[text] = [row for row in rows if holds(row[place])]
                    found = self.lake.table(table).scan(where=text).to_arrow()
                    assert tuples(found, definition) == wanted[text], f"{text} of {table}"
            counted = self._counted_by_spark(table, list(wanted))
            assert counted == {text: len(some) for text, some in wanted.items()}, f"{table} in Spark"

    def _counted_by_spark(self, table: str, texts: list[str]) -> dict[str, int]:
        """Rows of each condition: one query, each part of which has a scan and pushed filters of its own."""
        counts = (f"SELECT {place}, count(*) FROM {table} WHERE {text}" for place, text in enumerate(texts))
        found = self.reads.sql(" UNION ALL ".join(counts)).collect()
        return {texts[place]: count for place, count in found}

    def by_union(self, table: str) -> pa.Table:
        """By our union read in Arrow."""
        found = self.lake.table(table).scan().to_arrow()
        assert found.schema == self.definition(table).schema
        return found

    def by_arrow(self, table: str) -> pa.Table:
        """By our union read in Arrow, whichever version it meets."""
        return self.lake.table(table).scan().to_arrow()

    def by_spark_union(self, table: str) -> pa.Table:
        """By our union read in Spark."""
        return self.reads.sql(f"SELECT * FROM {table}").toArrow()

    def by_spark(self, table: str) -> pa.Table:
        """By plain Iceberg in Spark."""
        return self.spark.sql(f"SELECT * FROM lake.{table}").toArrow()

    def by_pyiceberg(self, table: str) -> pa.Table:
        """By PyIceberg."""
        catalog = RestCatalog("lake", uri=f"http://{self.server.about['http']}/iceberg")
        return catalog.load_table(table).scan().to_arrow()

    def by_duckdb(self, table: str) -> pa.Table:
        """By DuckDB's extension."""
        endpoint = f"http://{self.server.about['http']}/iceberg"
        with duckdb.connect() as connection:
            for name in ("avro", "httpfs", "iceberg"):
                import_extension(name, con=connection)
                connection.execute(f"LOAD {name}")
            connection.execute(
                f"ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{endpoint}', AUTHORIZATION_TYPE 'none')"
            )
            return connection.execute(f"SELECT * FROM lake.{table}").to_arrow_table()

    @property
    def reads(self) -> SparkLake:
        """Reads in Spark."""
        return SparkLake(self.spark, self.lake.transport)


def conditions(name: str, values: list[Any]) -> list[tuple[str, Callable[[Any], bool]]]:
    """Conditions on a column, as text and as what they mean."""
    known = sorted({value for value in values if value is not None})
    made: list[tuple[str, Callable[[Any], bool]]] = [(f"{name} IS NULL", lambda value: value is None)]
    if known and isinstance(known[0], (str, int, Decimal)) and not isinstance(known[0], bool):
        one = max(known, key=values.count)
        literal = "'{}'".format(one.replace("'", "''")) if isinstance(one, str) else str(one)
        made.append((f"{name} = {literal}", lambda value: value == one))
        made.append((f"{name} > {literal}", lambda value: value is not None and value > one))
    return made


def tuples(found: pa.Table, definition: Table) -> Rows:
    """Rows in the columns and the order of a version."""
    names = definition.schema.names
    for place, column in enumerate(definition.columns):
        if column.type == "time" and found.column(column.name).type == pa.int64():
            # The lake and Spark keep the microseconds of the day.
            found = found.set_column(found.schema.names.index(names[place]), column.name, _times(found, column.name))
    return sorted((tuple(row[name] for name in names) for row in found.select(names).to_pylist()), key=repr)


def _times(found: pa.Table, name: str) -> pa.ChunkedArray:
    return found.column(name).cast(pa.time64("us"))
