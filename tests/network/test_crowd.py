"""520 silent connections, 520 silent calls and 2,000 idle subscribers change nobody's latency, and hold no threads."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.http2 import Connection
from tests.support.process import ServerProcess
from tests.support.waiting import until

SILENT, IDLE, CALLS = 520, 2_000, 400
WAIT_SECONDS = 60.0
PATH = "/lakestore.v1.Lakestore/"


def head_ms(lake: ls.Lake) -> float:
    """Median of one small call."""
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        lake.transport.head(pb.HeadRequest())
        took.append(time.perf_counter() - began)
    return median(took) * 1_000


def threads_of(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads"))


def subscriber(stack: ExitStack, port: int) -> Connection:
    """A connection of its own that follows the table."""
    client = Connection(port)
    stack.callback(client.close)
    data = pb.ChangesRequest(tables=["t.log"], start="latest").SerializeToString()
    client.data(client.call(f"{PATH}Changes"), b"\0" + len(data).to_bytes(4, "big") + data)
    return client


def bytes_until_quiet(client: socket.socket, seconds: float) -> int:
    """Bytes that came until nothing came for that time."""
    client.settimeout(seconds)
    came = 0
    try:
        while part := client.recv(65_536):
            came += len(part)
    except TimeoutError:
        pass
    return came


def has_bytes(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="threads are counted in /proc")
def test_a_crowd_that_says_nothing_changes_nobodys_latency(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * (SILENT + IDLE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip("too few files may be open")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        limits = tmp_path / "server.yaml"
        limits.write_text("limits:\n  streams: 4096\n")
        server = stack.enter_context(ServerProcess(tmp_path / "data", arguments=["--config", str(limits)]))
        lake = stack.enter_context(ls.connect(server.address))
        table = lake.create_table("t.log", pa.schema([("a", pa.int64())]))
        head_ms(lake)
        alone, threads = head_ms(lake), threads_of(server)
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection((server.host, server.port), timeout=WAIT_SECONDS))
        silent = Connection(server.port)
        stack.callback(silent.close)
        for _ in range(SILENT):
            silent.call(f"{PATH}Commit")
        idle = [subscriber(stack, server.port) for _ in range(IDLE)]
        for client in idle:
            bytes_until_quiet(client.socket, 0.001)
        time.sleep(2.0)
        crowded = head_ms(lake)
        assert crowded < 1.5 * alone + 0.5, f"{alone:.2f} ms alone, {crowded:.2f} ms in the crowd"
        assert threads_of(server) - threads < 100
        print(f"{alone:.2f} ms alone, {crowded:.2f} ms in the crowd")
        for client in idle:
            bytes_until_quiet(client.socket, 0.001)
        table.append([{"a": 1}])
        until(lambda: all(has_bytes(client.socket) for client in idle), "the commit, at every subscriber")
