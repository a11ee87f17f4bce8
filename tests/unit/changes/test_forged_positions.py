"""Positions that no server gave: refused when they are acknowledged or started at, and nothing moves."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served

ODD: list[Any] = [10**30, 2**63, 2**64, 2**62, 99, 1.5, "x", None, [], {}, True, -1]


def _read(token: str) -> list[Any]:
    said: list[Any] = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[4:])
    return said


def _text(said: list[Any]) -> str:
    raw = json.dumps(said).encode()
    return base64.urlsafe_b64encode(zlib.crc32(raw).to_bytes(4, "big") + raw).rstrip(b"=").decode()


def test_a_forged_position_is_invalid_everywhere(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.t", pa.schema([("id", pa.int64())]), primary_key=["id"], buckets=2)
        table.upsert([{"id": i} for i in range(50)])
        transport = served.lake.transport
        stream = table.changes("snapshot", subscription="s")
        said = _read(next(stream).token)
        uuid = said[2][0]
        before = served.engine.view.subscriptions["s"]
        for odd in ODD:
            for forged in ([*said[:3], [uuid, odd, 1]], [*said[:3], [uuid, 0, odd]], [said[0], odd, said[2]]):
                with pytest.raises(Invalid):
                    transport.ack(pb.AckRequest(subscription="s", epoch=before.epoch, token=_text(forged)))
                with pytest.raises(Invalid):
                    list(transport.changes(pb.ChangesRequest(tables=["a.t"], start=_text(forged), until="now")))
        assert served.engine.view.subscriptions["s"].place == before.place
        for request in (
            pb.FetchRequest(table_uuid=uuid, bucket=0, live_only=True, live_end=2**64 - 1),
            pb.FetchRequest(table_uuid=uuid, bucket=0, live_only=True, live_start=2**63, live_end=1),
            pb.FetchRequest(table_uuid=uuid, bucket=99),
            pb.FetchRequest(table_uuid=uuid, start=2**64 - 1, end=2**64 - 1),
            pb.FetchRequest(table_uuid=uuid, columns=["id"] * 1_000),
        ):
            with pytest.raises(Invalid):
                list(transport.fetch(request))
        with pytest.raises(Invalid, match="twice"):
            transport.plan(pb.PlanRequest(tables=["a.t"] * 3))
        assert served.engine.loop.failure is None
