# mypy: ignore-errors
# ruff: noqa: E501
"""Two foreign rewrites on top of a tier snapshot, then stock expiry retain_last=1, then a round."""

import pyarrow as pa

from lakestore_tiering import Tierer
from tests.repro.lake.world import World, attempt

w = World("s1")
T = "shop.a"
w.lake.create_table(T, pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"], buckets=2)
tab = w.lake.table(T)
model = {}


def up(rows):
    tab.upsert(rows)
    model.update({r["id"]: r for r in rows})


with Tierer(w.lake, w.spark) as t:
    for k in range(3):
        up([{"id": i, "v": f"{k}-{i}"} for i in range(k * 5, k * 5 + 20)])
        t.run_once(compaction=False)
    w.q(f"CALL lake.system.rewrite_data_files(table => '{T}', options => map('rewrite-all','true'))")
    w.q(f"CALL lake.system.rewrite_manifests(table => '{T}', use_caching => false)")
    print(w.q(f"SELECT snapshot_id, parent_id, operation FROM lake.{T}.snapshots ORDER BY committed_at"))
    print(
        w.q(
            f"CALL lake.system.expire_snapshots(table => '{T}', retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00')"
        )
    )
    print(w.q(f"SELECT snapshot_id, parent_id, operation FROM lake.{T}.snapshots ORDER BY committed_at"))
    w.check(T, model.values(), model.values(), "after expiry")
    up([{"id": i, "v": f"x-{i}"} for i in range(7)])
    for n in range(3):
        attempt(f"round {n}", lambda: t.run_once(compaction=False))
with Tierer(w.lake, w.spark) as t:
    attempt("round by a new tierer", lambda: t.run_once())
w.check(T, model.values(), model.values(), "end")
w.close()
