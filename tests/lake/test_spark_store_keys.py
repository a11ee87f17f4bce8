"""Spark, with nothing of ours in it and no key, on a warehouse in S3 whose catalog gives keys of a role.

A process of its own runs the lines that `lakestore connect spark` prints. Costs a JVM and the package of Iceberg for
AWS. The store enforces the session policies, so each key opens the files of one table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.java import java_home
from tests.support.guarded_store import ROLE, GuardedStore
from tests.support.log_tierer import LogTierer
from tests.support.process import ServerProcess

pytestmark = pytest.mark.spark

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
lines, ivy = json.load(sys.stdin), sys.argv[1]
builder = SparkSession.builder.master("local[2]").config("spark.jars.ivy", ivy).config("spark.ui.enabled", "false")
for line in lines:
    if line.startswith("--packages "):
        builder = builder.config("spark.jars.packages", line.split()[1])
    elif line.startswith("--conf "):
        builder = builder.config(*line.removeprefix("--conf ").split("=", 1))
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
found = [spark.sql(line.split(";")[0]).collect()[0][0] for line in lines if line.startswith("SELECT")]
spark.sql("CREATE NAMESPACE lake.other")
spark.sql("CREATE TABLE lake.other.events (id bigint) USING iceberg")
spark.sql("INSERT INTO lake.other.events SELECT id FROM range(7)")
found.append(spark.sql("SELECT count(*) FROM lake.other.events").collect()[0][0])
from lakestore_spark.source import register
register(spark)
read = spark.read.format("lakestore").option("server", sys.argv[2]).option("table", "shop.visits").load()
found.append(sorted(row.id for row in read.select("id").collect()))
from lakestore.spark import session
own = session(sys.argv[2])
found.append([own.sql(f"SELECT count(*) FROM {name}.shop.visits").collect()[0][0] for name in ("lake", "now")])
print("FOUND", json.dumps(found))
"""


def test_the_printed_lines_of_spark_need_no_key(tmp_path: Path) -> None:
    with GuardedStore() as store:
        given = {"GIVE": "role", "ROLE": ROLE, "STS": store.url}
        variables = store.environment | {f"LAKESTORE_ENGINE_KEYS_{name}": value for name, value in given.items()}
        server = ServerProcess(tmp_path / "data", arguments=["--warehouse", store.warehouse], environment=variables)
        try:
            with ls.connect(server.address) as lake:
                orders = lake.create_table("shop.orders", pa.schema([("id", pa.int64())]), primary_key=["id"])
                orders.upsert([{"id": number} for number in range(5)])
                visits = lake.create_table("shop.visits", pa.schema([("id", pa.int64())]))
                visits.append([{"id": 1}, {"id": 2}])
                LogTierer(server, lake.transport).flush("shop.visits")
                visits.append([{"id": 3}])
            store.guard.used.clear()
            said = CliRunner().invoke(cli, ["connect", "spark", "--server", server.address, "--json"])
            lines = json.loads(said.output)["lines"]
            ran = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(Path(sys.prefix) / "ivy"), server.address],
                input=json.dumps([line.partition("  --")[0] for line in lines]),
                env={**_without_keys(), "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable},
                capture_output=True,
                text=True,
                check=False,
            )
            (found,) = [line for line in ran.stdout.splitlines() if line.startswith("FOUND ")] or [ran.stderr[-3000:]]
            assert json.loads(found.removeprefix("FOUND ")) == [5, 5, 5, 0, 7, [1, 2, 3], [2, 3]]
            (account,) = {key for key, *_ in store.guard.used if not key.startswith("ASIA")}
            assert account == store.environment["AWS_ACCESS_KEY_ID"], "the server has its own key"
            written = [
                resource
                for key, action, resource in store.guard.used
                if action == "s3:PutObject" and "/data/" in resource
            ]
            assert written
            assert all("/lake/other/events" in resource for resource in written if resource.endswith(".parquet"))
        finally:
            server.kill()


def _without_keys() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
