"""A defect in the port's own thread ends the call that met it, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.edge.arrivals import Arrivals
from lakestore_server.edge.rpc_port import RpcPort
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


def test_a_port_that_ends_as_its_grace_is_over_cancels_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's core crashed the process when calls of a destroyed server were cancelled."""
    port = RpcPort((), Arrivals(1 << 20, 1 << 20, lambda *_: None), lambda _: None, lambda _: None)
    port.bind("127.0.0.1:0")
    core, done = port._server, list[str]()

    class Core:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def destroy(self) -> None:
            core.destroy()
            done.append("destroyed")

        def cancel_all_calls(self) -> None:
            done.append("cancelled")

    monkeypatch.setattr(port, "_server", Core())
    port.start()
    wait = port._ended.wait

    def late(seconds: float | None = None) -> bool:
        """The grace is over just as the thread ends."""
        assert wait(30)
        return seconds is None

    monkeypatch.setattr(port._ended, "wait", late)
    port.stop(0.0)
    assert done == ["destroyed"]
