"""A TCP proxy before a server, which breaks what goes through in either direction and mends it again."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.05
"""A connection notices a new fault within this time."""
HELD_BYTES = 4_000_000
CHUNK_BYTES = 65_536
CONNECT_SECONDS = 5.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one direction. By default nothing happens to bytes."""

    delay_seconds: float = 0.0
    """All bytes come so much later."""
    spread_seconds: float = 0.0
    """Each connection's bytes come later still, by up to so much: what went by one overtakes what went by another."""
    bytes_per_second: float = 0.0
    """The most that one connection carries; 0 for no bound."""
    holds: bool = False
    """A black hole: bytes wait until it is mended, as those that TCP sends again and again."""
    loses: bool = False
    """Bytes are gone. Once it is mended, their connection is cut."""
    closes: bool = False
    """The first bytes end their connection in place of going on."""


SOUND = Fault()
BLACK_HOLE = Fault(holds=True)
LOST = Fault(loses=True)


class Proxy:
    """Listens on a port of its own. Thread-safe."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.refuses = False
        """New connections are closed at once."""
        self.cut_after: int | None = None
        """Cut everything once that many bytes more came from the server."""
        self.to_server = self.to_client = SOUND
        self.answered = 0
        """Bytes that came from the server, of all connections."""
        self._connections: set[_Connection] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._chance = random.Random(0)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def breaks(self, to_server: Fault = SOUND, to_client: Fault = SOUND) -> None:
        """Faults from now on, of connections that are there and that come."""
        self.to_server, self.to_client = to_server, to_client

    def mend(self) -> None:
        """No fault from now on."""
        self.refuses, self.cut_after = False, None
        self.breaks()
        for each in self._open():
            each.mend()

    def half_close(self, *, to_client: bool) -> int:
        """End one direction of every connection as its sender would, while the other goes on; the number of them."""
        connections = self._open()
        for each in connections:
            each.end_direction(to_client=to_client)
        return len(connections)

    def cut(self, *, reset: bool = False) -> int:
        """End every connection, with a reset in place of an end if so wished; the number of them."""
        connections = [each for each in self._open() if not each.is_cut]
        for each in connections:
            each.cut(reset=reset)
        return len(connections)

    def came_back(self, size: int) -> bool:
        """So many bytes came from the server; whether everything is cut by now."""
        with self._lock:
            self.answered += size
            if self.cut_after is None:
                return False
            self.cut_after -= size
            if self.cut_after > 0:
                return False
            self.cut_after = None
        self.cut()
        return True

    def gone(self, connection: _Connection) -> None:
        """A connection has ended."""
        with self._lock:
            self._connections.discard(connection)

    def close(self) -> None:
        """Stop."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _open(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                continue
            if self.refuses or self.to_server.holds or self.to_client.holds:
                # In a black hole nobody answers; the client's own system has, so that only its first bytes wait.
                threading.Thread(target=self._late, args=(client,), name="proxy-late", daemon=True).start()
            else:
                self._join(client)

    def _late(self, client: socket.socket) -> None:
        while not self.refuses and not self._closed and (self.to_server.holds or self.to_client.holds):
            time.sleep(LOOK_SECONDS)
        if self.refuses or self._closed:
            client.close()
        else:
            self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, CONNECT_SECONDS)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            connection = _Connection(self, client, server, self._chance.random())
            self._connections.add(connection)
        connection.start()


class _Connection:
    """Two sockets, and a thread for each direction. The sockets are closed once both threads have ended."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, luck: float) -> None:
        self.proxy, self._client, self._server = proxy, client, server
        self.luck = luck
        self.is_cut = False
        self.has_lost = False
        self._left = 2
        self._lock = threading.Lock()
        self._ways = {False: _Way(self, client, server, answers=False), True: _Way(self, server, client, answers=True)}

    def start(self) -> None:
        """Carry bytes."""
        for way in self._ways.values():
            threading.Thread(target=way.run, name="proxy-way", daemon=True).start()

    def end_direction(self, *, to_client: bool) -> None:
        """Carry no more that way."""
        self._ways[to_client].is_over = True
        with contextlib.suppress(OSError):
            (self._client if to_client else self._server).shutdown(socket.SHUT_WR)

    def mend(self) -> None:
        """End it if bytes of it are lost."""
        if self.has_lost or any(way.is_over for way in self._ways.values()):
            self.cut()

    def cut(self, *, reset: bool = False) -> None:
        """End it, once."""
        if self.is_cut:
            return
        self.is_cut = True
        with self._lock:
            for one in (self._client, self._server) if self._left else ():
                with contextlib.suppress(OSError):
                    if reset:
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    else:
                        one.shutdown(socket.SHUT_RDWR)

    def way_ended(self) -> None:
        """One direction carries no more."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
            self._client.close()
            self._server.close()
        self.proxy.gone(self)


class _Way:
    """One direction of a connection: bytes wait until they are due, in their order."""

    def __init__(self, connection: _Connection, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        self._connection, self._source, self._target, self._answers = connection, source, target, answers
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._free_at = 0.0
        """When the bytes before have gone through a narrow line."""
        self._has_ended = False
        self.is_over = False
        """Ended by the proxy: what comes is thrown away."""

    def run(self) -> None:
        """Carry bytes until either end has gone."""
        with contextlib.suppress(OSError):
            while not self._connection.is_cut and not (self._has_ended and not self._waiting):
                self._step()
            if not self._connection.is_cut and not self.is_over:
                self._target.shutdown(socket.SHUT_WR)
        if not self._has_ended:
            self._connection.cut()
        self._connection.way_ended()

    def _step(self) -> None:
        fault = self._fault()
        now = time.monotonic()
        if not fault.holds:
            while self._waiting and self._waiting[0][0] <= now:
                self._send(self._waiting.popleft()[1])
        if self._has_ended or fault.holds or self._size >= HELD_BYTES:
            time.sleep(LOOK_SECONDS / 5)
            return
        until = min(self._waiting[0][0] - now, LOOK_SECONDS) if self._waiting else LOOK_SECONDS
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        if poll.poll(max(until, 0.0) * 1000):
            self._take(self._fault())

    def _fault(self) -> Fault:
        proxy = self._connection.proxy
        return proxy.to_client if self._answers else proxy.to_server

    def _take(self, fault: Fault) -> None:
        connection = self._connection
        if fault.holds:
            return
        data = self._source.recv(CHUNK_BYTES)
        if not data:
            self._has_ended = True
        elif fault.closes:
            connection.cut()
        elif fault.loses or self.is_over:
            connection.has_lost = connection.has_lost or fault.loses
        elif connection.has_lost:
            connection.cut()
        else:
            due = time.monotonic() + fault.delay_seconds + fault.spread_seconds * connection.luck
            if fault.bytes_per_second:
                self._free_at = max(self._free_at, time.monotonic()) + len(data) / fault.bytes_per_second
                due = max(due, self._free_at)
            before = self._waiting[-1][0] if self._waiting else 0.0
            self._waiting.append((max(due, before), data))
            self._size += len(data)

    def _send(self, data: bytes) -> None:
        self._size -= len(data)
        if self._answers and self._connection.proxy.came_back(len(data)):
            return
        self._target.sendall(data)
