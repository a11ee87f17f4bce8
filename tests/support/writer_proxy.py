"""A Postgres port that seems to take writes, for strangers' tests that make their own tables.

- Statements that write go to a PostgreSQL, all others to the port. A batch is cut where its statements change sides.
- Before the next statement that reads, every table of PostgreSQL's schema `public` that has changed is put into the
  lake by the client, without the columns whose types the lake does not have.
- A write commits at once: BEGIN and ROLLBACK go to the port alone.
- A temporary table is a table that is dropped when its session ends.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Self

import psycopg
import pyarrow as pa
from psycopg import sql

import lakestore as ls
from tests.support import postgres_wire as wire
from tests.support.postgres import DATABASE, USER, Postgres

_WRITES = re.compile(
    rb"\s*(create|insert|update|delete|drop|alter|comment|grant|revoke|truncate|vacuum|analyze|do|call|lock|merge"
    rb"|refresh|reindex|copy\s.*\sfrom|select\s+lo_|select\s+nextval|select\s+set_config)\b",
    re.IGNORECASE | re.DOTALL,
)
_TEMPORARY = re.compile(
    rb"(create\s+)(?:local\s+|global\s+)?temp(?:orary)?\s+(table\s+(?:if\s+not\s+exists\s+)?([\w$]+|\"[^\"]+\"))",
    re.IGNORECASE,
)
_TYPES = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "float4": pa.float32(),
    "float8": pa.float64(), "text": pa.string(), "varchar": pa.string(), "bpchar": pa.string(), "bytea": pa.binary(),
    "date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"), "numeric": pa.decimal128(38, 10),
}  # fmt: skip
_COLUMNS = """
SELECT c.relname, a.attname, t.typname, a.atttypmod, a.attnotnull,
    coalesce(a.attnum = ANY((SELECT conkey FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p')::int2[]), false)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""


class WriterProxy:
    """The proxy. A context manager."""

    def __init__(self, lake: ls.Lake, port: int, real: Postgres) -> None:
        """`port` is the Postgres port's. A database of the lake is `public`."""
        self.lake, self.door, self.real = lake, port, real
        self.refused: dict[str, str] = {}
        """Tables that have no form in the lake, and why."""
        self._lock = threading.Lock()
        self._is_stale = False
        self._tables: dict[str, Any] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            _Session(self, client).run()

    def write(self) -> None:
        """PostgreSQL's tables have changed, or may have."""
        self._is_stale = True

    def carry(self) -> None:
        """Put the tables that have changed into the lake."""
        with self._lock:
            if not self._is_stale:
                return
            self._is_stale = False
            about = {"host": "127.0.0.1", "port": self.real.port, "user": USER, "dbname": DATABASE}
            with psycopg.connect(**about, autocommit=True) as connection:  # type: ignore[arg-type]
                columns: dict[str, list[tuple[Any, ...]]] = {}
                for name, *column in connection.execute(_COLUMNS):
                    columns.setdefault(name, []).append(tuple(column))
                for name in self._tables.keys() - columns.keys():
                    self._drop(name)
                for name, about_columns in columns.items():
                    self._put(connection, name, about_columns)

    def _drop(self, name: str) -> None:
        if self._tables.pop(name) is not None:
            self.lake.drop_table(f"public.{name}")

    def _put(self, connection: psycopg.Connection[Any], name: str, columns: Sequence[tuple[Any, ...]]) -> None:
        try:
            columns = [column for column in columns if column[1].removeprefix("_") in _TYPES]
            schema = pa.schema([_field(*column[:4]) for column in columns])
            names = sql.SQL(", ").join(sql.Identifier(column[0]) for column in columns)
            rows = connection.execute(sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(name))).fetchall()
            data = pa.table([_array(rows, place, field) for place, field in enumerate(schema)], schema=schema)
        except (psycopg.Error, pa.ArrowException, ArithmeticError, ValueError) as error:
            self.refused[name] = f"{type(error).__name__}: {error}"
            if name in self._tables:
                self._drop(name)
            return
        keys = [column[0] for column in columns if column[4]]
        old = self._tables.get(name)
        if old is not None and old[1] == keys and old[0].schema == schema and old[0].equals(data):
            return
        if old is not None:
            self._drop(name)
        try:
            table = self.lake.create_table(f"public.{name}", schema, primary_key=keys)
        except ls.LakestoreError as error:
            self.refused[name] = str(error)
            return
        if len(data):
            (table.upsert if keys else table.append)(data)
        self._tables[name] = data, keys

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _field(name: str, kind: str, modifier: int, is_required: bool) -> pa.Field:
    is_list = kind.startswith("_")
    element = _TYPES[kind.removeprefix("_")]
    if kind == "numeric" and modifier >= 0:
        element = pa.decimal128((modifier - 4) >> 16, (modifier - 4) & 0x7FF)
    return pa.field(name, pa.list_(element) if is_list else element, nullable=not is_required)


def _array(rows: Sequence[tuple[Any, ...]], place: int, field: pa.Field) -> pa.Array:
    values = [row[place] for row in rows]
    if pa.types.is_decimal(field.type):
        digits = Decimal(1).scaleb(-field.type.scale)
        values = [None if value is None else value.quantize(digits) for value in values]
    return pa.array(values, field.type)


class _Wire:
    """Messages of one socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket, self._data = connected, b""

    def exactly(self, count: int) -> bytes:
        while len(self._data) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self._data += more
        found, self._data = self._data[:count], self._data[count:]
        return found

    def message(self) -> bytes:
        head = self.exactly(5)
        return head + self.exactly(struct.unpack("!i", head[1:])[0] - 4)

    def start(self) -> bytes:
        head = self.exactly(4)
        return head + self.exactly(struct.unpack("!i", head)[0] - 4)

    def until_ready(self) -> Iterator[bytes]:
        """Messages up to ReadyForQuery or CopyInResponse."""
        while True:
            found = self.message()
            yield found
            if found[:1] in (b"Z", b"G"):
                return


class _Session:
    """One client with its two servers."""

    def __init__(self, proxy: WriterProxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, _Wire(client)
        self._writing: dict[bytes, bool] = {}
        """Whether a statement (`S` and its name) or a portal (`P` and its name) writes."""
        self._temporary: list[bytes] = []

    def run(self) -> None:
        start = self._client.start()
        while start[4:8] in (wire.TLS[4:8], wire.GSS[4:8]):
            self._client.socket.sendall(b"N")
            start = self._client.start()
        with socket.create_connection(("127.0.0.1", self._proxy.door)) as door:
            door.sendall(start)
            if start[4:8] == wire.cancel(0, b"")[4:8]:
                return
            self._door = _Wire(door)
            with socket.create_connection(("127.0.0.1", self._proxy.real.port)) as real:
                self._real = _Wire(real)
                real.sendall(wire.start(USER, database=DATABASE))
                list(self._real.until_ready())
                while (message := self._door.message())[:1] != b"Z":
                    client_password = message[:1] == b"R" and message[5:9] != b"\0\0\0\0"
                    self._client.socket.sendall(message)
                    if client_password:
                        door.sendall(self._client.message())
                self._client.socket.sendall(message)
                self._status = message
                try:
                    self._talk()
                finally:
                    self._drop_temporary()

    def _drop_temporary(self) -> None:
        if self._temporary:
            self._real.socket.sendall(wire.query(f"DROP TABLE IF EXISTS {b', '.join(self._temporary).decode()}"))
            list(self._real.until_ready())
            self._proxy.write()

    def _talk(self) -> None:
        batch: list[bytes] = []
        while True:
            message = self._client.message()
            kind = message[:1]
            if kind == b"X":
                return
            batch.append(message)
            if kind in (b"S", b"Q", b"H"):
                self._answer(batch)
                batch = []

    def _answer(self, batch: list[bytes]) -> None:
        is_over = batch[-1][:1] != b"H"
        parts: list[tuple[bool, list[bytes]]] = []
        for message in batch if batch[-1][:1] == b"Q" else batch[:-1]:
            message, writes = self._side(message)
            if not parts or parts[-1][0] != writes:
                parts.append((writes, []))
            parts[-1][1].append(message)
        for place, (writes, messages) in enumerate(parts or [(False, [])]):
            failed = self._send(writes, messages, is_last=is_over and place >= len(parts) - 1)
            if failed and is_over:
                break
        if is_over:
            self._client.socket.sendall(self._status)

    def _side(self, message: bytes) -> tuple[bytes, bool]:
        """The message as it is sent on, and whether it writes."""
        kind, body = message[:1], message[5:]
        if kind in (b"Q", b"P"):
            name, text = (b"", body) if kind == b"Q" else tuple(body.split(b"\0", 1))
            writes = bool(_WRITES.match(text))
            if writes:
                self._temporary += [match[3] for match in _TEMPORARY.finditer(body)]
                body = _TEMPORARY.sub(rb"\1\2", body)
                message = kind + struct.pack("!i", len(body) + 4) + body
            self._writing[b"S" + name] = writes
            return message, writes
        if kind == b"B":
            portal, statement, _ = body.split(b"\0", 2)
            self._writing[b"P" + portal] = self._writing.get(b"S" + statement, False)
            return message, self._writing[b"P" + portal]
        if kind in (b"D", b"C"):
            return message, self._writing.get(body.rstrip(b"\0"), False)
        return message, kind == b"E" and self._writing.get(b"P" + body.split(b"\0", 1)[0], False)

    def _send(self, writes: bool, messages: Sequence[bytes], *, is_last: bool) -> bool:
        """Send a part of a batch and pass its answers on but ReadyForQuery. Whether it failed."""
        if writes:
            self._proxy.write()
        else:
            self._proxy.carry()
        server = self._real if writes else self._door
        is_simple = messages and messages[0][:1] == b"Q"
        server.socket.sendall(b"".join(messages) + (b"" if is_simple else wire.SYNC))
        failed = False
        for answer in server.until_ready():
            kind = answer[:1]
            if kind == b"Z":
                if not writes:
                    self._status = answer
                return failed
            failed = failed or kind == b"E"
            self._client.socket.sendall(answer)
            if kind == b"G":
                self._copy_in(server)
                for answer in server.until_ready():
                    if answer[:1] != b"Z":
                        self._client.socket.sendall(answer)
        return failed

    def _copy_in(self, server: _Wire) -> None:
        while True:
            message = self._client.message()
            server.socket.sendall(message)
            if message[:1] in (b"c", b"f"):
                return
