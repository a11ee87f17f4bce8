"""A proxy before an HTTP server that knows requests and answers: it refuses, delays, repeats and loses them.

It takes requests that are meant for it and those of a client that knows it as its proxy, whose first line has a whole
address. Bodies are held in memory.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from jepsen.system.http_server import HttpServer

ANSWER_SECONDS = 60.0
STATUSES = 500, 502, 503, 504
_HOP = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "te", "trailer", "upgrade"}
_RESET = struct.pack("ii", 1, 0)
WRITES = frozenset({"POST", "PUT", "DELETE", "PATCH"})


REFUSAL = '{"error": {"message": "{said}", "type": "Trouble", "code": {status}}}'
"""A 5xx as an Iceberg catalog says it."""


Watch = Callable[[str, str, Any], None]


class Trouble(StrEnum):
    """Kinds of what happens to a request."""

    REFUSE = "refuse"
    """An answer of 5xx, and the server never hears of the request."""
    RESET = "reset"
    """The connection breaks before the server hears of the request."""
    LOSE = "lose"
    """The server does it, and the connection breaks before the answer."""
    HIDE = "hide"
    """The server does it, and the answer is 5xx."""
    REPEAT = "repeat"
    """The server is asked twice; the client gets the second answer."""
    SLOW = "slow"
    """The request waits."""
    STALL = "stall"
    """Half of the answer comes, and the connection breaks a while later."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Troubles of some of the requests."""

    kinds: tuple[Trouble, ...] = ()
    share: float = 0.0
    """Of all requests so many have one of the troubles."""
    seconds: float = 0.0
    """Wait of a slow request and of a stalled answer."""
    methods: frozenset[str] = frozenset()
    """Requests of other methods have no trouble; empty for all."""
    seed: int = 0


FAIR = Weather()


class HttpProxy:
    """Listens on a port of this machine. Thread-safe."""

    def __init__(self, target: str, *, refusal: str = REFUSAL, watch: Watch | None = None) -> None:
        """`target`: host and port of the server; `refusal`: body of a 5xx, with `{said}` and `{status}`.

        `watch` is called with method, path and headers of each request, before its trouble.
        """
        self.target = target
        self._weather, self._chance = FAIR, random.Random(0)
        self._lock = threading.Lock()
        self._had: Counter[str] = Counter()
        proxy = self

        class Handler(_Handler):
            """Requests of this proxy."""

            def refused(self, status: int, said: str) -> _Answer:
                kind = "application/xml" if refusal.startswith("<") else "application/json"
                body = refusal.replace("{said}", said).replace("{status}", str(status)).encode()
                return _Answer(status, "Trouble", [("Content-Type", kind)], body)

            def trouble(self) -> tuple[Trouble | None, int, float]:
                if watch is not None:
                    watch(self.command, self.path, self.headers)
                return proxy.drawn(self.command)

            def ask(self, body: bytes) -> _Answer:
                return _asked(proxy.target, self.command, self.path, self.headers.items(), body)

        self._server = HttpServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="http-proxy", daemon=True).start()

    def breaks(self, weather: Weather) -> None:
        """Troubles from now on."""
        with self._lock:
            self._weather, self._chance = weather, random.Random(weather.seed)

    def mend(self) -> dict[str, int]:
        """No trouble from now on; how often there was which since the last time."""
        with self._lock:
            self._weather = FAIR
            had, self._had = dict(self._had), Counter()
            return had

    def drawn(self, method: str) -> tuple[Trouble | None, int, float]:
        """The trouble of a request, with a status and seconds for it."""
        with self._lock:
            weather = self._weather
            if weather.methods and method not in weather.methods:
                return None, 0, 0.0
            if not weather.kinds or self._chance.random() >= weather.share:
                return None, 0, 0.0
            kind = self._chance.choice(weather.kinds)
            self._had[kind] += 1
            return kind, self._chance.choice(STATUSES), weather.seconds

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    headers: Sequence[tuple[str, str]]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def trouble(self) -> tuple[Trouble | None, int, float]:
        """What happens to this request."""
        raise NotImplementedError

    def ask(self, body: bytes) -> _Answer:
        """The server's answer."""
        raise NotImplementedError

    def refused(self, status: int, said: str) -> _Answer:
        """A 5xx of the proxy's own."""
        raise NotImplementedError

    def _handle(self) -> None:
        body = self._body()
        trouble, status, seconds = self.trouble()
        if trouble is Trouble.SLOW:
            time.sleep(seconds)
        if trouble is Trouble.RESET:
            self._reset()
            return
        if trouble is Trouble.REFUSE:
            self._say(self.refused(status, "this proxy refuses the request"))
            return
        answer = self._asked(body)
        if trouble is Trouble.REPEAT:
            answer = self._asked(body)
        if trouble is Trouble.LOSE:
            self._reset()
        elif trouble is Trouble.HIDE:
            self._say(self.refused(status, "this proxy hides the answer"))
        else:
            self._say(answer, stall=seconds if trouble is Trouble.STALL else 0.0)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _handle  # noqa: N815 (names of the base)

    def _asked(self, body: bytes) -> _Answer:
        try:
            return self.ask(body)
        except (OSError, http.client.HTTPException) as error:
            return self.refused(502, f"{type(error).__name__}: {error}")

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _say(self, answer: _Answer, stall: float = 0.0) -> None:
        self.send_response_only(answer.status, answer.reason)
        said = {name.lower() for name, _ in answer.headers}
        for name, value in answer.headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if "content-length" not in said and answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if stall:
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.wfile.flush()
            time.sleep(stall)
            self._reset()
            return
        self.wfile.write(answer.body)

    def _reset(self) -> None:
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def _asked(target: str, method: str, path: str, headers: Any, body: bytes) -> _Answer:
    if "://" in path:
        parts = urlsplit(path)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection = http.client.HTTPConnection(target, timeout=ANSWER_SECONDS)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        lengths = [name for name, _ in headers if name.lower() == "content-length"]
        for name, value in headers:
            if name.lower() not in _HOP and name.lower() != "expect":
                connection.putheader(name, value)
        if body and not lengths:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        found = connection.getresponse()
        return _Answer(found.status, found.reason, found.getheaders(), found.read())
    finally:
        connection.close()
