"""The process that answers queries: SQL over union reads, through the server's pipe.

1. It has no connection, token or store key. Each call goes over the pipe to the server, which checks the caller's
rights and reads lake files for it.
2. Its memory and time are bounded, and the operating system confines it, before it reads the first question.
3. All its questions come from one principal. What it keeps in memory between two questions is of that principal.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from lakestore.client.calls import transport_of
from lakestore.client.connection import Connection
from lakestore.client.credentials import NOTHING
from lakestore.errors import Invalid, LimitReached
from lakestore.iceberg import cache, places
from lakestore.iceberg.sized_file import SizedFile
from lakestore.rows import json_texts
from lakestore.union import sql, sql_parameters
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe, rpc
from lakestore.wire.pipe import Verb
from lakestore.wire.row_messages import RowMessage, reader_of
from lakestore_server.host import priority
from lakestore_server.host.child import INTERRUPT, PartPieces
from lakestore_server.queries.memory_watch import MemoryWatch, too_much
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.postgres import carets, dialect, types
from lakestore_server.queries.postgres.catalog import SERVER_ROLE, Session
from lakestore_server.queries.postgres.rows import CopyBinary, CopyText, DataRows, RowEncoder
from lakestore_server.queries.question import (
    INTERRUPTED,
    PART_BYTES,
    Ask,
    Bounds,
    Description,
    Dialect,
    Figures,
    Form,
    Head,
    Part,
    Question,
)
from lakestore_server.queries.sent_rows import ReceivedRows

Exchange = Callable[[Verb, bytes], bytes | None]


class Parent(Protocol):
    """The server that started this process: `Parent` of `host/child.py`."""

    def reply(self, answer: Callable[[int, bytes], bytes | PartPieces]) -> bool:
        """Answer a question of the server. False if there is none any more."""

    def ask(self, verb: int, question: bytes = b"") -> Generator[bytes]:
        """The parts of the server's answer to a question of this process."""

    def working(self) -> None:
        """Tell that the answer takes its time."""


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
        data = self._answer(Verb.READ, pipe.FILE_PART.pack(at, size) + self._location.encode())
        if len(data) != size:
            raise OSError(f"file {self._location} ends before byte {at + size}")
        return data

    def _answer(self, verb: Verb, question: bytes) -> bytes:
        answer = self._exchange(verb, question)
        if answer is None:
            raise FileNotFoundError(self._location)
        return answer


class PipedReaders(Mapping[str, Sequence[str]]):
    """Each principal and its patterns of tables that it may read. The server is asked when a text first needs them."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @cached_property
    def _patterns(self) -> dict[str, list[str]]:
        answer: dict[str, list[str]] = json.loads(self._exchange(Verb.READERS, b"") or b"{}")
        return answer

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._patterns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._patterns)

    def __len__(self) -> int:
        return len(self._patterns)


BESIDE_PART_BYTES = 1 << 10
"""Upper bound of a part's bytes before its rows."""
CELL_CHARS_MAX = 1_000
ANSWER_CHARS_MAX = 4 << 20
_LATE_SECONDS = 10
_REHEARSAL_BYTES = 256 << 20
_OUT_OF_MEMORY = "Out of Memory Error"
"""The begin of DuckDB's sentence."""


INTERRUPT_AGAIN_SECONDS = 0.05


class Interrupt:
    """The server's request to end an answer early. A thread passes it to DuckDB, in which the main thread may be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self.is_asked = False
        """Whether the answer under way is to end."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(INTERRUPT, lambda *_: None)
        threading.Thread(target=self._pass_on, args=(reader,), daemon=True).start()

    def started(self, stop: Callable[[], None]) -> None:
        """DuckDB begins; `stop` interrupts it from any thread."""
        with self._lock:
            self._stop = stop

    def ask(self) -> None:
        """Interrupt the question under way from within this process."""
        with self._lock:
            self.is_asked = True
            if self._stop is not None:
                with suppress(sql.load_engine().Error):
                    self._stop()

    def end(self) -> bool:
        """End a question: whether it was interrupted. A request that comes now would meet the next question, so the
        server ends the process if it has sent one and gets another end.
        """
        with self._lock:
            was_asked, self.is_asked, self._stop = self.is_asked, False, None
        return was_asked

    def _pass_on(self, reader: int) -> None:
        while os.read(reader, 1):
            self.is_asked = True
            while self.is_asked:  # DuckDB forgets an interrupt that comes just before a query begins
                with self._lock:
                    if self._stop is not None:
                        with suppress(sql.load_engine().Error):  # a connection that ends at this moment
                            self._stop()
                time.sleep(INTERRUPT_AGAIN_SECONDS)


class PipeWire:
    """The wire to the server that started this process. Thread-safe: one exchange at a time."""

    def __init__(self, parent: Parent, server: pb.HelloAnswer, interrupt: Interrupt) -> None:
        self.credentials, self.address, self.server, self._parent = NOTHING, "", server, parent
        self.interrupt = interrupt
        self.received = ReceivedRows()
        self._is_over = False

    def greet(self, seconds: float) -> None: ...

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        answer = self.exchange(Verb.CALL, pipe.called(method.name, request.SerializeToString()))
        return method.answer.FromString(answer)

    def send(self, method: rpc.Method, request: Any) -> None:
        """No-op: the server releases the leases of a question when it is over, also if this process dies."""

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        number = self.exchange(Verb.OPEN, pipe.called(method.name, request.SerializeToString())) or b""
        try:
            while (answer := self._next(method, number)) is not None:
                yield answer
        finally:
            if not self._is_over:
                self.exchange(Verb.CLOSE, number)

    def _next(self, method: rpc.Method, number: bytes) -> Any:
        """The next answer of a stream, noted in the order of the server; None at the end."""
        message = None
        with closing(self._parent.ask(Verb.NEXT, number)) as answers:  # holds the pipe's lock until its end
            for answer in answers:
                message = reader_of(method)(answer)
                self.received.put(message if isinstance(message, RowMessage) else None)
        return message

    def close(self) -> None:
        """The question is answered: the server has closed its streams."""
        self._is_over = True

    def exchange(self, verb: Verb, question: bytes) -> bytes | None:
        """The server's answer, None for an end; the error that it tells."""
        return next(iter(list(self._parent.ask(verb, question))), None)


def answered(wire: PipeWire, question: Question, bounds: Bounds) -> PartPieces:
    """The head of an answer, its parts, and its figures."""
    began = time.monotonic()
    transport = transport_of(wire)
    tables = Connection(transport)
    query = replace(_query(wire, question, bounds, tables), started=wire.interrupt.started)
    with _placed(question, query), sql.stream(transport, query, tables.all) as rows:
        schema, batches = _typed(query, question, rows)
        yield Head(schema, rows.token).to_bytes()
        count, has_more = 0, False
        room, encoder = ANSWER_CHARS_MAX, _encoder(question, schema)
        if encoder is not None and (start := encoder.start()):
            yield Part.head(0) + start
        for batch in batches:
            kept = batch if question.rows_max is None else batch.slice(0, question.rows_max - count)
            has_more = kept.num_rows < batch.num_rows
            if question.form is Form.TEXTS:
                texts = json_texts.rows_of(kept, CELL_CHARS_MAX)
                number, room = _fitting(texts, room)
                has_more = has_more or number < kept.num_rows
                yield Part.head(number) + json.dumps(texts[:number]).encode()
                count += number
            elif encoder is not None:
                for number, data in encoder.parts(kept, PART_BYTES):
                    count += number
                    yield Part.head(number), _sendable(memoryview(data))
            else:
                for piece in _pieces(kept):
                    count += piece.num_rows
                    place = wire.received.place(piece)
                    head = Part.head(piece.num_rows, place)
                    yield head if place.message else (head, _sendable(memoryview(piece.serialize())))
            if has_more or wire.interrupt.is_asked:
                break
        if encoder is not None and (end := encoder.end()):
            yield Part.head(0) + end
        return Figures(count, has_more, rows.explain(), round(time.monotonic() - began, 3)).to_bytes()


def described(wire: PipeWire, question: Question, bounds: Bounds) -> bytes:
    """The types of a text, which is not run."""
    transport = transport_of(wire)
    tables = Connection(transport)
    query = _query(wire, question, bounds, tables)
    with _placed(question, query):
        kinds, columns = (_sent_schema(query, question, each) for each in sql.describe(transport, query, tables.all))
    return Description(tuple(kinds.types), columns).to_bytes()


def _sent_schema(query: sql.Query, question: Question, schema: pa.Schema) -> pa.Schema:
    """The schema with the types that only the catalog has, if the query may have them. Drivers of Flight get an enum as
    the type of its values: one message of a stream cannot carry a dictionary."""
    if query.extra.has_catalog_types:
        return pa.schema([field.with_type(types.of_catalog(field.type)) for field in schema])
    if question.dialect is Dialect.DUCKDB:
        return pa.schema([field.with_type(_without_dictionaries(field.type)) for field in schema])
    return schema


def _without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """The type with each dictionary replaced by the type of its values."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_dictionaries(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_dictionaries(field.type)) for field in kind])
    return kind


def _typed(query: sql.Query, question: Question, rows: sql.SqlStream) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """The schema and batches of a result with the types that are sent."""
    schema = _sent_schema(query, question, rows.schema)
    if schema == rows.schema:
        return schema, rows.batches
    if query.extra.has_catalog_types:
        return schema, (
            pa.record_batch(list(map(types.as_catalog, batch.columns)), schema=schema) for batch in rows.batches
        )
    return schema, (batch.cast(schema) for batch in rows.batches)


def _query(wire: PipeWire, question: Question, bounds: Bounds, tables: Connection) -> sql.Query:
    given, text, extra, search_path = question.parameters, question.text, sql.Extra(), question.search_path
    if question.dialect is Dialect.POSTGRES:
        user = question.user or SERVER_ROLE
        readers = PipedReaders(wire.exchange) if bounds.knows_readers else None
        readable = tuple(bounds.readable)
        session = Session(user, question.database, question.search_path, readable=readable, readers=readers)
        text, extra = dialect.translated(sql.load_engine(), question.text, tables, session)
        search_path = ()  # the translation has looked the names up
    rows_max = None if question.rows_max is None else question.rows_max + 1
    return sql.Query(
        text,
        [_python_value(each) for each in given] if given else None,
        question.at or None,
        question.require,
        bounds=sql.Bounds(bounds.memory_bytes, rows_max),
        zone=question.zone,
        is_lossless=question.dialect is Dialect.POSTGRES,
        has_origins=question.dialect is Dialect.POSTGRES,
        search_path=search_path,
        extra=extra,
        kinds=[sql_parameters.sql_type(each.kind, has_value=not each.column.null_count) for each in given],
    )


def _placed(question: Question, query: sql.Query) -> AbstractContextManager[None]:
    """Gives errors their place in the question's text, which a driver of Postgres shows."""
    return carets.placed(question.text, query.text) if question.dialect is Dialect.POSTGRES else nullcontext()


def _python_value(parameter: Parameter) -> Any:
    """The value of a parameter as DuckDB takes it."""
    value = parameter.value
    if pa.types.is_interval(parameter.kind) and value is not None:
        months, days, nanos = value
        return f"{months} months {days} days {nanos // 1_000} microseconds"
    return value


def _encoder(question: Question, schema: pa.Schema) -> RowEncoder | None:
    """The encoder of a form of Postgres; None for another form."""
    if question.form is Form.ROWS:
        return DataRows(schema, question.binary, question.zone)
    if question.form is Form.COPY_BINARY:
        return CopyBinary()
    if question.form in (Form.COPY_TEXT, Form.COPY_CSV):
        return CopyText(schema, question.copy, question.zone)
    return None


def _fitting(rows: json_texts.Cells, room: int) -> tuple[int, int]:
    """The number of rows of texts for which there is room, and the room behind them."""
    for number, row in enumerate(rows):
        room -= sum(len(text) for text in row if text) + 8 * len(row)
        if room < 0:
            return number, 0
    return len(rows), room


def _sendable(data: memoryview) -> memoryview:
    """The bytes of a part. Raises `LimitReached` for a row that the server would not take."""
    most = pipe.ASKED_BYTES_MAX - BESIDE_PART_BYTES
    if data.nbytes > most:
        raise LimitReached(f"a row has {data.nbytes:,} bytes, the most is {most:,}: ask for fewer or shorter columns")
    return data


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of `PART_BYTES`, or of one row."""
    if batch.num_rows <= 1 or batch.nbytes <= PART_BYTES:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _bound(bounds: Bounds, memory: MemoryWatch) -> None:
    """Limits that last as long as the process."""
    memory.bound(bounds.memory_bytes)
    for what in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(what, (0, 0))
    os.nice(priority.NICE)  # the share of a duty: commits come first, and people who wait before merges


def _rehearse(parent: Parent, interrupt: Interrupt) -> None:
    """Answer a question that nobody has asked: the first one of a server would take three times as long."""
    hello = pb.HelloAnswer(protocol_min=rpc.PROTOCOL_MIN, protocol=rpc.PROTOCOL)
    question = Question("SELECT 1 AS n", dialect=Dialect.POSTGRES, form=Form.ROWS)
    with suppress(Invalid):  # DuckDB is not installed: the query says so
        for _ in answered(PipeWire(parent, hello, interrupt), question, Bounds(_LATE_SECONDS, _REHEARSAL_BYTES, "")):
            pass
    interrupt.end()


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, DuckDB or Arrow could not allocate something."""
    cause = error.__cause__
    if isinstance(error, MemoryError) or isinstance(cause, sql.load_engine().OutOfMemoryException):
        return True
    return isinstance(cause, OSError) and str(cause).startswith(_OUT_OF_MEMORY)  # while results are streamed


def main(parent: Parent, confine: Callable[[], None]) -> None:
    """Answer questions until the server has no more; `confine` is called before the first text is read."""
    sql.preload()
    dialect.preload()
    is_confined, interrupt = False, Interrupt()
    memory = MemoryWatch(interrupt.ask)
    _rehearse(parent, interrupt)

    def answer(verb: int, data: bytes) -> PartPieces:
        nonlocal is_confined
        question, bounds = Question.from_bytes(data)
        if not is_confined:
            parent.working()  # from now on the server may interrupt
            _bound(bounds, memory)
            confine()
            cache.use(cache.DerivedCache())  # of this process alone: the next principal's rights may be fewer
            is_confined = True
        signal.alarm(bounds.seconds + _LATE_SECONDS)
        wire = PipeWire(parent, pb.HelloAnswer.FromString(bytes.fromhex(bounds.hello)), interrupt)
        places.use(PipedFiles(wire.exchange))
        memory.begin()
        try:
            if verb == Ask.DESCRIBE:
                end = described(wire, question, bounds)
            else:
                end = yield from answered(wire, question, bounds)
        except Exception as error:  # an interrupt makes errors of many kinds
            is_too_much = memory.end() or _is_out_of_memory(error)
            was_interrupted = interrupt.end()
            if is_too_much:
                raise too_much() from None
            if was_interrupted:
                return INTERRUPTED
            raise
        finally:
            wire.close()
            signal.alarm(0)
        is_too_much, was_interrupted = memory.end(), interrupt.end()
        if is_too_much:
            raise too_much()
        return INTERRUPTED if was_interrupted else end

    while parent.reply(answer):
        pa.default_memory_pool().release_unused()
    sys.stderr.flush()
    os._exit(0)  # threads of a failed query may still wait for the pipe
