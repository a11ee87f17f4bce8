"""Settings of the one Spark that the tests start."""

from tests.support.jvm import SHORT_LIVED

SPARK_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED),
    "spark.log.level": "ERROR",
}
