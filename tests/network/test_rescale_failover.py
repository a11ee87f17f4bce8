"""Another server leads in the middle of a rescale: it continues at the last commit of the copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_server.catalog import rescaling
from lakestore_server.duties import rescales
from lakestore_server.main import Server
from tests.support.replicas import Replicas
from tests.support.served import DAY
from tests.support.waiting import until

ROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def leader(replicas: Replicas) -> Server:
    number = replicas.leader()
    assert number is not None
    return replicas.servers[number]


def test_the_next_leader_continues_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescales.RescaleDuty, "wake", lambda _: None)
    monkeypatch.setattr(rescales, "COPY_ROWS", 10)
    monkeypatch.setattr(rescaling, "SWAP_ROWS_MAX", 20)
    with Replicas(tmp_path, 2, rescale_check_seconds=DAY) as replicas, ls.connect(replicas.addresses) as lake:
        table = lake.create_table("shop.a", ROW, primary_key=["id"], buckets=2)
        rows: list[dict[str, Any]] = [{"id": number, "v": str(number)} for number in range(200)]
        token = table.upsert(rows)
        uuid = table.definition.uuid
        table.rescale(3, wait=False)
        for _ in range(5):
            waits = leader(replicas).rescales.step(uuid)
            assert waits is None
        first = leader(replicas)
        replicas.depose()
        second = leader(replicas)
        assert second is not first
        table.upsert([{"id": number, "v": "new"} for number in range(50)])
        until(lambda: second.engine.view.rescales[uuid].done != (0, 0), "the position of the copy")
        steps = 0
        while second.rescales.step(uuid) != "":
            steps += 1
        assert steps <= 30, "what the first leader has copied is not copied again"
        expected = {row["id"]: "new" if row["id"] < 50 else row["v"] for row in rows}
        table = lake.table("shop.a")
        assert table.definition.buckets == 3
        assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == expected
        assert sum(log.head for log in second.engine.view.named("shop.a").logs) == 250
        replicas.depose()
        assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == expected
        assert table.scan(at=token).to_arrow().num_rows == 200, "the first leader has the old table too"
        assert verify(lake.transport, "shop.a").same
