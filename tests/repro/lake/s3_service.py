# mypy: ignore-errors
"""One table that cannot be tiered: does the running service go on with the other tables?"""

import threading
import time

import pyarrow as pa

from lakestore_tiering import Tierer
from tests.repro.lake.world import World, short

w = World("s3")
SC = pa.schema([("id", pa.int64()), ("v", pa.string())])
for T in ("shop.bad", "shop.good"):
    w.lake.create_table(T, SC, primary_key=["id"], buckets=1, lake={"freshness": "1s"})


def up(name, k):
    w.lake.table(name).upsert([{"id": i, "v": f"{k}"} for i in range(5)])


up("shop.bad", 0)
up("shop.good", 0)
with Tierer(w.lake, w.spark) as t:
    t.run_once(compaction=False)
# A table that cannot be tiered: the file in which its old rows must be found dead is gone.
for path in (w.dir / "data" / "warehouse" / "shop").glob("bad-*/data/**/*.parquet"):
    path.unlink()
up("shop.bad", 1)
up("shop.good", 1)
t = Tierer(w.lake, w.spark)
stop = threading.Event()
err = []


def run():
    try:
        t.run_forever(stop)
    except BaseException as e:
        err.append(short(e))


th = threading.Thread(target=run)
th.start()
for k in range(12):
    time.sleep(2)
    up("shop.good", 2 + k)
    if not th.is_alive():
        break
print("service alive after", k, th.is_alive(), err)
print("good lake:", w.l_pyice("shop.good", ["id", "v"])[:1], "hot should be tiered to", 2 + k)
stop.set()
th.join(30)
t.close()
w.close()
