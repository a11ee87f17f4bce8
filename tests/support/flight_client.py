"""A client of the Flight SQL port on the wire: messages of `flight.proto` over grpc, and rows as Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc
import pyarrow as pa

from lakestore.v1 import flight_pb2 as pb
from lakestore_server.access.policy import FLIGHT
from lakestore_server.edge.flight import messages


class FlightClient:
    """A connection. A context manager."""

    def __init__(self, address: str, token: str = "", metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = grpc.insecure_channel(address)
        own = (("authorization", f"Bearer {token}"),) if token else ()
        self.metadata: tuple[tuple[str, str | bytes], ...] = (*metadata, *own)

    def __enter__(self) -> FlightClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, name: str, request: Any, answer: Any) -> Any:
        """The answer to one message; request is a message or bytes."""
        return self.raw(name, _bytes(request), answer).result()

    def raw(self, name: str, data: bytes, answer: Any) -> Any:
        """A call that is under way."""
        return self.channel.unary_unary(f"{FLIGHT}{name}", None, response_deserializer=answer.FromString).future(
            data, metadata=self.metadata, timeout=60
        )

    def stream(self, name: str, request: Any, answer: Any) -> Any:
        """The answers of a stream."""
        return self.channel.unary_stream(f"{FLIGHT}{name}", None, response_deserializer=answer.FromString)(
            _bytes(request), metadata=self.metadata, timeout=60
        )

    def upload(self, parts: Iterable[bytes]) -> Any:
        """The answers to a `DoPut` of these messages."""
        verb = self.channel.stream_stream(f"{FLIGHT}DoPut", None, response_deserializer=pb.PutResult.FromString)
        return verb(iter(parts), metadata=self.metadata, timeout=60)

    def info(self, command: Any) -> pb.FlightInfo:
        """The info of a command."""
        found: pb.FlightInfo = self.call("GetFlightInfo", descriptor(command), pb.FlightInfo)
        return found

    def rows(self, command: Any) -> pa.Table:
        """The rows of a command."""
        return self.redeem(self.info(command).endpoint[0].ticket)

    def redeem(self, ticket: Any) -> pa.Table:
        """The rows of a ticket."""
        return messages.rows_of(self.stream("DoGet", ticket, pb.FlightData))

    def query(self, text: str, transaction: bytes | None = None) -> pa.Table:
        """The rows of a text."""
        return self.rows(pb.CommandStatementQuery(query=text, transaction_id=transaction))

    def act(self, name: str, message: Any = None, *, raw: bool = False) -> list[bytes]:
        """The results of an action."""
        body = b"" if message is None else message.SerializeToString() if raw else messages.any_bytes(message)
        return [each.body for each in self.stream("DoAction", pb.Action(type=name, body=body), pb.Result)]

    def prepare(self, text: str, transaction: bytes | None = None) -> pb.ActionCreatePreparedStatementResult:
        """A prepared statement."""
        asked = pb.ActionCreatePreparedStatementRequest(query=text, transaction_id=transaction)
        (body,) = self.act("CreatePreparedStatement", asked)
        found: pb.ActionCreatePreparedStatementResult = messages.command_of(body).message
        return found

    def bind(self, handle: bytes, rows: pa.Table) -> None:
        """Bind parameters to a prepared statement."""
        list(self.upload(put(pb.CommandPreparedStatementQuery(prepared_statement_handle=handle), rows)))


def descriptor(command: Any) -> pb.FlightDescriptor:
    """The descriptor of a command."""
    return pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=messages.any_bytes(command))


def put(command: Any, rows: pa.Table) -> Iterator[bytes]:
    """The messages of a `DoPut`: the descriptor stands in the first one."""
    first = True
    for data in messages.table_data(rows):
        part = pb.FlightData.FromString(data)
        if first:
            part.flight_descriptor.CopyFrom(descriptor(command))
            first = False
        yield part.SerializeToString()


def _bytes(request: Any) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
