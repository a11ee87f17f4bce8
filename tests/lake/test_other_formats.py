"""Another engine's rewrite left ORC or Avro: every reader reads it, rounds go on, and it is brought back to Parquet."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import SparkLake
from lakestore.union.verify import verify
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.main import Server
from lakestore_tiering import Tierer
from tests.lake.test_types_lake import check, plain, some_rows
from tests.support.all_types import SCHEMA

pytestmark = pytest.mark.spark

KINDS, TIMES = "kinds.keyed", ("c15", "c16", "c22", "c24")


def formats(spark: SparkSession) -> set[str]:
    rows = spark.sql(f"SELECT file_format FROM lake.{KINDS}.files").collect()
    return {row.file_format for row in rows}


def rewritten(server: Server, spark: SparkSession, form: str) -> None:
    """All files anew in another format, as an engine would that does not ask the table's properties."""
    updates = {"write.format.default": form, "write.delete.format.default": form}
    change = TableChange(Name(*KINDS.split(".")), (), ({"action": "set-properties", "updates": updates},))
    server.catalog._commits.attempts((change,), "", trusted=True)
    spark.sql(
        f"CALL lake.system.rewrite_data_files(table => 'lake.{KINDS}', options => map('rewrite-all', 'true'))"
    ).collect()


@pytest.mark.parametrize("form", ["orc", "avro"])
def test_files_of_other_formats(
    server: Server, lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake, form: str
) -> None:
    columns = [name for name in SCHEMA.names if form == "avro" or name not in TIMES]
    table = lake.create_table(KINDS, SCHEMA, primary_key=["id"], buckets=2)
    rows = some_rows(range(0, 30))
    table.upsert(rows)
    with Tierer(lake, spark) as tierer:
        tierer.run_once(compaction=False)
        rewritten(server, spark, form)
        assert formats(spark) == {form.upper()}
        found = table.scan(columns=columns).to_arrow()
        assert plain(found, found.schema) == plain(rows.select(columns), found.schema)
        if form == "orc":
            with pytest.raises(ls.Invalid, match="lakestore tier --once"):
                table.scan(columns=["c22"]).to_arrow()
        table.delete([{"id": 3}])
        table.upsert(rows.slice(20, 4))
        tierer.run_once(compaction=False)
        assert formats(spark) == {form.upper(), "PARQUET"}
        assert form == "orc" or verify(lake.transport, KINDS).problems() == []
        tierer.run_once()
        assert formats(spark) == {"PARQUET"}
        check(lake, spark_lake, KINDS, rows.filter([row != 3 for row in rows["id"].to_pylist()]))
