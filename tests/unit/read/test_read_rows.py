"""Rows that are read are cut into pieces by their bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lakestore.limits import Limits
from lakestore.rows import ipc
from lakestore_server.read import rows as reads
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_wide_rows_are_sent_in_pieces(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(read_batch_bytes=1000)) as served:
        _wide_rows_come_in_pieces(served)


def _wide_rows_come_in_pieces(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert([{"id": i, "v": "x" * 100} for i in range(100)])
    for start in ("earliest", "snapshot"):
        batches = list(table.changes(start, until="now"))
        assert max(len(batch) for batch in batches) < 20
        assert sorted(i for b in batches for i in b.table["id"].to_pylist()) == list(range(100))
    resumed = [row for b in table.changes(batches[2].token, until="now") for row in b.table["id"].to_pylist()]
    assert resumed == [row for b in batches[3:] for row in b.table["id"].to_pylist()]
    assert table.scan().to_arrow().num_rows == 100
    assert [p.num_rows for p in reads.bounded(pa.record_batch({"v": ["x" * 5000]}))] == [1]


def test_small_batches_of_a_message_are_sent_as_one() -> None:
    small = [pa.record_batch([[number], [None]], schema=SCHEMA) for number in range(100)]
    [message] = reads.messages(small, Limits())
    [batch] = ipc.decode_server_rows(message.rows, crc=message.crc32c)
    assert batch.column("id").to_pylist() == list(range(100))
    large = [pa.record_batch([range(5_000), [""] * 5_000], schema=SCHEMA)] * 2
    [message] = reads.messages(large, Limits())
    assert len(ipc.decode_server_rows(message.rows, crc=message.crc32c)) == 2, "a copy would cost more than it saves"
