# mypy: ignore-errors
"""What a user of Spark tries first."""

import time

import lakestore as ls
from lakestore.spark import attach, session
from tests.repro.user.shop import Shop

shop = Shop("spark1", filled=True)


spark = session(shop.address)
lake = attach(spark, shop.address)


def t(label, f):
    t0 = time.time()
    try:
        print(f"[ok]  {label} ({time.time() - t0:.1f}s): {str(f())[:400]}", flush=True)
    except BaseException as e:
        print(f"[ERR] {label}: {type(e).__module__}.{type(e).__name__}: {str(e)[:450]}", flush=True)


c = ls.connect(shop.address)
c.table("shop.orders").upsert([{"order_id": 1, "customer": "hot row", "amount": None}])
t(
    "lake.sql",
    lambda: lake.sql("SELECT customer, count(*) n FROM shop.orders GROUP BY 1 ORDER BY n DESC").limit(3).collect(),
)
t("hot visible", lambda: lake.sql("SELECT customer FROM shop.orders WHERE order_id=1").collect())
t("plain iceberg (stale)", lambda: spark.sql("SELECT customer FROM lake.shop.orders WHERE order_id=1").collect())
t("DataFrame", lambda: lake.table("shop.orders").where("amount > 999").groupBy("status").count().collect())
t(
    "join parquet",
    lambda: lake.table("shop.orders").join(spark.read.parquet("orders.parquet").select("order_id"), "order_id").count(),
)
t(
    "lake.sql over temp view",
    lambda: (
        spark.read.parquet("orders.parquet").createOrReplaceTempView("pq"),
        lake.sql("SELECT count(*) FROM shop.orders o JOIN pq USING(order_id)").collect(),
    )[1],
)
t(
    "read.format lakestore",
    lambda: spark.read.format("lakestore").option("server", shop.address).load("shop.orders").count(),
)
t("readStream iceberg", lambda: spark.readStream.format("iceberg").load("lake.shop.events").isStreaming)
t("readStream lakestore", lambda: spark.readStream.format("lakestore").load("shop.events"))
t(
    "write df.writeTo",
    lambda: (
        spark.range(3)
        .selectExpr("current_timestamp() ts", "id order_id", "'s' step")
        .writeTo("lake.shop.events")
        .append()
    ),
)
t("insert into", lambda: spark.sql("INSERT INTO lake.shop.events (ts, order_id, step) VALUES (now(),1,'x')"))
t(
    "merge",
    lambda: spark.sql(
        "MERGE INTO lake.shop.orders t USING (SELECT 1L order_id) s ON t.order_id=s.order_id WHEN MATCHED THEN DELETE"
    ),
)
t("write format lakestore", lambda: spark.range(3).write.format("lakestore").save("shop.events"))
t("bad table", lambda: lake.table("shop.nope").count())
t("bad column", lambda: lake.sql("SELECT custmer FROM shop.orders").count())
t("show tables", lambda: spark.sql("SHOW TABLES IN lake.shop").collect())
t("snapshots metadata", lambda: spark.sql("SELECT count(*) FROM lake.shop.orders.snapshots").collect())
t(
    "own iceberg table",
    lambda: (
        spark.sql("CREATE TABLE lake.shop.mine (a int) USING iceberg"),
        spark.sql("INSERT INTO lake.shop.mine VALUES (1)"),
        spark.sql("SELECT * FROM lake.shop.mine").collect(),
    )[2],
)
print([x for x in dir(lake) if not x.startswith("_")])
spark.stop()
shop.close()
