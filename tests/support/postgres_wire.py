"""The client's side of the Postgres protocol for tests: messages to bytes, bytes to messages. Written apart from the
server's codec, so that one checks the other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple


def start(user: str = "ann", version: tuple[int, int] = (3, 0), **parameters: str) -> bytes:
    """A StartupMessage."""
    pairs = {"user": user, **parameters}
    body = struct.pack("!HH", *version) + b"".join(f"{name}\0{value}\0".encode() for name, value in pairs.items())
    return struct.pack("!i", len(body) + 5) + body + b"\0"


def request(code: int, body: bytes = b"") -> bytes:
    """SSLRequest, GSSENCRequest, CancelRequest."""
    return struct.pack("!ii", len(body) + 8, code) + body


TLS, GSS = request(80877103), request(80877104)


def cancel(process: int, secret: bytes) -> bytes:
    """A CancelRequest."""
    return request(80877102, struct.pack("!i", process) + secret)


def message(kind: str, body: bytes = b"") -> bytes:
    """A message with its kind and length."""
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    """A text with its end."""
    return value.encode() + b"\0"


def query(sql: str) -> bytes:
    """A Query."""
    return message("Q", text(sql))


def parse(sql: str, name: str = "", oids: Sequence[int] = ()) -> bytes:
    """A Parse."""
    return message("P", text(name) + text(sql) + struct.pack(f"!h{len(oids)}I", len(oids), *oids))


def bind(
    values: Sequence[bytes | None] = (),
    *,
    portal: str = "",
    statement: str = "",
    formats: Sequence[int] = (),
    results: Sequence[int] = (),
) -> bytes:
    """A Bind."""
    body = text(portal) + text(statement) + struct.pack(f"!h{len(formats)}h", len(formats), *formats)
    body += struct.pack("!h", len(values))
    for value in values:
        body += struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
    return message("B", body + struct.pack(f"!h{len(results)}h", len(results), *results))


def describe(kind: str = "P", name: str = "") -> bytes:
    """A Describe."""
    return message("D", kind.encode() + text(name))


def execute(portal: str = "", rows: int = 0) -> bytes:
    """An Execute."""
    return message("E", text(portal) + struct.pack("!i", rows))


def close(kind: str, name: str) -> bytes:
    """A Close."""
    return message("C", kind.encode() + text(name))


SYNC, FLUSH, TERMINATE = message("S"), message("H"), message("X")


class Reply(NamedTuple):
    """A message of the server."""

    kind: str
    body: bytes

    @property
    def fields(self) -> dict[str, str]:
        """The fields of an error or notice."""
        return {part[:1].decode(): part[1:].decode() for part in self.body.split(b"\0") if part}

    @property
    def text(self) -> str:
        """The first text of the message."""
        return self.body.partition(b"\0")[0].decode()

    @property
    def values(self) -> list[bytes | None]:
        """The values of a DataRow."""
        (count,), place = struct.unpack_from("!H", self.body), 2
        found: list[bytes | None] = []
        for _ in range(count):
            (size,), place = struct.unpack_from("!i", self.body, place), place + 4
            found.append(None if size < 0 else self.body[place : place + size])
            place += max(size, 0)
        assert place == len(self.body)
        return found

    @property
    def columns(self) -> list[tuple[str, int, int]]:
        """(name, oid, format) of the columns of a RowDescription."""
        (count,), place = struct.unpack_from("!H", self.body), 2
        found = []
        for _ in range(count):
            end = self.body.index(b"\0", place)
            _, _, oid, _, _, form = struct.unpack_from("!ihIhih", self.body, end + 1)
            found.append((self.body[place:end].decode(), oid, form))
            place = end + 1 + 18
        assert place == len(self.body)
        return found


def replies(data: bytes) -> list[Reply]:
    """The messages of the server; every byte must belong to one."""
    found, place = [], 0
    while place < len(data):
        kind, size = struct.unpack_from("!ci", data, place)
        assert place + 1 + size <= len(data), "the last message is not whole"
        found.append(Reply(kind.decode(), data[place + 5 : place + 1 + size]))
        place += 1 + size
    return found


class ScramClient:
    """The client's side of SCRAM-SHA-256, from RFC 5802."""

    def __init__(self, token: str, nonce: str = "clientnonce", binding: bytes = b"", flag: str = "n") -> None:
        self._token, self._bare = token, f"n=,r={nonce}"
        self._header = ("p=tls-server-end-point" if binding else flag) + ",,"
        self._binding = base64.b64encode(self._header.encode() + binding).decode()
        self._signature = b""

    def first(self, mechanism: str = "SCRAM-SHA-256") -> bytes:
        data = (self._header + self._bare).encode()
        return message("p", text(mechanism) + struct.pack("!i", len(data)) + data)

    def final(self, answer: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in answer.decode().split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self._token.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        stored_key = hashlib.sha256(client_key).digest()
        without = f"c={self._binding},r={fields['r']}"
        asked = f"{self._bare},{answer.decode()},{without}".encode()
        proof = bytes(a ^ b for a, b in zip(client_key, hmac.digest(stored_key, asked, "sha256"), strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), asked, "sha256")
        return message("p", f"{without},p={base64.b64encode(proof).decode()}".encode())

    def trusts(self, answer: bytes) -> bool:
        """Whether the server has shown that it knows the token too."""
        return answer == b"v=" + base64.b64encode(self._signature)
