"""The values that cross the pipe between the server and a query's process, as bytes.

1. The server writes a `Question` and reads what comes back. It trusts none of the bytes of a process: every reader here
   raises `ValueError` for bytes that are not its value.
2. An answer begins with a head (schema and token), continues with parts, and ends with figures.
3. A part is one Arrow IPC message, or bytes of the form that was asked for, behind its number of rows and their place.
   With a place in a message of the server it has no bytes (`sent_rows.py`).
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from enum import Enum, IntEnum
from typing import Any, Self

import pyarrow as pa

from lakestore.errors import Exhausted
from lakestore.model.alteration import Requirement
from lakestore_server.queries.parameter import Parameter, parameters_of, row_of
from lakestore_server.queries.postgres.rows import CopyOptions
from lakestore_server.queries.sent_rows import NOWHERE, PLACE_BYTES, Place

READS_ONLY = "this port only reads, so write by the Python client, `lakestore write`, Spark or the Kafka bridge"
"""The end of the error for a statement that writes."""
INTERRUPTED = b""
"""The end of an answer that the server has interrupted. The process is ready for its next question."""
PART_BYTES = 1 << 20
"""Bytes of a part, unless one row has more."""
_SIZE = struct.Struct("<I")
_ROWS = _SIZE
_TYPES_MAX = 1 << 16


class Ask(IntEnum):
    """The verbs of the server's questions."""

    RUN = 0
    DESCRIBE = 1


class Dialect(Enum):
    """The dialect of a text, and the catalog that it sees."""

    DUCKDB = "duckdb"
    POSTGRES = "postgres"


class Form(Enum):
    """The bytes of a part."""

    ARROW = "arrow"
    """One IPC message with a record batch without dictionaries."""
    TEXTS = "texts"
    """JSON: rows of cells as texts, shortened for a page."""
    ROWS = "rows"
    """DataRow messages of Postgres."""
    COPY_TEXT = "copy_text"
    COPY_CSV = "copy_csv"
    COPY_BINARY = "copy_binary"


class Cancelled(Exhausted):
    """The query was ended before its answer was complete: cancelled, out of time, or its reader left."""


@dataclass(frozen=True, slots=True)
class Question:
    """One text, and how to answer it."""

    text: str
    parameters: tuple[Parameter, ...] = ()
    """The values of `$1`, `$2`, …"""
    at: str = ""
    """A token or a time; empty for the newest commit."""
    require: Requirement | None = None
    dialect: Dialect = Dialect.DUCKDB
    search_path: tuple[str, ...] = ()
    """Databases of the lake in which names without a database are looked up."""
    user: str = ""
    """The name of the principal that the catalog of Postgres shows."""
    database: str = "lake"
    """The name of the connection's database of Postgres."""
    form: Form = Form.ARROW
    binary: tuple[bool, ...] = ()
    """For ROWS: whether each column is binary. One entry holds for all columns; none means text."""
    rows_max: int | None = None
    zone: str = "UTC"
    """Time zone of a Postgres session: the text reads times without a zone in it, and texts of rows show it."""
    copy: CopyOptions = field(default_factory=CopyOptions)
    """Options of COPY_TEXT and COPY_CSV."""

    def to_bytes(self, bounds: Bounds) -> bytes:
        """The question for a process."""
        said = {
            "text": self.text,
            "at": self.at,
            "require": asdict(self.require) if self.require else None,
            "dialect": self.dialect.value,
            "search_path": self.search_path,
            "user": self.user,
            "database": self.database,
            "form": self.form.value,
            "binary": self.binary,
            "rows_max": self.rows_max,
            "zone": self.zone,
            "copy": asdict(self.copy),
            "bounds": asdict(bounds),
        }
        return _joined(said, _stream_of(row_of(self.parameters)) if self.parameters else b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[Self, Bounds]:
        """The question and its bounds, in the process."""
        said, rest = _parted(data)
        bounds = Bounds(**said.pop("bounds"))
        said["require"] = Requirement(**said["require"]) if said["require"] else None
        said |= {"dialect": Dialect(said["dialect"]), "form": Form(said["form"])}
        said |= {name: tuple(said[name]) for name in ("search_path", "binary")}
        said["copy"] = CopyOptions(**said["copy"] | {"quoted": tuple(said["copy"]["quoted"])})
        parameters = parameters_of(pa.ipc.open_stream(rest).read_next_batch()) if len(rest) else ()
        return cls(parameters=parameters, **said), bounds


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a question, and the server's greeting, which a client would get by the RPC `Hello`."""

    seconds: int
    memory_bytes: int
    hello: str
    """A `HelloAnswer` in hexadecimal."""
    readable: tuple[str, ...] = ()
    """Patterns of the tables that the caller may read, for the catalog of Postgres. RPCs check rights themselves."""
    knows_readers: bool = False
    """Whether the caller may know the same of each principal. The process asks for it if the text needs it."""


@dataclass(frozen=True, slots=True)
class Description:
    """The parameters and columns of a text."""

    parameters: tuple[pa.DataType, ...] = ()
    """The types of `$1`, `$2`, …; a text whose use of a parameter tells nothing takes a string."""
    schema: pa.Schema | None = None
    """None if the statement returns no rows."""

    def to_bytes(self) -> bytes:
        """The description for the server."""
        fields = [pa.field(f"p{number}", kind) for number, kind in enumerate(self.parameters)]
        parameters = pa.schema(fields).serialize().to_pybytes()
        schema = b"" if self.schema is None else self.schema.serialize().to_pybytes()
        return _joined({"parameters": len(parameters)}, parameters + schema)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises `ValueError`."""
        said, rest = _parted(data)
        size = int(said["parameters"])
        parameters = pa.ipc.read_schema(pa.py_buffer(rest[:size]))
        schema = pa.ipc.read_schema(pa.py_buffer(rest[size:])) if len(rest) > size else None
        return cls(tuple(parameters.types), schema)


@dataclass(frozen=True, slots=True)
class Head:
    """The begin of an answer, before its first part."""

    schema: pa.Schema
    token: str
    notices: tuple[str, ...] = ()
    """Sentences for the user, such as a type that crosses as text."""

    def to_bytes(self) -> bytes:
        """The head for the server."""
        said = {"token": self.token, "notices": self.notices}
        return _joined(said, self.schema.serialize().to_pybytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises `ValueError`."""
        said, rest = _parted(data)
        schema = pa.ipc.read_schema(pa.py_buffer(rest))
        return cls(schema, str(said["token"]), tuple(map(str, said["notices"])))


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows."""

    rows: int
    data: memoryview
    place: Place = NOWHERE
    """Where the rows are, if not in `data`."""

    @staticmethod
    def head(rows: int, place: Place = NOWHERE) -> bytes:
        """The bytes before `data`."""
        return _ROWS.pack(rows) + place.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Raises `ValueError`."""
        view = memoryview(data)
        if len(view) < _ROWS.size:
            raise ValueError("a part without its number of rows")
        place = Place.from_bytes(view[_ROWS.size :])
        return cls(_ROWS.unpack_from(view)[0], view[_ROWS.size + PLACE_BYTES :], place)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of a part of the form ARROW. Raises `ValueError` if a process has sent other bytes.

        `validate` keeps a hostile process from naming bytes outside its message.
        """
        batch = pa.ipc.read_record_batch(pa.py_buffer(self.data), schema)
        batch.validate()
        return batch


@dataclass(frozen=True, slots=True)
class Figures:
    """The end of an answer, after its last part."""

    rows: int = 0
    has_more: bool = False
    """Whether the query has more rows than `rows_max`, or than a page holds."""
    explain: str = ""
    seconds: float = 0.0

    def to_bytes(self) -> bytes:
        """The figures for the server."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises `ValueError`."""
        said = json.loads(data)
        if not isinstance(said, dict):
            raise ValueError("figures that are no JSON object")
        return cls(int(said["rows"]), bool(said["has_more"]), str(said["explain"]), float(said["seconds"]))


def _joined(said: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(said).encode()
    return _SIZE.pack(len(text)) + text + rest


def _parted(data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) < _SIZE.size:
        raise ValueError("a message without a length")
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    said = json.loads(data[_SIZE.size : end])
    if not isinstance(said, dict):
        raise ValueError("a message that is no JSON object")
    return said, data[end:]


def _stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
