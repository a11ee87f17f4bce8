"""What strangers may do to the gRPC port costs them, not the others: floods, idlers, cancelled calls, silent readers.

Every test ends with a healthy client being served, by the fixture.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import LakestoreError
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.http2 import Connection
from tests.support.process import ServerProcess
from tests.support.seeds import seeded

LIMITS = Limits(header_bytes=8 << 10, connection_streams=8, message_bytes=2 << 20, receiving_bytes=4 << 20)
WAIT_SECONDS = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
TABLES_PATH = "/lakestore.v1.Lakestore/ListTables"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(Settings(tmp_path_factory.mktemp("abuse") / "data", port=0, http_port=0, limits=LIMITS))
    server.start()
    with ls.connect(server.about["grpc"]) as lake:
        lake.create_table("t.log", pa.schema([("a", pa.int64())]))
    yield server.about["grpc"]
    server.close()


@pytest.fixture(autouse=True)
def the_healthy_are_served(address: str) -> Iterator[None]:
    yield
    with ls.connect(address) as lake:
        assert [table.name for table in lake.tables()] == ["t.log"]


def opened(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)


def frame(kind: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame of stream 0."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + b"\0\0\0\0" + payload


def frames_until_closed(client: socket.socket) -> list[tuple[int, bytes]]:
    """(kind, payload) of what the server says before it hangs up."""
    data = b""
    try:
        while part := client.recv(65_536):
            data += part
    except ConnectionError:
        pass
    found = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def test_a_flood_of_pings_is_sent_away(address: str) -> None:
    with opened(address) as client:
        client.sendall(PREFACE + frame(SETTINGS))
        try:
            for _ in range(100):
                client.sendall(frame(PING, b"12345678"))
        except ConnectionError:
            pass
        said = frames_until_closed(client)
    assert any(kind == GOAWAY and b"too_many_pings" in payload for kind, payload in said), said


def test_metadata_beyond_the_limit_is_refused(address: str) -> None:
    with grpc.insecure_channel(address) as opened_channel:
        channel: Any = opened_channel
        call: Any = channel.unary_unary(TABLES_PATH)
        for size in (20_000, 200_000):
            with pytest.raises(grpc.RpcError) as refusal:
                call(b"", metadata=(("x", "a" * size),), timeout=WAIT_SECONDS)
            told: Any = refusal.value
            assert told.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(b"", metadata=(("x", "a" * 1_000),), timeout=WAIT_SECONDS)


def test_messages_beyond_the_limit_are_refused_and_garbage_is_no_defect(address: str) -> None:
    with grpc.insecure_channel(address) as opened_channel:
        channel: Any = opened_channel
        for path, data in ((TABLES_PATH, bytes(3 << 20)), (TABLES_PATH, b"\xff" * 100), ("/no.Such/Thing", b"")):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(path)(data, timeout=WAIT_SECONDS)


def test_streams_of_one_connection_do_not_keep_other_connections_out(address: str) -> None:
    with grpc.insecure_channel(address) as opened_channel, ExitStack() as stack:
        channel: Any = opened_channel
        # Calls that wait for a connection start in any order, so the last might have one of the eight streams.
        grpc.channel_ready_future(opened_channel).result(WAIT_SECONDS)
        follow: Any = channel.unary_stream("/lakestore.v1.Lakestore/Changes")
        asked = pb.ChangesRequest(tables=["t.log"], start="latest").SerializeToString()
        for _ in range(LIMITS.connection_streams * 3):
            stack.callback(follow(asked).cancel)
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(TABLES_PATH)(b"", timeout=1.0)
        told: Any = refusal.value
        assert told.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        with ls.connect(address) as lake:
            assert lake.tables()


def test_calls_that_are_cancelled_at_once_cost_nothing(address: str) -> None:
    with grpc.insecure_channel(address) as opened_channel:
        channel: Any = opened_channel
        call: Any = channel.unary_unary(TABLES_PATH)
        for _ in range(2_000):
            call.future(b"", timeout=WAIT_SECONDS).cancel()


def test_connections_that_say_nothing_or_nonsense_keep_nobody_out(address: str) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(opened(address)) for _ in range(200)]
        for client, said in zip(idle, [b"", PREFACE, PREFACE + frame(SETTINGS), b"\0" * 100] * 50, strict=True):
            client.sendall(said)
        with ls.connect(address) as lake:
            assert lake.tables()


def half_sent(stack: ExitStack, address: str, path: str, nbytes: int) -> Connection:
    """A connection with one call, whose message is not whole."""
    sent = Connection(int(address.rsplit(":", 1)[1]))
    stack.callback(sent.close)
    stream = sent.call(path)
    sent.socket.settimeout(WAIT_SECONDS)
    rest = b"\0" + struct.pack(">I", nbytes + 1) + bytes(nbytes)
    while rest:
        room = sent.room(stream)
        if room <= 0:
            sent.receive()
            continue
        sent.data(stream, rest[:room])
        rest = rest[room:]
    return sent


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's counts are read from /proc")
@pytest.mark.parametrize("rpc", ["Commit", "Write"])
def test_messages_that_are_not_whole_hold_no_more_than_their_budget(address: str, rpc: str) -> None:
    """Of connections that together hold too much one has to go, and those within the budget stay."""
    with ExitStack() as stack:
        sent = [half_sent(stack, address, f"/lakestore.v1.Lakestore/{rpc}", 3 << 19) for _ in range(3)]
        ended: list[int] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while not ended and time.monotonic() < deadline:
            for i, each in enumerate(sent):
                each.socket.settimeout(0.05)
                try:
                    each.receive()
                except TimeoutError:
                    pass
                except ConnectionError:
                    ended.append(i)
        assert len(ended) == 1


def resident_bytes(process: ServerProcess) -> int:
    """Memory of the server's process; what it maps of files is not its own."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("memory is read from /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def test_readers_that_do_not_read_hold_little_memory(tmp_path: Path) -> None:
    """Each holds a few batches, however long the log is."""
    with ServerProcess(tmp_path / "data") as process, ls.connect(process.address) as lake:
        chance = seeded(1)
        lake.create_table("t.long", pa.schema([("a", pa.binary())]), buckets=1)
        for _ in range(40):
            lake.table("t.long").append(pa.table({"a": pa.array([chance.randbytes(4_000) for _ in range(1_000)])}))
        before = resident_bytes(process)
        streams = [lake.transport.changes(pb.ChangesRequest(tables=["t.long"], start="earliest")) for _ in range(4)]
        for stream in streams:
            next(iter(stream))
        with pytest.raises(LakestoreError):
            lake.table("t.absent")
        grown = resident_bytes(process) - before
        assert grown < 4 * (80 << 20), f"{before >> 20} MB grew by {grown >> 20} MB"
        streams.clear()
