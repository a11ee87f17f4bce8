"""Honest sessions as bytes: a proxy in front of a port keeps what clients send, and the bytes are cut into messages."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Recorder:
    """A proxy. A context manager; at its end `sessions` has the bytes of each connection."""

    def __init__(self, port: int) -> None:
        """`port` is the one that the proxy passes bytes to."""
        self._to = port
        self.sessions: list[bytes] = []
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += client, server
            number = len(self.sessions)
            self.sessions.append(b"")
            for source, target, kept in ((client, server, number), (server, client, None)):
                self._threads.append(threading.Thread(target=self._pass, args=(source, target, kept)))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, kept: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    self.sessions[kept] += data
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(30)
        for each in self._sockets:
            each.close()


def postgres_messages(session: bytes) -> list[bytes]:
    """The messages of a client of Postgres's protocol; the start-up messages have no kind."""
    found, place = [], 0
    while place < len(session):
        is_start = session[place] == 0  # the length of a start-up message begins with a zero
        (size,) = struct.unpack_from("!i", session, place + (not is_start))
        found.append(session[place : place + size + (not is_start)])
        place += len(found[-1])
    return found


def http2_frames(session: bytes) -> list[bytes]:
    """The preface and the frames of a client of HTTP/2."""
    found, place = [session[: len(_PREFACE)]], len(_PREFACE)
    while place + 9 <= len(session):
        found.append(session[place : place + 9 + int.from_bytes(session[place : place + 3], "big")])
        place += len(found[-1])
    return found


def kinds(parts: Sequence[bytes]) -> str:
    """The kinds of Postgres messages, `-` for a start-up message."""
    return "".join("-" if part[0] == 0 else chr(part[0]) for part in parts)
