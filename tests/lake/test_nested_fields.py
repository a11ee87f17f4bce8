"""Fields inside columns that change between rounds: every engine reads old and new rows by id."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import SparkLake
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_tiering import Tierer
from tests.lake.tiering_tables import NAME

pytestmark = pytest.mark.spark
PLACE = pa.struct([("street", pa.string()), ("zip", pa.int32())])
ITEM = pa.struct([("sku", pa.string()), ("amount", pa.float32())])
COLUMNS = {"id": pa.int64(), "place": PLACE, "items": pa.list_(ITEM), "prices": pa.map_(pa.string(), ITEM)}
SELECTED = "SELECT id, place, items, prices FROM {} ORDER BY id"


def row(number: int) -> dict[str, Any]:
    item = {"sku": f"s{number}", "amount": number / 2}
    return {"id": number, "place": {"street": "Main", "zip": number}, "items": [item, None], "prices": [("eu", item)]}


def new_row(number: int) -> dict[str, Any]:
    item = {"tags": ["x"], "sku": number, "amount": number / 2}
    place = {"code": number + (1 << 40), "zip": "text", "city": {"name": "Ulm"}}
    return {"id": number, "place": place, "items": [item], "prices": [("us", {"amount": 0.5, "sku": "b"})]}


def altered(number: int) -> dict[str, Any]:
    """A row of before as the new version shows it."""
    return {
        "id": number,
        "place": {"code": number, "zip": None, "city": None},
        "items": [{"tags": None, "sku": None, "amount": number / 2}, None],
        "prices": [("eu", {"amount": number / 2, "sku": f"s{number}"})],
    }


def alter(table: ls.Table) -> ls.Table:
    table = table.alter(drop=["place.street", "items.element.sku"], rename={"place.zip": "code"})
    added = {"place.zip": "string", "place.city": "struct<name: string>", "items.element.sku": "int64"}
    table = table.alter(add=added | {"items.element.tags": "list<string>"}, widen={"place.code": "int64"})
    table = table.alter(order=["items.element.tags"])
    return table.alter(widen={"prices.value.amount": "float64"})


def plain(found: pa.Table) -> list[dict[str, Any]]:
    return sorted(found.select(["id", "place", "items", "prices"]).to_pylist(), key=lambda each: each["id"])


def test_all_engines_follow_fields_by_id(lake: ls.Lake, server: Server, spark: SparkSession) -> None:
    table = lake.create_table(NAME, COLUMNS, primary_key=["id"], buckets=2)
    endpoint = f"http://{server.about['http']}/iceberg"
    with Tierer(lake, spark, holder="one") as tierer:
        table.upsert([row(number) for number in range(6)])
        tierer.run_once(compaction=False)
        table = alter(table)
        table.upsert([new_row(number) for number in range(4, 8)])
        expected = [_as(table, altered(number)) for number in range(4)]
        expected += [_as(table, new_row(number)) for number in range(4, 8)]
        for place in ("hot", "tiered", "compacted"):
            if place == "tiered":
                tierer.run_once(compaction=False)
            elif place == "compacted":
                tierer.run_once(compaction=True)
            assert plain(table.scan().to_arrow()) == expected, place
            union = SparkLake(spark, lake.transport).sql(SELECTED.format(NAME)).toArrow()
            assert plain(union) == expected, place
            for warehouse in ("now", "lake") if place != "hot" else ("now",):
                catalog = RestCatalog(warehouse, uri=endpoint, warehouse=warehouse)
                assert plain(catalog.load_table(NAME).scan().to_arrow()) == expected, (place, warehouse)
                assert plain(_by_duckdb(endpoint, warehouse)) == expected, (place, warehouse)
        assert plain(spark.sql(SELECTED.format(f"lake.{NAME}")).toArrow()) == expected
    assert verify(lake.transport, NAME).same


def _as(table: ls.Table, values: dict[str, Any]) -> dict[str, Any]:
    """A row with its fields in the table's order."""
    rows: list[dict[str, Any]] = pa.Table.from_pylist([values], schema=table.definition.schema).to_pylist()
    return rows[0]


def _by_duckdb(endpoint: str, warehouse: str) -> pa.Table:
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        connection.execute(
            f"ATTACH '{warehouse}' AS lake (TYPE ICEBERG, ENDPOINT '{endpoint}', AUTHORIZATION_TYPE 'none')"
        )
        return connection.execute(SELECTED.format(f"lake.{NAME}")).to_arrow_table()
