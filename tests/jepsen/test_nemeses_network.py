"""The network between clients and the server, broken in every way that the proxies and the wire know, and mended."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.nemeses import NEMESES
from jepsen.nemeses.network import BREAKS
from jepsen.system import System, wire
from jepsen.system.proxy import BLACK_HOLE, LOST, SOUND, Fault, Proxy
from jepsen.system.wire import FAIR, Weather
from tests.support.waiting import until

SCHEMA = pa.schema([("n", pa.int64())])
REPLY_SECONDS = 5.0


class Echo:
    """A server that sends back what it gets, and keeps it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.got = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with suppress(OSError), closing(one):
            while data := one.recv(65_536):
                self.got += data
                one.sendall(data)

    def close(self) -> None:
        """Stop."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address) as made:
        yield made


@contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    host, port = proxy.address.split(":")
    with closing(socket.create_connection((host, int(port)), REPLY_SECONDS)) as one:
        yield one


def reply(one: socket.socket, data: bytes = b"x", seconds: float = REPLY_SECONDS) -> bytes:
    """What comes back of some bytes; `TimeoutError` if nothing does."""
    one.settimeout(seconds)
    one.sendall(data)
    got = b""
    while len(got) < len(data):
        more = one.recv(65_536)
        if not more:
            break
        got += more
    return got


def test_a_delay_and_a_narrow_line(proxy: Proxy) -> None:
    with connected(proxy) as one:
        assert reply(one) == b"x"
        proxy.breaks(Fault(delay_seconds=0.1), Fault(delay_seconds=0.1))
        began = time.monotonic()
        assert reply(one, b"yy") == b"yy"
        assert time.monotonic() - began >= 0.2
        proxy.breaks(Fault(bytes_per_second=1_000_000))
        began = time.monotonic()
        assert reply(one, b"z" * 200_000) == b"z" * 200_000
        assert time.monotonic() - began >= 0.2


def test_connections_overtake_each_other(proxy: Proxy, echo: Echo) -> None:
    proxy.breaks(Fault(spread_seconds=0.5))
    orders = set()
    for _ in range(20):
        with connected(proxy) as first, connected(proxy) as second:
            echo.got = b""
            first.sendall(b"1")
            time.sleep(0.01)
            second.sendall(b"2")
            while len(echo.got) < 2:
                time.sleep(0.005)
            orders.add(echo.got)
        if len(orders) == 2:
            return
    pytest.fail("twenty pairs of connections kept their order")


@pytest.mark.parametrize(
    ("to_server", "to_client"), [(BLACK_HOLE, BLACK_HOLE), (BLACK_HOLE, SOUND), (SOUND, BLACK_HOLE)]
)
def test_a_black_hole_says_nothing_and_gives_all_back(
    proxy: Proxy, echo: Echo, to_server: Fault, to_client: Fault
) -> None:
    with connected(proxy) as one:
        assert reply(one, b"a") == b"a"
        proxy.breaks(to_server, to_client)
        with pytest.raises(TimeoutError):
            reply(one, b"b", 0.2)
        if to_server.holds:
            assert b"b" not in echo.got
        else:
            until(lambda: b"b" in echo.got, "the byte at the server")
        proxy.mend()
        one.settimeout(REPLY_SECONDS)
        assert one.recv(10) == b"b"


def test_a_connection_that_lost_bytes_is_cut_once_it_is_mended(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as one:
        assert reply(one, b"a") == b"a"
        proxy.breaks(SOUND, LOST)
        with pytest.raises(TimeoutError):
            reply(one, b"b", 0.2)
        until(lambda: echo.got == b"ab", "the byte at the server")
        proxy.mend()
        assert one.recv(10) == b""


def test_it_closes_refuses_resets_and_cuts_after_some_bytes(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as one:
        proxy.breaks(SOUND, Fault(closes=True))
        assert reply(one, b"a") == b""
        assert echo.got == b"a"
    proxy.mend()
    with connected(proxy) as one:
        assert reply(one) == b"x"
        assert proxy.cut(reset=True) == 1
        with pytest.raises(ConnectionResetError):
            one.recv(10)
    with connected(proxy) as one:
        proxy.cut_after = 3
        assert reply(one, b"12") == b"12"
        assert reply(one, b"34") == b""
    proxy.refuses = True
    with connected(proxy) as one, suppress(ConnectionError):
        assert reply(one) == b""
    proxy.mend()
    with connected(proxy) as one:
        assert reply(one) == b"x"


def test_one_direction_ends_while_the_other_goes_on(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as one:
        assert reply(one, b"a") == b"a"
        assert proxy.half_close(to_client=True) == 1
        assert one.recv(10) == b""
        one.sendall(b"b")
        while echo.got != b"ab":
            time.sleep(0.005)
    with connected(proxy) as one:
        one.sendall(b"c")
        one.shutdown(socket.SHUT_WR)
        one.settimeout(REPLY_SECONDS)
        assert one.recv(10) == b"c", "a client's own half-close goes through, and the answer comes back"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    settings = {"LAKESTORE_LIMITS_CLOCK_CONFIRM_SECONDS": "0"}
    with System(tmp_path_factory.mktemp("far"), frozenset({"namespace", "clock"}), settings) as made:
        with made.connect(-1) as lake:
            lake.create_table("t.log", SCHEMA)
        yield made
    assert made.nursery.left() == []


def appended(system: System, process: int, seconds: float) -> bool:
    """Whether a row is acknowledged in time; an error says that its outcome is unknown, or that it never left."""
    with ls.connect(system.reached(process).address, timeout=seconds) as lake:
        try:
            lake.table("t.log").append([{"n": 1}])
        except ls.Unavailable:
            return False
        return True


def test_every_fault_of_the_network_ends_with_its_mending(system: System) -> None:
    assert appended(system, 0, 10)
    nemesis = NEMESES["network"]
    for seed in range(len(BREAKS)):
        began = nemesis.begin(system, random.Random(seed))
        assert began["fault"] in BREAKS
        nemesis.end(system)
        nemesis.end(system)
    assert appended(system, 0, 10)


def test_who_is_cut_off_gets_a_deadline_and_others_go_on(system: System) -> None:
    system.proxy(1).breaks(BLACK_HOLE, BLACK_HOLE)
    assert not appended(system, 1, 0.3)
    assert appended(system, 2, 10)
    system.heal()
    assert appended(system, 1, 10)


def test_packets_are_lost_and_the_partition_heals(system: System) -> None:
    if system.wire is None:
        pytest.skip(system.missing["namespace"])
    assert system.server.host == system.wire.far
    for weather in (Weather(to_server=False), Weather(to_clients=False)):
        system.wire.weather = weather
        assert not appended(system, -1, 0.3)
    system.wire.weather = Weather(delay_seconds=0.005, jitter_seconds=0.01, lost=0.05, doubled=0.2)
    assert appended(system, -1, 60)
    assert NEMESES["packets"].begin(system, random.Random(1))
    NEMESES["packets"].end(system)
    assert system.wire.weather == FAIR
    assert appended(system, -1, 60)


def test_where_there_are_no_namespaces_the_nemesis_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire, "obstacle", lambda: "not here")
    system = System(tmp_path_factory.mktemp("without"), frozenset({"namespace"}), {})
    assert NEMESES["packets"].begin(system, random.Random(1)) == "left out: not here"
    assert NEMESES["packets"].end(system) == "fair"
    assert capsys.readouterr().err == "left out: namespace: not here\n"
    system.stop()


def stamp(system: System) -> float:
    """The server's time of a new row, in seconds."""
    with system.connect(-1) as lake:
        table = lake.table("t.log")
        table.append([{"n": 2}])
        stamps = table.scan(columns=["__timestamp"]).to_arrow()["__timestamp"].to_pylist()
    return float(max(each.timestamp() for each in stamps))


def test_the_servers_clock_jumps_stands_still_and_strobes(system: System) -> None:
    if system.clock is None:
        pytest.skip(system.missing["clock"])
    clock = system.clock
    before = time.time()
    assert before - 1 <= stamp(system) <= time.time() + 1
    clock.move(3_600)
    before = time.time()
    assert before + 3_599 <= stamp(system) <= time.time() + 3_601, "it jumps, here and for the server"
    assert abs(clock.ahead() - 3_600) < 1
    clock.move(7_200, -1_000_000)
    first = stamp(system)
    time.sleep(0.4)
    assert stamp(system) - first < 0.2, "it stands still"
    clock.strobe((0.0, 86_400.0), 0.002)
    last = 0.0
    for _ in range(5):
        now = stamp(system)
        assert now >= last
        last = now
    for seed in range(8):
        NEMESES["clock"].begin(system, random.Random(seed))
    NEMESES["clock"].end(system)
    assert clock.ahead() == 0
    assert appended(system, 0, 10)
