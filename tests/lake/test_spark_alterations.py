"""ALTER TABLE of Spark on a table with a contract: it obeys the contract's policy, as whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakestore.evolution import SetContract
from lakestore.spark import session
from lakestore_tiering import Tierer
from tests.promises.test_an_owner_decides import PRINCIPALS, SCHEMA, World, document
from tests.support.rights import token_of, write_auth
from tests.support.spark import SPARK_CONF

pytestmark = pytest.mark.spark
ALL = {**PRINCIPALS, "tierer": {"*": ["tier"]}, "mallory": {"shop.*": ["admin"]}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        write_auth(tmp_path / "auth.yaml", ALL)
        made.served.server.access.refresh()
        with made.as_("ann") as lake:
            lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
            lake.table("shop.orders").upsert([{"id": 1, "amount": 5, "note": "a"}])
            lake.table("shop.orders").alter(SetContract(document(), "orders"))
        yield made


def spark_of(world: World, who: str) -> SparkSession:
    return session(world.served.server.about["grpc"], master="local[2]", conf=SPARK_CONF, token=token_of(who))


def refusal(spark: SparkSession, text: str) -> str:
    with pytest.raises(Py4JJavaError) as caught:
        spark.sql(text)
    return str(caught.value.java_exception)


def test_alter_table_of_spark_is_allowed_proposed_or_refused(world: World) -> None:
    tierer_spark = spark_of(world, "tierer")
    with world.as_("tierer") as lake, Tierer(lake, tierer_spark) as tierer:
        tierer.run_once("shop.orders", compaction=False)
        mallory = spark_of(world, "mallory")
        mallory.sql("ALTER TABLE lake.shop.orders ADD COLUMN more STRING")
        assert world.columns() == ["id", "amount", "note", "more"]
        said = refusal(mallory, "ALTER TABLE lake.shop.orders RENAME COLUMN amount TO total")
        with world.as_("eve") as eve:
            (proposal,) = eve.proposals("shop.orders")
            assert proposal["id"] in said
            assert (proposal["proposed_by"], proposal["change"]) == ("mallory", "rename column 'amount' to 'total'")
            assert "refuses changes of the kind 'drop'" in refusal(
                mallory, "ALTER TABLE lake.shop.orders DROP COLUMN note"
            )
            assert "right 'admin'" in refusal(tierer_spark, "ALTER TABLE lake.shop.orders ADD COLUMN x INT")
            eve.approve(proposal["id"])
        ann = spark_of(world, "ann")
        ann.sql("ALTER TABLE lake.shop.orders ALTER COLUMN amount TYPE BIGINT")
        with world.as_("ann") as owner:
            owner.table("shop.orders").upsert([{"id": 2, "total": 1 << 40, "note": "b", "more": "m"}])
        tierer.run_once("shop.orders", compaction=False)
    rows = ann.sql("SELECT id, total, note, more FROM lake.shop.orders ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, 5, "a", None), (2, 1 << 40, "b", "m")]
    assert [each for each in world.audit() if each[0] == "mallory"] == [
        ("mallory", "alter", "done"),
        ("mallory", "propose", "done"),
        ("mallory", "alter", "refused"),
    ]
