"""A subscriber that does not read costs the server a bounded amount of memory, and nobody else anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

import lakestore as ls
from lakestore.limits import DEFAULT
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from tests.support.process import ServerProcess

SCHEMA = pa.schema([("k", pa.int64()), ("blob", pa.binary())])
ROUNDS, ROWS, BLOB = 24, 1_000, 8_192
STALLED = 12


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process: mapped segment files are the page cache's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_subscribers_that_do_not_read_cost_bounded_memory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, ls.connect(server.address) as lake:
        table = lake.create_table("t.big", SCHEMA, buckets=1)
        rng = np.random.default_rng(1)
        rows = pa.table({"k": np.arange(ROWS), "blob": [rng.bytes(BLOB) for _ in range(ROWS)]}, schema=SCHEMA)
        for _ in range(ROUNDS):
            table.append(rows)
        assert sum(len(batch) for batch in table.changes(until="now")) == ROWS * ROUNDS
        before = resident_bytes(server.pid)
        channels = [grpc.insecure_channel(server.address, options=rpc.options(64 << 20)) for _ in range(STALLED)]
        calls: list[Any] = []
        for channel in channels:
            method = channel.unary_stream(
                "/lakestore.v1.Lakestore/Changes", pb.ChangesRequest.SerializeToString, pb.ChangeBatch.FromString
            )
            call: Any = method(pb.ChangesRequest(tables=["t.big"], start="earliest"))
            next(call)
            calls.append(call)
        assert sum(len(batch) for batch in table.changes(until="now")) == ROWS * ROUNDS, "others read on"
        grown = resident_bytes(server.pid) - before
        unread = STALLED * ROUNDS * ROWS * BLOB
        held = 2 * STALLED * DEFAULT.read_batch_bytes * 5 // 4
        assert held < unread / 4
        said = f"{grown >> 20} MB grown with {unread >> 20} MB unread"
        assert grown < held, f"{said}: more than two batches a stream, and a quarter for what surrounds them"
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()
