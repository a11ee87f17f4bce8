"""Every merge engine is exact through changelog, lake and union read in Spark, and for engines that are not ours."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
from lakestore.rows import keys
from lakestore.spark import SparkLake
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_tiering import Tierer
from tests.support.log_start import compact, move_log_start
from tests.support.merge_cases import CASES, MergeTable, sequences, steps

pytestmark = pytest.mark.spark

NAMES = ("upsert_skipping", "partial", "first_row", "versioned", "aggregate")


def told(rows: list[dict[str, Any]]) -> list[str]:
    """Comparable: NaN as a text equals itself."""
    return sorted(repr(row) for row in rows)


def read(frame: DataFrame, made: MergeTable) -> list[str]:
    return told(frame.select(*made.table.schema.names).toArrow().to_pylist())


def shown(found: pa.Table, made: MergeTable) -> list[str]:
    """Rows of another engine in the declared types: int8 and int16 are int in the lake."""
    schema = made.table.schema
    columns = [found.column(field.name).combine_chunks().cast(field.type) for field in schema]
    return told(pa.table(columns, schema=schema).to_pylist())


def by_duckdb(server: Server, name: str) -> pa.Table:
    with duckdb.connect() as connection:
        for extension in ("avro", "httpfs", "iceberg"):
            import_extension(extension, con=connection)
            connection.execute(f"LOAD {extension}")
        at = f"http://{server.about['http']}/iceberg"
        connection.execute(f"ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{at}', AUTHORIZATION_TYPE 'none')")
        return connection.execute(f"SELECT * FROM lake.{name}").to_arrow_table()


def by_pyiceberg(server: Server, name: str) -> pa.Table:
    catalog = RestCatalog("lake", uri=f"http://{server.about['http']}/iceberg")
    return catalog.load_table(name).scan().to_arrow()


def forget(server: Server, tables: list[MergeTable]) -> None:
    """Nothing of the log stays but what lives and the deletes that are remembered."""
    for made in tables:
        move_log_start(server.engine, made.table.name)
    compact(server)


def commit(lake: ls.Lake, tables: list[MergeTable], step: Any) -> None:
    for made, batches in zip(tables, step, strict=True):
        answer = lake.transport.commit(pb.CommitRequest(changes=[made.message(batch) for batch in batches]))
        made.expect(answer.results, batches)


LONG = "k" * keys.KEPT_BYTES
LONG_KEYS = pa.schema([("name", pa.string()), ("id", pa.int64()), ("v", pa.int64())])


def long_rows(v: int) -> list[dict[str, Any]]:
    """Keys of which the index keeps a prefix and a hash."""
    return [{"name": f"{LONG}{i % 3}", "id": -i, "v": v} for i in range(9)]


def test_every_merge_engine_is_exact_through_lake_and_union_read(
    server: Server, lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake
) -> None:
    """Deletes, tombstones, bitmaps and rows that are inserted if absent, over a lake that has some of it."""
    cases = [case for case in CASES if case.name in NAMES]
    tables = [MergeTable(lake, case, buckets=2) for case in cases]
    long = lake.create_table("d.long", LONG_KEYS, primary_key=["name", "id"], buckets=2)
    long.upsert(long_rows(0))
    first, *rest = zip(*(steps(sequences(case, 3)) for case in cases), strict=True)
    with Tierer(lake, spark) as tierer:
        commit(lake, tables, first)
        tierer.run_once()
        for step in rest:
            commit(lake, tables, step)
        long.upsert(long_rows(1)[:6])
        long.delete([{"name": row["name"], "id": row["id"]} for row in long_rows(1)[:2]])
        for made in tables:
            assert read(spark_lake.table(made.table.name), made) == told(made.table.scan().to_arrow().to_pylist())
        tierer.run_once()
    for made in tables:
        made.check()
        name, expected = made.table.name, told(made.table.scan().to_arrow().to_pylist())
        assert read(spark.table(f"lake.{name}"), made) == expected, "the lake alone"
        for engine in (by_pyiceberg, by_duckdb):
            assert shown(engine(server, name), made) == expected, engine.__name__
    forget(server, tables)
    commit(lake, tables, first)
    asked = [{"id": i} for i in range(2 * max(len(case.ops) for case in cases) ** 3)]
    for made in tables:
        name, expected = made.table.name, told(made.table.lookup(asked).to_pylist())
        assert len(expected) == len(made.model.live)
        assert told(made.table.scan().to_arrow().to_pylist()) == expected
        assert read(spark_lake.table(name), made) == expected, "lake and hot"
        assert verify(lake.transport, name).problems() == []
    live = [(row["name"], row["id"], row["v"]) for row in [*long_rows(1)[2:6], *long_rows(0)[6:]]]
    for found in (long.scan().to_arrow(), by_pyiceberg(server, "d.long"), spark_lake.table("d.long").toArrow()):
        assert sorted((row["name"], row["id"], row["v"]) for row in found.to_pylist()) == sorted(live)
