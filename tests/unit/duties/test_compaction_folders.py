"""Folders with sparse segments: of an earlier release, in a backup, under the microscope, with a flipped bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import new_segment
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import RealDisk
from lakestore_server.operate import restore
from lakestore_server.operate.inspect.file import look
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CommitIndex
from tests.support import golden
from tests.support.flips import flipped
from tests.support.log_start import compact, move_log_start
from tests.support.served import Served
from tests.support.waiting import until

ARCHIVE = min(golden.FOLDER.glob("data-*.tar.xz"))


def test_a_folder_of_an_earlier_release_is_compacted(tmp_path: Path) -> None:
    data = golden.unpacked(ARCHIVE, tmp_path)
    said = json.loads(ARCHIVE.with_name(ARCHIVE.name.replace(".tar.xz", ".json")).read_text())["shop.orders"]
    served = Served(data)
    engine = served.engine
    orders = served.lake.table("shop.orders")
    orders.upsert(orders.scan().to_arrow())
    orders.upsert(orders.scan().to_arrow())
    before = orders.scan().to_arrow().sort_by("order_id")
    move_log_start(engine, "shop.orders")
    compact(served.server)
    state = served.state("shop.orders")
    assert sum(chunk.rows for log in state.logs for chunk in log.chunks) < 2 * said["rows"]
    assert orders.scan().to_arrow().sort_by("order_id") == before
    assert verify(served.lake.transport, "shop.orders").same
    served.restart()
    assert served.lake.table("shop.orders").scan().count() == said["rows"]
    assert verify(served.lake.transport, "shop.orders", deep=True).same
    served.close()


def test_a_backup_of_sparse_segments_is_restored_and_shown(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
    table = served.lake.create_table("t.keyed", schema, primary_key=["k"], buckets=2)
    for i in range(4):
        table.upsert([{"k": k, "v": i} for k in range(50)])
    move_log_start(served.engine, "t.keyed")
    compact(served.server)
    table.upsert([{"k": 3, "v": 9}])
    expected = table.scan().to_arrow().sort_by("k")
    served.lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup")))
    served.close()
    restore.restore(tmp_path / "backup", tmp_path / "again")
    again = Served(tmp_path / "again")
    until(lambda: again.server.engine.index.ready, "the rebuild of the index, of which a backup has none")
    assert again.lake.table("t.keyed").scan().to_arrow().sort_by("k") == expected
    assert verify(again.lake.transport, "t.keyed", deep=True).problems() == []
    again.close()
    found = [part for part in look(tmp_path / "again", rows=True) if part.kind == "segment"]
    assert sum(part.about.get("rows left", 0) for part in found) == 50
    assert not [part.damage for part in found if part.damage]


def test_a_flipped_bit_in_a_sparse_segment_is_never_served(tmp_path: Path) -> None:
    schema = pa.schema([("__change", pa.int8()), ("__prev", pa.int64()), ("v", pa.int64())])
    kept = np.arange(0, 500, 3, dtype=np.int64)
    batch = pa.record_batch([np.zeros(len(kept), dtype=np.int8), np.full(len(kept), -1), kept * 2], schema=schema)
    index = CommitIndex.one(7, 70, 500, 0, len(kept))
    kills = np.arange(5, 60, dtype=np.int64)
    path = tmp_path / "a.seg"
    new_segment.write_sparse(RealDisk(), path, new_segment.SparseRows(0, 500, 0, batch, kept, kills, index))
    for other in flipped(path, 200, seed=3):
        try:
            chunk = Segment(RealDisk(), other, lambda _: schema, keyed=True)
            read = BucketLog(schema).install([chunk])
            assert read.take(kept).column(2).to_pylist() == (kept * 2).tolist()
            assert read.holds(np.arange(500)).tolist() == [offset % 3 == 0 for offset in range(500)]
            assert chunk.kills().tolist() == kills.tolist()
        except Corrupt as error:
            assert other.name in error.message
