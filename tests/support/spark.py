"""The one Spark that the tests start in their process: its settings, and the files that take it."""

import os
from functools import cache
from pathlib import Path

from jepsen.system.jvm import SHORT_LIVED
from lakestore_spark.session import RUNTIME, STORE_RUNTIME

SPARK_CONF = {
    "spark.jars.packages": f"{RUNTIME},{STORE_RUNTIME}",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED),
    "spark.log.level": "ERROR",
}
FIXTURES = frozenset({"spark", "spark_lake"})
MARK = "pytest.mark.spark"


def store_conf(*catalogs: str) -> dict[str, str]:
    """The keys of this process's store for catalogs of Spark, `lake` and `now` by default.

    The JVM takes no variables that are set after its start.
    """
    keys = {
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "client.region": os.environ["AWS_REGION"],
    }
    return {
        f"spark.sql.catalog.{name}.{key}": value for name in catalogs or ("lake", "now") for key, value in keys.items()
    }


@cache
def marked(file: Path) -> bool:
    """Whether a file says that its tests take Spark."""
    return MARK in file.read_text(encoding="utf-8")
