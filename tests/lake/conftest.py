"""Sessions of one Spark: what the tests of the lake run in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakestore.spark import SparkLake, attach, session
from lakestore_server.main import Server

SPARK_CONF = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.log.level": "ERROR"}


@pytest.fixture
def spark(server: Server) -> SparkSession:
    """A session of its own on the one Spark of this process."""
    return session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)


@pytest.fixture
def spark_lake(server: Server, spark: SparkSession) -> Iterator[SparkLake]:
    """This lake, attached to that session."""
    attached = attach(spark, server.about["grpc"])
    yield attached
    attached.close()
