"""Forty saved queries in Spark: by lake.sql, and in a catalog's view over the table with the columns of one version."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import SparkLake
from lakestore_tiering import Tierer
from tests.promises.test_forty_dashboards import DASHBOARDS, filled

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
QUERIES = [query.replace('"amount"', "`amount`") for query in DASHBOARDS]


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def in_view(query: str) -> str:
    """The query over a view of the catalog in place of the table."""
    return re.sub(r"(shop\.)?\borders\b", lambda found: "lake.shop.saved" if found[1] else "saved", query).replace(
        "shop.people", "lake.shop.people"
    )


def test_forty_saved_queries_do_not_notice_a_rename(lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake) -> None:
    orders = filled(lake)
    before = [rows(spark_lake.sql(query)) for query in QUERIES]
    orders.alter(rename={"amount": "total", "note": "remark"})
    assert [rows(spark_lake.sql(query)) for query in QUERIES] == before
    assert spark_lake.sql("SELECT * FROM shop.orders").columns == ["id", "total", "who", "remark"]
    grouped = "SELECT who, sum(total) AS amount FROM shop.orders GROUP BY who HAVING amount > 30"
    assert rows(spark_lake.sql(grouped)) == [{"who": "b", "amount": 40}]


@pytest.mark.long
def test_a_view_over_a_version_keeps_its_names_in_every_engine(lake: ls.Lake, spark: SparkSession) -> None:
    orders = filled(lake)
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
        version = orders.definition.schema_id
        spark.sql(f"CREATE VIEW lake.shop.saved AS SELECT id, amount, who, note FROM lake.shop.`orders${version}`")
        before = [rows(spark.sql(in_view(query))) for query in QUERIES]
        assert before[0][0] == {"id": 1, "amount": 10}
        orders.alter(rename={"amount": "total", "note": "remark"})
        assert [rows(spark.sql(in_view(query))) for query in QUERIES] == before
        lake.table("shop.orders").upsert([{"id": 5, "total": 50, "who": "a", "remark": "n5"}])
        tierer.run_once()
    assert rows(spark.sql(in_view(QUERIES[0])))[4] == {"id": 5, "amount": 50}
    assert spark.table("lake.shop.orders").columns[:4] == ["id", "total", "who", "remark"]
