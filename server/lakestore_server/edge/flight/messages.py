"""Messages of Flight as bytes: IPC messages as `FlightData`, commands in an `Any`. Values in, values out.

- A `FlightData` has one IPC message: its header and its body, which follows the header's fields.
- A command is an `Any` whose type ends in the name of a message of `flight.proto`.
- Malformed bytes are `Invalid`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError

from lakestore.errors import Invalid
from lakestore.model.varint import varint
from lakestore.rows.literals import short
from lakestore.v1 import flight_pb2 as pb

PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
"""The beginning of the type of each Flight SQL message in an `Any`."""
_HEADER_TAG, _BODY_TAG = b"\x12", b"\xc2\x3e"
"""`data_header` (field 2) and `data_body` (field 1000) on the wire, both with a length."""
_CONTINUATION = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class Command:
    """A message in an `Any`."""

    name: str
    """The name without its package."""
    message: Any
    """The message, or None if this server does not know the name."""


def command_of(data: bytes) -> Command:
    """The command in the bytes of a descriptor, a ticket or an action."""
    try:
        packed = any_pb2.Any.FromString(data)
    except DecodeError:
        raise Invalid(f"{len(data):,} bytes are no command of Flight SQL: an Any is expected") from None
    if not packed.type_url.startswith(PREFIX):
        raise Invalid(f"{packed.type_url[:100]!r} is no command of Flight SQL")
    name = packed.type_url.removeprefix(PREFIX)
    kind = getattr(pb, name, None) if name.isalnum() else None
    if kind is None or not hasattr(kind, "FromString"):
        return Command(name, None)
    try:
        return Command(name, kind.FromString(packed.value))
    except DecodeError:
        raise Invalid(f"{len(packed.value):,} bytes are no {name}") from None


def any_bytes(message: Any) -> bytes:
    """A message in an `Any`, as bytes."""
    return any_pb2.Any(type_url=PREFIX + message.DESCRIPTOR.name, value=message.SerializeToString()).SerializeToString()


def schema_bytes(schema: pa.Schema) -> bytes:
    """A schema as one IPC message, the form that `FlightInfo` and prepared statements have."""
    data: bytes = schema.serialize().to_pybytes()
    return data


def data_of(part: bytes | pa.Buffer) -> Iterator[bytes]:
    """The `FlightData` of each IPC message in the bytes. A body is copied once, as bytes."""
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(part)):
        header, body = message.metadata, message.body
        size = 0 if body is None else body.size
        begin = (_HEADER_TAG, varint(header.size), header, _BODY_TAG, varint(size))
        yield b"".join((*begin, body) if size else begin)


def table_data(table: pa.Table) -> Iterator[bytes]:
    """Schema and rows of a small table as `FlightData`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return data_of(sink.getvalue())


def rows_of(parts: Iterable[pb.FlightData]) -> pa.Table:
    """The rows that a client sent as `FlightData`; `Invalid` for anything else."""
    stream = bytearray()
    for part in parts:
        header = part.data_header
        if not header:
            continue  # metadata alone
        padding = -len(header) % 8
        stream += _CONTINUATION + (len(header) + padding).to_bytes(4, "little") + header + bytes(padding)
        stream += part.data_body + bytes(-len(part.data_body) % 8)
    try:
        with pa.ipc.open_stream(pa.BufferReader(bytes(stream))) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Invalid(f"the rows that were sent are no Arrow stream: {short(' '.join(str(error).split()))}") from error
    return table
