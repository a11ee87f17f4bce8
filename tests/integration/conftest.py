"""A server on free ports, and sessions of one Spark: what the integration tests run against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.server.main import Server
from lakestore.server.settings import Settings
from lakestore.spark import SparkLake, attach, session

SPARK_CONF = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.log.level": "ERROR"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(Settings(tmp_path / "data", port=0, http_port=0, lease_grace_seconds=0.0))
    running.start()
    yield running
    running.close()


@pytest.fixture
def lake(server: Server) -> Iterator[ls.Lake]:
    with ls.connect(server.about["grpc"]) as connected:
        yield connected


@pytest.fixture
def spark(server: Server) -> SparkSession:
    """A session of its own on the one Spark of this process."""
    return session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)


@pytest.fixture
def spark_lake(server: Server, spark: SparkSession) -> Iterator[SparkLake]:
    attached = attach(spark, server.about["grpc"])
    yield attached
    attached.close()
