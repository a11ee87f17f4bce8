"""The blocks of the documents that want Spark, on the one Spark of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
import lakestore.spark
from lakestore_server.main import Server
from tests.support.documents import Reader, blocks

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/spark.md")
WHEN = "2026-11-20T10:00Z"

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_for_spark_run(
    page: str, server: Server, lake: ls.Lake, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("order_id", pa.int64()), ("customer", pa.string())])
    orders = lake.create_table("shop.orders", schema, primary_key=["order_id"])
    lake.create_table("shop.events", pa.schema([("order_id", pa.int64()), ("step", pa.string())]))
    token = orders.upsert([{"order_id": 1, "customer": "ann"}])
    monkeypatch.setattr(lakestore.spark, "session", lambda _: spark)  # a process has one Spark
    seen: list[int] = []

    def apply(batch: DataFrame, _: int) -> None:
        seen.append(batch.count())

    rows = spark.createDataFrame([(7, "bob")], "order_id long, customer string")
    arriving = spark.readStream.format("rate").load().selectExpr("value AS order_id", "'eve' AS customer")
    names: dict[str, Any] = {"spark": spark, "apply": apply, "rows": rows, "arriving": arriving}
    reader = Reader(server.about["grpc"], server.about["http"], names)
    for number, block in enumerate(blocks(ROOT / page)):
        if block.language != "python" or "spark" not in block.text.replace("writeStream", "spark"):
            continue
        text = block.text.replace("/checkpoints/orders", str(tmp_path / f"checkpoint-{number}")).replace(
            WHEN, str(token)
        )
        reader.python(text)
        if "query" in reader.names:
            query = reader.names.pop("query")
            if "readStream" in text:
                query.processAllAvailable()
            query.stop()
    assert reader.ran
    if page == "docs/spark.md":
        assert seen
        assert {"bob"} <= set(orders.scan().to_arrow()["customer"].to_pylist())
