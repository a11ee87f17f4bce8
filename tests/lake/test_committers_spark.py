"""Spark as another engine at a table that takes only Lakestore's commits, and the tierer beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.spark import session
from lakestore_tiering import Tierer
from tests.support.served import Served
from tests.support.spark import SPARK_CONF

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
REWRITE = "CALL lake.system.rewrite_data_files(table => 'a.t', options => map('rewrite-all', 'true'))"
STATEMENTS = {
    "INSERT INTO lake.a.t VALUES (9, 'x', 0, 0, TIMESTAMP '2026-11-01 00:00:00')": 'mode("append")',
    "DELETE FROM lake.a.t WHERE id = 1": 'mode("',
    "UPDATE lake.a.t SET v = 'x' WHERE id = 1": 'mode("upsert")',
    "ALTER TABLE lake.a.t ADD COLUMN w INT": "lakestore apply",
    "ALTER TABLE lake.a.t ADD PARTITION FIELD bucket(4, id)": "--set 'lake.partition_by=",
    "ALTER TABLE lake.a.t WRITE ORDERED BY id": "--set 'lake.sort_by=",
    "ALTER TABLE lake.a.t CREATE TAG mine": "takes no tag of other engines",
    "ALTER TABLE lake.a.t CREATE BRANCH mine": "takes no branch of other engines",
    "ALTER TABLE lake.a.t SET TBLPROPERTIES ('comment' = 'x')": "takes no change of properties of other engines",
    REWRITE: "takes no rewrite of files of other engines",
}
"""Statement of another engine to a part of the sentence that its user reads."""


def test_statements_of_spark_are_refused_and_rounds_go_on(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        lake = {"committers": "ours_only", "snapshots": 2}
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1, lake=lake)
        spark = session(served.server.about["grpc"], master="local[2]", conf=SPARK_CONF)
        with Tierer(served.lake, spark) as tierer:
            for number in range(4):
                ids = list(range(number, number + 5))
                table.upsert(pa.table({"id": ids, "v": [f"ä{number}"] * 5}, schema=SCHEMA))
                tierer.run_once("a.t", compaction=True)
            rows = sorted(map(tuple, spark.sql("SELECT id, v FROM lake.a.t").collect()))
            for statement, sentence in STATEMENTS.items():
                with pytest.raises(Exception, match=re.escape(sentence)):
                    spark.sql(statement).collect()
            assert sorted(map(tuple, spark.sql("SELECT id, v FROM lake.a.t").collect())) == rows
            table = table.alter(lake={"committers": "ours+maintenance"})
            spark.sql(REWRITE).collect()
            spark.sql("ALTER TABLE lake.a.t CREATE TAG mine").collect()
            table.upsert(pa.table({"id": [50], "v": ["new"]}, schema=SCHEMA))
            tierer.run_once("a.t", compaction=True)
        found = sorted(map(tuple, spark.sql("SELECT id, v FROM lake.a.t").collect()))
        assert found == [*rows, (50, "new")]
