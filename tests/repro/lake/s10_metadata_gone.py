# mypy: ignore-errors
"""A read that holds its lease, and metadata commits that land before it opens the lake: the metadata file of its plan
is deleted.
"""

import tempfile
from pathlib import Path

import pyarrow as pa

import lakestore as ls
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.place import room
from tests.support.log_tierer import LogTierer

d = Path(tempfile.mkdtemp(dir=room("lake"), prefix="s10-"))
s = Server(Settings(d / "data", port=0, http_port=0))
s.start()
lake = ls.connect(s.about["grpc"])
T = "shop.log"
lake.create_table(T, pa.schema([("id", pa.int64())]))
U = "shop.other"
lake.create_table(U, pa.schema([("id", pa.int64())]))
t = LogTierer(s, lake.transport)
lake.table(T).append([{"id": i} for i in range(10)])
t.flush(T)
lake.table(U).append([{"id": 1}])
t.flush(U)
r = lake.table(T).scan().to_reader()  # plan and lease of an hour are taken here
for k in range(22):  # = 22 rounds of this table (7 of the Spark tierer, which makes 3 commits each)
    lake.table(T).append([{"id": 100 + k}])
    t.flush(T)
try:
    print("reader", r.read_all().num_rows, "rows")
except Exception as e:
    print("reader:", type(e).__name__, str(e)[:250])
# the same with one held cut over two tables, as lake.sql does for a join

with Cut(lake.transport, [T, U]) as cut:
    a = sum(b.num_rows for b in arrow.execute(cut, cut.plan.scan(U), ["id"]))
    for k in range(22):
        lake.table(T).append([{"id": 200 + k}])
        t.flush(T)
    try:
        print("join's second table", sum(b.num_rows for b in arrow.execute(cut, cut.plan.scan(T), ["id"])))
    except Exception as e:
        print("join's second table:", type(e).__name__, str(e)[:200])
# does the catalog still hold the snapshot by the lease?  PyIceberg (fresh) reads that very snapshot:
print("metadata files on disk:", len(list((d / "data/warehouse").rglob("*.metadata.json"))))
lake.close()
s.close()
