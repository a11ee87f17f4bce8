"""Consumers that begin with a snapshot and stall cost the server a bounded amount of memory, whatever the table has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from tests.network.test_slow_subscriber import resident_bytes
from tests.support.process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("blob", pa.binary(240))])
ROWS, STALLED, PIECE = 300_000, 2, 1 << 20
TABLE_BYTES = ROWS * 256
HELD = 16 << 20
"""By one stream: a piece or two, and what gRPC lets lie between it and a consumer that does not read."""
NAME = "t.big"


def rows(start: int, end: int, v: int) -> pa.Table:
    blobs = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(240), end - start, [None, pa.py_buffer(np.random.default_rng(v).bytes(240 * (end - start)))]
    )
    return pa.table([pa.array(range(start, end)), pa.array([v] * (end - start)), blobs], schema=SCHEMA)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the table."""
    folder = tmp_path_factory.mktemp("big")
    with ServerProcess(folder) as running:
        with ls.connect(running.address) as lake:
            table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2)
            with table.writer() as writer:
                for start in range(0, ROWS, 30_000):
                    writer.upsert(rows(start, start + 30_000, 0))
        assert running.stop() == 0
    return folder


@pytest.fixture(name="server")
def _server(folder: Path) -> Iterator[ServerProcess]:
    """A new one each time, whose memory nobody has used."""
    with ServerProcess(folder, environment={"LAKESTORE_LIMITS_READ_BATCH_BYTES": str(PIECE)}) as running:
        yield running


def change_rows(table: ls.Table) -> None:
    """They are in the end as they were."""
    for v in (1, 0):
        table.upsert(rows(0, 2_000, v))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({}, id="plain"),
        pytest.param({"where": "v < 5"}, id="where", marks=pytest.mark.long),
        pytest.param({"before_images": True, "subscription": "s"}, id="named", marks=pytest.mark.long),
    ],
)
def test_stalled_snapshots_hold_a_few_batches_and_not_the_table(server: ServerProcess, asked: dict[str, Any]) -> None:
    with ls.connect(server.address) as lake, ExitStack() as stack:
        table = lake.table(NAME)
        assert sum(map(len, table.changes("snapshot", until="now", columns=["id"]))) == ROWS
        change_rows(table)
        before = resident_bytes(server.pid)
        calls: list[Any] = []
        for number in range(STALLED):
            channel = stack.enter_context(grpc.insecure_channel(server.address, options=rpc.options(64 << 20)))
            method = channel.unary_stream(
                "/lakestore.v1.Lakestore/Changes", pb.ChangesRequest.SerializeToString, pb.ChangeBatch.FromString
            )
            own = {**asked, "subscription": f"s{number}"} if "subscription" in asked else asked
            call: Any = method(pb.ChangesRequest(tables=[NAME], start="snapshot", **own))
            stack.callback(call.cancel)
            next(call)
            calls.append(call)
        change_rows(table)
        grown = resident_bytes(server.pid) - before
        assert STALLED * HELD < TABLE_BYTES / 2
        assert grown < STALLED * HELD, f"{grown >> 20} MB grown by {STALLED} readers of {TABLE_BYTES >> 20} MB"
        for name in [held.name for held in lake.subscriptions()]:
            lake.drop_subscription(name)


def test_a_snapshot_that_stalls_while_rows_change_is_the_table_at_its_cut(server: ServerProcess) -> None:
    with ls.connect(server.address) as lake:
        table = lake.table(NAME)
        stream = table.changes("snapshot", columns=["id", "v"], before_images=True)
        found = np.full(ROWS, -1)

        def take() -> int:
            seen = 0
            for row in next(stream).to_arrow().to_batches():
                change, ids, v = (row.column(name) for name in ("__change", "id", "v"))
                now = ids.to_numpy()
                seen += len(now)
                for kind, each, value in zip(change.to_pylist(), now.tolist(), v.to_pylist(), strict=True):
                    assert (found[each] == -1) == (kind == "+I"), f"{kind} of {each}"
                    assert kind != "-U" or found[each] == value
                    found[each] = -1 if kind == "-D" else value
            return seen

        took = take()
        assert took < ROWS / 4
        table.upsert(rows(0, 3_000, 7))
        table.delete([{"id": i} for i in range(0, 600, 2)])
        table.upsert(rows(ROWS - 3_000, ROWS, 7))
        while took < ROWS + 2 * 6_000 + 300:
            took += take()
        assert (found[:600:2] == -1).all()
        assert (found[601:3_000] == 7).all()
        assert (found[3_000:-3_000] == 0).all()
        assert (found[-3_000:] == 7).all()
        stream.close()
