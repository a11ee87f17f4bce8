"""The one Spark that the tests start in their process: its settings, and the files that take it."""

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


@cache
def marked(file: Path) -> bool:
    """Whether a file says that its tests take Spark."""
    return MARK in file.read_text(encoding="utf-8")
