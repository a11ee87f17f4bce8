# mypy: ignore-errors
# ruff: noqa: E501
"""200 rounds of small updates: snapshots, manifests, files, metadata bytes, round time; then orphans."""

import os
import random
import sys
import time
from collections import Counter

import pyarrow as pa

from lakestore.union.verify import verify
from lakestore_tiering import Tierer
from lakestore_tiering import orphans as ex
from tests.repro.lake.world import World

N = int(sys.argv[1]) if len(sys.argv) > 1 else 200
keep = float(sys.argv[2]) if len(sys.argv) > 2 else None
w = World("s6")
T = "shop.g"
w.lake.create_table(
    T, pa.schema([("id", pa.int64()), ("d", pa.int32()), ("v", pa.string())]), primary_key=["id"], buckets=2
)
tab = w.lake.table(T)
model = {}
rng = random.Random(5)


def up(ids, k):
    rows = [{"id": i, "d": i % 5, "v": f"{k}-{i}"} for i in ids]
    tab.upsert(rows)
    model.update({r["id"]: r for r in rows})


up(range(2000), "base")
if keep is not None:
    ex.SNAPSHOT_SECONDS_KEPT = keep
    ex.expire.__kwdefaults__["keep_seconds"] = keep


def disk():
    root = w.dir / "data" / "warehouse"
    fs = [p for p in root.rglob("*") if p.is_file()]

    def k(f):
        return len([p for p in fs if f(p.name)])

    return f"files={len(fs)} MB={sum(p.stat().st_size for p in fs) / 1e6:.1f} json={k(lambda n: n.endswith('.json'))} avro={k(lambda n: n.endswith('.avro'))} data={k(lambda n: n.endswith('.parquet') and 'deletes' not in n)} del={k(lambda n: 'deletes' in n)}"


with Tierer(w.lake, w.spark) as t:
    times = []
    for n in range(N):
        up([rng.randrange(2000) for _ in range(30)], n)
        s = time.time()
        o = t.run_once(T)[0]
        times.append(time.time() - s)
        if n % 20 == 19 or n in (0, 1, 5):
            tb = w.pyice().load_table(T)
            s0 = time.time()
            mj = os.path.getsize(tb.metadata_location.replace("file://", ""))
            sn = len(tb.metadata.snapshots)
            man = len(tb.current_snapshot().manifests(tb.io))
            live = len(list(tb.scan().plan_files()))
            tl = time.time()
            w.u_arrow(T, ["id", "v"])
            tl = time.time() - tl
            print(
                f"n={n + 1} round={sum(times[-20:]) / len(times[-20:]):.2f}s snapshots={sn} manifests={man} livefiles={live} metadata.json={mj / 1e3:.0f}kB refs={len(tb.metadata.refs)} {disk()} unionread={tl:.2f}s expired={o.expired} compacted={bool(o.compacted)}",
                flush=True,
            )
w.check(T, model.values(), model.values(), "end", cols=["id", "d", "v"])
print(verify(w.lake.transport, T).same)


# which files on disk are named by nothing?
def known(tb):
    named = set()
    for s in tb.metadata.snapshots:
        named.add(s.manifest_list)
        for m in s.manifests(tb.io):
            named.add(m.manifest_path)
            for e in m.fetch_manifest_entry(tb.io, discard_deleted=True):
                named.add(e.data_file.file_path)
    return {x.replace("file://", "").replace("file:", "") for x in named}


tb = w.pyice().load_table(T)
nm = known(tb)
loose = [
    p
    for p in (w.dir / "data" / "warehouse").rglob("*")
    if p.is_file() and str(p) not in nm and not p.name.endswith(".json") and not p.name.endswith(".crc")
]

print(
    "files named by no snapshot:",
    len(loose),
    Counter(p.suffix + (":del" if "deletes" in p.name else "") for p in loose),
    [str(p)[-60:] for p in loose[:3]],
)
w.close()
