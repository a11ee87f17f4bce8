"""A process that answers one query for the server's console: SQL over union reads, through the server's pipe.

- It has no connection, token or store key. Each call goes over the pipe to the server, which checks the viewer's rights
  and reads lake files for it.
- Its memory, time and rows are bounded, and the operating system confines it, before it sees the query.
- It ends with its answer.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lakestore.client.calls import transport_of
from lakestore.client.connection import Connection
from lakestore.client.credentials import NOTHING
from lakestore.errors import Unavailable
from lakestore.iceberg import cache, places
from lakestore.iceberg.sized_file import SizedFile
from lakestore.rows import json_texts
from lakestore.union import sql
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe, rpc
from lakestore.wire.pipe import Verb

Exchange = Callable[[Verb, bytes], bytes | None]


class Parent(Protocol):
    """The server that started this process: `Parent` of the server's `host/child.py`."""

    def reply(self, answer: Callable[[int, bytes], bytes]) -> bool:
        """Answer the server's question."""

    def ask(self, verb: int, question: bytes = b"") -> Iterator[bytes]:
        """The parts of the server's answer to a question of this process."""


class PipedFiles:
    """Files that the server opens for the query. Thread-safe."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def open_input_file(self, path: str, /) -> pa.NativeFile:
        """A lake file by its location. Raises `FileNotFoundError`."""
        return pa.PythonFile(_PipedFile(self._exchange, path), mode="r")


class _PipedFile(SizedFile):
    """One file of the server."""

    def __init__(self, exchange: Exchange, location: str) -> None:
        self._exchange, self._location = exchange, location
        super().__init__(*pipe.FILE_SIZE.unpack(self._answer(Verb.SIZE, location.encode())))

    def part(self, at: int, size: int) -> bytes:
        most, end = pipe.FILE_PART_BYTES_MAX, at + size
        parts = [self._piece(begin, min(most, end - begin)) for begin in range(at, end, most)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, at: int, size: int) -> bytes:
        found = self._answer(Verb.READ, pipe.FILE_PART.pack(at, size) + self._location.encode())
        if len(found) != size:
            raise OSError(f"file {self._location} ends before byte {at + size}")
        return found

    def _answer(self, verb: Verb, question: bytes) -> bytes:
        answer = self._exchange(verb, question)
        if answer is None:
            raise FileNotFoundError(self._location)
        return answer


BESIDE_BYTES = 512 << 20
"""Memory on top of twice DuckDB's limit: threads, and lake files that are being read."""
CELL_CHARS_MAX = 1_000
ANSWER_CHARS_MAX = 4 << 20
NICE = 10
_LATE_SECONDS = 10


class PipeWire:
    """The wire to the server that started this process. Thread-safe: one exchange at a time."""

    def __init__(self, parent: Parent, server: pb.HelloAnswer) -> None:
        self.credentials, self.address, self.server, self._parent = NOTHING, "", server, parent

    def greet(self, seconds: float) -> None: ...

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        answer = self.exchange(Verb.CALL, pipe.called(method.name, request.SerializeToString()))
        return method.answer.FromString(answer)

    def send(self, method: rpc.Method, request: Any) -> None:
        """No-op: the end of this process releases everything."""

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        number = self.exchange(Verb.OPEN, pipe.called(method.name, request.SerializeToString())) or b""
        try:
            while (answer := self.exchange(Verb.NEXT, number)) is not None:
                yield method.answer.FromString(answer)
        finally:
            self.exchange(Verb.CLOSE, number)

    def close(self) -> None: ...

    def exchange(self, verb: Verb, question: bytes) -> bytes | None:
        """The server's answer, None for an end; the error that it tells."""
        return next(iter(list(self._parent.ask(verb, question))), None)


def answer_query(wire: PipeWire, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question, in JSON's types."""
    began, rows_max = time.monotonic(), question["rows"]
    query = sql.Query(question["text"], bounds=sql.Bounds(question["bytes"], rows_max + 1))
    transport = transport_of(wire)
    found = sql.run(transport, query, Connection(transport).all)
    table = found.table.slice(0, rows_max)
    rows = json_texts.rows_of(table, CELL_CHARS_MAX)
    room, kept = ANSWER_CHARS_MAX, 0
    for row in rows:
        room -= sum(len(text) for text in row if text) + 8 * len(row)
        if room < 0:
            break
        kept += 1
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
        "rows": rows[:kept],
        "more": kept < found.table.num_rows,
        "token": found.token,
        "seconds": round(time.monotonic() - began, 3),
        "explain": found.explain(),
    }


def _bound(question: dict[str, Any]) -> None:
    signal.alarm(question["seconds"] + _LATE_SECONDS)
    most = _taken() + BESIDE_BYTES + 2 * question["bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    for what in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(what, (0, 0))
    os.nice(NICE)


def _taken() -> int:
    """Address space in use now. Libraries reserve much more than they use."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[5]) * resource.getpagesize() if file.exists() else 1 << 30


def main(parent: Parent, confine: Callable[[], None]) -> None:
    """Answer the one question of the server; `confine` is called before the query's text is read."""

    def answer(_verb: int, question: bytes) -> bytes:
        request = json.loads(question)
        _bound(request)
        confine()
        wire = PipeWire(parent, pb.HelloAnswer.FromString(bytes.fromhex(request["server"])))
        places.use(PipedFiles(wire.exchange))
        cache.use(cache.DerivedCache())  # the next viewer's rights may be fewer
        try:
            return json.dumps(answer_query(wire, request)).encode()
        except MemoryError:
            raise Unavailable("the query needs more memory than it may take: ask for fewer rows or columns") from None

    parent.reply(answer)
    sys.stderr.flush()
    os._exit(0)  # threads of a failed query may still wait for the pipe
