"""Registers over gRPC: small commits and large ones, answers that are lost on their way, refusals by their names."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.proxy import Proxy
from lakestore.client.registers import Registers
from lakestore.errors import Conflict, Fenced, OtherTimeline
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.settings import Settings

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Settings(tmp_path_factory.mktemp("registers") / "data", port=0, http_port=0))
    server.start()
    with ls.connect(server.about["grpc"]) as lake:
        lake.create_table("r.log", SCHEMA, buckets=1)
        lake.create_table("r.keyed", SCHEMA, primary_key=["v"])
    yield server
    server.close()


def values(lake: ls.Lake) -> list[int]:
    found: list[int] = lake.table("r.log").scan().to_arrow().column("v").to_pylist()
    return found


def test_thousands_are_opened_at_once_and_move_with_rows_of_several_tables(server: Server) -> None:
    names = [f"many/orders/{number}" for number in range(20_000)]
    with ls.connect(server.about["grpc"]) as lake, lake.registers(names) as registers:
        for rows in (1, 50_000):  # on the open stream, and by a call of its own
            with registers.commit({name: str(rows) for name in names[:64]}) as commit:
                commit.append("r.log", pa.table({"v": pa.array([-1] * rows, pa.int64())}))
                commit.upsert("r.keyed", pa.table({"v": pa.array(range(rows), pa.int64())}))
            assert [result.inserted for result in commit.results] == [rows, max(rows - 1, 1)]
        with registers.commit(dict.fromkeys(names, "all")):
            pass
        assert dict(lake.registers(names).progress) == dict.fromkeys(names, "all")
        assert lake.drop_registers(names) == len(names)


def test_an_answer_that_is_lost_on_its_way_is_asked_for_again(server: Server) -> None:
    proxy, repeated = Proxy(server.about["grpc"]), 0
    with ls.connect(proxy.address) as lake, ls.connect(server.about["grpc"]) as direct:
        registers = lake.registers(["lost/0", "lost/1"])
        before = len(values(direct))
        for number in range(1, 6):
            proxy.cut_after = 1  # which is of the answer, or of something before it
            with registers.commit({"lost/0": str(number)}) as commit:
                commit.append("r.log", pa.table({"v": [number]}))
            repeated += commit.repeated
            assert registers.progress["lost/0"] == str(number)
        assert values(direct)[before:] == [1, 2, 3, 4, 5]
        assert dict(direct.registers(["lost/0"]).progress) == {"lost/0": "5"}
    proxy.close()
    assert repeated


def test_refusals_keep_their_kinds(server: Server) -> None:
    with ls.connect(server.about["grpc"]) as lake, ls.connect(server.about["grpc"]) as other:
        registers = lake.registers(["kinds/0", "kinds/1"])
        asked = pb.OpenRegistersRequest(registers=["kinds/1"], timeline="another")
        with pytest.raises(OtherTimeline):
            lake.transport.open_registers(asked)
        held = other.list_registers("kinds/0")[0]
        move = pb.RegisterMove(register="kinds/0", epoch=held.epoch, before="x", after="y")
        request = pb.CommitRequest(registers=[move], timeline=server.engine.timeline)
        with pytest.raises(Conflict, match=r"register 'kinds/0' is at '', and the commit expects it at 'x'") as told:
            lake.transport.commit(request)
        assert told.value.applied == "no"
        taken: Registers = other.registers(["kinds/1"])
        with pytest.raises(Fenced, match=r"'kinds/1' was opened again"), registers.commit({"kinds/1": "1"}):
            pass
        with taken.commit({"kinds/1": "1"}):
            pass
