"""The wire's methods as both ends see them, read from the proto file's descriptor; errors as metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory

from lakestore import limits
from lakestore.errors import LakestoreError, Unavailable, error_of
from lakestore.v1 import lakestore_pb2

ERROR_KEY = "lakestore-error-bin"
SERVICE = "lakestore.v1.Lakestore"
OPTIONS = [
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
]


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC."""

    name: str
    """As in the proto file."""
    attribute: str
    """The same in snake case."""
    request: Any
    answer: Any
    streams_in: bool
    streams_out: bool

    @property
    def path(self) -> str:
        """The RPC's path on the wire."""
        return f"/{SERVICE}/{self.name}"


def methods() -> Iterator[Method]:
    """Every RPC of the service."""
    for method in lakestore_pb2.DESCRIPTOR.services_by_name["Lakestore"].methods:
        yield Method(
            method.name,
            re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower(),
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )


def pack_error(error: LakestoreError) -> bytes:
    """An error as metadata."""
    return json.dumps([error.kind, error.message, error.applied]).encode()


def unpack_error(data: bytes | None, code: str, details: str) -> LakestoreError:
    """The error that metadata or, failing that, a bare status tells of."""
    if data:
        kind, message, applied = json.loads(data)
        return error_of(kind, message, applied)
    if code in ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "UNKNOWN"):
        return Unavailable(f"the server does not answer ({details}): is it running?", applied="unknown")
    if code == "RESOURCE_EXHAUSTED":
        return error_of("Invalid", f"the message is too large ({details}): send fewer rows, or ask for fewer")
    return error_of("Internal", f"{code}: {details}", "unknown")
