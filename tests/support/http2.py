"""As much of an HTTP/2 client as an attacker needs: frames by hand, headers as literals, no library."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_HEADERS, ACK = 4, 1
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
WINDOW, FRAME = 65_535, 16_384
GRPC = (("content-type", "application/grpc"), ("te", "trailers"))


def frame(kind: int, stream: int, body: bytes = b"", flags: int = 0) -> bytes:
    """One frame as it goes over the wire."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def literals(headers: Iterable[tuple[str, str]]) -> bytes:
    """A header block without compression; names and values shorter than 127 bytes."""
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in headers
    )


class Connection:
    """A connection without TLS to a port that speaks HTTP/2."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.windows = {0: WINDOW}
        self.initial, self.frame_bytes, self.next_stream = WINDOW, FRAME, 1
        self.rest = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0))

    def call(self, path: str) -> int:
        """Begin a call of gRPC; its stream."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        self.windows[stream] = self.initial
        head = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), *GRPC)
        self.socket.sendall(frame(HEADERS, stream, literals(head), END_HEADERS))
        return stream

    def reset(self, stream: int) -> None:
        """End a stream: CANCEL."""
        self.socket.sendall(frame(RST_STREAM, stream, struct.pack(">I", 8)))

    def ping(self) -> None:
        """Ask for an answer."""
        self.socket.sendall(frame(PING, 0, b"12345678"))

    def room(self, stream: int) -> int:
        """How many bytes the next frame of data may have."""
        return min(self.windows[0], self.windows[stream], self.frame_bytes)

    def data(self, stream: int, body: bytes) -> None:
        """Send within the windows."""
        self.socket.sendall(frame(DATA, stream, body))
        self.windows[0] -= len(body)
        self.windows[stream] -= len(body)

    def receive(self) -> None:
        """Wait for bytes; take in settings and windows, answer settings and pings."""
        got = self.socket.recv(65_536)
        if not got:
            raise ConnectionError("closed by the server")
        self.rest += got
        while len(self.rest) >= 9 and len(self.rest) >= 9 + (size := int.from_bytes(self.rest[:3], "big")):
            kind, flags = self.rest[3], self.rest[4]
            stream, body = struct.unpack(">I", self.rest[5:9])[0], self.rest[9 : 9 + size]
            self.rest = self.rest[9 + size :]
            self._take(kind, flags, stream, body)

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", body):
                if name == INITIAL_WINDOW_SIZE:
                    for open_stream in self.windows.keys() - {0}:
                        self.windows[open_stream] += value - self.initial
                    self.initial = value
                elif name == MAX_FRAME_SIZE:
                    self.frame_bytes = value
            self.socket.sendall(frame(SETTINGS, 0, flags=ACK))
        elif kind == WINDOW_UPDATE:
            self.windows[stream] = self.windows.get(stream, self.initial) + struct.unpack(">I", body)[0]
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, 0, body, ACK))
        elif kind in (RST_STREAM, GOAWAY):
            raise ConnectionError(f"ended by the server: frame {kind}, {body.hex()}")

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
