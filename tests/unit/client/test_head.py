"""A snapshot asks for the head alone: its cost does not grow with the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid, Unavailable
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


class Counted:
    """A transport that notes its calls and the bytes of their answers."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.calls: list[str] = []
        self.answer_bytes = 0

    def __getattr__(self, name: str) -> Any:
        def call(request: Any) -> Any:
            self.calls.append(name)
            answer = getattr(self._transport, name)(request)
            self.answer_bytes += answer.ByteSize()
            return answer

        return call


def test_a_snapshot_costs_one_small_answer_however_many_tables_there_are(tmp_path: Path) -> None:
    sizes = []
    with ls.open(tmp_path) as lake:
        for count in (1, 20):
            while len(lake.tables()) < count:
                lake.create_table(f"a.t{len(lake.tables())}", SCHEMA, buckets=1)
            counted: Any = Counted(lake.transport)
            with ls.Lake(counted, "here").snapshot() as cut:
                assert counted.calls == ["head"]
                assert position_of(cut.token).lsn == count
                sizes.append(counted.answer_bytes)
    assert max(sizes) < 128, "an LSN of more digits takes a byte or two more"


def test_the_head_is_the_newest_commit_and_tells_its_time(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        token = lake.create_table("a.b", SCHEMA).append([{"id": 1}])
        told = lake.transport.head(pb.HeadRequest())
        assert (told.token, told.lsn) == (token, position_of(token).lsn)
        assert told.timeline == position_of(token).timeline
        assert told.time_us > 1_700_000_000_000_000


def test_a_shard_that_the_server_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake, pytest.raises(Invalid, match="this server has no shard 3"):
        lake.transport.head(pb.HeadRequest(shard=3))


def test_the_head_waits_for_the_commit_that_a_reader_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ls.open(tmp_path) as lake:
        token = lake.create_table("a.t", SCHEMA, primary_key=["id"]).upsert([{"id": 1}])
        at = position_of(token)
        assert lake.transport.head(pb.HeadRequest(at_least=token)).lsn == at.lsn
        monkeypatch.setattr("lakestore_server.read.positions.AT_WAIT_SECONDS", 0.01)
        monkeypatch.setattr("lakestore.client.retry.RETRY_SECONDS", 0.0)
        with pytest.raises(Unavailable, match="not reached this position"):
            lake.transport.head(pb.HeadRequest(at_least=str(replace(at, lsn=at.lsn + 1))))
