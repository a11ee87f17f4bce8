"""The proxy that knows HTTP, before a server that counts what it is asked."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from jepsen.system.http_proxy import FAIR, STATUSES, WRITES, HttpProxy, Trouble, Weather

BODY = b"x" * 10_000


class _Counting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str] = []  # noqa: RUF012 (of the test)

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"{self.command} {self.path} {said.decode()}")
        self.send_response_only(201)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("ETag", '"7"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(BODY)

    def do_GET(self) -> None:
        self.headers["Content-Length"] = "0"
        self.do_POST()

    do_HEAD = do_GET  # noqa: N815 (a name of the base)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def proxy() -> Iterator[HttpProxy]:
    _Counting.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), _Counting)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with HttpProxy(f"127.0.0.1:{server.server_address[1]}") as made:
        yield made
    server.shutdown()
    server.server_close()


def _ask(proxy: HttpProxy, method: str = "POST", path: str = "/a?b=1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(proxy.address, timeout=60)
    try:
        connection.request(method, path, body=b"hello" if method == "POST" else None)
        found = connection.getresponse()
        return found.status, found.read()
    finally:
        connection.close()


def _weather(kind: Trouble, **more: object) -> Weather:
    return Weather((kind,), 1.0, 0.05, **more)  # type: ignore[arg-type]


def test_a_sound_proxy_carries_everything(proxy: HttpProxy) -> None:
    assert _ask(proxy) == (201, BODY)
    assert _ask(proxy, path="http://elsewhere:1/a?b=1") == (201, BODY)
    assert _ask(proxy, "GET", "/c") == (201, BODY)
    assert _ask(proxy, "HEAD", "/c") == (201, b"")
    assert _Counting.asked == ["POST /a?b=1 hello", "POST /a?b=1 hello", "GET /c ", "HEAD /c "]


def test_chunked_requests_are_whole(proxy: HttpProxy) -> None:
    connection = http.client.HTTPConnection(proxy.address, timeout=60)
    connection.request("POST", "/a", body=iter([b"hel", b"lo"]), encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()
    assert _Counting.asked == ["POST /a hello"]


@pytest.mark.parametrize(("kind", "asked"), [(Trouble.REFUSE, 0), (Trouble.HIDE, 1)])
def test_a_refused_and_a_hidden_answer_are_5xx(proxy: HttpProxy, kind: Trouble, asked: int) -> None:
    proxy.breaks(_weather(kind))
    assert _ask(proxy)[0] in STATUSES
    assert len(_Counting.asked) == asked


@pytest.mark.parametrize(("kind", "asked"), [(Trouble.RESET, 0), (Trouble.LOSE, 1), (Trouble.STALL, 1)])
def test_a_connection_breaks_before_or_after_it_is_done(proxy: HttpProxy, kind: Trouble, asked: int) -> None:
    proxy.breaks(_weather(kind))
    with pytest.raises((OSError, http.client.HTTPException)):
        _ask(proxy)
    assert len(_Counting.asked) == asked


def test_a_repeated_and_a_slow_request_are_answered(proxy: HttpProxy) -> None:
    proxy.breaks(_weather(Trouble.REPEAT))
    assert _ask(proxy) == (201, BODY)
    assert len(_Counting.asked) == 2
    proxy.breaks(_weather(Trouble.SLOW))
    assert _ask(proxy) == (201, BODY)
    assert proxy.mend() == {"repeat": 1, "slow": 1}
    assert proxy.drawn("POST") == (None, 0, 0.0)


def test_only_some_requests_have_troubles(proxy: HttpProxy) -> None:
    proxy.breaks(_weather(Trouble.REFUSE, methods=WRITES))
    assert _ask(proxy, "GET")[0] == 201
    assert _ask(proxy)[0] in STATUSES
    proxy.breaks(Weather(tuple(Trouble), 0.5, seed=3))
    drawn = [proxy.drawn("GET")[0] for _ in range(400)]
    proxy.breaks(Weather(tuple(Trouble), 0.5, seed=3))
    assert drawn == [proxy.drawn("GET")[0] for _ in range(400)]
    assert set(drawn) == {None, *Trouble}
    assert 120 < drawn.count(None) < 280
    proxy.breaks(FAIR)


def test_a_server_that_is_gone_is_a_bad_gateway(proxy: HttpProxy) -> None:
    proxy.target = "127.0.0.1:9"
    assert _ask(proxy)[0] == 502
