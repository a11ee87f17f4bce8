"""Settings of the one Spark that the tests start."""

SPARK_CONF = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.log.level": "ERROR"}
