"""A defect in the port's own thread ends the call that met it, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.edge.rpc_streams import Intake
from tests.support.served import Served


def test_a_handler_that_raises_ends_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Intake, "came", broken)
    with Served(tmp_path / "data", ports=True) as served:
        address = served.server.about["grpc"]
        with grpc.insecure_channel(address) as channel, ls.connect(address) as lake:
            write: Any = channel.stream_stream(
                "/lakestore.v1.Lakestore/Write",
                request_serializer=pb.CommitRequest.SerializeToString,
                response_deserializer=pb.CommitAnswer.FromString,
            )
            with pytest.raises(grpc.RpcError) as ended:
                next(write(iter([pb.CommitRequest(sequence=1)]), timeout=30))
            assert ended.value.code() is grpc.StatusCode.INTERNAL
            assert lake.tables() == []
