"""SQL views that Spark makes and reads in our catalog, over the lake and over the present rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.spark import session
from lakestore_tiering import Tierer
from tests.support.served import Served
from tests.support.spark import SPARK_CONF

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def test_spark_makes_reads_replaces_and_drops_a_view(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        table.upsert(pa.table({"id": [1, 2, 3], "v": ["x", "ä", "z"]}, schema=SCHEMA))
        spark = session(served.server.about["grpc"], master="local[2]", conf=SPARK_CONF)
        with Tierer(served.lake, spark) as tierer:
            tierer.run_once("a.t", compaction=False)
        spark.sql("CREATE VIEW lake.a.big COMMENT 'ids from 2' AS SELECT id, v FROM lake.a.t WHERE id > 1")
        assert [row["viewName"] for row in spark.sql("SHOW VIEWS IN lake.a").collect()] == ["big"]
        assert _ids(spark, "SELECT id FROM lake.a.big") == [2, 3]
        spark.sql("CREATE OR REPLACE VIEW lake.a.big AS SELECT id FROM lake.a.t WHERE v = 'ä'")
        assert _ids(spark, "SELECT id FROM lake.a.big") == [2]
        table.upsert(pa.table({"id": [4], "v": ["ä"]}, schema=SCHEMA))
        spark.sql("CREATE VIEW lake.a.fresh AS SELECT id FROM now.a.t WHERE v = 'ä'")
        assert _ids(spark, "SELECT id FROM lake.a.fresh") == [2, 4]
        spark.sql("ALTER VIEW lake.a.big RENAME TO lake.a.small")
        spark.sql("DROP VIEW lake.a.small")
        assert served.server.catalog.views.names("a") == ["fresh"]


def _ids(spark: Any, text: str) -> list[int]:
    return sorted(row["id"] for row in spark.sql(text).collect())
