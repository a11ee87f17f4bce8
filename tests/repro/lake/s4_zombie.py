# mypy: ignore-errors
# ruff: noqa: B023, E501
"""A tierer stopped past its epoch at every named step (renewals stop too, as with SIGSTOP), another one works
meanwhile, then the first goes on. After each: readers against the model, verify, leftover branches while the second
lives on.
"""

import random
import sys
import threading

import pyarrow as pa

from lakestore.union.verify import verify
from tests.repro.lake.world import World, short

w = World("s4")
SC = pa.schema([("id", pa.int64()), ("v", pa.string())])
POINTS = [
    "staged",
    "deaths-written",
    "before-commit",
    "after-commit",
    "compact-forked",
    "compact-rewritten",
    "compact-before-landing",
    "compact-landed",
    "expired",
]
if len(sys.argv) > 1:
    POINTS = sys.argv[1:]
T = "shop.z"
w.lake.create_table(T, SC, primary_key=["id"], buckets=2)
tab = w.lake.table(T)
model = {}
rng = random.Random(3)
n = 0


def up():
    global n
    n += 1
    rows = [{"id": i, "v": f"{n}-{i}"} for i in rng.sample(range(60), 15)]
    tab.upsert(rows)
    model.update({r["id"]: r for r in rows})
    g = rng.sample(sorted(model), 3)
    tab.delete([{"id": i} for i in g])
    [model.pop(i) for i in g]


for p in POINTS:
    reached = threading.Event()
    go = threading.Event()
    out = []

    def crash(point):
        if point == p and not reached.is_set():
            reached.set()
            go.wait(200)

    from lakestore_tiering.service import Tierer

    A = Tierer(w.lake, w.spark, seconds=2, crash=crash, holder="A")
    A._held._renew = lambda: None  # SIGSTOP: nobody renews

    def work():
        try:
            up()
            out.append(
                ("run", [(o.flushed is not None, o.compacted is not None) for o in A.run_once(T, compaction=True)])
            )
        except Exception as e:
            out.append(short(e))

    # give A time until the point is reached: its clock says the epoch is held
    A._held.seconds = 60
    th = threading.Thread(target=work)
    th.start()
    ok = reached.wait(120)
    # the server forgets A's hold, as after its time ran out
    import gc

    from lakestore_server.catalog import tierer_epoch

    for s in gc.get_objects():
        if isinstance(s, tierer_epoch.TiererVerbs):
            s._until = 0.0
    B = Tierer(w.lake, w.spark, seconds=60, holder="B")
    try:
        up()
        r = [(o.flushed is not None, o.compacted is not None) for o in B.run_once(T, compaction=True)]
    except Exception as e:
        r = short(e)
    up()
    go.set()
    th.join(200)
    refs = [k for k in w.pyice().load_table(T).metadata.refs]
    try:
        r2 = [(o.flushed is not None) for o in B.run_once(T, compaction=True)]
    except Exception as e:
        r2 = short(e)
    refs2 = [k for k in w.pyice().load_table(T).metadata.refs]
    good = w.check(
        T,
        model.values(),
        model.values(),
        p,
        cols=["id", "v"],
        lake_readers=("l_pyice",),
        union=("u_arrow", "u_spark_df"),
    )
    print(
        f"{p}: reached={ok} A={out} B={r} then B={r2} refs after A={[x for x in refs if x not in ('main', 'lakestore-tier')]} refs after B's next={[x for x in refs2 if x not in ('main', 'lakestore-tier')]} good={good} verify={verify(w.lake.transport, T).same}",
        flush=True,
    )
    A._held._ended.set()
    A.close()
    B.close()
w.close()
