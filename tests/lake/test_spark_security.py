"""Spark against a server that asks who calls: both catalogs and the tierer; plans show no token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

import lakestore as ls
from lakestore.errors import Denied
from lakestore.spark import attach, session
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.support.rights import token_of, write_auth
from tests.support.spark import SPARK_CONF

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PRINCIPALS = {"root": {"*": ["admin"]}, "report": {"shop.orders": ["read"]}, "spark": {"*": ["tier"]}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    auth = write_auth(tmp_path / "auth.yaml", PRINCIPALS)
    running = Server(Settings(tmp_path / "data", port=0, http_port=0, auth=str(auth), lease_grace_seconds=0.0))
    running.start()
    with ls.connect(running.about["grpc"], token=token_of("root")) as lake:
        for name in ("shop.orders", "shop.items"):
            lake.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
            lake.table(name).upsert([{"id": i, "v": f"v{i}"} for i in range(20)])
    yield running
    running.close()


def test_spark_reads_tiers_and_is_refused_as_its_principal(server: Server) -> None:
    address = server.about["grpc"]
    with ls.connect(address, token=token_of("spark")) as lake:
        spark = session(address, master="local[2]", conf=SPARK_CONF, token=token_of("spark"))
        with Tierer(lake, spark) as tierer:
            assert {outcome.table for outcome in tierer.run_once()} == {"shop.orders", "shop.items"}
    with ls.connect(address, token=token_of("root")) as lake:
        lake.table("shop.orders").upsert([{"id": i, "v": "new"} for i in range(15, 30)])
    own = session(address, master="local[2]", conf=SPARK_CONF, token=token_of("report"))
    jvm: Any = own._jvm
    reader = attach(own, address, token=token_of("report"))
    try:
        assert reader.sql("SELECT count(*) FROM shop.orders").collect()[0][0] == 30
        assert own.table("lake.shop.orders").count() == 20
        assert own.table("now.shop.orders").count() == 30
        with pytest.raises(Denied):
            reader.sql("SELECT count(*) FROM shop.items")
        for catalog in ("lake", "now"):
            with pytest.raises(Py4JJavaError, match="Forbidden"):
                jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(own._jsparkSession, f"{catalog}.shop.items")
        said = own.sql("SET -v").toPandas().to_string() + reader.sql("EXPLAIN TABLE shop.orders").collect()[0][0]
        assert "now.shop.orders@" in said
        assert token_of("report") not in said
    finally:
        reader.close()
