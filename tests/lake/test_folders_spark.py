"""The tierer and every reader in a data folder whose path has spaces, signs and letters of other languages."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.spark import session
from lakestore_tiering import Tierer
from tests.support.served import Served
from tests.support.spark import SPARK_CONF

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.mark.parametrize("name", ["données 100% #1", pytest.param("my dir+é%20", marks=pytest.mark.long)])
def test_tiered_rows_are_read_back(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    with Served(folder / "data", ports=True) as served:
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1, lake={"partition_by": ["v"]})
        spark = session(served.server.about["grpc"], master="local[2]", conf=SPARK_CONF)
        with Tierer(served.lake, spark) as tierer:
            table.upsert(pa.table({"id": [1, 2, 3], "v": ["a b", "100%", "é/?#"]}, schema=SCHEMA))
            tierer.run_once("a.t", compaction=False)
            table.upsert(pa.table({"id": [2], "v": ["new"]}, schema=SCHEMA))
            tierer.run_once("a.t", compaction=False)
        rows = {(row["id"], row["v"]) for row in spark.sql("SELECT id, v FROM lake.a.t").collect()}
        assert rows == {(1, "a b"), (2, "new"), (3, "é/?#")}
        assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [1, 2, 3]
        assert list((folder / "data" / "warehouse" / "a").rglob("*.parquet"))
    assert [each.name for each in tmp_path.iterdir()] == [name]
