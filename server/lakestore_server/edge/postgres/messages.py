"""The codec of the Postgres protocol: bytes to messages of a client, messages of the server to bytes.

- `Inbox` collects bytes and yields whole messages. A message that is too long is refused by its header alone.
- A message that cannot be decoded raises `MalformedMessage`, and nothing behind it is read.
- Texts are UTF-8. A text with a NUL byte cannot be sent, so it is cut there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

PROTOCOL_MAJOR = 3
PROTOCOL_MINOR_MAX = 2
CANCEL_CODE, TLS_CODE, GSS_CODE = 80_877_102, 80_877_103, 80_877_104
START_BYTES_MAX = 10_000
"""The longest message of a client that is not authenticated."""
DROPPED_BYTES = 64 << 10
"""Bytes of read messages that an inbox keeps before messages that are not read."""
_INT32, _INT16, _COUNT = struct.Struct("!i"), struct.Struct("!h"), struct.Struct("!H")
_FORMATS = frozenset({0, 1})
_HEAD = struct.Struct("!ci")


class MalformedMessage(Exception):
    """Bytes that are no message of the protocol; the connection ends."""


class TlsRequest(NamedTuple):
    """The client asks for TLS."""


class GssRequest(NamedTuple):
    """The client asks for encryption by GSSAPI."""


class CancelRequest(NamedTuple):
    """The client asks to cancel what another connection does."""

    process: int
    secret: bytes


class StartMessage(NamedTuple):
    """The first message of a session."""

    major: int
    minor: int
    parameters: Mapping[str, str]


class Password(NamedTuple):
    """A password, or a message of SASL: the dialog tells which."""

    data: bytes


class Query(NamedTuple):
    """Statements of the simple protocol."""

    text: str


class Parse(NamedTuple):
    """A statement to prepare. An oid of 0 leaves the type to the server."""

    name: str
    text: str
    oids: tuple[int, ...]


class Bind(NamedTuple):
    """A portal: a prepared statement with its parameters."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


class Describe(NamedTuple):
    """A question for the columns of a statement (S) or portal (P)."""

    kind: str
    name: str


class Execute(NamedTuple):
    """A portal to run; 0 rows are all rows."""

    portal: str
    rows_max: int


class Close(NamedTuple):
    """A statement (S) or portal (P) to forget."""

    kind: str
    name: str


class Sync(NamedTuple):
    """The end of a group of messages, and of an error."""


class Flush(NamedTuple):
    """A request to send what is ready."""


class Terminate(NamedTuple):
    """The client leaves."""


class FunctionCall(NamedTuple):
    """A call of a function by its oid, which nobody uses."""


class CopyMessage(NamedTuple):
    """Data of a COPY FROM that no longer runs; it is ignored."""


Message = (
    TlsRequest
    | GssRequest
    | CancelRequest
    | StartMessage
    | Password
    | Query
    | Parse
    | Bind
    | Describe
    | Execute
    | Close
    | Sync
    | Flush
    | Terminate
    | FunctionCall
    | CopyMessage
)


class Inbox:
    """Received bytes, and the messages in them."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._place = 0
        """The begin of the next message; see `_drop`."""
        self._is_started = False
        self.bytes_max = START_BYTES_MAX
        """The longest message that is taken."""

    def __len__(self) -> int:
        """Bytes that the inbox keeps."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def started(self) -> None:
        """The session has begun: later messages begin with a byte that names their kind."""
        self._is_started = True

    def next_message(self) -> Message | None:
        """The next whole message; None if its last byte has not come. Raises `MalformedMessage`."""
        if not self._is_started:
            return self._start_message()
        if len(self._data) < self._place + _HEAD.size:
            return None
        kind, size = _HEAD.unpack_from(self._data, self._place)
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise MalformedMessage(f"a message begins with byte {kind[0]}, which names no kind of message")
        body = self._body(1, size)
        if body is None:
            return None
        reader = _Reader(body)
        message = decoder(reader)
        reader.ends()
        return message

    def _start_message(self) -> Message | None:
        if len(self._data) < self._place + 4:
            return None
        body = self._body(0, _INT32.unpack_from(self._data, self._place)[0])
        return None if body is None else _start(_Reader(body))

    def _body(self, head: int, size: int) -> bytes | None:
        if size < 4:
            raise MalformedMessage(f"a message says that it has {size} bytes")
        if size > self.bytes_max:
            raise MalformedMessage(f"a message has {size:,} bytes, the limit is {self.bytes_max:,}")
        begin = self._place + head
        if len(self._data) < begin + size:
            return None
        body = bytes(self._data[begin + 4 : begin + size])
        self._drop(begin + size)
        return body

    def _drop(self, place: int) -> None:
        """Drop the bytes before the next message: all at once if it has not begun to come, else many together."""
        if place == len(self._data):
            self._data, self._place = bytearray(), 0  # `clear` may keep the memory
        elif place > DROPPED_BYTES:
            del self._data[:place]
            self._place = 0
        else:
            self._place = place


class _Reader:
    """The fields of one message, in order."""

    __slots__ = ("_data", "_place")

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def int32(self) -> int:
        return self._numbers(_INT32)[0]

    def _numbers(self, form: struct.Struct) -> tuple[int, ...]:
        place = self._place
        self._place = end = place + form.size
        if end > len(self._data):
            raise MalformedMessage("a message ends before its last field")
        return form.unpack_from(self._data, place)

    def taken(self, size: int) -> bytes:
        end = self._place + size
        if size < 0 or end > len(self._data):
            raise MalformedMessage("a field is longer than its message")
        data = self._data[self._place : end]
        self._place = end
        return data

    def text(self) -> str:
        end = self._data.find(b"\0", self._place)
        if end < 0:
            raise MalformedMessage("a text has no end")
        data = self._data[self._place : end]
        self._place = end + 1
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage("a text is not UTF-8") from error

    def rest(self) -> bytes:
        return self.taken(len(self._data) - self._place)

    def many(self, letter: str) -> tuple[int, ...]:
        """A list of numbers, with their count before them; `letter` is their form for `struct`."""
        count = self.count()
        if not count:
            return ()
        if count > len(self._data):
            raise MalformedMessage("a list is longer than its message")
        return self._numbers(_list_form(count, letter))

    def count(self) -> int:
        """The number of entries that follow."""
        return self._numbers(_COUNT)[0]

    def value(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self.taken(size)

    def ends(self) -> None:
        if self._place != len(self._data):
            raise MalformedMessage("a message has bytes after its last field")


@lru_cache(maxsize=256)
def _list_form(count: int, letter: str) -> struct.Struct:
    return struct.Struct(f"!{count}{letter}")


def _start(reader: _Reader) -> Message:
    code = reader.int32()
    if code == CANCEL_CODE:
        process, secret = reader.int32(), reader.rest()
        if not 4 <= len(secret) <= 256:
            raise MalformedMessage(f"a secret of a cancel request has {len(secret)} bytes")
        return CancelRequest(process, secret)
    if code in (TLS_CODE, GSS_CODE):
        reader.ends()
        return TlsRequest() if code == TLS_CODE else GssRequest()
    major, minor = code >> 16, code & 0xFFFF
    if major != PROTOCOL_MAJOR:
        return StartMessage(major, minor, {})
    parameters: dict[str, str] = {}
    while name := reader.text():
        parameters[name] = reader.text()
    reader.ends()
    return StartMessage(major, minor, parameters)


def _parse(reader: _Reader) -> Parse:
    return Parse(reader.text(), reader.text(), reader.many("I"))


def _bind(reader: _Reader) -> Bind:
    portal, statement, formats, count = reader.text(), reader.text(), reader.many("h"), reader.count()
    values = tuple([reader.value() for _ in range(count)])
    results = reader.many("h")
    if not _FORMATS.issuperset(formats) or not _FORMATS.issuperset(results):
        raise MalformedMessage("a format is neither 0, text, nor 1, binary")
    if len(formats) not in (0, 1, count):
        raise MalformedMessage(f"{len(formats)} formats do not belong to {count} parameters")
    return Bind(portal, statement, formats, values, results)


def _named(reader: _Reader) -> tuple[str, str]:
    kind, name = reader.taken(1), reader.text()
    if kind not in (b"S", b"P"):
        raise MalformedMessage("a name is neither that of a statement, S, nor that of a portal, P")
    return kind.decode(), name


def _execute(reader: _Reader) -> Execute:
    return Execute(reader.text(), max(reader.int32(), 0))


def _query(reader: _Reader) -> Query:
    return Query(reader.text())


def _empty(message: Message) -> Callable[[_Reader], Message]:
    return lambda _: message


def _ignored(message: Message) -> Callable[[_Reader], Message]:
    def decoder(reader: _Reader) -> Message:
        reader.rest()
        return message

    return decoder


_DECODERS: Mapping[bytes, Callable[[_Reader], Message]] = {
    b"p": lambda reader: Password(reader.rest()),
    b"Q": _query,
    b"P": _parse,
    b"B": _bind,
    b"D": lambda reader: Describe(*_named(reader)),
    b"E": _execute,
    b"C": lambda reader: Close(*_named(reader)),
    b"S": _empty(Sync()),
    b"H": _empty(Flush()),
    b"X": _empty(Terminate()),
    b"F": _ignored(FunctionCall()),
    b"d": _ignored(CopyMessage()),
    b"c": _ignored(CopyMessage()),
    b"f": _ignored(CopyMessage()),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a RowDescription."""

    name: str
    oid: int
    size: int = -1
    modifier: int = -1
    is_binary: bool = False
    table: int = 0
    """The oid of the table whose column this is; 0 for none."""
    column: int = 0
    """The column's `attnum` there."""

    def with_format(self, *, is_binary: bool) -> Field:
        """The same column in text or binary."""
        return replace(self, is_binary=is_binary)


def framed(kind: bytes, *parts: bytes) -> bytes:
    """A message of the server."""
    body = b"".join(parts)
    return _HEAD.pack(kind, len(body) + _INT32.size) + body


def _text(text: str) -> bytes:
    return text.partition("\0")[0].encode(errors="replace") + b"\0"


def authentication(code: int, data: bytes = b"") -> bytes:
    """0 is success; 3 asks for a password in clear; 10, 11 and 12 are the steps of SASL."""
    return framed(b"R", _INT32.pack(code), data)


def sasl_mechanisms(names: Iterable[str]) -> bytes:
    """The ways of SASL that the server offers."""
    return authentication(10, b"".join(map(_text, names)) + b"\0")


def negotiated_version(minor: int, unknown: Sequence[str]) -> bytes:
    """The newest minor version that the server speaks, and the options that it does not know."""
    version = PROTOCOL_MAJOR << 16 | minor
    return framed(b"v", _INT32.pack(version), _INT32.pack(len(unknown)), *map(_text, unknown))


def key_data(process: int, secret: bytes) -> bytes:
    """Number and secret that a CancelRequest must name."""
    return framed(b"K", _INT32.pack(process), secret)


def parameter_status(name: str, value: str) -> bytes:
    """The value of a variable that drivers follow."""
    return framed(b"S", _text(name), _text(value))


@cache
def ready(status: str) -> bytes:
    """The server waits: I outside of a transaction, T in one, E in a failed one."""
    return framed(b"Z", status.encode())


def row_description(fields: Sequence[Field]) -> bytes:
    """The columns of the rows that follow."""
    entries = [
        _text(field.name)
        + struct.pack("!IHIhih", field.table, field.column, field.oid, field.size, field.modifier, int(field.is_binary))
        for field in fields
    ]
    return framed(b"T", _INT16.pack(len(entries)), *entries)


def parameter_description(oids: Sequence[int]) -> bytes:
    """The types of the parameters of a prepared statement."""
    return framed(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def data_row(values: Sequence[str | None]) -> bytes:
    """One row of texts, for what the session itself answers."""
    parts = [_INT16.pack(len(values))]
    for value in values:
        data = None if value is None else value.encode()
        parts.append(_INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data)
    return framed(b"D", *parts)


@lru_cache(maxsize=64)
def complete(tag: str) -> bytes:
    """A statement is done."""
    return framed(b"C", _text(tag))


def copy_out(columns: int, *, is_binary: bool) -> bytes:
    """Data of COPY follows."""
    form = int(is_binary)
    return framed(b"H", struct.pack(f"!bh{columns}h", form, columns, *[form] * columns))


COPY_DONE = framed(b"c")
PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE = framed(b"1"), framed(b"2"), framed(b"3")
NO_DATA, EMPTY_QUERY, PORTAL_SUSPENDED = framed(b"n"), framed(b"I"), framed(b"s")


def report(kind: bytes, fields: Mapping[str, str]) -> bytes:
    """An ErrorResponse (E) or NoticeResponse (N), with its fields by their letters."""
    parts = [letter.encode() + _text(text) for letter, text in fields.items() if text]
    return framed(kind, *parts, b"\0")


def rows_end(data: bytes | memoryview, begin: int, rows: int) -> tuple[int, int]:
    """(end, number of rows) of at most `rows` messages in `data` from `begin` on."""
    count, place, size = 0, begin, len(data)
    unpack = _INT32.unpack_from
    while count < rows and place < size:
        place += 1 + unpack(data, place + 1)[0]
        count += 1
    return place, count
