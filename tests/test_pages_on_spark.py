"""The blocks of the documents that want Spark, on the one Spark of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakestore as ls
import lakestore.spark
from lakestore.cli import serve
from lakestore_server.main import Server
from tests.support.documents import ROOT, SPARK, Reader, parts, runner_of, words_of
from tests.support.unrun import NOT_RUN

PAGES = ("README.md", "docs/spark.md", "docs/from-delta.md")
DELTA = '.format("delta").load("/tables/orders")'
"""Delta's jar is none of the tests': files of Parquet stand for its table."""
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
    monkeypatch.setenv("LAKESTORE_SERVER", server.about["grpc"])
    monkeypatch.setattr(lakestore.spark, "session", lambda _: spark)  # a process has one Spark
    seen: list[int] = []

    def apply(batch: DataFrame, _: int) -> None:
        seen.append(batch.count())

    rows = spark.createDataFrame([(7, "bob")], "order_id long, customer string")
    arriving = spark.readStream.format("rate").load().selectExpr("value AS order_id", "'eve' AS customer")
    names: dict[str, Any] = {"spark": spark, "apply": apply, "rows": rows, "arriving": arriving}
    reader = Reader(server.about["grpc"], server.about["http"], names)
    rows.write.parquet(str(tmp_path / "delta"))
    for number, part in enumerate(parts(ROOT / page)):
        if runner_of(part) != SPARK:
            continue
        if part.block.typed:
            run_tiering(reader, words_of(part), spark, monkeypatch)
            continue
        text = part.text.replace("/checkpoints/orders", str(tmp_path / f"checkpoint-{number}"))
        text = text.replace(WHEN, str(token)).replace(DELTA, f'.format("parquet").load("{tmp_path / "delta"}")')
        reader.python(text)
        if "query" in reader.names:
            query = reader.names.pop("query")
            if "readStream" in text:
                query.processAllAvailable()
            query.stop()
    assert reader.ran
    if page == "docs/spark.md":
        assert seen
    if page != "README.md":
        assert {"bob"} <= set(orders.scan().to_arrow()["customer"].to_pylist())


def run_tiering(reader: Reader, words: list[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lakestore tier` by the Spark that is there, which stays."""
    monkeypatch.setattr(serve, "_session", lambda *_: spark)
    monkeypatch.setattr(serve, "_end", lambda _: None)
    reader.command(words)


def test_the_quickstart_runs_with_its_round(
    server: Server, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKESTORE_SERVER", server.about["grpc"])
    reader = Reader(server.about["grpc"], server.about["http"], {})
    for part in parts(ROOT / "docs" / "quickstart.md"):
        if part.key in NOT_RUN:
            continue
        if part.block.file:
            Path(part.block.file).write_text(part.block.text)
        elif part.block.language == "python":
            reader.python(part.text)
        elif words_of(part)[0] == "tier":
            run_tiering(reader, words_of(part), spark, monkeypatch)
        elif words_of(part)[0] != "serve":
            reader.command(words_of(part))
    assert "shop.orders: rows and values agree" in reader.said
    assert reader.ran[-1] == "verify"
